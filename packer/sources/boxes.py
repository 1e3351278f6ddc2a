"""What the boxes of COCO, YOLO and VOC have in common: their numbers, and what is said of the rest of an object."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError


def as_float32(values: Sequence[Any] | NDArray[Any], of: str, path: str) -> NDArray[np.float32]:
    """Return numbers of objects, a row or a number each.

    Args:
        of: what has them, as in `the box of object`.

    Raises:
        SourceError: one is NaN or infinite, or too large for float32.
    """
    with np.errstate(over="ignore"):
        numbers = np.asarray(values, np.float64).astype(np.float32)
    is_bad = ~np.isfinite(numbers).all(axis=tuple(range(1, numbers.ndim)))
    if is_bad.any():
        first = int(is_bad.argmax())
        shown = " ".join(map(str, np.ravel(values[first]).tolist()))
        raise SourceError(f"{of} {first:,} is {shown}; finite numbers that float32 holds are expected", path)
    return numbers


def said_of_inside_out(count: int) -> list[str]:
    """Return the remark on so many boxes whose width or height is below 0; none if there are none."""
    have = "box has" if count == 1 else "boxes have"
    return [f"{count:,} {have} a width or height below 0, and packer changes none"] if count else []


def not_packed(names: Iterable[str]) -> list[str]:
    """Return the remark on what else objects have, by its names in the files; none if there is nothing."""
    listed = list(names)
    return [f"of objects the annotations also have, and packer leaves out, {', '.join(listed)}"] if listed else []
