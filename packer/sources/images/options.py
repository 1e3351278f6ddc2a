"""How images are read, apart from how that is done: importing this loads no Pillow."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from packer.errors import SourceError, UsageError
from packer.sources.options import SourceOptions

#: Pillow's own limit: an image with more pixels is more likely an attack on memory than an image.
MAX_PIXELS = 178_956_970


@dataclass(frozen=True)
class ImageOptions:
    """How images are read.

    Attributes:
        mode: `gray`, `rgb` or `rgba` converts every image; None keeps the channels of the files.
        palette: `colour` gives palette images their colours, `index` keeps the numbers of the colours.
        max_pixels: larger images are refused.
        orient: whether the orientation tag (EXIF) is applied to the pixels.
    """

    mode: str | None = None
    palette: str = "colour"
    max_pixels: int = MAX_PIXELS
    orient: bool = False

    def __post_init__(self) -> None:
        if self.palette == "index" and self.mode:
            raise UsageError("palette indices have no colours to convert; leave out --mode or --palette index")

    def check_size(self, width: int, height: int) -> None:
        """Raise SourceError if an image has more than `max_pixels` pixels."""
        if width * height > self.max_pixels:
            reason = f"has {width} x {height} pixels, more than the limit of {self.max_pixels:,}"
            raise SourceError(f"{reason}; if that is right, raise the limit with --max-pixels {width * height}")


@functools.cache
def reading(mode: str | None, palette: str, max_pixels: int | None, orient: bool) -> ImageOptions:
    """Return these options, made once for many images."""
    return ImageOptions(mode, palette, max_pixels or MAX_PIXELS, orient)


def reading_of(field: str, options: SourceOptions) -> ImageOptions:
    """Return how images of a field are read one by one, whose palettes give numbers if its name is that of masks."""
    palette = options.palette or ("index" if is_mask_name(field) and not options.mode else "colour")
    return reading(options.mode, palette, options.max_pixels, options.orient)


_MASKS = {"annotation", "annotations", "class", "classes", "label", "labels", "mask", "masks", "seg", "segmentation"}


def is_mask_name(field: str) -> bool:
    """Return whether images of a field of this name hold numbers of classes, such as `mask` or `gt_label`."""
    return not _MASKS.isdisjoint(re.split(r"[\W\d_]+", field.lower()))
