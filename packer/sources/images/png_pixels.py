"""The pixels of a PNG, with every bit they have.

Pillow opens 16-bit colour as 8 bits. Its PNG decoder in C, which inflates and undoes the row filters and
the interlacing, can be called by itself with a layout of our choice (`Image.frombytes(..., "zip", layout,
interlaced)`). Run once with a layout that keeps the high bytes and once with one that keeps the low ones,
it gives all 16 bits, at the speed of C and without another dependency. It also saves the time of
`Image.open`: 64 px RGB takes 190 us instead of 210.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from packer.errors import SourceError
from packer.sources.images.png import GRAY, GRAY_ALPHA, PALETTE, RGB, RGBA, SAMPLES, Png
from packer.sources.images.png_lines import check_lines

#: Deflate makes data at most 1032 times smaller.
_MOST_INFLATED = 1032

#: Pillow's mode and layouts by colour type and depth; two layouts for high bytes and low bytes.
#: Gray of 2 and 4 bits is scaled to 0..255, which `L;2` and `L;4` do.
#: 16-bit gray+alpha is four bytes a pixel, which the RGBA layout keeps as they are.
_LAYOUTS = {
    (GRAY, 1): ("1", ["1"]),
    (GRAY, 2): ("L", ["L;2"]),
    (GRAY, 4): ("L", ["L;4"]),
    (GRAY, 8): ("L", ["L"]),
    (GRAY, 16): ("I;16", ["I;16B"]),
    (RGB, 8): ("RGB", ["RGB"]),
    (RGB, 16): ("RGB", ["RGB;16B", "RGB;16L"]),
    (PALETTE, 1): ("P", ["P;1"]),
    (PALETTE, 2): ("P", ["P;2"]),
    (PALETTE, 4): ("P", ["P;4"]),
    (PALETTE, 8): ("P", ["P"]),
    (GRAY_ALPHA, 8): ("LA", ["LA"]),
    (GRAY_ALPHA, 16): ("RGBA", ["RGBA"]),
    (RGBA, 8): ("RGBA", ["RGBA"]),
    (RGBA, 16): ("RGBA", ["RGBA;16B", "RGBA;16L"]),
}


def decode(png: Png, path: str, *, as_index: bool = False) -> NDArray[Any]:
    """The picture as (H, W, C), uint8 or uint16; palette pictures as RGB or RGBA, or as indices (C = 1).

    Gray of 1, 2 and 4 bits comes out as 8 bits, 0 for black and 255 for white, as Pillow converts it to "L".

    Raises:
        SourceError: the pixel data is damaged or too short, or an index lies outside the palette.
    """
    header = png.header
    _check_enough(png, path)
    mode, layouts = _LAYOUTS[header.colour, header.depth]
    planes = [_inflate(png, mode, layout, path) for layout in layouts]
    image = planes[0] if len(planes) == 1 else planes[0].astype(np.uint16) << 8 | planes[1]
    # Lines that are missing come out as 0. To inflate the data of every picture twice would take half as long again, so
    # this is done where the last line is 0 alone; the lines of interlaced pictures come in another order.
    if header.interlaced or not image[-1].any():
        check_lines(png, path)
    if image.dtype == bool:
        image = image.astype(np.uint8) * np.uint8(255)
    if (header.colour, header.depth) == (GRAY_ALPHA, 16):
        return image.view(">u2").astype(np.uint16)
    image = image[:, :, None] if image.ndim == 2 else image
    if header.colour != PALETTE:
        return image
    _check_indices(image, png, path)
    return image if as_index else _colours(png)[image[:, :, 0]]


def _check_enough(png: Png, path: str) -> None:
    """Refuses a header that promises more than its data can hold, before memory is taken for it."""
    header = png.header
    row = (header.width * header.depth * SAMPLES[header.colour] + 7) // 8
    if header.height * row > _MOST_INFLATED * len(png.pixels):
        size = f"{header.width} x {header.height} pixels"
        reason = f"damaged PNG: {len(png.pixels)} bytes of data cannot hold {size}; get the file again"
        raise SourceError(reason, path)


def _inflate(png: Png, mode: str, layout: str, path: str) -> NDArray[Any]:
    header = png.header
    size = (header.width, header.height)
    try:
        image = Image.frombytes(mode, size, png.pixels, "zip", layout, header.interlaced)
    except (ValueError, OSError) as error:
        raise SourceError(f"damaged PNG: its pixels cannot be decoded ({error}); get the file again", path) from error
    except MemoryError as error:
        raise SourceError(f"{size[0]} x {size[1]} pixels do not fit into memory", path) from error
    return np.asarray(image)


def _check_indices(image: NDArray[np.uint8], png: Png, path: str) -> None:
    colours = len(png.palette) // 3
    largest = int(image.max())
    if largest >= colours:
        reason = f"damaged PNG: colour number {largest} is used, but the palette has {colours}; get the file again"
        raise SourceError(reason, path)


def _colours(png: Png) -> NDArray[np.uint8]:
    """The palette as (colours, 3), or (colours, 4) where there is transparency."""
    colours = np.frombuffer(png.palette, np.uint8).reshape(-1, 3)
    if not png.header.transparent:
        return colours
    alpha = np.full(len(colours), 255, np.uint8)
    given = np.frombuffer(png.alpha, np.uint8)[: len(colours)]
    alpha[: len(given)] = given
    return np.column_stack([colours, alpha])
