"""What `photo` does to the values of images before their bytes are encoded; as many bytes come out as go in.

A filter can only be the first part of a codec. Whoever writes frames applies it to whole images, or to bands of them,
and whoever reads undoes it for a batch at a time. The functions here do so if machine code does not, which undoes it
image by image (`loops.py`).

`photo` stores red and blue less green, then each row less the row above, then the sign in the lowest bit: what is left
has mostly zeros in its high bits, which bitshuffle puts next to each other. All steps are modulo 2**bits and none looks
to the left, so that a whole batch is undone at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Images = NDArray[Any]

#: Numbers of channels whose first three are red, green and blue; a fourth is alpha.
COLOURS = (3, 4)


class Filter(NamedTuple):
    """One filter.

    Attributes:
        apply: makes a new array of images (n, rows, width, channels), of their dtype and shape.
        undo: gives such images their values back in place; also where some of the columns are there alone, and of
            the rows of a band the first ones, since that is what a crop decodes.
        dtypes: of images that it is for.
    """

    apply: Callable[[Images], Images]
    undo: Callable[[Images], None]
    dtypes: tuple[str, ...]


def store_photo(images: Images) -> Images:
    """Return what `photo` stores of images (n, rows, width, channels), uint8 or uint16; a new array."""
    plain = images.copy()
    if images.shape[-1] in COLOURS:
        plain[..., 0] -= images[..., 1]
        plain[..., 2] -= images[..., 1]
    rows = plain.copy()
    rows[:, 1:] -= plain[:, :-1]
    signed = rows.view(f"i{rows.itemsize}")
    folded: Images = ((signed << 1) ^ (signed >> (8 * rows.itemsize - 1))).view(images.dtype)
    return folded


def restore_photo(images: Images) -> None:
    """Undo `store_photo` in place."""
    signs = images & 1
    images >>= 1
    images ^= np.negative(signs, out=signs)
    for row in range(1, images.shape[1]):
        images[:, row] += images[:, row - 1]
    if images.shape[-1] in COLOURS:
        images[..., 0] += images[..., 1]
        images[..., 2] += images[..., 1]


#: By the id in the schema.
FILTERS = {"photo": Filter(store_photo, restore_photo, ("uint8", "uint16"))}
