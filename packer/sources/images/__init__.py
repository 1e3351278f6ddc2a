"""Images, in files or in LMDB folders of encoded ones; one or more fields, partners paired by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from packer.errors import SourceError
from packer.sources.images.options import reading_of
from packer.sources.images.png import (
    GRAY,
    GRAY_ALPHA,
    IHDR,
    RGB,
    RGBA,
    SIGNATURE,
    chunk_parts,
    pixels_in_words,
    shown_in_words,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from packer.codecs import EncodedImage
    from packer.sources.images.pixels import ImageHeader
    from packer.sources.options import SourceOptions

__all__ = [
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
    "pixels_in_words",
    "shown_in_words",
]


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
    header = formats.read_header(f"{field}." if isinstance(file, tuple) else field, reading_of(field, options), place)
    if header.stack:
        raise SourceError("holds a stack of images where one is expected; pack such files by themselves", field)
    return header


def image_in(file: bytes, field: str, options: SourceOptions) -> NDArray[Any]:
    """Return the pixels of an image that is in memory as its file, (H, W, C); see `formats.read_image`.

    Args:
        field: its name says whether palettes give colours or, of masks, numbers, unless an option does.

    Raises:
        SourceError: it is no image, damaged, too large, or cannot be read without loss; its path is the field.
    """
    from packer.sources.images import formats

    return formats.read_image(field, reading_of(field, options), file)
