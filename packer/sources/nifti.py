"""NIfTI volumes (`.nii`, `.nii.gz`) as samples, read by nibabel: one field a source, one sample a name.

    image=imagesTr label=labelsTr       BRATS_001_0000.nii.gz ... BRATS_001_0003.nii.gz and BRATS_001.nii.gz

A volume is what nibabel gives: axes (X, Y, Z), or (X, Y, Z, C). Files that nnU-Net numbers from `_0000` on are the
channels of one volume, in order, as its last axis. Values are as stored; if the header scales them, they are float32,
or float64 where that would make values equal that are not.
Two more fields say where a voxel lies: `affine`, (4, 4) float64, from voxels to millimetres, and `spacing`, (3,)
float32, the millimetres from one voxel to the next. They are those of the first field.
"""

from __future__ import annotations

import gzip
import re
from collections import defaultdict
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
from packer.sources.files import FileSet
from packer.sources.headers import count_layouts, misfits, read_headers
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
    """A volume of one file, or of a file for each channel; shape, dtype and place once its header was read."""

    name: str
    paths: tuple[str, ...]
    has_channels: bool = False
    shape: tuple[int, ...] = ()
    dtype: str = ""
    place: Mapping[str, NDArray[Any]] = {}

    @property
    def kind(self) -> str:
        return f"{self.dtype} of {len(self.shape)} axes" + "".join(f", {n} channels" for n in self.shape[3:])


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
    file_sets = {name or "image": file_set._replace(files=file_set.pick(watcher)) for name, file_set in inputs.items()}
    volumes = {name: _volumes(name, file_sets) for name in file_sets}
    firsts = {name: file_set._replace(files=list(volumes[name])) for name, file_set in file_sets.items()}
    names = {name: [volume.name for volume in of_field.values()] for name, of_field in volumes.items()}
    paired, remarks = partners(firsts, watcher, names)
    rows: dict[str, dict[str, _Volume]] = {}
    unread = (
        {field: volumes[field][files[number]] for field, files in paired.files.items()}
        for number in range(len(paired.names))
    )
    headers = read_headers(_with_headers, unread, len(paired.names), watcher)
    for name, row in zip(paired.names, headers, strict=True):
        if isinstance(row, SourceError):
            watcher.bad(row)
        else:
            rows[name] = row
    kinds = [{field: volume.kind for field, volume in row.items()} for row in rows.values()]
    _, odd = misfits(kinds, count_layouts(np.arange(len(kinds), dtype=np.uint32)))
    names_of_rows = list(rows)
    for number, how in odd.items():
        first, *_ = rows.pop(names_of_rows[number]).values()
        watcher.bad(SourceError(f"differs from most volumes: {how}; fix it or move it away", first.paths[0]))
    fields = []
    for name, volume in next(iter(rows.values())).items():
        shape = common_shape(row[name].shape for row in rows.values())
        fields.append(FieldSpec(name=name, dtype=volume.dtype, shape=shape))
        if volume.has_channels:
            remarks.append(f"field {name}: files numbered from _0000 on are the channels of one volume, its last axis")
    if apart := [name for name, row in rows.items() if not _lie_alike(*(volume.place for volume in row.values()))]:
        remarks.append(f"affines of the fields differ in {first_few(apart)}; that of {fields[0].name} is kept")
    return NiftiSource((*fields, *_PLACE), list(rows), list(rows.values()), {}, remarks)


def _volumes(field: str, file_sets: Mapping[str, FileSet]) -> dict[str, _Volume]:
    """Return the volumes of a field by their first files.

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
    path = file_sets[field].path
    volumes = {file: _Volume(stem, (path(file),)) for file, stem in stems.items() if file not in channels}
    return volumes | {files[0]: _Volume(case, tuple(map(path, files)), True) for case, files in whole.items()}


def _with_headers(row: Mapping[str, _Volume]) -> dict[str, _Volume]:
    """Return the volumes of a sample with what their headers say.

    Raises:
        SourceError: a file is damaged or cannot be packed, or the channels or fields differ in size.
    """
    volumes = {}
    for name, volume in row.items():
        kinds = []
        for path in volume.paths:
            with _loaded(path) as image:
                kinds.append((image.shape, _dtype_of(image, path)))
                spacing = np.asarray(image.header["pixdim"][1:4], np.float32)
                place = {"affine": image.affine, "spacing": spacing}
            volume = volume._replace(place=volume.place or place)
            if not _lie_alike(volume.place, place):
                reason = f"its affine is not that of {Path(volume.paths[0]).name}, another channel of the same volume"
                raise SourceError(f"{reason}; resample them to one grid, or move them away", path)
        if len(set(kinds)) > 1:
            channels_in_words = [
                f"{Path(path).name} is {dtype} {shape}"
                for path, (shape, dtype) in zip(volume.paths, kinds, strict=True)
            ]
            reason = f"the channels of one volume differ: {first_few(channels_in_words)}; fix them or move them away"
            raise SourceError(reason, volume.paths[0])
        shape, dtype = kinds[0]
        volumes[name] = volume._replace(shape=(*shape, *[len(kinds)] * volume.has_channels), dtype=dtype)
    sizes = {name: volume.shape[:3] for name, volume in volumes.items()}
    if len(set(sizes.values())) > 1:
        path = next(iter(row.values())).paths[0]
        raise SourceError(f"the fields of one sample differ in size: {sizes}; fix it or move it away", path)
    return volumes


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


def _lie_alike(first: Mapping[str, NDArray[Any]], *others: Mapping[str, NDArray[Any]]) -> bool:
    """Return whether the affines are the same, to a hundredth of a millimetre."""
    return all(np.allclose(place["affine"], first["affine"], atol=1e-2) for place in others)


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
    """Samples made of one volume a field, and where it lies. Pickles as paths and headers."""

    fields: tuple[FieldSpec, ...]
    names: Sequence[str]
    rows: Sequence[dict[str, _Volume]]
    origin: Mapping[str, Any] = field(default_factory=dict)
    remarks: Sequence[str] = ()

    kind = "nifti"

    def __len__(self) -> int:
        return len(self.names)

    def shapes(self, field: str) -> NDArray[np.int64]:
        return np.array([row[field].shape for row in self.rows], np.int64)

    def part(self, start: int, stop: int) -> NiftiSource:
        return replace(self, names=self.names[start:stop], rows=self.rows[start:stop], origin={}, remarks=())

    def read(self) -> Iterator[Block]:
        return joined(map(self._sample, range(len(self))), self.fields)

    def _sample(self, number: int) -> dict[str, Any]:
        first, *_ = self.rows[number].values()
        with faults_of(sample=number):
            return {**{name: _values(volume) for name, volume in self.rows[number].items()}, **first.place}

    def files(self) -> list[str]:
        return [path for row in self.rows for volume in row.values() for path in volume.paths]


def _values(volume: _Volume) -> NDArray[Any]:
    """Return a volume, C-contiguous and native-endian."""
    channels = []
    for path in volume.paths:
        with _loaded(path) as image:
            if path.lower().endswith(".gz"):  # as a whole, so that its checksum is compared
                image = type(image).from_bytes(gzip.decompress(Path(path).read_bytes()))
            channels.append(np.asarray(image.dataobj, _dtype_of(image, path)))
    values = np.stack(channels, axis=-1) if volume.has_channels else channels[0]
    if (values.shape, values.dtype.name) != (volume.shape, volume.dtype):
        raise SourceError("has changed since its header was read; run again", volume.paths[0])
    return np.ascontiguousarray(values)
