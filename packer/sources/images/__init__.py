"""Images, in files or in LMDB folders of encoded ones; one or more fields, partners paired by name."""

from packer.sources.images.formats import as_image
from packer.sources.images.opening import open_images
from packer.sources.images.png import GRAY, GRAY_ALPHA, IHDR, RGB, RGBA, SIGNATURE, chunk_parts

__all__ = ["GRAY", "GRAY_ALPHA", "IHDR", "RGB", "RGBA", "SIGNATURE", "as_image", "chunk_parts", "open_images"]
