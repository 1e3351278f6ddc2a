"""What Pillow changes, or leaves as it is against the word of the file: sentences for the plan."""

from __future__ import annotations

from collections.abc import Iterator

from PIL import Image, TiffImagePlugin

from packer.sources.images.modes import COLOUR_KEY, FEW_BITS

_BITS, _PHOTOMETRIC, _ORIENTATION, _SAMPLES, _EXTRA = 258, 262, 274, 277, 338
_WHITE_IS_ZERO = 0
#: What a TIFF calls alpha that its colours are multiplied by.
_ASSOCIATED = 1

TURNED = "turned as the orientation tag of the TIFF says, by Pillow"
NOT_TURNED = "an orientation tag (EXIF) is not applied: pixels stay where the file has them"
DIVIDED = "colours are divided by the alpha that the TIFF has multiplied them by, in 8 bits, by Pillow"

INVERTED = "0 is white in the TIFF: values are inverted by Pillow, so that 0 is black"
NOT_INVERTED = "0 is white in the TIFF, and stays so: of more than 8 bits Pillow gives the values as they are"


def changes(image: Image.Image, *, with_alpha: bool = False) -> Iterator[str]:
    """The sentences for an opened image of which no pixel has been decoded; `with_alpha`: it comes out as RGBA."""
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
