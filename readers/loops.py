"""Loops over places, points and rows of crops, in machine code and without the interpreter's lock.

numba compiles these loops, which takes some seconds for the first time on a machine: ask `compiled` for them. Each does
as a function of numpy beside its caller does, which stands in until the loops are loaded.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from packer.codecs import machine_code

types: Any = numba.types  # numba's own annotations do not know that types can be called

_NUMBERS, _WORDS = types.int64[::1], types.uint64[::1]

# Written out, since numba's cache is renewed only when this file changes, and since the process that compiles imports
# this file alone: torch takes seconds. As in `keyed.py`:
_ROUNDS = 4
_MIX_32, _MIX_32_AGAIN = np.uint64(0x7FEB352D), np.uint64(0x846CA68B)
_WORD, _HALF, _SHIFT = np.uint64(0xFFFFFFFF), np.uint64(32), np.uint64(15)
# As in `draws.py`:
_STEP, _MIX, _MIX_AGAIN = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
# As in `voxels.py`:
_FURTHEST = 2.0**62


@machine_code(types.void(_WORDS, types.uint64, types.uint64, _WORDS))
def permute(places: NDArray[np.uint64], rows: np.uint64, bits: np.uint64, keys: NDArray[np.uint64]) -> None:
    """Put places of the table (n,) through the network of `keyed.py`, in place."""
    columns = np.uint64(1) << bits
    inside = columns - np.uint64(1)
    # Without branches, so that the compiler works at several places at once: 5 ns each, 35 by numpy.
    for number in range(len(places)):
        row, column = places[number] >> bits, places[number] & inside
        for turn in range(_ROUNDS):
            word = ((row ^ keys[2 * turn]) * _MIX_32) & _WORD
            word = ((word ^ (word >> _SHIFT)) * _MIX_32_AGAIN) & _WORD
            column = (column + ((word * columns) >> _HALF)) & inside
            word = ((column ^ keys[2 * turn + 1]) * _MIX_32) & _WORD
            word = ((word ^ (word >> _SHIFT)) * _MIX_32_AGAIN) & _WORD
            row += (word * rows) >> _HALF
            row = min(row, row - rows)  # the difference wraps to a large number if there is nothing to take off
        places[number] = row << bits | column


@machine_code(
    [
        types.int64(points[:, ::1], _NUMBERS, types.float64, _WORDS, types.boolean, _NUMBERS, _NUMBERS, _NUMBERS)
        for points in (types.float32, types.float64)
    ]
)
def choose(
    points: NDArray[Any],
    starts: NDArray[np.int64],
    size: float,
    words: NDArray[np.uint64],
    random: bool,
    table: NDArray[np.int64],
    rows: NDArray[np.int64],
    offsets: NDArray[np.int64],
) -> int:
    """Find the voxels of all samples of a batch, and a point of each.

    Args:
        points: coordinates of all points, (n, 3) or more columns.
        starts: where the points of each sample begin, (B + 1,).
        size: edge of a voxel.
        words: a random word a sample, (B,), from which a stream of random words begins.
        random: whether any point of a voxel is taken, else the first.
        table: hash table: the number of the voxel in each slot, -1 at first; if a slot is taken, the next one is tried.
        rows: gets the number of the chosen points, from 0 on, (n,).
        offsets: gets where those of each sample begin, (B + 1,), zeros at first.

    Returns:
        -1, or the number of a point that lies in no voxel.
    """
    cells = np.empty((len(table), 3), np.int64)
    counts = np.empty(len(table), np.int64)
    count = 0
    for item in range(len(starts) - 1):
        first = count
        for row in range(starts[item], starts[item + 1]):
            x, y, z = np.floor(points[row, 0] / size), np.floor(points[row, 1] / size), np.floor(points[row, 2] / size)
            if not (abs(x) < _FURTHEST and abs(y) < _FURTHEST and abs(z) < _FURTHEST):
                return row  # also if one is NaN
            i, j, k = np.int64(x), np.int64(y), np.int64(z)
            mixed = (np.uint64(i) * _STEP + np.uint64(j)) * _MIX + np.uint64(k)
            mixed = (mixed ^ (mixed >> np.uint64(32))) * _MIX_AGAIN
            slot = np.int64(mixed >> np.uint64(32)) & (len(table) - 1)
            voxel = table[slot] - first  # below 0: none, or one of a sample before
            while voxel >= 0 and not (cells[voxel, 0] == i and cells[voxel, 1] == j and cells[voxel, 2] == k):
                slot = (slot + 1) & (len(table) - 1)
                voxel = table[slot] - first
            if voxel < 0:
                voxel = count - first
                table[slot] = count
                cells[voxel, 0], cells[voxel, 1], cells[voxel, 2] = i, j, k
                counts[voxel] = 1
                rows[count] = row
                count += 1
            elif random:
                # The n-th point of a voxel replaces the chosen one with a chance of 1 / n.
                counts[voxel] += 1
                word = words[item] + np.uint64(row - starts[item] + 1) * _STEP
                word = (word ^ (word >> np.uint64(30))) * _MIX
                word = (word ^ (word >> np.uint64(27))) * _MIX_AGAIN
                word = word ^ (word >> np.uint64(31))
                if ((word >> np.uint64(32)) * np.uint64(counts[voxel])) >> np.uint64(32) == np.uint64(0):
                    rows[first + voxel] = row
        offsets[item + 1] = count
    return -1


@machine_code(
    [
        types.void(
            types.Array(types.uint8, 1, "C", readonly=True), types.int64[:, ::1], types.boolean[::1], types.int64, out
        )
        for out in (types.uint8[:, :, ::1], types.float32[:, :, ::1], types.int64[:, :, ::1])
    ]
)
def copy_rows(
    memory: NDArray[np.uint8],
    addresses: NDArray[np.int64],
    mirrored: NDArray[np.bool_],
    pixel: int,
    out: NDArray[np.generic],
) -> None:
    """Copy rows out of memory into `out`, mirrored where crops are, as `copy_rows` of `turning.py` does."""
    one, two, three = np.uint64(1), np.uint64(2), np.uint64(3)  # without a sign, so that no index is looked at twice
    crops, rows, width = out.shape
    pixels, turned = np.uint64(width // max(pixel, 1)), np.empty(width, np.uint8)
    for crop in range(crops):
        for row in range(rows):
            first = addresses[crop, row]
            read, copied = memory[first : first + width], out[crop, row]
            if not mirrored[crop]:
                for n in range(width):
                    copied[n] = read[n]
                continue
            if pixel == 3:  # RGB: written out, so that the compiler moves several pixels at once
                for number in range(pixels):
                    to, at = three * (pixels - one - number), three * number
                    turned[to] = read[at]
                    turned[to + one] = read[at + one]
                    turned[to + two] = read[at + two]
            elif pixel == 1:
                for number in range(pixels):
                    turned[pixels - one - number] = read[number]
            else:
                for start in range(0, width, pixel):
                    for n in range(pixel):
                        turned[width - pixel - start + n] = read[start + n]
            for n in range(width):
                copied[n] = turned[n]
