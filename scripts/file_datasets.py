"""The usual way to read the demo inputs: a Dataset that opens one file, or one row, for each sample.

This is what packed datasets are measured against.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from PIL import Image
from plyfile import PlyData
from torch import Tensor
from torch.utils.data import Dataset

Sample = dict[str, Tensor]


class PairFiles(Dataset[Sample]):
    """PNG pairs through Pillow: `lr` and `hr` (3, H, W) uint8, partners by the order of their names."""

    def __init__(self, folder: Path) -> None:
        self.files = {field: sorted((folder / field).glob("*.png")) for field in ("lr", "hr")}

    def __len__(self) -> int:
        return len(self.files["hr"])

    def __getitem__(self, index: int) -> Sample:
        return {field: _pixels(files[index]) for field, files in self.files.items()}


class CloudFiles(Dataset[Sample]):
    """PLY clouds through plyfile: `xyz` (n, 3) float32 and `rgb` (n, 3) uint8."""

    def __init__(self, folder: Path) -> None:
        self.files = sorted(folder.glob("*.ply"))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Sample:
        vertex = PlyData.read(str(self.files[index]))["vertex"]
        return {"xyz": _columns(vertex, "x", "y", "z"), "rgb": _columns(vertex, "red", "green", "blue")}


class DigitRows(Dataset[Sample]):
    """Rows of an HDF5 file through h5py: `images` (8, 8) uint8 and `labels` () int64."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file: h5py.File | None = None
        with h5py.File(path) as file:
            self.rows = len(file["labels"])

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> Sample:
        # Opened at the first read, so that every worker process has its own handle.
        self.file = self.file or h5py.File(self.path)
        return {
            "images": torch.from_numpy(self.file["images"][index]),
            "labels": torch.tensor(self.file["labels"][index]),
        }


def _pixels(path: Path) -> Tensor:
    with Image.open(path) as picture:
        return torch.from_numpy(np.array(picture)).permute(2, 0, 1)


def _columns(vertex: Any, *names: str) -> Tensor:
    # plyfile's arrays keep the byte order of the file, which torch does not take.
    columns = np.stack([vertex[name] for name in names], axis=1)
    return torch.from_numpy(columns.astype(columns.dtype.newbyteorder("=")))
