"""Filters change values before their bytes are encoded; the number of bytes stays the same.

A filter can only be the first part of a codec. There are two.

`photo` is for images. It stores red and blue less green, then each row less the row above, then the sign in the lowest
bit. The result has mostly zeros in its high bits, which bitshuffle puts next to each other. All steps are modulo
2**bits and none looks to the left, so that a whole batch is undone at once. Writers apply it to whole images, or to
bands of them, and readers undo it: by the functions here, or image by image in machine code (`loops.py`).

`decimal` is for floats that were written with few decimals: it stores the integers they came from. Each value is
stored by itself, so the filter is undone with the frame (`frames.py`), and readers need not know it. Idea: ALP
(Afroozeh and Boncz, "ALP: Adaptive Lossless floating-Point Compression", SIGMOD 2024), without its lists of exceptions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Images = NDArray[Any]

#: Numbers of channels whose first three are red, green and blue; a fourth is alpha.
COLOURS = (3, 4)
#: The id of the filter of images in the schema, and the dtypes that it is for.
PHOTO, PHOTO_DTYPES = "photo", ("uint8", "uint16")


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
    """Undo `store_photo` in place; also on images of which only some columns, or only the first rows, are there."""
    signs = images & 1
    images >>= 1
    images ^= np.negative(signs, out=signs)
    for row in range(1, images.shape[1]):
        images[:, row] += images[:, row - 1]
    if images.shape[-1] in COLOURS:
        images[..., 0] += images[..., 1]
        images[..., 2] += images[..., 1]


# ---------------------------------------------------------------- decimals

#: The id of the filter of decimals in the schema, and the dtypes that it is for.
DECIMAL, DECIMAL_DTYPES = "decimal", ("float32", "float64")
#: The most decimals of a value; a float64 has hardly more digits.
MOST_DIGITS = 15
#: Values that have integers of their own, the lowest four of their dtype, in this order. NaN is the quiet one, sign 0.
STRANGE = (-0.0, np.nan, np.inf, -np.inf)
#: Values stored at a time: few enough that intermediate results stay in the processor's cache.
_STRETCH = 2**15
#: Digits are chosen by this many pieces of this many values.
_PIECES, _PIECE = 256, 64


def store_decimals(values: NDArray[Any], digits: int) -> NDArray[Any] | None:
    """Return what `decimal` stores of values (n,): int32 of float32, int64 of float64.

    None if some value would not come back bit for bit.
    """
    ints = np.empty(len(values), f"<i{values.itemsize}")
    room = np.empty((2, min(len(values), _STRETCH)))
    with np.errstate(all="ignore"):
        for at in range(0, len(values), _STRETCH):
            if len(_integers(values[at : at + _STRETCH], digits, ints[at : at + _STRETCH], room)):
                return None
    return ints


def restore_decimals(ints: NDArray[Any], digits: int, out: NDArray[Any]) -> None:
    """Undo `store_decimals`: put the values of `ints` (n,), int32 or int64, into `out` (n,), float32 or float64."""
    lowest = np.iinfo(ints.dtype).min
    out[...] = ints / float(10**digits)
    strange = np.flatnonzero(ints < lowest + len(STRANGE))
    out[strange] = np.array(STRANGE, out.dtype)[ints[strange] - lowest]


def _integers(values: NDArray[Any], digits: int, ints: NDArray[Any], room: NDArray[np.float64]) -> NDArray[np.int64]:
    """Put the integers of values (n,) into `ints` (n,); return which of the values would not come back, (m,).

    The caller has numpy keep silent on overflows and NaN.

    Args:
        room: for intermediate results, (2, n or more); to allocate it each time would take as long as all else.
    """
    kind, scale = ints.dtype, float(10**digits)
    limit = 2.0 ** (31 if kind.itemsize == 4 else 53) - 8
    scaled, back = room[0, : len(values)], room[1].view(values.dtype)[: len(values)]
    # Only the largest is checked, before it is widened, which halves the work. It is NaN if any value is.
    fits = max(-float(values.min(initial=0.0)), float(values.max(initial=0.0))) * scale < limit - 1
    np.copyto(scaled, values)
    scaled *= scale
    np.rint(scaled, out=scaled)
    scaled += 0.0  # integers have no -0.0
    if not fits:
        scaled[~(np.abs(scaled) < limit)] = 0
    np.copyto(ints, scaled, casting="unsafe")
    scaled /= scale
    np.copyto(back, scaled, casting="same_kind")
    bits = values.view(kind)
    lost = np.flatnonzero(back.view(kind) != bits)
    for number, strange in enumerate(np.array(STRANGE, values.dtype).view(kind) if len(lost) else ()):
        same = bits[lost] == strange
        ints[lost[same]] = np.iinfo(kind).min + number
        lost = lost[~same]
    return lost


def digits_of(samples: Sequence[NDArray[Any]]) -> tuple[int, float] | None:
    """Return the number of decimals with which pieces of the samples take the fewest bits.

    A piece with a value that would not come back counts with all its bits.

    Args:
        samples: arrays of float32, or of float64.

    Returns:
        the digits, 0 to `MOST_DIGITS`, and the share of the bits that integers take; None if no piece comes back.
    """
    flat = [np.ascontiguousarray(sample).reshape(-1) for sample in samples if sample.size]
    each = -(-_PIECES // max(len(flat), 1))
    cuts = [(values, at) for values in flat for at in range(0, len(values), max(_PIECE, len(values) // each))]
    pieces = [values[at : at + _PIECE] for values, at in cuts[:: -(-len(cuts) // _PIECES) or 1]]
    if not pieces:
        return None
    values, starts = np.concatenate(pieces), np.cumsum([0, *map(len, pieces[:-1])])
    ints, room = np.empty(len(values), f"<i{values.itemsize}"), np.empty((2, len(values)))
    best, least = None, 1.0
    for digits in range(MOST_DIGITS + 1):
        with np.errstate(all="ignore"):
            lost = _integers(values, digits, ints, room)
        ints[ints < np.iinfo(ints.dtype).min + len(STRANGE)] = 0
        bits = 1 + np.log2(1.0 + np.maximum.reduceat(np.abs(ints), starts))
        bits[starts.searchsorted(lost, side="right") - 1] = 8 * values.itemsize
        share = float(bits.mean()) / (8 * values.itemsize)
        if share < least:
            best, least = digits, share
    return None if best is None else (best, least)
