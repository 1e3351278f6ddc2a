"""Patches of volumes: 96 voxels a side, at random places of 160 x 256 x 256 int16 and a mask, as nnU-Net reads them.

The others cut as many patches, from as many places, out of what people keep: plain arrays that are mapped, compressed
NumPy files, gzipped NIfTI, of which the last two are decoded whole for every patch.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from benchmark.loops import Values, loader_side
from benchmark.measuring import Row, Side, epochs, files_of
from benchmark.store import Bench
from packer.format import FieldSpec
from packer.warm import warm
from packer.writer import DatasetWriter
from readers import Crop, PackedDataset

SHAPE, PATCH, BATCH = (160, 256, 256), 96, 2
#: Volumes there are, patches of an epoch of ours and of the mapped arrays, and of what is decoded whole.
VOLUMES, PATCHES, WHOLE = 20, 200, 4
#: Bytes before the voxels of a NIfTI file.
NIFTI_HEADER = 352


def volume(number: int) -> dict[str, Values]:
    """Return a volume with a body in an empty background, and a mask of its bright parts."""
    rng = np.random.default_rng(number)
    coarse = np.kron(rng.normal(800, 300, [n // 8 for n in SHAPE]), np.ones((8, 8, 8)))
    z, y, x = np.ogrid[tuple(slice(-1, 1, n * 1j) for n in SHAPE)]
    body = 1.2 * z**2 + 1.5 * y**2 + 1.3 * x**2 < 1
    image = ((coarse + rng.normal(0, 20, SHAPE)) * body).astype(np.int16)
    return {"image": image, "label": (image > 1000).astype(np.uint8)}


def volumes_packed(path: Path, bench: Bench, codec: str) -> None:
    """Write a packed dataset of the volumes."""
    fields = [FieldSpec(name="image", dtype="int16", shape=SHAPE), FieldSpec(name="label", dtype="uint8", shape=SHAPE)]
    with DatasetWriter(path, fields, codec=codec) as writer:
        for number in range(VOLUMES):
            writer.add(volume(number))
    warm(path)


def volumes_mapped(path: Path, bench: Bench) -> None:
    """Write a .npy file for each array."""
    _write(path, lambda name, values: np.save(f"{name}.npy", values), VOLUMES)


def volumes_npz(path: Path, bench: Bench) -> None:
    """Write a compressed .npz file for each array."""
    _write(path, lambda name, values: np.savez_compressed(f"{name}.npz", values), WHOLE)


def volumes_nifti(path: Path, bench: Bench) -> None:
    """Write a .nii.gz file for each array: the header is never looked at."""

    def save(name: Path, values: Values) -> None:
        Path(f"{name}.nii.gz").write_bytes(gzip.compress(bytes(NIFTI_HEADER) + values.tobytes(), 6))

    _write(path, save, WHOLE)


def _write(path: Path, save: Callable[[Path, Values], None], count: int) -> None:
    path.mkdir()
    for number in range(count):
        for field, values in volume(number).items():
            save(path / f"{number:02}-{field}", values)


@Row("patches of 96 voxels, none, batch 2, Loader", "np.memmap, sliced", at_least=0.5, kind="mapped")
@Row("patches of 96 voxels, lz4, batch 2, Loader", "np.load of .npz, sliced", at_least=4, kind="npz")
@Row("patches of 96 voxels, lz4, batch 2, Loader", "gunzipped NIfTI, sliced", at_least=20, kind="nifti")
def patches(bench: Bench, kind: str) -> list[Side]:
    """Read random patches of image and mask without decoding the rest."""
    codec = "none" if kind == "mapped" else "lz4"
    packed = bench.files(volumes_packed, codec)
    dataset = PackedDataset(packed, crop=Crop((PATCH,) * 3, of="image", aligned={"label": 1}))
    count = PATCHES if kind == "mapped" else WHOLE
    ours = loader_side(dataset, BATCH, sampler=np.arange(PATCHES) % VOLUMES)
    folder = bench.files({"mapped": volumes_mapped, "npz": volumes_npz, "nifti": volumes_nifti}[kind])
    there = VOLUMES if kind == "mapped" else WHOLE

    def others() -> Iterator[list[Values]]:
        rng = np.random.default_rng()
        for _ in range(count // BATCH):
            batch = []
            for _ in range(BATCH):
                stem = folder / f"{rng.integers(there):02}"
                cut = tuple(slice(at, at + PATCH) for at in rng.integers(0, np.array(SHAPE) - PATCH + 1).tolist())
                batch.append([np.ascontiguousarray(_opened(stem, name)[cut]) for name in ("image", "label")])
            yield [np.stack(parts) for parts in zip(*batch, strict=True)]

    return [ours, epochs(kind, others, count // BATCH * BATCH, files=files_of(folder))]


def _opened(stem: Path, field: str) -> Values:
    """Return an array as it is found: mapped, or decoded whole."""
    mapped, packed = Path(f"{stem}-{field}.npy"), Path(f"{stem}-{field}.npz")
    if mapped.exists():
        array: Values = np.load(mapped, mmap_mode="r")
        return array
    if packed.exists():
        with np.load(packed) as file:
            found: Values = file["arr_0"]
            return found
    raw = gzip.decompress(Path(f"{stem}-{field}.nii.gz").read_bytes())
    return np.frombuffer(raw, "<i2" if field == "image" else "u1", offset=NIFTI_HEADER).reshape(SHAPE)
