"""JPEG, TIFF, WebP, BMP and GIF, through Pillow; and what is done with all pictures on request (`ImageOptions`).

The reader of the expected format is called by itself, not `Image.open`: no other format is tried on the
bytes, and Pillow's process-wide pixel limit, a warning first and then an error, gives way to `max_pixels`.
Pixels are those of `np.asarray(Image.open(path))`, signed 16 bits as int16 where Pillow widens them. So the orientation
tag of JPEG and WebP is not applied: pixels stay where the file has them, as partners and labels count on it. That of a
TIFF is, by Pillow itself, to size and pixels alike, and colours that a TIFF holds multiplied by their alpha are divided
by it. The plan says so of each.

Gray, RGB and RGBA are converted into each other by Pillow's own arithmetic, so that 8-bit pictures come out as
`Image.convert` gives them; unlike Pillow, 16 bits stay 16.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import BmpImagePlugin, GifImagePlugin, Image, JpegImagePlugin, TiffImagePlugin, WebPImagePlugin

from packer.errors import PackerError, SourceError, UsageError

#: Channels of an image after conversion to a mode.
CHANNELS = {"gray": 1, "rgb": 3, "rgba": 4}

#: Said in the plan of files that hold such gray.
FEW_BITS = "gray of 1, 2 or 4 bits is stored as 8 bits, 0 for black and 255 for white"

#: Said where no alpha is asked for.
COLOUR_KEY = "one colour is marked as transparent: the pixels keep that colour, the mark is not kept"

#: Pillow's own limit: a picture with more pixels is more likely made to fill the memory than to be looked at.
MAX_PIXELS = 178_956_970

TURNED = "turned as the orientation tag of the TIFF says, by Pillow"
NOT_TURNED = "an orientation tag (EXIF) is not applied: pixels stay where the file has them"
DIVIDED = "colours are divided by the alpha that the TIFF has multiplied them by, in 8 bits, by Pillow"

INVERTED = "0 is white in the TIFF: values are inverted by Pillow, so that 0 is black"
NOT_INVERTED = "0 is white in the TIFF, and stays so: of more than 8 bits Pillow gives the values as they are"

_READERS: dict[str, Any] = {
    "JPEG": JpegImagePlugin.JpegImageFile,
    "TIFF": TiffImagePlugin.TiffImageFile,
    "WebP": WebPImagePlugin.WebPImageFile,
    "BMP": BmpImagePlugin.BmpImageFile,
    "GIF": GifImagePlugin.GifImageFile,
}

_BITS, _PHOTOMETRIC, _ORIENTATION, _SAMPLES, _EXTRA, _SAMPLE_FORMAT = 258, 262, 274, 277, 338, 339
_WHITE_IS_ZERO = 0
#: What a TIFF calls alpha that its colours are multiplied by.
_ASSOCIATED = 1
_UNSIGNED, _SIGNED = 1, 2


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
        """Raise SourceError if a picture has more than `max_pixels` pixels."""
        if width * height > self.max_pixels:
            reason = f"has {width} x {height} pixels, more than the limit of {self.max_pixels}"
            raise SourceError(f"{reason}; raise it with --max-pixels {width * height} if the picture is meant", path)


class Layout(NamedTuple):
    """How a picture is taken in: the Pillow mode it is converted to first, channels, dtype, and what the plan says."""

    mode: str
    channels: int
    dtype: str
    note: str = ""


_LAYOUTS = {
    "1": Layout("L", 1, "uint8"),
    "L": Layout("L", 1, "uint8"),
    "LA": Layout("LA", 2, "uint8"),
    "RGB": Layout("RGB", 3, "uint8"),
    "RGBA": Layout("RGBA", 4, "uint8"),
    "PA": Layout("RGBA", 4, "uint8"),
    "I;16": Layout("I;16", 1, "uint16"),
    "I;16B": Layout("I;16B", 1, "uint16"),
    "I": Layout("I", 1, "int32"),
    "F": Layout("F", 1, "float32"),
}


@contextmanager
def quiet() -> Iterator[None]:
    """Silence warnings of metadata that Pillow cannot read and nobody takes over; to be called in one thread alone."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def read_size(path: str, kind: str, options: ImageOptions) -> tuple[int, int, Layout]:
    """Return the height, width and layout of a file, from its header.

    Raises:
        SourceError: the header is damaged, or the picture is one that cannot be taken in without loss.
    """
    with _opened(path, path, kind, options) as image:
        layout = _layout(image, path, options)
        note = "; ".join(changes(image, with_alpha=layout.mode == "RGBA"))
        return image.height, image.width, layout._replace(note=note)


def decode(data: bytes, path: str, kind: str, options: ImageOptions) -> NDArray[Any]:
    """Return the picture as (H, W, C) in the dtype of its layout; raises SourceError as `read_size`, or if damaged."""
    with quiet(), _opened(io.BytesIO(data), path, kind, options) as image:
        layout = _layout(image, path, options)
        pixels = np.asarray(image if image.mode == layout.mode else image.convert(layout.mode))
    pixels = pixels.view(layout.dtype) if layout.dtype == "uint32" else pixels.astype(layout.dtype, copy=False)
    return pixels[:, :, None] if pixels.ndim == 2 else pixels


@contextmanager
def _opened(file: str | io.BytesIO, path: str, kind: str, options: ImageOptions) -> Iterator[Image.Image]:
    try:
        with _READERS[kind](file) as image:
            options.check_size(image.width, image.height, path)
            yield image
    except PackerError:
        raise
    except Exception as error:  # Damaged files make Pillow raise anything from SyntaxError to struct.error.
        reason = (
            f"is damaged or of a kind of {kind} that Pillow does not read ({error}); get it again or save it as PNG"
        )
        raise SourceError(reason, path) from error


def _layout(image: Image.Image, path: str, options: ImageOptions) -> Layout:
    if getattr(image, "n_frames", 1) > 1:
        raise SourceError("holds several pictures (an animation or pages); save the one wanted by itself", path)
    layout = _LAYOUTS.get(image.mode)
    if image.mode == "P":
        if options.palette == "index":
            return Layout("P", 1, "uint8")
        return _LAYOUTS["RGBA" if "transparency" in image.info else "RGB"]
    if layout in (_LAYOUTS["L"], _LAYOUTS["RGB"]) and options.mode == "rgba" and "transparency" in image.info:
        return _LAYOUTS["RGBA"]
    if layout is None:
        if options.mode is None:
            reason = f"has colours of the kind {image.mode}, which are not kept; convert them with --mode rgb"
            raise SourceError(reason, path)
        return _LAYOUTS["RGB"]
    return _tiff_layout(image, layout, path) if isinstance(image, TiffImagePlugin.TiffImageFile) else layout


def _tiff_layout(image: TiffImagePlugin.TiffImageFile, layout: Layout, path: str) -> Layout:
    """Refuse what Pillow would change in silence: colour of more than 8 bits, signed values taken for unsigned."""
    bits = image.tag_v2.get(_BITS, (1,))
    sample_format = image.tag_v2.get(_SAMPLE_FORMAT, (_UNSIGNED,))[0]
    if layout.dtype == "uint8" and (max(bits) > 8 or sample_format == _SIGNED):
        sign = "signed " if sample_format == _SIGNED else ""
        reason = f"is a TIFF of {sign}{max(bits)}-bit {image.mode}, which cannot be read without loss; save it as PNG"
        raise SourceError(reason, path)
    if layout.dtype == "int32" and sample_format == _UNSIGNED:
        return layout._replace(dtype="uint32")
    # Pillow has no mode of signed 16 bits and takes a wider one, with the same values.
    return layout._replace(dtype="int16") if layout.dtype == "int32" and max(bits) == 16 else layout


def changes(image: Image.Image, *, with_alpha: bool = False) -> Iterator[str]:
    """Yield the sentences for an opened image of which no pixel is decoded; `with_alpha`: it comes out as RGBA."""
    if not isinstance(image, TiffImagePlugin.TiffImageFile):
        if image.mode in ("L", "RGB") and "transparency" in image.info and not with_alpha:
            yield COLOUR_KEY
        if _orientation(image) not in (None, 1):
            yield NOT_TURNED
        return
    tags = image.tag_v2
    if tags.get(_ORIENTATION, 1) in range(2, 9):
        yield TURNED
    if image.mode == "RGBA" and _ASSOCIATED in tags.get(_EXTRA, ()):
        yield DIVIDED
    if tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO:
        yield INVERTED if image.mode in ("1", "L") else NOT_INVERTED
    if image.mode in ("1", "L") and max(tags.get(_BITS, (1,))) < 8:
        yield FEW_BITS
    samples, kept = tags.get(_SAMPLES, 1), len(image.getbands())
    if samples > kept:
        yield f"{samples - kept} of the {samples} samples of every pixel are not kept, as Pillow does not read them"


def _orientation(image: Image.Image) -> int | None:
    if "exif" not in image.info:
        return None
    try:
        found = image.getexif().get(_ORIENTATION)
    except Exception:  # Damaged EXIF makes Pillow raise anything, and harms no pixel.
        return None
    return found if isinstance(found, int) else None


def convert_mode(image: NDArray[Any], mode: str, see_through: tuple[int, ...] | None = None) -> NDArray[Any]:
    """Convert (H, W, C) of uint8 or uint16 with C of 1 to 4 to (H, W, `CHANNELS[mode]`) of the same dtype.

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
    """Return brightness by ITU-R 601-2 in fixed point: weights add up to 65536, so 16-bit values fit into uint32."""
    wide = rgb.astype(np.uint32)
    total = wide[:, :, 0] * np.uint32(19595) + wide[:, :, 1] * np.uint32(38470) + wide[:, :, 2] * np.uint32(7471)
    gray: NDArray[Any] = ((total + np.uint32(0x8000)) >> np.uint32(16)).astype(rgb.dtype)
    return gray[:, :, None]
