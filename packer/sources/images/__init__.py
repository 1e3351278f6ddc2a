"""Images, in files or in LMDB folders of encoded ones; one or more fields, partners paired by name."""

from packer.sources.images.opening import open_images

__all__ = ["open_images"]
