"""Pictures for tests: made up, saved, put together from chunks, and read back by a source."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from opened_sources import open_images
from PIL import Image

from packer.sources import Source


def picture(height: int = 4, width: int = 5, channels: int = 3, seed: int = 0) -> NDArray[np.uint8]:
    """Return noise, (height, width, channels)."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)


def save(path: Path, image: NDArray[np.uint8] | None = None, **options: Any) -> NDArray[np.uint8]:
    """Write a picture to a file; return the picture."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = picture() if image is None else image
    Image.fromarray(image.squeeze()).save(path, **options)
    return image


def save_pairs(folder: Path) -> Path:
    """Save three pairs of one size, lr/<n>x2.png and hr/<n>.png; return the folder."""
    for number in (1, 2, 10):
        save(folder / "lr" / f"{number}x2.png", picture(seed=number))
        save(folder / "hr" / f"{number}.png", picture(8, 10, seed=number + 100))
    return folder


def open_pairs(folder: Path, **options: Any) -> Source:
    """Open the pairs that `save_pairs` wrote."""
    return open_images({"lr": str(folder / "lr"), "hr": str(folder / "hr")}, **options)


def chunk(kind: bytes, data: bytes = b"") -> bytes:
    """Return a chunk of a PNG file, with its length and its checksum."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
