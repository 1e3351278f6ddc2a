"""The pixels of a PNG, with every bit they have.

The data are inflated once, by a library that reads their checksum; what is left are row filters and interlacing. Those
of gray, RGB and RGBA of 8 and 16 bits are undone by kornia_rs (the `png` crate of Rust), handed a file made anew of the
header and the scan lines: no other chunk can change what comes out. An RGB photograph of 192 px takes 440 us in all,
650 where kornia_rs inflates too, and 1,500 by Pillow.

The other kinds are left to Pillow's decoder in C, called by itself with a layout of our choice (`Image.frombytes(...,
"zip", layout, interlaced)`): `Image.open` would drop the low bytes of gray with alpha.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from kornia_rs import io as kornia
from numpy.typing import NDArray
from PIL import Image

from packer.errors import SourceError
from packer.sources.images.png import (
    GRAY,
    GRAY_ALPHA,
    IHDR,
    PALETTE,
    RGB,
    RGBA,
    SAMPLES,
    SIGNATURE,
    Png,
    PngHeader,
    chunk_parts,
)
from packer.sources.images.png_lines import deflated, inflate

#: Deflate makes data at most 1032 times smaller.
_MOST_INFLATED = 1032

#: What kornia_rs calls the colour types, its functions by depth, and how many times the memory of a picture they take.
_KORNIA = {GRAY: "mono", RGB: "rgb", RGBA: "rgba"}
_KORNIA_DEPTHS: dict[int, tuple[Callable[..., NDArray[Any]], type[np.generic], int]] = {
    8: (kornia.decode_image_png_u8, np.uint8, 1),
    16: (kornia.decode_image_png_u16, np.uint16, 2),
}

#: Pillow's mode and layout of the others, by colour type and depth.
#: Gray of 2 and 4 bits is scaled to 0..255, which `L;2` and `L;4` do.
#: 16-bit gray+alpha is four bytes a pixel, which the RGBA layout keeps as they are.
_PILLOW = {
    (GRAY, 1): ("1", "1"),
    (GRAY, 2): ("L", "L;2"),
    (GRAY, 4): ("L", "L;4"),
    (PALETTE, 1): ("P", "P;1"),
    (PALETTE, 2): ("P", "P;2"),
    (PALETTE, 4): ("P", "P;4"),
    (PALETTE, 8): ("P", "P"),
    (GRAY_ALPHA, 8): ("LA", "LA"),
    (GRAY_ALPHA, 16): ("RGBA", "RGBA"),
}


def decode(png: Png, path: str, *, as_index: bool = False) -> NDArray[Any]:
    """The picture as (H, W, C), uint8 or uint16; palette pictures as RGB or RGBA, or as indices (C = 1).

    Gray of 1, 2 and 4 bits comes out as 8 bits, 0 for black and 255 for white, as Pillow converts it to "L".

    Raises:
        SourceError: the pixel data is damaged or too short, or an index lies outside the palette.
    """
    _check_enough(png, path)
    undo = _by_kornia if png.header.depth in _KORNIA_DEPTHS and png.header.colour in _KORNIA else _by_pillow
    try:
        image = undo(png.header, deflated(inflate(png, path)))
    except SourceError:
        raise
    except MemoryError as error:
        raise SourceError(f"{png.header.width} x {png.header.height} pixels do not fit into memory", path) from error
    except Exception as error:  # kornia_rs raises no class of its own
        raise SourceError(f"damaged PNG: its pixels cannot be decoded ({error}); get the file again", path) from error
    if png.header.colour != PALETTE:
        return image
    _check_indices(image, png, path)
    return image if as_index else _colours(png)[image[:, :, 0]]


def see_through(png: Png) -> tuple[int, ...] | None:
    """The one colour of a picture without alpha or palette that is marked as transparent (tRNS), as `decode` gives it.

    None where there is none.
    """
    header = png.header
    if not header.transparent or header.colour not in (GRAY, RGB):
        return None
    # Higher bits than the picture has are not looked at, as the specification says.
    largest = 2**header.depth - 1
    values = (int.from_bytes(png.alpha[i : i + 2], "big") & largest for i in range(0, 2 * SAMPLES[header.colour], 2))
    return tuple(value * (255 // largest) if header.depth < 8 else value for value in values)


def _check_enough(png: Png, path: str) -> None:
    """Refuses a header that promises more than its data can hold, before memory is taken for it."""
    header = png.header
    row = (header.width * header.depth * SAMPLES[header.colour] + 7) // 8
    if header.height * row > _MOST_INFLATED * len(png.pixels):
        size = f"{header.width} x {header.height} pixels"
        reason = f"damaged PNG: {len(png.pixels)} bytes of data cannot hold {size}; get the file again"
        raise SourceError(reason, path)


def _by_kornia(header: PngHeader, data: Sequence[bytes | memoryview]) -> NDArray[Any]:
    ihdr = IHDR.pack(header.width, header.height, header.depth, header.colour, 0, 0, header.interlaced)
    chunks = [(b"IHDR", ihdr), *((b"IDAT", part) for part in data), (b"IEND", b"")]
    file = b"".join((SIGNATURE, *itertools.chain.from_iterable(itertools.starmap(chunk_parts, chunks))))
    undo_filters, dtype, times = _KORNIA_DEPTHS[header.depth]
    # A MemoryError here is an error, one within kornia_rs the end of the process.
    np.empty((times, header.height, header.width, SAMPLES[header.colour]), dtype)
    return undo_filters(file, (header.height, header.width), _KORNIA[header.colour])


def _by_pillow(header: PngHeader, data: Sequence[bytes | memoryview]) -> NDArray[Any]:
    mode, layout = _PILLOW[header.colour, header.depth]
    size = (header.width, header.height)
    image = np.asarray(Image.frombytes(mode, size, b"".join(data), "zip", layout, header.interlaced))
    if image.dtype == bool:
        image = image.astype(np.uint8) * np.uint8(255)
    if (header.colour, header.depth) == (GRAY_ALPHA, 16):
        return image.view(">u2").astype(np.uint16)
    return image[:, :, None] if image.ndim == 2 else image


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
