"""The usual ways to read training data, against which packed datasets are measured: one file, row or key a sample."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import lmdb
import lz4.frame
import numpy as np
import torch
from PIL import Image
from plyfile import PlyData
from torch import Tensor
from torch.utils.data import Dataset

Sample = dict[str, Tensor]
#: Pixels of a random crop.
CROP = 64


class Files(Dataset[Any]):
    """Reads a sample from one file, or from the files of several fields."""

    def __init__(self, files: Sequence[Any], read: Callable[[Any], Any]) -> None:
        self.files, self.read = files, read

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        return self.read(self.files[index])


def pair_files(folder: Path) -> Files:
    """Read PNG pairs through Pillow: `lr` and `hr` (3, H, W) uint8, partners by the order of their names."""
    return Files(list(zip(*(sorted((folder / field).glob("*.png")) for field in ("lr", "hr")), strict=True)), _pair)


def cloud_files(folder: Path) -> Files:
    """Read PLY clouds through plyfile: `xyz` (n, 3) float32 and `rgb` (n, 3) uint8."""
    return Files(sorted(folder.glob("*.ply")), _cloud)


def png_crops(folder: Path) -> Files:
    """Read a random crop of each PNG file, (3, 64, 64) uint8."""
    return Files(sorted(folder.glob("*.png")), _crop)


def _pair(files: tuple[Path, Path]) -> Sample:
    return {field: _pixels(file) for field, file in zip(("lr", "hr"), files, strict=True)}


def _pixels(path: Path) -> Tensor:
    with Image.open(path) as picture:
        return torch.from_numpy(np.array(picture)).permute(2, 0, 1)


def _cloud(path: Path) -> Sample:
    vertex = PlyData.read(str(path))["vertex"]
    return {"xyz": _columns(vertex, "x", "y", "z"), "rgb": _columns(vertex, "red", "green", "blue")}


def _columns(vertex: Any, *names: str) -> Tensor:
    # plyfile's arrays keep the byte order of the file, which torch does not take.
    columns = np.stack([vertex[name] for name in names], axis=1)
    return torch.from_numpy(columns.astype(columns.dtype.newbyteorder("=")))


def _crop(file: Any) -> Tensor:
    """Return a random crop of a PNG file, or of its bytes, (3, 64, 64) uint8."""
    with Image.open(file if isinstance(file, Path) else io.BytesIO(file)) as picture:
        left, top = (int(torch.randint(length - CROP + 1, ())) for length in picture.size)
        # `crop` decodes the whole picture first: PNG has no other way.
        return torch.from_numpy(np.array(picture.crop((left, top, left + CROP, top + CROP)))).permute(2, 0, 1)


class Rows(Dataset[Sample]):
    """Rows of some datasets of an HDF5 file through h5py."""

    def __init__(self, path: Path, *names: str) -> None:
        self.path, self.names = path, names
        self.file: h5py.File | None = None
        with h5py.File(path) as file:
            self.count = len(file[names[0]])

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Sample:
        # Opened at the first read, so that every worker process has its own handle.
        self.file = self.file or h5py.File(self.path)
        return {name: torch.as_tensor(self.file[name][index]) for name in self.names}


class LmdbValues(Dataset[Any]):
    """Reads a sample from each value of an LMDB file whose keys are numbers."""

    def __init__(self, path: Path, read: Callable[[Any], Any]) -> None:
        self.path, self.read = path, read
        self.transaction: Any = None
        with lmdb.open(str(path), subdir=False, readonly=True, lock=False) as environment:
            self.count = int(environment.stat()["entries"])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "transaction": None}

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        if self.transaction is None:
            # Opened at the first read, so that every worker process has its own.
            environment = lmdb.open(str(self.path), subdir=False, readonly=True, lock=False, readahead=False)
            self.transaction = environment.begin(buffers=True)
        return self.read(self.transaction.get(b"%08d" % index))


def lmdb_samples(path: Path) -> LmdbValues:
    """Read samples that are LZ4 of a pickled dict of arrays."""
    return LmdbValues(path, _unpickled)


def lmdb_crops(path: Path) -> LmdbValues:
    """Read a random crop of each PNG sub-image, (3, 64, 64) uint8."""
    return LmdbValues(path, _crop)


def _unpickled(value: Any) -> Sample:
    sample = pickle.loads(lz4.frame.decompress(value))
    return {field: torch.from_numpy(values) for field, values in sample.items()}


class InMemory(Dataset[Any]):
    """Tensors in RAM; DataLoader gets a whole batch by one index a field."""

    def __init__(self, **tensors: Tensor) -> None:
        self.tensors = tensors

    def __len__(self) -> int:
        return len(next(iter(self.tensors.values())))

    def __getitem__(self, index: int) -> Sample:
        return {name: values[index] for name, values in self.tensors.items()}

    def __getitems__(self, indices: Sequence[int]) -> Sample:
        index = torch.tensor(indices)
        return {name: values[index] for name, values in self.tensors.items()}
