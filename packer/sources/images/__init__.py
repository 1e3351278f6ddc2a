"""Images, in files or in LMDB folders of encoded ones; one or more fields, partners paired by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from packer.sources.images.png import GRAY, GRAY_ALPHA, IHDR, RGB, RGBA, SIGNATURE, chunk_parts

if TYPE_CHECKING:
    from packer.codecs import EncodedImage

__all__ = ["GRAY", "GRAY_ALPHA", "IHDR", "RGB", "RGBA", "SIGNATURE", "as_image", "chunk_parts"]


def as_image(value: Any, field: str) -> EncodedImage | None:
    """Return the pixels of a PIL image, or of the bytes of a file of an image; see `formats.as_image`."""
    from packer.sources.images import formats  # which loads Pillow

    return formats.as_image(value, field)
