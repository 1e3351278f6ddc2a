"""Crops turned by quarters and mirrored, in place."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from packer.format import Numbers

#: Bytes of crops that are turned at once.
CACHED_BYTES = 2**18


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
