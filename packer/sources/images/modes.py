"""What is done with images on request: the options, and the conversion between gray, RGB and RGBA.

The arithmetic is Pillow's own, so that 8-bit images come out as `Image.convert` gives them; unlike
Pillow it keeps 16 bits where there are 16.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError, UsageError

#: Channels of an image after conversion to a mode.
CHANNELS = {"gray": 1, "rgb": 3, "rgba": 4}

#: Said in the plan of files that hold such gray.
FEW_BITS = "gray of 1, 2 or 4 bits is stored as 8 bits, 0 for black and 255 for white"

#: Said where no alpha is asked for.
COLOUR_KEY = "one colour is marked as transparent: the pixels keep that colour, the mark is not kept"

#: Pillow's own limit: a picture with more pixels is more likely made to fill the memory than to be looked at.
MAX_PIXELS = 178_956_970


@dataclass(frozen=True)
class ImageOptions:
    """How images are taken in.

    Attributes:
        mode: `gray`, `rgb` or `rgba` converts every image; None keeps the channels of the files.
        palette: `colour` gives palette pictures their colours, `index` keeps the numbers of the colours.
        max_pixels: larger pictures are refused.
    """

    mode: str | None = None
    palette: str = "colour"
    max_pixels: int = MAX_PIXELS

    def __post_init__(self) -> None:
        if self.mode is not None and self.mode not in CHANNELS:
            raise UsageError(f"mode {self.mode!r} is unknown; one of {', '.join(CHANNELS)} is expected")
        if self.palette not in ("colour", "index"):
            raise UsageError(f"palette {self.palette!r} is unknown; colour or index is expected")
        if self.palette == "index" and self.mode:
            raise UsageError("palette indices have no colours to convert; leave out either mode or palette")
        if self.max_pixels < 1:
            raise UsageError(f"max_pixels is {self.max_pixels}; a number above 0 is expected")

    def check_size(self, width: int, height: int, path: str) -> None:
        """Raises SourceError where a picture has more than `max_pixels` pixels."""
        if width * height > self.max_pixels:
            reason = f"has {width} x {height} pixels, more than the limit of {self.max_pixels}"
            raise SourceError(f"{reason}; raise it with --max-pixels {width * height} if the picture is meant", path)


def convert_mode(image: NDArray[Any], mode: str, see_through: tuple[int, ...] | None = None) -> NDArray[Any]:
    """(H, W, C) of uint8 or uint16 with C of 1 to 4, as (H, W, `CHANNELS[mode]`) of the same dtype.

    Alpha is dropped where the mode has none. Where the image has none it is full, and 0 for pixels of the colour
    `see_through` (C values).
    """
    channels = image.shape[2]
    if channels == CHANNELS[mode]:
        return image
    colours = image[:, :, : 1 if channels < 3 else 3]
    if mode == "gray":
        return np.ascontiguousarray(colours if channels < 3 else _luma(colours))
    rgb = np.broadcast_to(colours, (*image.shape[:2], 3))
    if mode == "rgb":
        return np.ascontiguousarray(rgb)
    alpha = image[:, :, -1:] if channels in (2, 4) else _alpha(colours, see_through)
    return np.concatenate([rgb, alpha], axis=2)


def _alpha(colours: NDArray[Any], see_through: tuple[int, ...] | None) -> NDArray[Any]:
    alpha = np.full((*colours.shape[:2], 1), np.iinfo(colours.dtype).max, colours.dtype)
    if see_through is not None:
        alpha[(colours == np.array(see_through, colours.dtype)).all(axis=2)] = 0
    return alpha


def _luma(rgb: NDArray[Any]) -> NDArray[Any]:
    """Brightness by ITU-R 601-2 in fixed point: the weights add up to 65536, so 16-bit values fit into uint32."""
    wide = rgb.astype(np.uint32)
    total = wide[:, :, 0] * np.uint32(19595) + wide[:, :, 1] * np.uint32(38470) + wide[:, :, 2] * np.uint32(7471)
    gray: NDArray[Any] = ((total + np.uint32(0x8000)) >> np.uint32(16)).astype(rgb.dtype)
    return gray[:, :, None]
