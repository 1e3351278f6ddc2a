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
import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError, UsageError, first_few
from packer.format import DTYPES, FieldSpec
from packer.sources.base import Block, Source, common_shape, faults_of, joined
from packer.sources.dtypes import DoesNotFitError, check_casts, common_dtype, convert, holds
from packer.sources.files import FileSet, join
from packer.sources.headers import Columns, count_layouts, misfits, read_headers
from packer.sources.options import SourceOptions
from packer.sources.pairing import partners
from packer.watcher import Watcher

_PLACE = (
    FieldSpec(name="affine", dtype="float64", shape=(4, 4)),
    FieldSpec(name="spacing", dtype="float32", shape=(3,)),
)
_SUFFIX = re.compile(r"\.nii(\.gz)?$", re.IGNORECASE)
_FLOAT32 = np.finfo(np.float32)
_CHANNEL = re.compile(r"(.+)_(\d{4})")


class _Volume(NamedTuple):
    """A volume of one file, or of a file for each channel."""

    paths: tuple[str, ...]
    has_channels: bool


class VolumeColumn(NamedTuple):
    """The volumes of a field.

    Attributes:
        folder: the folder that all files count from.
        firsts: (n,) the first file of each volume.
        channels: the files of each volume that has one for each channel, by the first.
    """

    folder: str
    firsts: Sequence[str]
    channels: Mapping[str, Sequence[str]]

    def volume(self, number: int) -> _Volume:
        """Return a volume, in the form in which it is read."""
        first = self.firsts[number]
        files = self.channels.get(first, (first,))
        return _Volume(tuple(join(self.folder, file) for file in files), first in self.channels)

    def take(self, firsts: Sequence[str]) -> VolumeColumn:
        """Return the volumes with these first files."""
        channels = {first: self.channels[first] for first in firsts if first in self.channels} if self.channels else {}
        return self._replace(firsts=firsts, channels=channels)


class _Header(NamedTuple):
    """What the headers of a volume say. The affine is that of its first file."""

    shape: tuple[int, ...]
    dtype: str
    affine: NDArray[np.float64]

    @property
    def kind(self) -> _Kind:
        return _Kind(self.dtype, len(self.shape), self.shape[3:])


class _Kind(NamedTuple):
    """What volumes of a field may differ in; those of one field have the same axes and channels."""

    dtype: str
    axes: int
    channels: tuple[int, ...]

    @property
    def form(self) -> str:
        return f"{self.axes} axes" + "".join(f", {n} channels" for n in self.channels)


def open_nifti(inputs: Mapping[str, FileSet], options: SourceOptions, watcher: Watcher) -> NiftiSource:
    """Open the volumes of one or more fields, partners paired by name.

    Args:
        inputs: by field name, empty if none is given.
        watcher: its `bad` is called with every file that cannot be packed; if it returns, the sample is skipped.

    Raises:
        UsageError: nibabel is not installed, two fields are the same files, or a field cannot have its name.
        SourceError: what `watcher.bad` raises; no sample is left.
    """
    if find_spec("nibabel") is None:
        raise UsageError("NIfTI is read by nibabel: pip install '.[nifti]' in a clone of packer")
    if taken := {spec.name for spec in _PLACE} & inputs.keys():
        raise UsageError(f"{min(taken)}= is a field that every volume has; name the source otherwise")
    check_casts(options.cast, [name or "image" for name in inputs])
    file_sets = {name or "image": file_set._replace(files=file_set.pick(watcher)) for name, file_set in inputs.items()}
    columns, names = dict[str, VolumeColumn](), dict[str, Sequence[str]]()
    for name in file_sets:
        columns[name], names[name] = _volumes(name, file_sets)
    firsts = {field: file_set._replace(files=list(columns[field].firsts)) for field, file_set in file_sets.items()}
    paired, remarks = partners(firsts, watcher, names)
    columns = {field: columns[field].take(files) for field, files in paired.files.items()}
    count = len(paired.names)
    unread = ({field: column.volume(number) for field, column in columns.items()} for number in range(count))
    numbers, layout_of, are_alike, sizes = array("q"), array("I"), array("b"), Columns()
    layouts: dict[tuple[_Kind, ...], int] = {}
    for number, row in enumerate(read_headers(_read_headers, unread, count, watcher)):
        if isinstance(row, SourceError):
            watcher.bad(row)
            continue
        layout = layouts.setdefault(tuple(header.kind for header in row.values()), len(layouts))
        for name, header in row.items():
            sizes.put(len(numbers), {f"{name}[{axis}]": length for axis, length in enumerate(header.shape)})
        numbers.append(number)
        layout_of.append(layout)
        are_alike.append(_lie_alike(*(header.affine for header in row.values())))
    kinds = [dict(zip(columns, layout, strict=True)) for layout in layouts]
    model, apart = _agree(kinds, count_layouts(np.array(layout_of, np.uint32)), options.cast)
    are_good = ~np.isin(layout_of, list(apart))
    first_column = next(iter(columns.values()))
    for row_number in np.flatnonzero(~are_good).tolist():
        reason = f"differs from most volumes: {apart[layout_of[row_number]]}; fix it or move it away"
        watcher.bad(SourceError(reason, first_column.volume(numbers[row_number]).paths[0]))
    counts = count_layouts(np.array(layout_of, np.uint32)[are_good])
    good = np.array(numbers, np.int64)[are_good]
    sample_names = _taken(paired.names, good)
    columns = {field: column.take(_taken(column.firsts, good)) for field, column in columns.items()}
    lengths = sizes.arrays(len(numbers))
    shapes, fields = {}, []
    for name, kind in kinds[model].items():
        shapes[name] = np.column_stack([lengths[f"{name}[{axis}]"][are_good] for axis in range(kind.axes)])
        dtypes = Counter[str]()
        for layout, count in counts.items():
            dtypes[kinds[layout][name].dtype] += count
        dtype, conversions = _dtype_of_field(name, dtypes, options.cast)
        remarks += conversions
        fields.append(FieldSpec(name=name, dtype=dtype, shape=common_shape(np.unique(shapes[name], axis=0).tolist())))
        if columns[name].volume(0).has_channels:
            remarks.append(f"field {name}: files numbered from _0000 on are the channels of one volume, its last axis")
    if others := [sample_names[number] for number in np.flatnonzero(~np.array(are_alike, bool)[are_good]).tolist()]:
        remarks.append(f"affines of the fields differ in {first_few(others)}; that of {fields[0].name} is kept")
    origin = {"cast": dict(options.cast)} if options.cast else {}
    return NiftiSource((*fields, *_PLACE), sample_names, columns, shapes, frozenset(options.cast), origin, remarks)


def _agree(
    kinds: Sequence[Mapping[str, _Kind]], counts: Mapping[int, int], casts: Mapping[str, str]
) -> tuple[int, dict[int, str]]:
    """Return the number of a layout that the dataset has, and by number how those differ that cannot be packed with it.

    Args:
        kinds: of every layout, by field.
        counts: how many samples have each layout.
        casts: dtypes of fields that are converted.

    Raises:
        SourceError: there is no sample.
    """
    model, apart = misfits([{field: kind.form for field, kind in of.items()} for of in kinds], counts)
    alike = {layout: count for layout, count in counts.items() if layout not in apart}
    mixed = [
        field for field in kinds[model] if field not in casts and not common_dtype(kinds[n][field].dtype for n in alike)
    ]
    if mixed:
        in_words = [{field: f"{of[field].dtype} of {of[field].form}" for field in mixed} for of in kinds]
        model, by_dtype = misfits(in_words, alike)
        casts_in_words = " or ".join(f"--cast {field}=DTYPE" for field in mixed)
        apart |= {n: f"{how}, and no dtype holds both ({casts_in_words} converts)" for n, how in by_dtype.items()}
    return model, apart


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


def _taken(items: Sequence[str], numbers: NDArray[np.int64]) -> Sequence[str]:
    """Return the items of these numbers, which ascend."""
    return items if len(numbers) == len(items) else [items[number] for number in numbers]


def _volumes(field: str, file_sets: Mapping[str, FileSet]) -> tuple[VolumeColumn, list[str]]:
    """Return the volumes of a field, and the name of each.

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
    column = VolumeColumn(file_sets[field].folder, list(firsts), {files[0]: files for files in whole.values()})
    return column, list(firsts.values())


def _read_headers(row: Mapping[str, _Volume]) -> dict[str, _Header]:
    """Return what the headers of the volumes of a sample say, by field.

    Raises:
        SourceError: a file is damaged or cannot be packed, or the channels or fields differ in size.
    """
    headers = {field: _read_header(volume) for field, volume in row.items()}
    sizes = {field: header.shape[:3] for field, header in headers.items()}
    if len(set(sizes.values())) > 1:
        path = next(iter(row.values())).paths[0]
        raise SourceError(f"the fields of one sample differ in size: {sizes}; fix it or move it away", path)
    return headers


def _read_header(volume: _Volume) -> _Header:
    kinds, affines = [], list[NDArray[np.float64]]()
    for path in volume.paths:
        with _loaded(path) as image:
            kinds.append((image.shape, _dtype_of(image, path)))
            affines.append(image.affine)
        if not _lie_alike(affines[0], affines[-1]):
            reason = f"its affine is not that of {Path(volume.paths[0]).name}, another channel of the same volume"
            raise SourceError(f"{reason}; resample them to one grid, or move them away", path)
    shapes, dtypes = zip(*kinds, strict=True)
    dtype = common_dtype(dtypes)
    if len(set(shapes)) > 1 or dtype is None:
        channels_in_words = [
            f"{Path(path).name} is {dtype} {shape}" for path, (shape, dtype) in zip(volume.paths, kinds, strict=True)
        ]
        reason = f"the channels of one volume differ: {first_few(channels_in_words)}; fix them or move them away"
        raise SourceError(reason, volume.paths[0])
    return _Header((*shapes[0], *[len(kinds)] * volume.has_channels), dtype, affines[0])


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
    return all(np.allclose(affine, first, atol=1e-2) for affine in others)


@contextmanager
def _loaded(path: str) -> Iterator[Any]:
    """Open a file by nibabel; errors of nibabel, gzip and numpy on damaged files become a SourceError."""
    import nibabel

    try:
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
        raise SourceError(
            f"cannot be read as NIfTI ({error or type(error).__name__}); download it again", path
        ) from error


@dataclass(eq=False)
class NiftiSource(Source):
    """Samples made of one volume a field, and where it lies. Pickles as paths and shapes.

    Attributes:
        columns: the volumes of each field.
        sizes: their shapes, (n, axes).
        casts: fields that are converted to a dtype which may not hold all values.
    """

    fields: tuple[FieldSpec, ...]
    names: Sequence[str]
    columns: Mapping[str, VolumeColumn]
    sizes: Mapping[str, NDArray[np.int64]]
    casts: frozenset[str] = frozenset()
    origin: Mapping[str, Any] = field(default_factory=dict)
    remarks: Sequence[str] = ()

    kind = "nifti"

    def __len__(self) -> int:
        return len(self.names)

    def shapes(self, field: str) -> NDArray[np.int64]:
        return self.sizes[field]

    def part(self, start: int, stop: int) -> NiftiSource:
        columns = {name: column.take(column.firsts[start:stop]) for name, column in self.columns.items()}
        sizes = {name: shapes[start:stop] for name, shapes in self.sizes.items()}
        return replace(self, names=self.names[start:stop], columns=columns, sizes=sizes, origin={}, remarks=())

    def read(self) -> Iterator[Block]:
        return joined(map(self._sample, range(len(self))), self.fields)

    def _sample(self, number: int) -> dict[str, Any]:
        sample, place = dict[str, Any](), dict[str, Any]()
        with faults_of(sample=number):
            for spec in self.fields[: -len(_PLACE)]:
                volume = self.columns[spec.name].volume(number)
                sample[spec.name], of_volume = _read(volume, spec.dtype, spec.name in self.casts)
                if sample[spec.name].shape != tuple(self.sizes[spec.name][number]):
                    raise _changed(volume.paths[0])
                place = place or of_volume
        return sample | place

    def files(self) -> list[str]:
        columns = self.columns.values()
        return [path for number in range(len(self)) for column in columns for path in column.volume(number).paths]


def _read(volume: _Volume, dtype: str, is_cast: bool) -> tuple[NDArray[Any], dict[str, NDArray[Any]]]:
    """Return a volume, C-contiguous and native-endian, and where its first file lies.

    Args:
        dtype: of the field.
        is_cast: whether the dtype was asked for, so that it may not hold all values.
    """
    channels, places = [], list[dict[str, NDArray[Any]]]()
    for path in volume.paths:
        with _loaded(path) as image:
            if path.lower().endswith(".gz"):  # as a whole, so that its checksum is compared
                image = type(image).from_bytes(gzip.decompress(Path(path).read_bytes()))
            own_dtype = _dtype_of(image, path)
            if not (is_cast or holds(dtype, own_dtype)):
                raise _changed(path)
            try:
                channels.append(
                    convert(np.asarray(image.dataobj, dtype if holds(dtype, own_dtype) else own_dtype), dtype)
                )
            except DoesNotFitError as error:
                raise SourceError(f"{error.value:g} does not fit {dtype}, which --cast asks for", path) from None
            spacing = np.asarray(image.header["pixdim"][1:4], np.float32)
            places.append({"affine": image.affine, "spacing": spacing})
    values = np.stack(channels, axis=-1) if volume.has_channels else channels[0]
    return np.ascontiguousarray(values), places[0]


def _changed(path: str) -> SourceError:
    return SourceError("has changed since its header was read; run again", path)
