"""Finds out what kind of source the words of a command line name, and opens it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from packer.errors import SourceError, UsageError
from packer.format.schema import check_field_name
from packer.sources.apart import Limits
from packer.sources.base import Looking, OnBad, Source, not_looking, stop
from packer.sources.derived import LabelledSource, PicturedSource
from packer.sources.files import CLOUDS, KIND_OF, find, is_basicsr, kind_of
from packer.sources.units import UNITS_OF, unit_of

#: Files looked at before the kind of a folder is settled: those without a known suffix are opened.
LOOK_AT = 10_000


def _of(kinds: str, usual: Any = None, flag: str = "") -> Any:
    """Return an option that sources of these kinds listen to.

    Args:
        usual: the value if nothing else is asked for.
        flag: what it is called on the command line, if that is not its name.
    """
    about = {"kinds": kinds.split(), "flag": flag}
    if isinstance(usual, dict):
        return field(default_factory=dict, metadata=about)
    return field(default=usual, metadata=about)


@dataclass(frozen=True)
class SourceOptions:
    """What the sources can be told; each takes what concerns it.

    Attributes:
        pick: HDF5: field name to path of the dataset.
        skip: HDF5: fields to leave out.
        axis: HDF5: number of the axis that counts the samples, from the end if negative.
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

    pick: Mapping[str, str] = _of("hdf5", {}, "--field")
    skip: tuple[str, ...] = _of("hdf5", ())
    axis: int = _of("hdf5", 0)
    samples: str | None = _of(" ".join(UNITS_OF))
    encoding: str = _of("hdf5", "utf-8")
    attrs: tuple[str, ...] = _of("hdf5", (), "--attr")
    once: tuple[str, ...] = _of("hdf5", ())
    sparse: tuple[str, ...] = _of("hdf5", ())
    mode: str | None = _of("images basicsr")
    palette: str = _of("images basicsr", "colour")
    max_pixels: int | None = _of("images basicsr")
    patch: int | None = _of("images basicsr")
    stride: int | None = _of("images basicsr")
    downscale: int | None = _of("images basicsr")
    kernel: str = _of("images basicsr", "pillow")
    listed: str | None = _of("images basicsr", None, "--list")
    fields: str = _of("ply", "same")
    cast: Mapping[str, str] = _of("ply", {})
    triangulate: bool = _of("ply", False)
    group: str = _of("ply", "numbered")
    columns: str | None = _of("clouds")
    images: tuple[str, ...] = _of("hdf5 npy", (), "--image")
    label: str | None = _of(" ".join(UNITS_OF))


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
        limits: what opening one file may take if that is the work of a library that can crash (HDF5); it is then
            done in a process of its own. None: in this one.
        looking: told how far finding files and reading headers is.

    Raises:
        UsageError: nothing is there, files of several kinds, or inputs that do not go together.
        SourceError: what the sources raise.
    """
    options = options or SourceOptions()
    named = _named(inputs)
    kinds = {name: _kind(path, options.columns is not None, looking) for name, path in named.items()}
    kind = next(iter(kinds.values()))
    if len(set(kinds.values())) > 1:
        said = ", ".join(f"{named[name]} holds {kind}" for name, kind in kinds.items())
        raise UsageError(f"sources of several kinds cannot be packed together: {said}; pack each alone")
    _check_concern(options, kind)
    unit = unit_of(kind, options.samples).name
    told: dict[str, Any] = {"on_bad": on_bad, "looking": looking}
    # Each kind is imported only when it is met: `packer --help` needs none.
    if kind in ("images", "basicsr"):
        source = _open_pictures(kind, named, unit, options, told)
    elif kind == "npy":
        from packer.sources.npy.opening import open_npy

        source = open_npy(named, samples=unit, **told)
    else:
        source = _open_single(kind, named, options, limits, told)
    if options.images:
        source = PicturedSource(source, options.images)
    if options.label is not None:
        if options.label != "folder":
            raise UsageError(f"--label {options.label}: folder is expected")
        source = LabelledSource(source, list(named.values()))
    return source


def _open_single(
    kind: str, named: Mapping[str, str], options: SourceOptions, limits: Limits | None, told: dict[str, Any]
) -> Source:
    """Open a source of a kind whose files name their fields themselves."""
    if len(named) > 1:
        raise UsageError(f"one {kind} source at a time; name a folder or a quoted glob to take several files")
    name, path = next(iter(named.items()))
    if name:
        raise UsageError(f"{name}=: {kind} files name their fields themselves; give the path alone (--field picks)")
    if kind == "ply":
        from packer.sources.ply.source import open_ply

        chosen: str | tuple[str, ...] = options.fields
        if chosen not in ("same", "common", "all"):
            chosen = tuple(part.strip() for part in options.fields.split(","))
        return open_ply(
            path,
            fields=chosen,
            cast=options.cast,
            triangulate=options.triangulate,
            group=options.group,
            **told,
        )
    if kind == "clouds":
        from packer.sources.clouds import open_clouds

        return open_clouds(path, options.columns or "", **told)
    from packer.sources.hdf5.source import open_hdf5

    return open_hdf5(
        path,
        fields=options.pick or None,
        skip=options.skip,
        axis=options.axis,
        samples=options.samples,
        encoding=options.encoding,
        attrs=options.attrs,
        once=options.once,
        sparse=options.sparse,
        limits=limits,
        **told,
    )


def _open_pictures(
    kind: str, named: Mapping[str, str], unit: str, options: SourceOptions, told: dict[str, Any]
) -> Source:
    from packer.sources.images.clips import ClipSource, units_note
    from packer.sources.images.derived import DownscaledSource, PatchSource
    from packer.sources.images.formats import MAX_PIXELS
    from packer.sources.images.opening import open_images
    from packer.sources.pairing import check_one_field

    opened = open_images(
        {name or "image": path for name, path in named.items()},
        mode=options.mode,
        palette=options.palette,
        max_pixels=MAX_PIXELS if options.max_pixels is None else options.max_pixels,
        samples=unit,
        listed=options.listed,
        **told,
    )
    frames = opened.frames if isinstance(opened, ClipSource) else opened
    if kind == "images" and list(named) == [""] and "image" in frames.folders:
        more = "" if options.samples is None else f" --samples {options.samples}"
        check_one_field(frames.folders["image"], frames.paths["image"], frames.sizes["image"], more)
    if isinstance(opened, ClipSource):
        if options.patch or options.stride or options.downscale:
            raise UsageError("--patch, --stride and --downscale cut single pictures, no clips; leave them out")
        return opened
    if options.samples is None and options.label is None:
        opened.remarks += units_note(opened)
    if options.downscale is None and options.kernel != "pillow":
        raise UsageError("--kernel says how pictures are made smaller; say how small with --downscale")
    if options.patch is None and options.stride is not None:
        raise UsageError("--stride says how far apart squares lie; give their size with --patch")
    source = opened if options.downscale is None else DownscaledSource(opened, options.downscale, options.kernel)
    if options.patch is None:
        return source
    stride = options.patch if options.stride is None else options.stride
    if min(options.patch, stride) < 1:
        raise UsageError(f"--patch {options.patch} --stride {stride}: 1 or more is expected")
    return PatchSource(source, options.patch, stride)


def _check_concern(options: SourceOptions, kind: str) -> None:
    """Raise UsageError if an option is given that the source would not listen to."""
    usual = SourceOptions()
    for option in fields(options):
        kinds = option.metadata["kinds"]
        if kind not in kinds and getattr(options, option.name) != getattr(usual, option.name):
            flag = option.metadata["flag"] or f"--{option.name.replace('_', '-')}"
            raise UsageError(f"{flag} is for sources of {' and '.join(kinds)}, and this one holds {kind}; leave it out")


def _named(inputs: Sequence[str]) -> dict[str, str]:
    """Return the path of each field, of one input without `FIELD=` that of the field "".

    Raises:
        UsageError: there is no input, it names no field, or two have one name, or none.
    """
    if not inputs:
        raise UsageError("no source is named; give a folder, a file, or FIELD=FOLDER for each field")
    split = [_split(text) for text in inputs]
    ((name, times),) = Counter(name for name, _ in split).most_common(1)
    if times == 1:
        return dict(split)
    paths = [path for other, path in split if other == name]
    if name:
        raise UsageError(f"{paths[0]} and {paths[1]} are both named {name}=; each field takes one source")
    raise UsageError(
        f"{times} sources are given without FIELD=, {paths[0]} and {paths[1]} among them: quote a pattern, as in "
        "'train_*.h5', to take all its files as one source, or name the field of each, as in lr=LR hr=HR"
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


def _kind(path: str, clouds: bool, looking: Looking) -> str:
    """Return the kind of the files that `path` names, one of `UNITS_OF`.

    Args:
        clouds: whether files of `CLOUDS` are looked at too; their kind is `clouds`.

    Raises:
        UsageError: there are none, or files of several kinds.
        SourceError: it is a folder that holds no file of any kind.
    """
    if is_basicsr(Path(path)):
        return "basicsr"
    found = find(path, looking)
    kinds = Counter(kind for file in found.files[:LOOK_AT] if (kind := kind_of(found.path(file), clouds)))
    if len(kinds) == 1:
        return next(iter(kinds))
    if kinds:
        said = " and ".join(f"{count} of {kind}" for kind, count in kinds.most_common())
        raise UsageError(f"{path}: files of several kinds ({said}); name one kind with a quoted pattern like '*.png'")
    known = f"{', '.join(CLOUDS)} with --columns x,y,z, and {', '.join(sorted(KIND_OF))}"
    if Path(path).is_dir():
        hidden = ", but for empty or hidden folders" if any(Path(path).iterdir()) else ""
        what = f"holds {len(found.files):,} files, but none that can be packed" if found.files else f"is empty{hidden}"
        raise SourceError(f"the folder {what}; {known} can be packed", path)
    if not found.files:
        raise UsageError(f"{path}: there is no such file or folder, and no file fits it as a pattern")
    raise UsageError(f"{path}: not a kind of file that can be packed; {known} can")
