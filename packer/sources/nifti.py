"""NIfTI volumes (`.nii`, `.nii.gz`) as samples, read by nibabel: one field a source, one sample a name.

    image=imagesTr label=labelsTr       BRATS_001_0000.nii.gz ... BRATS_001_0003.nii.gz and BRATS_001.nii.gz

A volume is what nibabel gives: axes (X, Y, Z), or (X, Y, Z, C). Files that nnU-Net numbers from `_0000` on are the
channels of one volume, in order, as its last axis. Values are as stored; if the header scales them, they are float32,
or float64 where that would make values equal that are not. Volumes of several dtypes become the smallest one that
holds all their values, or what `--cast` says.
Two more fields say where a voxel lies: `affine`, (4, 4) float64, from voxels to millimetres, and `spacing`, (3,)
float32, the millimetres from one voxel to the next. They are those of the first field.
"""

from __future__ import annotations

import gzip
import math
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError, UsageError, first_few
from packer.format import DTYPES, FieldSpec
from packer.sources.agreeing import leave_out, misfits
from packer.sources.dtypes import DoesNotFitError, check_casts, common_dtype, convert, holds
from packer.sources.files import FileSet, open_raw, unreadable
from packer.sources.kinds import Kind, pair_by_name
from packer.sources.looking import AFTER, Header
from packer.sources.options import SourceOptions
from packer.sources.table import Files, LaidField, Row, SampleTable, bounds_of
from packer.watcher import Watcher

_PLACE = (
    FieldSpec(name="affine", dtype="float64", shape=(4, 4)),
    FieldSpec(name="spacing", dtype="float32", shape=(3,)),
)
_SUFFIX = re.compile(r"\.nii(\.gz)?$", re.IGNORECASE)
_FLOAT32 = np.finfo(np.float32)
_CHANNEL = re.compile(r"(.+)_(\d{4})")
#: Numbers of a sample: the files that are channels of the volume of a field, 0 if its one file is all of it; and
#: whether the affines of its fields differ.
_CHANNELS, _APART = "{}.channels", "apart"


# ---------------------------------------------------------------- which files are a volume


def pair(file_sets: Mapping[str, FileSet], options: SourceOptions, watcher: Watcher) -> tuple[SampleTable, list[str]]:
    """Return the samples that volumes of the fields make, as `pair_by_name` does; channels are files of one volume."""
    if taken := {spec.name for spec in _PLACE} & file_sets.keys():
        raise UsageError(f"{min(taken)}= is a field that every volume has; name the source otherwise")
    check_casts(options.cast, file_sets)
    files_of, names = dict[str, dict[str, Sequence[str]]](), dict[str, list[str]]()
    for field in file_sets:
        files_of[field], names[field] = _volumes(field, file_sets)
    firsts = {field: file_set._replace(files=list(files_of[field])) for field, file_set in file_sets.items()}
    table, remarks = pair_by_name(firsts, options, watcher, names)
    inputs, numbers = dict(table.inputs), {}
    for field, files in table.inputs.items():
        channels = [len(files_of[field][first]) for first in files.files]
        numbers[_CHANNELS.format(field)] = np.array(channels)
        if any(channels):
            every = [file for first in files.files for file in files_of[field][first] or (first,)]
            inputs[field] = Files(files.folder, every, bounds_of(np.maximum(channels, 1)))
    return msgspec.structs.replace(table, inputs=inputs, numbers=numbers), remarks


def _volumes(field: str, file_sets: Mapping[str, FileSet]) -> tuple[dict[str, Sequence[str]], list[str]]:
    """Return by the first file of each volume of a field its channels, if files are these, and the name of each.

    Files are channels if most names end in `_` and four digits, which count from 0000 in each volume. If all would be
    one volume, they are channels only if another field has a file of its name: they could be volumes as well.
    """
    stems = {file: _SUFFIX.sub("", file) for file in file_sets[field].files}
    cases: dict[str, list[str]] = defaultdict(list)
    for file in sorted(stems):
        if match := _CHANNEL.fullmatch(stems[file]):
            cases[match[1]].append(file)
    whole = {
        case: files
        for case, files in cases.items()
        if [stems[file] for file in files] == [f"{case}_{n:04d}" for n in range(len(files))]
    }
    others = {_SUFFIX.sub("", file) for name, file_set in file_sets.items() if name != field for file in file_set.files}
    channels = {file for files in whole.values() for file in files}
    if 2 * len(channels) <= len(stems) or (len(whole) == 1 and not whole.keys() & others):
        whole, channels = {}, set()
    firsts = {file: stem for file, stem in stems.items() if file not in channels}
    firsts |= {files[0]: case for case, files in whole.items()}
    by_first = {files[0]: files for files in whole.values()}
    return {first: by_first.get(first, ()) for first in firsts}, list(firsts.values())


# ---------------------------------------------------------------- what headers say


def look(row: Row, options: SourceOptions) -> Header:
    """Return what the headers of the volumes of a sample say.

    Raises:
        SourceError: a file is damaged or cannot be packed, or the channels or fields differ in size.
    """
    layout, numbers, affines, sizes = list[LaidField](), dict[str, int](), list[NDArray[np.float64]](), {}
    for field, paths in row.paths.items():
        shape, dtype, affine, extra = _look_at(paths, row.numbers[_CHANNELS.format(field)])
        sizes[field] = shape[:3]
        axes = tuple(f"{field}[{axis}]" for axis in range(len(shape)))
        numbers |= dict(zip(axes, shape, strict=True))
        form = f"{len(shape)} axes" + "".join(f", {n} channels" for n in shape[3:])
        numbers |= {AFTER.format(field): extra} if extra else {}
        layout.append(LaidField(field, dtype, axes, form))
        affines.append(affine)
    if len(set(sizes.values())) > 1:
        raise SourceError(f"the fields of one sample differ in size: {sizes}; fix it or move it away", row.path)
    return Header(tuple(layout), numbers | {_APART: int(not _lie_alike(*affines))})


def _look_at(paths: Sequence[str], channels: int) -> tuple[tuple[int, ...], str, NDArray[np.float64], int]:
    """Return shape and dtype of a volume, the affine of its first file, and how many bytes follow its values."""
    kinds, affines, extra = [], list[NDArray[np.float64]](), 0
    for path in paths:
        with _loaded(path) as image:
            kinds.append((image.shape, _dtype_of(image, path)))
            affines.append(image.affine)
            extra += max(0, _size_of(path) - _end_of(image))
        if not _lie_alike(affines[0], affines[-1]):
            reason = f"its affine is not that of {Path(paths[0]).name}, another channel of the same volume"
            raise SourceError(f"{reason}; resample them to one grid, or move them away", path)
    shapes, dtypes = zip(*kinds, strict=True)
    dtype = common_dtype(dtypes)
    if len(set(shapes)) > 1 or dtype is None:
        channels_in_words = [
            f"{Path(path).name} is {dtype} {shape}" for path, (shape, dtype) in zip(paths, kinds, strict=True)
        ]
        reason = f"the channels of one volume differ: {first_few(channels_in_words)}; fix them or move them away"
        raise SourceError(reason, paths[0])
    return (*shapes[0], channels) if channels else shapes[0], dtype, affines[0], extra


def _end_of(image: Any) -> int:
    """Return the byte after the last value."""
    return int(image.dataobj.offset + math.prod(image.shape) * image.get_data_dtype().itemsize)


def _size_of(path: str) -> int:
    """Return the bytes of a file, without compression: gzip ends with their number modulo 2**32 (RFC 1952, 2.3.1)."""
    with open_raw(path) as file:
        is_compressed = path.lower().endswith(".gz")
        end = file.seek(-4 if is_compressed else 0, os.SEEK_END)
        return int.from_bytes(file.read(4), "little") if is_compressed else end


def _dtype_of(image: Any, path: str) -> str:
    """Return the dtype that values have when they are read; raises SourceError if they cannot be packed.

    Scaled values are float32 if that keeps values apart which are stored as different ones.
    """
    stored, is_scaled = image.get_data_dtype().newbyteorder("="), (image.dataobj.slope, image.dataobj.inter) != (1, 0)
    if stored.name not in DTYPES or (stored.kind == "c" and is_scaled):
        values_in_words = f"{'scaled ' if is_scaled else ''}values of {stored.name}"
        raise SourceError(f"holds {values_in_words}, which cannot be packed; save it as float32 or integers", path)
    if not is_scaled:
        return str(stored.name)
    slope, intercept = abs(float(image.dataobj.slope)), abs(float(image.dataobj.inter))
    if stored.kind == "f":
        return "float32" if stored.itemsize <= _FLOAT32.dtype.itemsize and intercept == 0 else "float64"
    bits = 8 * stored.itemsize
    largest = slope * 2.0**bits + intercept  # the next larger float32 is at most largest * eps away
    return "float32" if largest * float(_FLOAT32.eps) < slope else "float64"


def _lie_alike(first: NDArray[np.float64], *others: NDArray[np.float64]) -> bool:
    """Return whether affines are the same, to a hundredth of a millimetre."""
    return all(affine is first or np.allclose(affine, first, atol=1e-2) for affine in others)


@contextmanager
def _loaded(path: str) -> Iterator[Any]:
    """Open a file by nibabel; errors of nibabel, gzip and numpy on damaged files become a SourceError."""
    import nibabel

    try:
        with open_raw(path) as file:
            file.read(1)  # nibabel says of no error of the system what it was
        image = nibabel.load(path)
        if isinstance(image, nibabel.Cifti2Image):
            raise SourceError(
                "is CIFTI-2, a matrix over surfaces and voxels, and no volume; save its matrix as .npy, with "
                "np.save(OUT, nibabel.load(FILE).get_fdata())",
                path,
            )
        if not isinstance(image, nibabel.Nifti1Pair):
            raise SourceError("is no NIfTI, whatever its name says; save it as one", path)
        yield image
    except (SourceError, MemoryError):
        raise
    except Exception as error:
        raise unreadable(
            error, path, f"cannot be read as NIfTI ({error or type(error).__name__}); download it again"
        ) from error


# ---------------------------------------------------------------- what volumes have in common


def agree(table: SampleTable, options: SourceOptions, remarks: list[str], watcher: Watcher) -> SampleTable:
    """Return the samples whose volumes have the axes of most, and dtypes that one dtype holds.

    Raises:
        UsageError: complex values are to be cast.
        SourceError: what `watcher.bad` raises; no sample is left.
    """
    casts, layouts, counts = options.cast, table.layouts, table.counts()
    forms = table.in_words()
    model, apart = misfits(forms, counts)
    alike = {number: count for number, count in counts.items() if number not in apart}
    dtypes = [{laid.name: laid.dtype for laid in layout} for layout in layouts]
    mixed = [name for name in forms[model] if name not in casts and not common_dtype(dtypes[n][name] for n in alike)]
    if mixed:
        in_words = [{name: f"{dtypes[n][name]} of {forms[n][name]}" for name in mixed} for n in range(len(layouts))]
        _, by_dtype = misfits(in_words, alike)
        casts_in_words = " or ".join(f"--cast {name}=DTYPE" for name in mixed)
        apart |= {n: f"{how}, and no dtype holds both ({casts_in_words} converts)" for n, how in by_dtype.items()}
    table = leave_out(table, apart, "differs from most volumes: {how}; fix it or move it away", watcher)
    dtype_of = {}
    for place, name in enumerate(forms[model]):
        of_field = Counter[str]()
        for number, count in table.counts().items():
            of_field[table.layouts[number][place].dtype] += count
        dtype_of[name], conversions = _dtype_of_field(name, of_field, casts)
        remarks += conversions
        if table.count and table.numbers[_CHANNELS.format(name)][0]:
            remarks.append(f"field {name}: files numbered from _0000 on are the channels of one volume, its last axis")
    shapes = {name: table.shapes(name) for name in forms[model]}
    for name, shape in shapes.items():
        if shape is not None and shape.shape[1] == 4 and (shape[:, 3] == 1).all():
            flat = [other for other, of in shapes.items() if of is not None and of.shape[1] == 3]
            if flat:
                remarks.append(f"field {name} has a last axis of one, which {flat[0]} has not: it is packed as it is")
    if others := [table.names[n] for n in np.flatnonzero(table.numbers[_APART]).tolist()] if table.names else []:
        kept = next(iter(table.inputs))
        remarks.append(f"affines of the fields differ in {first_few(others)}; that of {kept} is kept")
    return table.relaid(lambda laid: laid._replace(dtype=dtype_of[laid.name]))


def _dtype_of_field(field: str, dtypes: Mapping[str, int], casts: Mapping[str, str]) -> tuple[str, list[str]]:
    """Return the dtype of a field, and a sentence for the plan if volumes of other dtypes are converted to it.

    Args:
        dtypes: how many volumes have each dtype.
        casts: dtypes of fields that are converted.
    """
    if field in casts and any(np.dtype(dtype).kind == "c" for dtype in dtypes):
        raise UsageError(f"--cast {field}={casts[field]}: values of {field} are complex; leave it out")
    dtype = casts.get(field) or common_dtype(dtypes) or max(dtypes, key=dtypes.__getitem__)
    others = {other: count for other, count in dtypes.items() if other != dtype}
    if not others or field in casts:
        return dtype, []
    counts_in_words = " and ".join(f"{count:,} of {other}" for other, count in others.items())
    advice = f"--cast {field}=DTYPE chooses another"
    return dtype, [f"field {field}: {counts_in_words} become {dtype}, which holds all values exactly; {advice}"]


# ---------------------------------------------------------------- values


def read(row: Row, options: SourceOptions) -> dict[str, Any]:
    """Return the volumes of a sample, C-contiguous and native-endian, and where that of the first field lies."""
    sample, places = dict[str, Any](), list[dict[str, Any]]()
    for laid, (field, paths) in zip(row.layout, row.paths.items(), strict=True):
        channels = []
        for path in paths:
            with _loaded(path) as image:
                if path.lower().endswith(".gz"):  # as a whole, so that its checksum is compared
                    data = gzip.decompress(Path(path).read_bytes())
                    image = type(image).from_bytes(data)
                    if len(data) > max(_end_of(image), _size_of(path)):  # the header of a file of several members
                        reason = f"has {len(data) - _end_of(image):,} bytes after its values, which gzip does not say"
                        raise SourceError(f"{reason}; gunzip it, and gzip it again", path)
                channels.append(_values(image, laid.dtype, field in options.cast, path))
                spacing = np.asarray(image.header["pixdim"][1:4], np.float32)
                places.append({"affine": image.affine, "spacing": spacing})
        has_channels = row.numbers[_CHANNELS.format(field)]
        values = np.stack(channels, axis=-1) if has_channels else channels[0]
        sample[field] = np.ascontiguousarray(values)
    return sample | places[0]


def _values(image: Any, dtype: str, is_cast: bool, path: str) -> NDArray[Any]:
    """Return the values of a file in the dtype of the field.

    Args:
        is_cast: whether the dtype was asked for, so that it may not hold all values.
    """
    own_dtype = _dtype_of(image, path)
    if not (is_cast or holds(dtype, own_dtype)):
        raise SourceError("has changed since its header was read; run again", path)
    try:
        return convert(np.asarray(image.dataobj, dtype if holds(dtype, own_dtype) else own_dtype), dtype)
    except DoesNotFitError as error:
        raise SourceError(f"{error.value:g} does not fit {dtype}, which --cast asks for", path) from None


KIND = Kind(
    "nifti",
    (".nii", ".nii.gz"),
    look,
    read,
    lies_beside=True,
    needs=("nibabel", "NIfTI", "nifti"),
    options=("cast",),
    unnamed="image",
    pair=pair,
    agree=agree,
    more=_PLACE,
    origin=lambda options, table: {"cast": dict(options.cast)} if options.cast else {},
)
