"""Crops are mirrored while they are copied, or turned and mirrored in place.

Rows of bytes, as most images have them, are copied out of the shards, mirrored and converted (`cast` of
`PackedDataset`) by one loop in machine code. Other values are mirrored afterwards, and converted by `cast.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.codecs import Loop
from packer.format import Numbers
from readers.gather import MEMORY

#: The dtype of rows that `copy_rows` copies, and those that it makes of them.
BYTES, COPIED = "uint8", ("uint8", "float32", "int64")
#: Orientations from here on are mirrored left to right; of volumes along the last axis.
MIRRORED = 4
#: Bytes of crops that are turned at once.
CACHED_BYTES = 2**18


def copy_rows(
    addresses: Numbers, orientations: Numbers, pixel: int, out: NDArray[np.generic], is_volume: bool
) -> Numbers:
    """Copy rows of bytes out of memory, mirrored where crops are, and return how these are still to be turned, (n,).

    Args:
        addresses: of the rows of each crop, (n, rows).
        orientations: (n,), see `orient`.
        pixel: values of a pixel.
        out: one of `COPIED`, (n, rows, values of a row).
        is_volume: whether they are volumes, and not images.
    """
    mirrored, left = orientations >= MIRRORED, orientations % MIRRORED
    _LOOPS[out.dtype.name](MEMORY.array, np.ascontiguousarray(addresses), mirrored, pixel, out)
    return left if is_volume else np.where(mirrored, -left % MIRRORED, left)  # what is mirrored turns the other way


def _copy_by_numpy(
    _: NDArray[np.uint8], addresses: Numbers, mirrored: NDArray[np.bool_], pixel: int, out: NDArray[np.generic]
) -> None:
    flat, width = addresses.reshape(-1), out.shape[2]
    rows = MEMORY.gather(flat, width, int(np.bitwise_or.reduce(flat, initial=0)), shape=(width,))
    pixels = out.reshape(*out.shape[:2], width // max(pixel, 1), pixel)
    np.copyto(pixels, rows.numpy().reshape(pixels.shape))
    orient(pixels[:, None], MIRRORED * mirrored)


def _copy(
    memory: NDArray[np.uint8], addresses: Numbers, mirrored: NDArray[np.bool_], pixel: int, out: NDArray[np.generic]
) -> None:
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


def make_loop(dtype: str) -> Loop:
    """Return the loop that makes values of a dtype of bytes."""

    def signature(of: Any) -> Any:
        memory = of.Array(of.uint8, 1, "C", readonly=True)
        return of.void(memory, of.int64[:, ::1], of.boolean[::1], of.int64, getattr(of, dtype)[:, :, ::1])

    return Loop(_copy_by_numpy, _copy, signature)


_LOOPS = {dtype: make_loop(dtype) for dtype in COPIED}


def orient(crops: NDArray[np.generic], orientations: Numbers) -> None:
    """Turn and mirror crops in place.

    Args:
        crops: (n, planes, h, w, ...), or (n, planes, d, h, w, ...) of volumes.
        orientations: (n,). Of images: quarter turns against the clock, and then 4 more if they are mirrored. Of
            volumes: 1, 2 and 4 for the axes that are mirrored.
    """
    for orientation in range(1, 8):
        chosen = np.flatnonzero(orientations == orientation)
        if len(chosen) and crops.ndim > 5:
            steps = [slice(None, None, -1 if orientation >> axis & 1 else 1) for axis in range(3)]
            mirrored = (slice(None), slice(None), *steps)
            crops[chosen] = crops[chosen][mirrored]
        elif len(chosen):
            # Few at a time, which stay in the processor's cache while their channels are copied.
            step = max(1, CACHED_BYTES // max(1, crops[0].nbytes))
            for first in range(0, len(chosen), step):
                _turn(crops, chosen[first : first + step], orientation)


def _turn(crops: NDArray[np.generic], chosen: Numbers, orientation: int) -> None:
    """Turn and mirror the crops `chosen` (k,) in place."""
    copied = crops[chosen]
    # Pixels of a few values are copied one after another, the values of one channel many at once.
    is_split = crops.ndim == 5 and crops.shape[4] <= 4
    for channel in range(crops.shape[4]) if is_split else [slice(None)]:
        turned = np.rot90(copied[..., channel], orientation % 4, axes=(2, 3))
        crops[chosen, ..., channel] = turned[:, :, :, ::-1] if orientation > 3 else turned
