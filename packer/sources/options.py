"""The options of sources, with their flags and values; the command line is made from them."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import Field, dataclass, field
from typing import Any

from packer.errors import UsageError, first_few

#: Options that a message shows, to be typed.
MOST_SKIPS = 3


def _of(
    usual: Any = None,
    flag: str = "",
    *,
    choices: str = "",
    form: str | None = None,
    least: int = 0,
    number: type[float] | None = None,
) -> Any:
    """Return an option of sources; the records of kinds say which kinds it is for.

    Args:
        usual: the default; empty for an option that may be given several times.
        flag: its name on the command line, if it has another one there.
        choices: all values that it takes, with `|` between them.
        form: of a value, as the command line shows it.
        least: the least number that it takes, a whole one.
        number: float if it takes any number.
    """
    about = {"flag": flag, "choices": choices, "form": form, "least": least, "number": number}
    if isinstance(usual, dict):
        return field(default_factory=dict, metadata=about)
    return field(default=usual, metadata=about)


@dataclass(frozen=True)
class SourceOptions:
    """Options of the sources; each source takes those that concern it. None leaves the choice to the source.

    The command line is made from this class: its options are the attributes, its help the lines below.

    Attributes:
        samples: What one sample is made from; PATTERN as in /data/*, and PATH of an array that says where episodes of
            rows end.  [default: rows of hdf5, zarr, npy and tables, files of all others]
        label: Make a field label: the number of the first folder that a file lies in, such as cat of cat/1.png.
        classes: Make a field label of this field of text: the number of its text among all texts, in their order.
        mode: Images: convert all to this.
        palette: Images with a palette: pack their colours, or the indices.  [default: indices of masks, else colours]
        max_pixels: Images: refuse larger ones.
        orient: Images: turn pixels as the orientation tag (EXIF) of the file says.
        patch: Images: cut patches of this many pixels from the largest field.
        stride: Images: pixels from one patch to the next.  [default: --patch]
        downscale: Images: make a field lr, this many times smaller, by bicubic.
        kernel: --downscale: which bicubic; papers on super-resolution use MATLAB's.
        listed: Images: pack the samples that FILE names, in its order: each line or its first word, as in BasicSR's
            meta_info.txt.
        fields: PLY, PCD and LAS: which fields to take if the files differ in them.
        cast: PLY, PCD, LAS and NIfTI: convert a field, as in xyz=float32.
        triangulate: PLY: make polygons into triangles, a fan from the first corner of each face.
        group: PLY, PCD and LAS: make a field of each numbered property (rot_0 to rot_3), not one of all (rot): none; or
            one field of these properties, such as rgb=diffuse_red,diffuse_green,diffuse_blue.
        columns: Clouds without a header (.bin, .txt, .xyz, .pts): names and types of their columns, such as
            x,y,z,intensity:float32 or x,y,z:float32,r,g,b:uint8, a field each; or of a source FIELD= whose columns are
            one field, such as boxes=cls,x,y,w,h:float32 of files beside images. Tables: columns that are one field,
            such as points=part_*:float32:68,2; or lists that all have so many values, such as v=emb:float32:512.
        missing: Fields of files beside images, such as boxes: a sample without a file of this field has an empty value.
        pick: HDF5, zarr and npy: take this array, under this name.
        skip: HDF5, zarr and npy: leave out a field, group or array; a column of tables, a suffix of
            tars, or a feature of LeRobot.
        axis: HDF5, zarr and npy: number of the axis that counts samples.
        attrs: HDF5 and zarr: make a field of this attribute of each file, dataset or group that is a sample.
        scaled: HDF5 and zarr: apply scale_factor, add_offset, _FillValue, missing_value and _Unsigned (missing
            values become NaN). LAS: so do numbers that no_data names.
        stored: HDF5, zarr and LAS: pack numbers as they are stored, in spite of such attributes.
        unwritten: HDF5, zarr and TIFF: chunks that were never written: a remark counts them, or they are refused.
        once: HDF5, zarr and npy: keep this array once, as ds.constants: it is the same for all samples, such as a
            grid.
        sparse: HDF5 and zarr: pack rows of this sparse matrix (data, indices, indptr), as X.indices and X.data.
        images: HDF5, zarr and npy: the arrays of this field, (H, W) or (H, W, C), are images.
        files: Tables: this column names files; what they hold is the field: images, arrays, clouds or texts.
        root: --files: the folder that names of files count from.  [default: that of the table]
        key: A table beside pictures: its column with the names of these.  [default: the one that has them]
        encoded: HDF5, zarr and npy: the bytes of this field, uint8 (N,) or (T, N), are files of images. Tables: the
            binary values of this column are, though the first one does not begin so.
        fill: Tables: the value of a column in rows that have none, as in age=-1.
        delimiter: Tables: what is between the columns of CSV, such as ';' or tab.  [default: tab of .tsv, else comma]
        every: Videos: take every nth frame.
        fps: Videos: take this many frames for each second, those that are shown nearest to each time.
        size: Videos: make frames this large, in pixels, as in 240,320.
        short: Videos: make the shorter side of frames this many pixels long, and the other in proportion.
        start: Videos: take frames that are shown from this time on.
        stop: Videos: take frames that are shown before this time.
    """

    samples: str | None = _of(form="rows|files|folders|datasets|groups[:PATTERN]|episodes[:PATH]")
    label: str | None = _of(choices="folder")
    classes: str | None = _of(form="FIELD")
    mode: str | None = _of(choices="gray|rgb|rgba")
    palette: str | None = _of(choices="colour|index")
    max_pixels: int | None = _of(least=1)
    orient: bool = _of(False)
    patch: int | None = _of(least=1)
    stride: int | None = _of(least=1)
    downscale: int | None = _of(least=2)
    kernel: str = _of("pillow", choices="pillow|matlab")
    listed: str | None = _of(None, "--list", form="FILE")
    fields: str = _of("same", form="same|common|all|A,B")
    cast: Mapping[str, str] = _of({}, form="FIELD=DTYPE")
    triangulate: bool = _of(False)
    group: str | tuple[str, ...] = _of((), form="none|FIELD=A,B")
    columns: str | tuple[str, ...] = _of((), form="[FIELD=]NAMES[:TYPE[:SHAPE]]")
    missing: Mapping[str, str] = _of({}, form="FIELD=empty")
    pick: Mapping[str, str] = _of({}, "--field", form="NAME=/PATH")
    skip: tuple[str, ...] = _of((), form="FIELD")
    axis: int = _of(0)
    attrs: tuple[str, ...] = _of((), "--attr", form="NAME")
    scaled: bool = _of(False)
    stored: bool = _of(False)
    unwritten: str = _of("remark", choices="remark|refuse")
    once: tuple[str, ...] = _of((), form="PATH")
    sparse: tuple[str, ...] = _of((), form="PATH")
    images: tuple[str, ...] = _of((), "--image", form="FIELD")
    files: tuple[str, ...] = _of((), form="COLUMN")
    root: str | None = _of(form="FOLDER")
    key: str | None = _of(form="COLUMN")
    encoded: tuple[str, ...] = _of((), form="COLUMN")
    fill: Mapping[str, str] = _of({}, form="COLUMN=VALUE")
    delimiter: str | None = _of(form="CHARACTER")
    every: int | None = _of(least=1)
    fps: float | None = _of(number=float)
    size: str | None = _of(form="HEIGHT,WIDTH")
    short: int | None = _of(least=1)
    start: float | None = _of(form="SECONDS", number=float)
    stop: float | None = _of(form="SECONDS", number=float)


def flag_of(option: Field[Any]) -> str:
    """Return what an option, of sources or of packing, is called on the command line."""
    return option.metadata.get("flag") or f"--{option.name.replace('_', '-')}"


def naming(name: str, paths: Iterable[str]) -> list[str]:
    """Return the paths or field names in `paths` that name the path or field `name`, or a group above it."""
    return [path for path in paths if f"{_dotted(name)}.".startswith(f"{_dotted(path)}.")]


def skipping(paths: Iterable[str], kept: Iterable[str]) -> str:
    """Return what leaves out some paths, to be typed: a group as one if nothing in it is kept; if many, the first."""
    kept = list(kept)
    names = dict[str, None]()
    for path in paths:
        steps = path.strip("/").split("/")
        groups = (".".join(steps[: n + 1]) for n in range(len(steps)))
        names[next((group for group in groups if not any(naming(name, [group]) for name in kept)), ".".join(steps))] = (
            None
        )
    return first_few([f"--skip {shlex.quote(name)}" for name in names], MOST_SKIPS, " ")


def columns_of(options: SourceOptions, fields: Iterable[str]) -> tuple[str, ...]:
    """Return what is given of the columns of some fields, whose names may be empty."""
    texts = (options.columns,) if isinstance(options.columns, str) else options.columns
    return tuple(text for text in texts if text.rpartition("=")[0] in fields)


def columns_by_field(options: SourceOptions) -> dict[str, str]:
    """Return the columns that are given for each field; those without FIELD= under the empty name.

    Raises:
        UsageError: there are two of one field.
    """
    by_field: dict[str, str] = {}
    for text in (options.columns,) if isinstance(options.columns, str) else options.columns:
        field, _, columns = text.rpartition("=")
        if field in by_field:
            raise UsageError(f"--columns {text}: there are columns of {field or 'all'} already; give them once")
        by_field[field] = columns
    return by_field


def _dotted(path: str) -> str:
    return path.strip("/").replace("/", ".")
