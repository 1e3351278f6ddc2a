"""Photographs as small numbers: red and blue less green, each row less the row above, signs in the lowest bit.

What is left has mostly zeros in its high bits, which bitshuffle puts next to each other. Each step gives back every
bit, modulo 2**bits, and none looks to the left: numpy undoes them for a whole batch, machine code in vectors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.codecs import rowdelta

#: Numbers of channels whose first three are red, green and blue; a fourth is alpha.
COLOURS = (3, 4)
#: Bytes whose signs are put back at once: they stay in the processor's cache.
_CACHED_BYTES = 2**18


def store(images: NDArray[Any]) -> NDArray[Any]:
    """Return what is stored of images (n, rows, width, channels), uint8 or uint16; a new array."""
    plain = images.copy()
    if images.shape[-1] in COLOURS:
        plain[..., 0] -= images[..., 1]
        plain[..., 2] -= images[..., 1]
    rows = rowdelta.difference(plain)
    signed = rows.view(f"i{rows.itemsize}")
    folded: NDArray[Any] = ((signed << 1) ^ (signed >> (8 * rows.itemsize - 1))).view(images.dtype)
    return folded


def restore(images: NDArray[Any], axis: int = 1) -> None:
    """Undo `store` in place for images (n, rows, width, channels), or whatever has its rows in `axis`."""
    rows = np.moveaxis(images, axis, 0)
    step = max(1, _CACHED_BYTES // max(rows[:1].nbytes, 1))
    for at in range(0, len(rows), step):
        part = rows[at : at + step]
        signs = part & 1
        part >>= 1
        part ^= np.negative(signs, out=signs)
    rowdelta.accumulate(images, axis)
    if images.shape[-1] in COLOURS:
        images[..., 0] += images[..., 1]
        images[..., 2] += images[..., 1]
