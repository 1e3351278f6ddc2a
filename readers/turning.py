"""Crops are mirrored while they are copied, or turned and mirrored in place.

Rows of bytes, as most images have them, are copied out of the shards, mirrored and converted (`cast` of
`PackedDataset`) by one loop in machine code. Other values are mirrored afterwards, and converted by `cast.py`.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from packer.format import Numbers
from readers.compiled import loading
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
    _copy(MEMORY.array, np.ascontiguousarray(addresses), mirrored, pixel, out)
    return left if is_volume else np.where(mirrored, -left % MIRRORED, left)  # what is mirrored turns the other way


def _copy_by_numpy(
    _: NDArray[np.uint8], addresses: Numbers, mirrored: NDArray[np.bool_], pixel: int, out: NDArray[np.generic]
) -> None:
    flat, width = addresses.reshape(-1), out.shape[2]
    rows = MEMORY.gather(flat, width, int(np.bitwise_or.reduce(flat, initial=0)), torch.uint8, (width,))
    pixels = out.reshape(*out.shape[:2], width // max(pixel, 1), pixel)
    np.copyto(pixels, rows.numpy().reshape(pixels.shape))
    orient(pixels[:, None], MIRRORED * mirrored)


_copy = loading.loop("copy_rows", _copy_by_numpy)


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
