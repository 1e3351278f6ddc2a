"""Finds out what kind of source the words of a command line name, and opens it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from packer.errors import SourceError, UsageError
from packer.format.schema import check_field_name
from packer.sources.apart import Limits
from packer.sources.base import Looking, OnBad, Source, not_looking, stop
from packer.sources.files import CLOUDS, KIND_OF, find, is_basicsr, kind_of, walk
from packer.sources.units import UNITS_OF, unit_of

if TYPE_CHECKING:
    from packer.sources.images.derived import DownscaledSource
    from packer.sources.images.source import ImageSource

#: Files looked at in a folder before its kind is settled; a folder of millions need not be walked twice.
LOOK_AT = 10_000


_CONCERNS = {
    **dict.fromkeys(("pick", "skip", "axis", "encoding", "attrs", "once", "sparse"), ("hdf5",)),
    "samples": tuple(UNITS_OF),
    **dict.fromkeys(
        ("mode", "palette", "max_pixels", "patch", "stride", "downscale", "kernel", "listed"), ("images", "basicsr")
    ),
    **dict.fromkeys(("fields", "cast", "triangulate", "group"), ("ply",)),
    "columns": ("clouds",),
    "images": ("hdf5", "npy"),
    "label": tuple(UNITS_OF),
}


#: Options of the command line that are not called as they are here.
_FLAGS = {"pick": "--field", "attrs": "--attr", "images": "--image", "listed": "--list"}


@dataclass(frozen=True)
class SourceOptions:
    """What the sources can be told; each takes what concerns it.

    Attributes:
        pick: HDF5: field name to path of the dataset.
        skip: HDF5: fields to leave out.
        axis: HDF5: number of the axis that counts the samples, from the end where negative.
        samples: what one sample is made from, `rows`, `files`, `folders`, `datasets`, `groups` or `groups:PATTERN`;
            None for what `UNITS_OF` has first.
        encoding: HDF5: of text that the file does not say to be UTF-8, such as `latin-1`.
        attrs: HDF5: attributes of the files, datasets or groups that are samples, which become fields.
        once: HDF5: datasets that are the same for all samples, and kept once.
        sparse: HDF5: groups of `data`, `indices` and `indptr`, whose rows are two fields each.
        mode: images: `gray`, `rgb` or `rgba`; None keeps what the files hold.
        palette: images: `colour` or `index`.
        max_pixels: images: larger ones are refused; None for the source's own limit.
        patch: images: cuts squares of so many pixels of the largest field; None packs pictures whole.
        stride: images: pixels from one square to the next; None for `patch`.
        downscale: images: makes a field `lr` so many times as small as the one field.
        kernel: images: how `downscale` does it, `pillow` or `matlab`: bicubic of either.
        listed: images: a file that lists the samples to take, in their order, such as BasicSR's meta_info.txt.
        fields: PLY: `same`, `common`, `all`, or names with commas.
        cast: PLY: field name to dtype.
        triangulate: PLY: makes polygons into triangles.
        group: PLY: `numbered` makes one field of numbered properties, `none` one of each.
        columns: clouds without a header: names and types of their columns, such as `x,y,z,intensity:float32`.
        images: HDF5 and npy: fields that are pictures, (H, W) or (H, W, C); they become fields of kind `image`.
        label: `folder`: makes a field `label` of the first folder in the name of each sample.
    """

    pick: Mapping[str, str] = field(default_factory=dict)
    skip: tuple[str, ...] = ()
    axis: int = 0
    samples: str | None = None
    encoding: str = "utf-8"
    attrs: tuple[str, ...] = ()
    once: tuple[str, ...] = ()
    sparse: tuple[str, ...] = ()
    mode: str | None = None
    palette: str = "colour"
    max_pixels: int | None = None
    patch: int | None = None
    stride: int | None = None
    downscale: int | None = None
    kernel: str = "pillow"
    listed: str | None = None
    fields: str = "same"
    cast: Mapping[str, str] = field(default_factory=dict)
    triangulate: bool = False
    group: str = "numbered"
    columns: str | None = None
    images: tuple[str, ...] = ()
    label: str | None = None


def open_sources(
    inputs: Sequence[str],
    options: SourceOptions | None = None,
    on_bad: OnBad = stop,
    limits: Limits | None = None,
    looking: Looking = not_looking,
) -> Source:
    """Open the source that `inputs` name: `FIELD=PATH` for each field of an image set, or one path.

    Args:
        inputs: each a folder, a file or a glob pattern, with `FIELD=` in front or not.
        limits: what opening one file may take where that is the work of a library that can crash (HDF5); it is then
            done in a process of its own. None: in this one.
        looking: told how far finding files and reading headers is.

    Raises:
        UsageError: nothing is there, files of several kinds, or inputs that do not go together.
        SourceError: what the sources raise.
    """
    options = options or SourceOptions()
    if not inputs:
        raise UsageError("no source is named; give a folder, a file, or FIELD=FOLDER for each field")
    split = [_split(text) for text in inputs]
    named = dict(split)
    if len(named) != len(inputs):
        raise _several(split)
    kinds = {text: _kind(path, options.columns is not None) for text, path in named.items()}
    if len(set(kinds.values())) > 1:
        said = ", ".join(f"{named[name]} holds {kind}" for name, kind in kinds.items())
        raise UsageError(f"sources of several kinds cannot be packed together: {said}; pack each alone")
    kind = next(iter(kinds.values()))
    _check_concern(options, kind)
    unit_of(kind, options.samples)  # refuses one that this kind does not offer
    source = _open(kind, named, options, on_bad, limits, looking)
    if options.images:
        from packer.sources.pictured import PicturedSource

        source = PicturedSource(source, options.images)
    return source if options.label is None else _labelled(source, options.label, list(named.values()))


def _open(
    kind: str,
    named: Mapping[str, str],
    options: SourceOptions,
    on_bad: OnBad,
    limits: Limits | None,
    looking: Looking,
) -> Source:
    """Open sources of one kind. Each kind is imported only when it is met: `packer --help` needs none."""
    if kind in ("images", "basicsr"):
        return _open_pictures(kind, named, options, on_bad, looking)
    if kind == "npy":
        from packer.sources.npy.opening import open_npy

        return open_npy(named, samples=unit_of(kind, options.samples).name, on_bad=on_bad, looking=looking)
    if len(named) > 1:
        raise UsageError(f"one {kind} source at a time; name a folder or a quoted glob to take several files")
    name, path = next(iter(named.items()))
    if kind == "ply":
        from packer.sources.ply.source import open_ply

        _refuse_name(name, kind)
        chosen = _fields(options.fields)
        return open_ply(
            path,
            on_bad=on_bad,
            fields=chosen,
            cast=options.cast,
            triangulate=options.triangulate,
            group=options.group,
            looking=looking,
        )
    if kind == "clouds":
        from packer.sources.clouds import open_clouds

        _refuse_name(name, kind)
        return open_clouds(path, options.columns or "", on_bad=on_bad, looking=looking)
    from packer.sources.hdf5.source import open_hdf5

    _refuse_name(name, kind)
    return open_hdf5(
        path,
        fields=options.pick or None,
        skip=options.skip,
        on_bad=on_bad,
        axis=options.axis,
        samples=options.samples,
        encoding=options.encoding,
        attrs=options.attrs,
        once=options.once,
        sparse=options.sparse,
        limits=limits,
        looking=looking,
    )


def _labelled(source: Source, label: str, paths: Sequence[str]) -> Source:
    from packer.sources.labelled import LabelledSource

    if label != "folder":
        raise UsageError(f"--label {label}: folder is expected")
    return LabelledSource(source, paths)


def _open_pictures(
    kind: str, named: Mapping[str, str], options: SourceOptions, on_bad: OnBad, looking: Looking
) -> Source:
    from packer.sources.images.basicsr import open_basicsr
    from packer.sources.images.clips import ClipSource, units_note
    from packer.sources.images.opening import open_images
    from packer.sources.images.pillow import MAX_PIXELS
    from packer.sources.pairing import check_one_field

    inputs = {name or "image": path for name, path in named.items()}
    limit = MAX_PIXELS if options.max_pixels is None else options.max_pixels
    opened = open_images if kind == "images" else open_basicsr
    source = opened(
        inputs,
        on_bad=on_bad,
        mode=options.mode,
        palette=options.palette,
        max_pixels=limit,
        samples=unit_of(kind, options.samples).name,
        listed=options.listed,
        looking=looking,
    )
    frames = source.frames if isinstance(source, ClipSource) else source
    if kind == "images" and list(named) == [""] and "image" in frames.folders:
        more = "" if options.samples is None else f" --samples {options.samples}"
        check_one_field(frames.folders["image"], frames.paths["image"], frames.sizes["image"], more)
    if isinstance(source, ClipSource):
        if options.patch or options.stride or options.downscale:
            raise UsageError("--patch, --stride and --downscale cut single pictures, no clips; leave them out")
        return source
    if options.samples is None and options.label is None:
        source.remarks += units_note(source)
    return _cut(_downscaled(source, options), options)


def _downscaled(source: ImageSource, options: SourceOptions) -> ImageSource | DownscaledSource:
    if options.downscale is None:
        if options.kernel != "pillow":
            raise UsageError("--kernel says how pictures are made smaller; say how small with --downscale")
        return source
    from packer.sources.images.derived import DownscaledSource

    return DownscaledSource(source, options.downscale, options.kernel)


def _cut(source: ImageSource | DownscaledSource, options: SourceOptions) -> Source:
    if options.patch is None:
        if options.stride is not None:
            raise UsageError("--stride says how far apart squares lie; give their size with --patch")
        return source
    from packer.sources.images.derived import cut

    stride = options.patch if options.stride is None else options.stride
    if min(options.patch, stride) < 1:
        raise UsageError(f"--patch {options.patch} --stride {stride}: 1 or more is expected")
    return cut(source, options.patch, stride)


def _check_concern(options: SourceOptions, kind: str) -> None:
    """Refuse an option that the source would not listen to."""
    for option in fields(options):
        given = getattr(options, option.name)
        usual = option.default if option.default is not MISSING else {}
        concerned = _CONCERNS[option.name]
        if given != usual and kind not in concerned:
            flag = _FLAGS.get(option.name) or f"--{option.name.replace('_', '-')}"
            raise UsageError(
                f"{flag} is for sources of {' and '.join(concerned)}, and this one holds {kind}; leave it out"
            )


def _split(text: str) -> tuple[str, str]:
    """Return the field name (or nothing) and path of an input; a path that exists is taken whole, `=` or not."""
    name, equals, path = text.partition("=")
    if not equals or os.sep in name:
        return "", text
    if Path(text).exists():
        if name and path and Path(path).exists():
            raise UsageError(
                f"{text!r} could be the path of that name, or {path} for the field {name!r}; write "
                f"{os.curdir}{os.sep}{text} for the path, {name}={Path(path).absolute()} for the field"
            )
        return "", text
    if not path:
        raise UsageError(f"{text!r} names no path; FIELD=FOLDER is expected")
    try:
        check_field_name(name)
    except ValueError as error:
        raise UsageError(str(error)) from None
    return name, path


def _several(split: Sequence[tuple[str, str]]) -> UsageError:
    """Say which sources have one field name, or none though each needs one."""
    name = Counter(name for name, _ in split).most_common(1)[0][0]
    paths = [path for other, path in split if other == name]
    if name:
        return UsageError(f"{paths[0]} and {paths[1]} are both named {name}=; each field takes one source")
    return UsageError(
        f"{len(paths)} sources are given without FIELD=, {paths[0]} and {paths[1]} among them: quote a pattern, as in "
        "'train_*.h5', to take all its files as one source, or name the field of each, as in lr=LR hr=HR"
    )


def _kind(path: str, clouds: bool) -> str:
    """Return `images`, `ply`, `hdf5` or `npy`, by the files that `path` names; `basicsr` by what it holds.

    Args:
        clouds: whether files of `CLOUDS` are looked at too; their kind is `clouds`.
    """
    place = Path(path)
    if is_basicsr(place):
        return "basicsr"
    if place.is_dir():
        return _kind_of_folder(place, clouds)
    found = find(path)
    if not found.files:
        raise UsageError(f"{path}: there is no such file or folder, and no file fits it as a pattern")
    kinds = Counter(kind for file in found.files if (kind := kind_of(found.path(file), clouds)))
    if not kinds:
        raise UsageError(f"{path}: not a kind of file that can be packed; {_known()} can")
    return _only(kinds, path)


def _kind_of_folder(folder: Path, clouds: bool) -> str:
    place = folder.as_posix()
    files = [file for file, _ in islice(walk(place), LOOK_AT) if file[-1] != "/"]
    seen = len(files)
    kinds = Counter(kind for file in files if (kind := kind_of(f"{place}/{file}", clouds)))
    if not kinds:
        empty = "is empty, but for empty or hidden folders" if any(folder.iterdir()) else "is empty"
        what = f"holds {seen} files, but none that can be packed" if seen else empty
        raise SourceError(f"the folder {what}; {_known()} can be packed", str(folder))
    return _only(kinds, str(folder))


def _only(kinds: Counter[str], path: str) -> str:
    if len(kinds) > 1:
        said = " and ".join(f"{count} of {kind}" for kind, count in kinds.most_common())
        raise UsageError(f"{path}: files of several kinds ({said}); name one kind with a quoted pattern like '*.png'")
    return next(iter(kinds))


def _known() -> str:
    return f"{', '.join(CLOUDS)} with --columns x,y,z, and {', '.join(sorted(KIND_OF))}"


def _refuse_name(name: str, kind: str) -> None:
    if name:
        raise UsageError(f"{name}=: {kind} files name their fields themselves; give the path alone (--field picks)")


def _fields(text: str) -> str | tuple[str, ...]:
    return text if text in ("same", "common", "all") else tuple(part.strip() for part in text.split(","))
