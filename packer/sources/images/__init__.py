"""Images, in files or in LMDB folders of encoded ones; one or more fields, partners paired by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from packer.sources.images.png import GRAY, GRAY_ALPHA, IHDR, RGB, RGBA, SIGNATURE, chunk_parts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from packer.codecs import EncodedImage
    from packer.sources.images.formats import ImageHeader, ImageOptions
    from packer.sources.options import SourceOptions

__all__ = [
    "COLOURS",
    "GRAY",
    "GRAY_ALPHA",
    "IHDR",
    "RGB",
    "RGBA",
    "SIGNATURE",
    "as_image",
    "chunk_parts",
    "header_in",
    "image_in",
]

#: What colours of so many channels are called.
COLOURS = {1: "gray", 2: "gray with alpha", 3: "RGB", 4: "RGBA"}


def as_image(value: Any, field: str) -> EncodedImage | None:
    """Return the pixels of a PIL image, or of the bytes of a file of an image; see `formats.as_image`."""
    from packer.sources.images import formats  # which loads Pillow

    return formats.as_image(value, field)


def header_in(file: bytes | tuple[str, int, int], field: str, options: SourceOptions) -> ImageHeader:
    """Return the header of an image that is in memory as its file; arguments and errors as of `image_in`.

    Args:
        file: its bytes; or the path of the file in which they lie, where they begin, and how many there are.
    """
    from packer.sources.images import formats

    place = file if isinstance(file, bytes) else formats.ByteRange(*file)
    return formats.read_header(f"{field}." if isinstance(file, tuple) else field, _reading(field, options), place)


def image_in(file: bytes, field: str, options: SourceOptions) -> NDArray[Any]:
    """Return the pixels of an image that is in memory as its file, (H, W, C); see `formats.read_image`.

    Args:
        field: its name says whether palettes give colours or, of masks, numbers, unless an option does.

    Raises:
        SourceError: it is no image, damaged, too large, or cannot be read without loss; its path is the field.
    """
    from packer.sources.images import formats

    return formats.read_image(field, _reading(field, options), file)


def _reading(field: str, options: SourceOptions) -> ImageOptions:
    from packer.sources.images.formats import MAX_PIXELS, ImageOptions, is_mask_name

    palette = options.palette or ("index" if is_mask_name(field) and not options.mode else "colour")
    return ImageOptions(options.mode, palette, options.max_pixels or MAX_PIXELS, options.orient)
