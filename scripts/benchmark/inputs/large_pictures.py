"""Large pictures: as arrays, as PNG files, packed, and cut into overlapping sub-images in LMDB, as is usual."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import lmdb
import numpy as np
from inputs.pictures import photographs
from numpy.typing import NDArray
from PIL import Image

from benchmark.inputs.arrays import ArraySource
from benchmark.inputs.store import Store
from packer.convert import convert

#: What super-resolution training cuts pictures into so as not to decode whole ones: size and stride in pixels.
SUB_SIZE, SUB_STRIDE = 480, 240
#: As BasicSR's script for sub-images has it.
_PNG_LEVEL = 3
#: Noise of a camera, in steps of 8 bits: made larger, photographs are smoother than those taken at that size.
_NOISE = 1.5


def pixels(store: Store, n: int, size: tuple[int, int]) -> NDArray[np.uint8]:
    """`n` pictures of `size` rows and columns, (n, rows, columns, 3) uint8."""

    def make(path: Path) -> None:
        rng = np.random.default_rng(4)
        named = [picture for _, picture in photographs()]
        out = np.empty((n, *size, 3), np.uint8)
        for i in range(n):
            large = np.asarray(named[i % len(named)].resize(size[::-1], Image.Resampling.BICUBIC))
            out[i] = np.clip(large + rng.normal(0, _NOISE, (*size, 1)).round(), 0, 255)
        with path.open("wb") as file:
            np.save(file, out)

    found: NDArray[np.uint8] = np.load(store.made(f"pictures-{n}-{size[0]}.npy", make), mmap_mode="r")
    return found


def png(store: Store, n: int, size: tuple[int, int]) -> Path:
    """A folder of PNG files, one a picture."""

    def make(path: Path) -> None:
        path.mkdir()
        for number, picture in enumerate(pixels(store, n, size)):
            Image.fromarray(np.asarray(picture)).save(path / f"{number:04d}.png")

    return store.made(f"pictures-{n}-{size[0]}.png", make)


def packed(store: Store, n: int, size: tuple[int, int], codec: str) -> Path:
    """The pictures as the field `hr` of a packed dataset."""

    def make(path: Path) -> None:
        convert(ArraySource({"hr": pixels(store, n, size)}), path, codec=codec, workers=0, overwrite=True)

    return store.made(f"pictures-{n}-{size[0]}-{codec}.packed", make, packed=True)


def sub_images(store: Store, n: int, size: tuple[int, int]) -> Path:
    """An LMDB file of PNG sub-images of 480 px, every 240 px and at the far edges; the keys are numbers."""

    def make(path: Path) -> None:
        tops, lefts = (_begins(length) for length in size)
        with (
            lmdb.open(str(path), subdir=False, map_size=2**36, sync=False, lock=False) as environment,
            environment.begin(write=True) as transaction,
        ):
            for number, (picture, top, left) in enumerate(
                (picture, top, left) for picture in pixels(store, n, size) for top in tops for left in lefts
            ):
                cut = np.ascontiguousarray(picture[top : top + SUB_SIZE, left : left + SUB_SIZE])
                transaction.put(b"%08d" % number, _png_bytes(cut), append=True)

    return store.made(f"pictures-{n}-{size[0]}-sub.lmdb", make)


def _begins(length: int) -> list[int]:
    """Where sub-images begin along an axis; the last one ends with the picture."""
    last = max(length - SUB_SIZE, 0)
    return sorted({*range(0, last + 1, SUB_STRIDE), last})


def _png_bytes(picture: NDArray[np.uint8]) -> bytes:
    stream = BytesIO()
    Image.fromarray(picture).save(stream, "png", compress_level=_PNG_LEVEL)
    return stream.getvalue()
