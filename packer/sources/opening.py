"""Finds out what kind of source the words of a command line name, and opens it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any

from packer.errors import SourceError, UsageError, first_few
from packer.format.manifest import MANIFEST
from packer.format.schema import check_field_name
from packer.sources.apart import Limits
from packer.sources.base import Looking, OnBad, Source, not_looking, stop
from packer.sources.derived import LabelledSource, PicturedSource
from packer.sources.files import CLOUDS, KIND_OF, find, is_basicsr, kind_of
from packer.sources.units import UNITS_OF, unit_of

#: Files looked at before the kind of a folder is settled: those without a known suffix are opened.
LOOK_AT = 10_000
#: Kinds of sources that hold pictures, and all kinds.
_PICTURES, _ALL = "images basicsr", " ".join(UNITS_OF)


def _of(
    kinds: str, usual: Any = None, flag: str = "", *, choices: str = "", form: str | None = None, least: int = 0
) -> Any:
    """Return an option that sources of these kinds listen to.

    Args:
        usual: the value if nothing else is asked for; empty for what may be given several times.
        flag: what it is called on the command line, if that is not its name.
        choices: all values that it takes, with `|` between them.
        form: of a value, as the command line shows it.
        least: the least number that it takes.
    """
    about = {"kinds": kinds.split(), "flag": flag, "choices": choices, "form": form, "least": least}
    if isinstance(usual, dict):
        return field(default_factory=dict, metadata=about)
    return field(default=usual, metadata=about)


@dataclass(frozen=True)
class SourceOptions:
    """Options of the sources; each source takes those that concern it. None leaves the choice to the source.

    The command line is made from this class: its options are the attributes, its help the lines below.

    Attributes:
        mode: Images: convert all to this.
        palette: Images with a palette: pack their colours, or the indices.
        max_pixels: Images: refuse larger ones.
        patch: Images: cut squares of this many pixels from the largest field.
        stride: Images: pixels from one square to the next.  [default: --patch]
        downscale: Images: make a field lr, this many times smaller, by bicubic.
        kernel: --downscale: which bicubic; papers on super-resolution use MATLAB's.
        listed: Images: pack the samples that FILE names, in its order: each line or its first word, as in BasicSR's
            meta_info.txt.
        fields: PLY: which fields to take if the files differ in them.
        cast: PLY: convert a field, as in xyz=float32.
        triangulate: PLY: make polygons into triangles, a fan from the first corner of each face.
        group: PLY: make one field of numbered properties (rot of rot_0 to rot_3), or a field of each.
        columns: Clouds without a header (.bin, .txt, .xyz, .pts): names and types of their columns, such as
            x,y,z,intensity:float32 or x,y,z:float32,r,g,b:uint8.
        label: Make a field label: the number of the first folder that a file lies in, such as cat of cat/1.png.
        pick: HDF5: take this dataset, under this name.
        skip: HDF5: leave out a field, dataset or group.
        axis: HDF5: number of the axis that counts samples.
        samples: What one sample is made from; PATTERN as in /data/*.  [default: rows of HDF5 and npy, files of images
            and PLY]
        attrs: HDF5: make a field of this attribute of each file, dataset or group that is a sample.
        once: HDF5: keep this dataset once, as ds.constants: it is the same for all samples, such as a grid.
        sparse: HDF5: pack rows of this sparse matrix (data, indices, indptr), as X.indices and X.data.
        images: HDF5 and npy: the arrays of this field, (H, W) or (H, W, C), are pictures.
        encoding: HDF5: encoding of text that the file does not mark as UTF-8, such as latin-1.
    """

    mode: str | None = _of(_PICTURES, choices="gray|rgb|rgba")
    palette: str = _of(_PICTURES, "colour", choices="colour|index")
    max_pixels: int | None = _of(_PICTURES, least=1)
    patch: int | None = _of(_PICTURES, least=1)
    stride: int | None = _of(_PICTURES, least=1)
    downscale: int | None = _of(_PICTURES, least=2)
    kernel: str = _of(_PICTURES, "pillow", choices="pillow|matlab")
    listed: str | None = _of(_PICTURES, None, "--list", form="FILE")
    fields: str = _of("ply", "same", form="same|common|all|A,B")
    cast: Mapping[str, str] = _of("ply", {}, form="FIELD=DTYPE")
    triangulate: bool = _of("ply", False)
    group: str = _of("ply", "numbered", choices="numbered|none")
    columns: str | None = _of("clouds", form="NAMES[:TYPE]")
    label: str | None = _of(_ALL, choices="folder")
    pick: Mapping[str, str] = _of("hdf5", {}, "--field", form="NAME=/PATH")
    skip: tuple[str, ...] = _of("hdf5", (), form="FIELD")
    axis: int = _of("hdf5", 0)
    samples: str | None = _of(_ALL, form="rows|files|folders|datasets|groups[:PATTERN]")
    attrs: tuple[str, ...] = _of("hdf5", (), "--attr", form="NAME")
    once: tuple[str, ...] = _of("hdf5", (), form="PATH")
    sparse: tuple[str, ...] = _of("hdf5", (), form="PATH")
    images: tuple[str, ...] = _of("hdf5 npy", (), "--image", form="FIELD")
    encoding: str = _of("hdf5", "utf-8", form="NAME")


def flag_of(option: Field[Any]) -> str:
    """Return what a field of SourceOptions is called on the command line."""
    return option.metadata["flag"] or f"--{option.name.replace('_', '-')}"


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
    _check_options(options, kind)
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
        source = LabelledSource(source, list(named.values()))
    return source


def _open_single(
    kind: str, named: Mapping[str, str], options: SourceOptions, limits: Limits | None, told: dict[str, Any]
) -> Source:
    """Open a source of a kind whose files name their fields themselves."""
    if len(named) > 1:
        raise UsageError(
            f"only one source of {kind} can be packed at a time; name a folder or a quoted pattern of files"
        )
    name, path = next(iter(named.items()))
    if name:
        more = " and name fields with --field NAME=/PATH" if kind == "hdf5" else ""
        raise UsageError(f"{name}=: {kind} files name their fields themselves; leave {name}= out{more}")
    if kind == "ply":
        from packer.sources.ply.source import open_ply

        return open_ply(
            path,
            fields=options.fields,
            cast=options.cast,
            triangulate=options.triangulate,
            numbered=options.group == "numbered",
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
            raise UsageError("--patch, --stride and --downscale are for single pictures, not for clips; leave them out")
        return opened
    if options.samples is None and options.label is None:
        opened.remarks += units_note(opened)
    if options.downscale is None and options.kernel != "pillow":
        raise UsageError("--kernel needs --downscale, which says how many times smaller pictures are made")
    if options.patch is None and options.stride is not None:
        raise UsageError("--stride needs --patch, which says how large the squares are")
    source = opened if options.downscale is None else DownscaledSource(opened, options.downscale, options.kernel)
    return source if options.patch is None else PatchSource(source, options.patch, options.stride or options.patch)


def _check_options(options: SourceOptions, kind: str) -> None:
    """Raise UsageError if an option has a value that it cannot have, or does not concern the source."""
    for option in fields(options):
        about, value, flag = option.metadata, getattr(options, option.name), flag_of(option)
        if value == getattr(SourceOptions(), option.name):
            continue
        if kind not in about["kinds"]:
            kinds = " and ".join(about["kinds"])
            raise UsageError(f"{flag} is for sources of {kinds}, but this one holds {kind}; leave it out")
        choices = about["choices"].split("|")
        if about["choices"] and value not in choices:
            raise UsageError(f"{flag} {value}: {' or '.join(choices)} is expected")
        if about["least"] and value < about["least"]:
            raise UsageError(f"{flag} {value}: {about['least']} or more is expected")


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
        f"{times} sources are given without FIELD= ({first_few(paths)}): quote a pattern, as in "
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
        said = ", ".join(f"{count:,} of {kind}" for kind, count in kinds.most_common())
        raise UsageError(f"{path}: files of several kinds ({said}); name one kind with a quoted pattern like '*.png'")
    known = f"{', '.join(sorted(KIND_OF))}, and with --columns x,y,z also {', '.join(CLOUDS)}"
    if (Path(path) / MANIFEST).is_file():
        raise UsageError(
            f"{path} is a packed dataset; `packer repack` packs it again, `packer append` and `merge` join several"
        )
    if Path(path).is_dir():
        hidden = ", apart from hidden files and empty folders" if any(Path(path).iterdir()) else ""
        what = (
            f"holds {len(found.files):,} files, but none of a kind that can be packed"
            if found.files
            else f"is empty{hidden}"
        )
        raise SourceError(f"the folder {what}; files that can be packed: {known}", path)
    if not found.files:
        raise UsageError(f"{path}: there is no such file or folder, and no file fits it as a pattern")
    raise UsageError(f"{path}: not a kind of file that can be packed; these can be: {known}")
