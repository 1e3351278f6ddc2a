"""Arrays as pixels that any viewer takes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def pixels(image: NDArray[Any]) -> NDArray[np.uint8]:
    """(H, W, C) of any dtype as (H, W, 3) or (H, W, 4) uint8; one channel becomes gray, of many the first three count.

    uint8 stays as it is; bool becomes black and white; others are stretched from their least to their largest value,
    NaN becomes 0.
    """
    if image.shape[2] not in (3, 4):
        image = image[:, :, :3] if image.shape[2] > 4 else image[:, :, :1].repeat(3, axis=2)
    if image.dtype == np.uint8:
        return np.ascontiguousarray(image)
    if image.dtype == np.bool_:
        return image.astype(np.uint8) * np.uint8(255)
    return _stretched(image)


def real(values: NDArray[Any]) -> NDArray[Any]:
    """Complex numbers as their absolute values; others as they are."""
    return np.abs(values) if values.dtype.kind == "c" else values


def _stretched(values: NDArray[Any]) -> NDArray[np.uint8]:
    wide = real(values).astype(np.float64)
    finite = np.isfinite(wide)
    if not finite.any():
        return np.zeros(values.shape, np.uint8)
    low, high = float(wide[finite].min()), float(wide[finite].max())
    # Halved: the distance of two numbers of float64 need not be one.
    scale = (high / 2 - low / 2) or 1.0
    share = (np.where(finite, wide, low) / 2 - low / 2) / scale
    return (share.clip(0, 1) * 255).round().astype(np.uint8)
