"""What codecs do to the values of images before their bytes are encoded; as many bytes come out as go in.

A filter is a module with two functions and an entry in `FILTERS`; it can only be the first part of a codec. Whoever
writes frames applies it to whole images, or bands of them, and whoever reads undoes it for a batch at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from numpy.typing import NDArray

from packer.codecs import photo, rowdelta

Images = NDArray[Any]


class Filter(NamedTuple):
    """One filter.

    Attributes:
        apply: makes a new array of images (n, rows, width, channels), of their dtype and shape.
        undo: gives such images their values back in place; `axis` is that of the rows, 1 by default.
        dtypes: of images that it is for.
        in_loops: whether the compiled loops undo it too, frame by frame.
        by_pixel: whether it does something else with each channel, so that a pixel is what comes again in its values.
    """

    apply: Callable[[Images], Images]
    undo: Callable[..., None]
    dtypes: tuple[str, ...]
    in_loops: bool = False
    by_pixel: bool = False


#: By the id in the schema.
FILTERS = {
    "rowdelta": Filter(rowdelta.difference, rowdelta.accumulate, ("uint8", "uint16"), in_loops=True),
    "photo": Filter(photo.store, photo.restore, ("uint8", "uint16"), in_loops=True, by_pixel=True),
}
