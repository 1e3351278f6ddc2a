"""Photographs kept as the JPEG files that they came in: a frame is one file, decoded when it is read.

libjpeg-turbo decodes with its defaults (exact integer DCT, smooth upsampling of colours), as Pillow does: pixels are
the same bit for bit. It lets go of the interpreter's lock, so that threads decode side by side.

A sample that is no such file is stored as its pixels. The length of a frame tells them apart: pixels have their own
number of bytes; a file that has as many or more is followed by one byte of 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: The id of the codec in the schema, and the dtype and channels that it is for.
JPEG, JPEG_DTYPE, JPEG_CHANNELS = "jpeg", "uint8", (1, 3)
_COLOURS = {1: "GRAY", 3: "RGB"}
#: Markers of frames with one pass over the image, and of those with several, or of the pixels.
_SEQUENTIAL, _PROGRESSIVE_OR_SCAN = (0xC0, 0xC1), (0xC2, 0xDA)
#: Rows that are decoded below the last one that is wanted: those whose colours smooth it.
_SPARE_ROWS = 16
#: How the errors of libjpeg begin that mean lost pixels; its other warnings are about unusual headers.
_LOST = ("Corrupt JPEG data", "Premature end")


class EncodedImage(np.ndarray[Any, np.dtype[Any]]):
    """An image (H, W, C) that knows the JPEG file it was decoded from.

    A view, a copy or a result of arithmetic is not that image any more, and has no file.

    Attributes:
        file: all bytes of the file; empty if there is none.
    """

    file: bytes

    @classmethod
    def of(cls, image: NDArray[Any], file: bytes) -> EncodedImage:
        """Return an image that was decoded from a file, with this file."""
        encoded = image.view(cls)
        encoded.file = file
        return encoded

    def __array_finalize__(self, source: Any) -> None:
        self.file = b""

    def __reduce__(self) -> Any:
        return EncodedImage.of, (np.asarray(self), self.file)


def file_of(image: NDArray[Any]) -> bytes:
    """Return the JPEG file of an image; empty if it has none."""
    return image.file if isinstance(image, EncodedImage) else b""


def frame_of_file(file: bytes, nbytes: int) -> bytes:
    """Return a file as it is stored, given the bytes of its pixels."""
    return file if len(file) < nbytes else file + b"\0"


def file_of_frame(stored: memoryview, nbytes: int) -> memoryview:
    """Return the file in a stored frame, given the bytes of its pixels; an empty one if these themselves are stored."""
    return stored[: len(stored) - (len(stored) > nbytes)] if len(stored) != nbytes else stored[:0]


def decode_jpeg(
    file: memoryview,
    shape: Sequence[int],
    out: NDArray[np.uint8] | None = None,
    factor: int = 1,
    rows: int | None = None,
) -> NDArray[np.uint8]:
    """Return the pixels of a JPEG file; those of a gray file may have three channels.

    Args:
        shape: that the image must have, (H, W, C).
        out: memory for the pixels, (bytes,); new memory by default.
        factor: 2, 4 or 8 decodes the image this many times as small, its sides rounded up.
        rows: how many of the first rows are wanted; of those below, some or all may lack. None for all.

    Raises:
        ValueError: the file is damaged, or holds an image of another shape or of other colours.
    """
    import simplejpeg

    height, width, channels = shape
    if rows is not None:
        file, height = _first_rows(file, height, rows)
    small = -(-height // factor), -(-width // factor), channels
    least = {} if factor == 1 else {"min_height": small[0], "min_width": small[1], "min_factor": factor}
    image: NDArray[np.uint8] = simplejpeg.decode_jpeg(file, _COLOURS[channels], buffer=out, strict=False, **least)
    if image.shape != small:
        raise ValueError(f"an image of {' x '.join(map(str, image.shape))}; {' x '.join(map(str, small))} is expected")
    return image


def _first_rows(file: memoryview, height: int, rows: int) -> tuple[Any, int]:
    """Return a JPEG file that has only about the first `rows` rows of its image, and how many it has.

    libjpeg decodes as many rows as the header says, and skips the rest of the data. Only the header of a sequential
    file is changed: a progressive one holds the whole image several times, more exact each time.
    """
    cut = rows + _SPARE_ROWS
    at = 2
    while cut < height and at + 9 < len(file) and file[at] == 0xFF and file[at + 1] not in _PROGRESSIVE_OR_SCAN:
        if file[at + 1] in _SEQUENTIAL and int.from_bytes(file[at + 5 : at + 7], "big") == height:
            shorter = bytearray(file)
            shorter[at + 5 : at + 7] = cut.to_bytes(2, "big")
            return shorter, cut
        at += 2 + int.from_bytes(file[at + 2 : at + 4], "big")
    return file, height


def checked_jpeg(file: bytes, channels: int) -> NDArray[np.uint8] | None:
    """Return the pixels of a JPEG file as `decode_jpeg` gives them; None if this libjpeg cannot decode such files.

    Raises:
        ValueError: pixels are lost: the file is cut short, or bytes of it were changed.
    """
    import simplejpeg

    for strict in (True, False):  # at first a warning is an error
        try:
            pixels: NDArray[np.uint8] = simplejpeg.decode_jpeg(file, _COLOURS[channels], strict=strict)
        except ValueError as error:
            if str(error).startswith(_LOST):
                raise
        else:
            return pixels
    return None
