"""Crops as they are usually read: from whole PNG files, and from sub-images in LMDB."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

CROP = 64


class PngCrops(Dataset[Tensor]):
    """A random crop of a PNG file, (3, 64, 64) uint8."""

    def __init__(self, folder: Path) -> None:
        self.files = sorted(folder.glob("*.png"))

    def __getitem__(self, index: int) -> Tensor:
        with Image.open(self.files[index]) as picture:
            return _cropped(picture)


class SubImageCrops(Dataset[Tensor]):
    """A random crop of a sub-image, (3, 64, 64) uint8."""

    def __init__(self, path: Path) -> None:
        import lmdb

        self.path = path
        self.transaction: Any = None
        with lmdb.open(str(path), subdir=False, readonly=True, lock=False) as environment:
            self.count = int(environment.stat()["entries"])

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Tensor:
        import lmdb

        if self.transaction is None:
            # Opened at the first read, so that every worker process has its own.
            environment = lmdb.open(str(self.path), subdir=False, readonly=True, lock=False, readahead=False)
            self.transaction = environment.begin(buffers=True)
        with Image.open(io.BytesIO(self.transaction.get(b"%08d" % index))) as picture:
            return _cropped(picture)


def _cropped(picture: Image.Image) -> Tensor:
    left, top = (int(torch.randint(length - CROP + 1, ())) for length in picture.size)
    # `crop` decodes the whole picture first: PNG has no other way.
    return torch.from_numpy(np.array(picture.crop((left, top, left + CROP, top + CROP)))).permute(2, 0, 1)
