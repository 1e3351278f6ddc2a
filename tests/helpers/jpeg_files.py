"""JPEG files of every sort that cameras and programs write, and their pixels by Pillow."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.uint8]


def photograph(height: int, width: int, seed: int = 0) -> Pixels:
    """Return something like a photograph, (height, width, 3): soft light, some noise."""
    rng, (y, x) = np.random.default_rng(seed), np.mgrid[:height, :width]
    light = [128 + 100 * np.sin(x / (37 + seed) + c) * np.cos(y / (23 + c)) for c in range(3)]
    noisy = np.stack(light, 2) + rng.integers(-12, 13, (height, width, 3))
    return np.clip(noisy, 0, 255).astype(np.uint8)


def as_jpeg(image: Pixels, mode: str = "RGB", **options: Any) -> bytes:
    """Return an image (H, W, 3) as a JPEG file of Pillow."""
    file = io.BytesIO()
    Image.fromarray(image).convert(mode).save(file, "JPEG", **options)
    return file.getvalue()


def by_pillow(file: bytes, mode: str | None = None) -> Pixels:
    """Return the pixels that Pillow decodes, (H, W, C)."""
    with Image.open(io.BytesIO(file)) as image:
        pixels = np.asarray(image.convert(mode) if mode else image)
    return pixels if pixels.ndim == 3 else pixels[:, :, None]


def _with_other_scan(file: bytes) -> bytes:
    """Return a file whose scan claims an odd end of its spectrum, as some phones write: libjpeg warns of it."""
    end = segment(file, 0xDA).stop
    return file[: end - 2] + b"\x3e" + file[end - 1 :]


def segment(file: bytes, code: int) -> slice:
    """Return where the first segment of a marker lies in a file, from the marker on."""
    at = file.index(bytes([0xFF, code]))
    return slice(at, at + 2 + int.from_bytes(file[at + 2 : at + 4], "big"))


def changed(file: bytes, place: slice, new: bytes) -> bytes:
    """Return a file with other bytes in one place."""
    return file[: place.start] + new + file[place.stop :]


#: Huffman codes of the sizes 0 to 4 of a difference, of luma and of chroma, in tables that most programs write.
_SIZE_CODES = (("00", "010", "011", "100", "101"), ("00", "01", "10", "110", "1110"))
_END_OF_BLOCK = ("1010", "00")


def with_sampling(factors: int, height: int = 61, width: int = 75) -> bytes:
    """Return a file with chroma sampled in an unusual way, such as 0x42 for 4:1:0; each block has one random colour."""
    model = as_jpeg(photograph(height, width), subsampling="4:2:0")
    frame = segment(model, 0xC0).start
    head = changed(model[: segment(model, 0xDA).stop], slice(frame + 11, frame + 12), bytes([factors]))
    across, down = factors >> 4, factors & 15
    rng, bits = np.random.default_rng(factors), ""
    for _ in range(-(-width // (8 * across)) * -(-height // (8 * down))):
        for is_chroma in [0] * across * down + [1, 1]:
            value = int(rng.integers(-15, 16))
            size = abs(value).bit_length()
            bits += _SIZE_CODES[is_chroma][size]
            bits += f"{value if value > 0 else value + 2**size - 1:0{size}b}" if size else ""
            bits += _END_OF_BLOCK[is_chroma]
    bits += "1" * (-len(bits) % 8)
    return head + int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\0") + b"\xff\xd9"


def with_scans(count: int, height: int = 40, width: int = 40) -> bytes:
    """Return a progressive file whose last scan is there many times."""
    file = as_jpeg(photograph(height, width), progressive=True)
    last = file.rindex(b"\xff\xda")
    return file[:last] + file[last:-2] * (count - file.count(b"\xff\xda") + 1) + file[-2:]


_SIZES = ((1, 1), (7, 9), (8, 8), (15, 17), (16, 1), (1, 33), (61, 75))
_LARGE = photograph(61, 75)
#: Files by what they are.
JPEGS = {
    **{
        f"{size} {sub} {'progressive' if progressive else ''}": as_jpeg(
            photograph(*size), subsampling=sub, progressive=progressive
        )
        for size in _SIZES
        for sub in ("4:4:4", "4:2:2", "4:2:0")
        for progressive in (False, True)
    },
    **{
        f"{size} of {sub}": simplejpeg.encode_jpeg(photograph(*size), 80, colorsubsampling=sub)
        for size in _SIZES
        for sub in ("440", "411")
    },
    "gray": as_jpeg(_LARGE, "L"),
    "gray, progressive": as_jpeg(_LARGE, "L", progressive=True),
    "restart markers": as_jpeg(_LARGE, restart_marker_blocks=3),
    "restart rows, progressive": as_jpeg(_LARGE, restart_marker_rows=1, progressive=True),
    "RGB": as_jpeg(_LARGE, keep_rgb=True),
    "quality 1": as_jpeg(_LARGE, quality=1),
    "quality 100": as_jpeg(_LARGE, quality=100, optimize=True),
    "EXIF and more behind the end": as_jpeg(_LARGE, exif=Image.Exif(), comment=b"c" * 300) + b"more",
    "an odd scan": _with_other_scan(as_jpeg(_LARGE)),
    **{f"sampling {factors:x}": with_sampling(factors) for factors in (0x42, 0x24, 0x31, 0x13)},
}
