"""NIfTI volumes (`.nii`, `.nii.gz`) as samples, read by nibabel: one field a source, one sample a name.

    image=imagesTr label=labelsTr       BRATS_001_0000.nii.gz ... BRATS_001_0003.nii.gz and BRATS_001.nii.gz

A volume is what nibabel gives: axes (X, Y, Z), or (X, Y, Z, C). Files that nnU-Net numbers from `_0000` on are the
channels of one volume, in order, as its last axis. Values are as stored; if the header scales them, they are float32.
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
from packer.sources.base import (
    HEADERS,
    Block,
    Looking,
    OnBad,
    Source,
    common_shape,
    difference,
    faults_of,
    joined,
    usual,
    watched,
)
from packer.sources.files import Found
from packer.sources.options import SourceOptions
from packer.sources.pairing import partners, share_out

_PLACE = (
    FieldSpec(name="affine", dtype="float64", shape=(4, 4)),
    FieldSpec(name="spacing", dtype="float32", shape=(3,)),
)
_SUFFIX = re.compile(r"\.nii(\.gz)?$", re.IGNORECASE)
_CHANNEL = re.compile(r"(.+)_(\d{4})")


class _Volume(NamedTuple):
    """A volume of a file, or of a file for each channel; and, once its header was read, what it will be."""

    paths: tuple[str, ...]
    has_channels: bool = False
    shape: tuple[int, ...] = ()
    dtype: str = ""
    affine: Any = None
    spacing: Any = None

    @property
    def kind(self) -> str:
        return f"{self.dtype} of {len(self.shape)} axes" + "".join(f", {n} channels" for n in self.shape[3:])


def open_nifti(inputs: Mapping[str, Found], options: SourceOptions, *, on_bad: OnBad, looking: Looking) -> NiftiSource:
    """Open the volumes of one or more fields, partners paired by name.

    Args:
        inputs: by field name, empty if none is given.
        on_bad: called with every file that cannot be packed; if it returns, the sample is left out.
        looking: called with the number of headers read.

    Raises:
        UsageError: nibabel is not installed, two fields are the same files, or a field cannot have its name.
        SourceError: what `on_bad` raises; no sample is left.
    """
    if find_spec("nibabel") is None:
        raise UsageError("NIfTI is read by nibabel: pip install '.[nifti]' in a clone of packer")
    if taken := {spec.name for spec in _PLACE} & inputs.keys():
        raise UsageError(f"{min(taken)}= is a field that every volume has; name the source otherwise")
    found = {name or "image": some._replace(files=some.pick(on_bad)) for name, some in inputs.items()}
    remarks = share_out(found)
    volumes = {name: _volumes(name, found) for name in found}
    # Partners are found by the names of volumes; errors name a file.
    shown = {name: some._replace(files=list(volumes[name])) for name, some in found.items()}
    real = {shown[name].path(key): volume.paths[0] for name, some in volumes.items() for key, volume in some.items()}

    def report(error: SourceError) -> None:
        on_bad(SourceError(error.reason, real.get(error.path or "", error.path)))

    paired, said = partners(shown, "files", report)
    rows: dict[str, dict[str, _Volume]] = {}
    for number, name in enumerate(watched(paired.names, HEADERS, looking, len(paired.names))):
        try:
            rows[name] = {f: _with_header(volumes[f][files[number]]) for f, files in paired.files.items()}
        except SourceError as error:
            on_bad(error)
    rows = _alike(rows, on_bad)
    fields = []
    for name, volume in next(iter(rows.values())).items():
        fields.append(
            FieldSpec(name=name, dtype=volume.dtype, shape=common_shape(row[name].shape for row in rows.values()))
        )
        if volume.has_channels:
            remarks.append(f"field {name}: files numbered from _0000 on are the channels of one volume, its last axis")
    firsts = {name: next(iter(row.values())).affine for name, row in rows.items()}
    odd = [n for n, row in rows.items() if not all(np.allclose(v.affine, firsts[n], atol=1e-2) for v in row.values())]
    if odd:
        remarks.append(f"affines of the fields differ in {first_few(odd)}; that of {fields[0].name} is kept")
    return NiftiSource((*fields, *_PLACE), list(rows), list(rows.values()), {}, [*remarks, *said])


def _volumes(field: str, found: Mapping[str, Found]) -> dict[str, _Volume]:
    """Return the volumes of a field by names of files that they could be.

    Files are channels if most names end in `_` and four digits, which count from 0000 in each volume. If that makes one
    volume of all, another field has to have a file of its name: they may be volumes as well.
    """
    stems = {name: {_SUFFIX.sub("", file): some.path(file) for file in some.files} for name, some in found.items()}
    cases: dict[str, list[str]] = defaultdict(list)
    for stem in sorted(stems[field]):
        if match := _CHANNEL.fullmatch(stem):
            cases[match[1]].append(stem)
    whole = {case: some for case, some in cases.items() if some == [f"{case}_{n:04d}" for n in range(len(some))]}
    joined = {stem for some in whole.values() for stem in some}
    alone = len(whole) == 1 and not any(whole.keys() & other.keys() for name, other in stems.items() if name != field)
    if alone or 2 * len(joined) <= len(stems[field]):
        whole, joined = {}, set()
    volumes = {f"{stem}.nii": _Volume((path,)) for stem, path in stems[field].items() if stem not in joined}
    for case, some in whole.items():
        volumes[f"{case}.nii"] = _Volume(tuple(stems[field][stem] for stem in some), has_channels=True)
    return volumes


def _with_header(volume: _Volume) -> _Volume:
    """Return a volume with what its headers say. Raises SourceError if one is damaged, or channels differ."""
    found = []
    for path in volume.paths:
        with _loaded(path) as image:
            dtype = image.get_data_dtype().newbyteorder("=").name
            if dtype not in DTYPES:
                raise SourceError(
                    f"holds values of {dtype}, which cannot be packed; save it as float32 or integers", path
                )
            dtype = "float32" if _is_scaled(image) else dtype
            spacing = np.asarray(image.header["pixdim"][1:4], np.float32)
            found.append(volume._replace(shape=image.shape, dtype=dtype, affine=image.affine, spacing=spacing))
        if (found[-1].shape, dtype) != (found[0].shape, found[0].dtype):
            raise SourceError(
                f"is {found[-1].kind}, {image.shape}, but {volume.paths[0]} {found[0].kind}, {found[0].shape}", path
            )
    return found[0]._replace(shape=(*found[0].shape, len(found))) if volume.has_channels else found[0]


@contextmanager
def _loaded(path: str) -> Iterator[Any]:
    """Give a file as nibabel opens it; turn all that damage makes nibabel, gzip and numpy raise into a SourceError."""
    import nibabel

    try:
        image = nibabel.load(path)
        if not isinstance(image, nibabel.Nifti1Pair):
            raise SourceError("is no NIfTI, whatever its name says; save it as one", path)
        yield image
    except (SourceError, MemoryError):
        raise
    except Exception as error:
        raise SourceError(
            f"cannot be read as NIfTI ({error or type(error).__name__}); get the file again", path
        ) from error


def _is_scaled(image: Any) -> bool:
    return (image.dataobj.slope, image.dataobj.inter) != (1, 0)


def _alike(rows: Mapping[str, dict[str, _Volume]], on_bad: OnBad) -> dict[str, dict[str, _Volume]]:
    """Return the samples whose fields have one size, and the dtypes and axes of most; call `on_bad` with the others."""
    kinds = {name: {field: volume.kind for field, volume in row.items()} for name, row in rows.items()}
    most = dict(usual(frozenset(kind.items()) for kind in kinds.values())) if rows else {}
    kept = {}
    for name, row in rows.items():
        sizes = {field: volume.shape[:3] for field, volume in row.items()}
        how = difference({field: most[field] for field in row}, kinds[name])
        if how or len(set(sizes.values())) > 1:
            reason = f"differs from most volumes: {how}" if how else f"the fields of one sample differ in size: {sizes}"
            on_bad(SourceError(f"{reason}; mend it or move it away", next(iter(row.values())).paths[0]))
        else:
            kept[name] = row
    if not kept:
        raise SourceError("no sample is left: each has a bad file, or lacks a partner; mend the files first")
    return kept


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
            values = {field: _values(volume) for field, volume in self.rows[number].items()}
        return {**values, "affine": first.affine, "spacing": first.spacing}

    def files(self) -> list[str]:
        return [path for row in self.rows for volume in row.values() for path in volume.paths]


def _values(volume: _Volume) -> NDArray[Any]:
    """Return a volume, C-contiguous and native-endian."""
    found = []
    for path in volume.paths:
        with _loaded(path) as image:
            if path.lower().endswith(".gz"):  # as a whole, so that its checksum is compared
                image = type(image).from_bytes(gzip.decompress(Path(path).read_bytes()))
            found.append(np.asarray(image.dataobj, np.float32 if _is_scaled(image) else None))
    values = np.stack(found, axis=-1) if volume.has_channels else found[0]
    if (values.shape, values.dtype.newbyteorder("=").name) != (volume.shape, volume.dtype):
        raise SourceError("has changed since its header was read; run again", volume.paths[0])
    return np.ascontiguousarray(values, volume.dtype)
