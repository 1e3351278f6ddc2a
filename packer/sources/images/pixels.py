"""How images come out: the header that says it, and what is done with pixels.

The orientation tag (EXIF) is applied only if asked for (`--orient`): partners and labels rely on where the file has its
pixels. The plan counts files that have one.

Gray, RGB and RGBA are converted into each other (`--mode`) by Pillow's own arithmetic, so that 8-bit images come out
as `Image.convert` gives them; unlike Pillow, 16 bits stay 16.
"""

from __future__ import annotations

import contextlib
import functools
import io
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from packer.errors import SourceError
from packer.sources.images import png
from packer.sources.images.options import ImageOptions

#: Channels of an image after conversion to a mode.
CHANNELS = {"gray": 1, "rgb": 3, "rgba": 4}

# Remarks of the plan on files whose pixels are not kept as they are.
FEW_BITS = "gray of 1, 2 or 4 bits is stored as 8 bits, 0 for black and 255 for white"
COLOUR_KEY = "one colour is marked as transparent: the pixels keep that colour, the mark is not kept"
NOT_TURNED = "an orientation tag (EXIF) is not applied: pixels stay where the file has them; --orient turns them"
TURNED = "turned as the orientation tag (EXIF) says"
SEVERAL = (
    "further pictures in the file (MPO of phones and cameras: gain maps, depth, stereo) are not packed, its first is"
)
PROFILE = "its colour profile (ICC) is not sRGB: values are packed as they are, the profile is not kept"
COLOURS = "its colours (cICP, gAMA) are not sRGB: values are packed as they are, what says so is not kept"
CMYK = "CMYK is turned into other colours by Pillow; codec jpeg stores their pixels, not the files"

#: How many colours show whether a profile is that of sRGB, how far it may move them on average; most bytes of one.
_PROBES, _LIKE_SRGB, _MOST_PROFILE_BYTES = 256, 4, 2**22
#: Tag of EXIF and of TIFF with the orientation.
ORIENTATION = 274


class ImageHeader(NamedTuple):
    """Shape and dtype of an image when it is read: (height, width, channels) of dtype.

    Attributes:
        note: what is not kept as it is in the file, in words; empty if nothing.
        has_palette: whether the file holds numbers of colours.
        axes: of a stack of images, a letter for each axis before height, as tifffile names them.
        stack: the lengths of these axes.
        unwritten: how many pieces of the file were never written.
        after: how many bytes follow the image; 0 if it is not known.
        is_whole: whether it is known that none do.
    """

    height: int
    width: int
    channels: int
    dtype: str
    note: str
    has_palette: bool = False
    axes: str = ""
    stack: tuple[int, ...] = ()
    unwritten: int = 0
    after: int = 0
    is_whole: bool = False

    @property
    def in_words(self) -> str:
        """Return what all images of a field have in common, such as `RGB uint8`."""
        return png.shown_in_words(self.channels, self.dtype, self.axes)


def check_mode(dtype: str, options: ImageOptions) -> None:
    """Raise SourceError if values of a dtype cannot become the colours that are asked for."""
    if options.mode not in (None, "gray") and dtype not in ("uint8", "uint16"):
        reason = f"holds {dtype} values, which cannot become colours; pack it without --mode {options.mode}"
        raise SourceError(reason)


# ---------------------------------------------------------------- colour profiles


@functools.lru_cache
def is_srgb(profile: bytes, mode: str) -> bool:
    """Return whether colours of a profile (ICC) look as those of sRGB do; unreadable profiles say nothing.

    Args:
        mode: `L` or `RGB`.
    """
    from PIL import ImageCms

    values = np.random.default_rng(0).integers(0, 256, (_PROBES, 3), dtype=np.uint8)
    values[:, 1:] = values[:, :1] if mode == "L" else values[:, 1:]
    probe = Image.fromarray(values[None, :, 0] if mode == "L" else values[None])
    try:
        seen: Any = ImageCms.profileToProfile(
            probe, io.BytesIO(profile), ImageCms.createProfile("sRGB"), outputMode="RGB"
        )
    except (ImageCms.PyCMSError, OSError):
        return True
    return bool(np.abs(np.asarray(seen)[0].astype(int) - values).mean() <= _LIKE_SRGB)


def inflated(profile: bytes) -> bytes:
    """Return a profile as PNG stores it, without its name; empty if it is damaged or enormous."""
    with contextlib.suppress(zlib.error):
        return zlib.decompressobj().decompress(profile.partition(b"\0")[2][1:], _MOST_PROFILE_BYTES)
    return b""


# ---------------------------------------------------------------- orientation

#: What each value of the orientation tag asks for, of pixels (H, W, C).
TURNS: dict[int, Callable[[NDArray[Any]], NDArray[Any]]] = {
    2: lambda pixels: pixels[:, ::-1],
    3: lambda pixels: pixels[::-1, ::-1],
    4: lambda pixels: pixels[::-1],
    5: lambda pixels: pixels.transpose(1, 0, 2),
    6: lambda pixels: pixels[::-1].transpose(1, 0, 2),
    7: lambda pixels: pixels[::-1, ::-1].transpose(1, 0, 2),
    8: lambda pixels: pixels[:, ::-1].transpose(1, 0, 2),
}
#: Those from this one on swap rows and columns.
_FIRST_ON_ITS_SIDE = 5


def turn_in(exif: bytes) -> int:
    """Return the orientation that the bytes of EXIF ask for; 1 if none."""
    with contextlib.suppress(Exception):
        tags = Image.Exif()
        tags.load(exif)
        return int(tags.get(ORIENTATION, 1))
    return 1


def oriented(pixels: NDArray[Any], turn: int) -> NDArray[Any]:
    """Return pixels (H, W, C) turned, mirrored or both; unchanged if the orientation is 1 or unknown."""
    return np.ascontiguousarray(TURNS[turn](pixels)) if turn in TURNS else pixels


def oriented_header(
    height: int, width: int, channels: int, dtype: str, notes: list[str], turn: int, options: ImageOptions
) -> ImageHeader:
    """Return the header of an image with an orientation, which is applied or noted."""
    if turn in TURNS:
        notes = [*notes, TURNED if options.orient else NOT_TURNED]
    if options.orient and turn in TURNS and turn >= _FIRST_ON_ITS_SIDE:
        height, width = width, height
    return ImageHeader(height, width, channels, dtype, "; ".join(notes))


# ---------------------------------------------------------------- modes


def convert(image: NDArray[Any], mode: str, transparent_colour: tuple[int, ...] | None = None) -> NDArray[Any]:
    """Convert (H, W, C) of uint8 or uint16 with C of 1 to 4 to (H, W, `CHANNELS[mode]`) of the same dtype.

    Alpha is dropped if the mode has none. If only the image has none, it becomes opaque, but 0 for pixels of the colour
    `transparent_colour` (C values).
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
    if channels in (2, 4):
        return np.concatenate([rgb, image[:, :, -1:]], axis=2)
    alpha = np.full((*image.shape[:2], 1), np.iinfo(image.dtype).max, image.dtype)
    if transparent_colour is not None:
        alpha[(colours == np.array(transparent_colour, image.dtype)).all(axis=2)] = 0
    return np.concatenate([rgb, alpha], axis=2)


def _luma(rgb: NDArray[Any]) -> NDArray[Any]:
    """Return brightness by ITU-R 601-2 in fixed point: weights add up to 65536, so 16-bit values fit into uint32."""
    wide = rgb.astype(np.uint32)
    total = wide[:, :, 0] * np.uint32(19595) + wide[:, :, 1] * np.uint32(38470) + wide[:, :, 2] * np.uint32(7471)
    gray: NDArray[Any] = ((total + np.uint32(0x8000)) >> np.uint32(16)).astype(rgb.dtype)
    return gray[:, :, None]
