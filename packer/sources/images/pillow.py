"""JPEG, TIFF, WebP, BMP and GIF, through Pillow.

The reader of the expected format is called by itself, not `Image.open`: no other format is tried on the
bytes, and Pillow's process-wide pixel limit, a warning first and then an error, gives way to `max_pixels`.
Pixels are those of `np.asarray(Image.open(path))`, signed 16 bits as int16 where Pillow widens them. So the orientation
tag of JPEG and WebP is not applied: pixels stay where the file has them, as partners and labels count on it. That of a
TIFF is, by Pillow itself, to size and pixels alike, and colours that a TIFF holds multiplied by their alpha are divided
by it. The plan says so of each.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import BmpImagePlugin, GifImagePlugin, Image, JpegImagePlugin, TiffImagePlugin, WebPImagePlugin

from packer.errors import PackerError, SourceError
from packer.sources.images.modes import ImageOptions
from packer.sources.images.pillow_notes import changes

_READERS: dict[str, Any] = {
    "JPEG": JpegImagePlugin.JpegImageFile,
    "TIFF": TiffImagePlugin.TiffImageFile,
    "WebP": WebPImagePlugin.WebPImageFile,
    "BMP": BmpImagePlugin.BmpImageFile,
    "GIF": GifImagePlugin.GifImageFile,
}

_BITS, _SAMPLE_FORMAT = 258, 339
_UNSIGNED, _SIGNED = 1, 2


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


def read_size(path: str, kind: str, options: ImageOptions) -> tuple[int, int, Layout]:
    """Height, width and layout of a file, from its header.

    Raises:
        SourceError: the header is damaged, or the picture is one that cannot be taken in without loss.
    """
    with _opened(path, path, kind, options) as image:
        layout = _layout(image, path, options)
        note = "; ".join(changes(image, with_alpha=layout.mode == "RGBA"))
        return image.height, image.width, layout._replace(note=note)


def decode(data: bytes, path: str, kind: str, options: ImageOptions) -> NDArray[Any]:
    """The picture as (H, W, C) in the dtype of its layout; raises SourceError as `read_size` does, or if damaged."""
    with _opened(io.BytesIO(data), path, kind, options) as image:
        layout = _layout(image, path, options)
        pixels = np.asarray(image if image.mode == layout.mode else image.convert(layout.mode))
    pixels = pixels.view(layout.dtype) if layout.dtype == "uint32" else pixels.astype(layout.dtype, copy=False)
    return pixels[:, :, None] if pixels.ndim == 2 else pixels


@contextmanager
def _opened(file: str | io.BytesIO, path: str, kind: str, options: ImageOptions) -> Iterator[Image.Image]:
    try:
        with warnings.catch_warnings():
            # Pillow warns of metadata it cannot read, which is not taken over anyway.
            warnings.simplefilter("ignore")
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
    """Refuses what Pillow would change in silence: colour of more than 8 bits, signed values taken for unsigned."""
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
