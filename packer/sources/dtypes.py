"""Dtypes of values that come from many files: which one holds all of them, and conversion to another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.format import DTYPES

#: Real dtypes, the smallest first, and of the same size integers first.
_REAL = sorted(
    (name for name in DTYPES if np.dtype(name).kind in "iuf"),
    key=lambda name: (np.dtype(name).itemsize, np.dtype(name).kind == "f"),
)


def holds(dtype: str, other: str) -> bool:
    """Return whether a dtype holds every value of another exactly, which numpy also says of float64 and int64."""
    is_rounded = np.dtype(other).kind in "iu" and np.dtype(other).itemsize == 8 and np.dtype(dtype).kind not in "iu"
    return dtype == other or (np.can_cast(other, dtype) and not is_rounded)


def common_dtype(dtypes: Iterable[str]) -> str | None:
    """Return the smallest dtype that holds every value of all these exactly; None if there is none.

    Complex values are held by their own dtype alone: an array of them among others is rather a mistake.
    """
    all_dtypes = set(dtypes)
    if len(all_dtypes) == 1:
        return all_dtypes.pop()
    return next((name for name in _REAL if all(holds(name, other) for other in all_dtypes)), None)


def check_casts(casts: Mapping[str, str], fields: Iterable[str] | None = None) -> None:
    """Raise UsageError if `--cast` names what is no numeric dtype, or a field that is not among `fields`."""
    for name, dtype in casts.items():
        if dtype not in _REAL:
            raise UsageError(f"--cast {name}={dtype}: a numeric dtype such as float32 or int64 is expected")
    known = casts.keys() if fields is None else list(fields)
    if unknown := [name for name in casts if name not in known]:
        raise UsageError(f"--cast: there is no field {', '.join(unknown)}; fields are {', '.join(known)}")


class DoesNotFitError(Exception):
    """`value`, at `index` of the array, cannot be represented in the dtype asked for."""

    def __init__(self, value: float, index: tuple[int, ...]) -> None:
        super().__init__(value, index)
        self.value, self.index = value, index


def convert(values: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Return real `values` as native, aligned, C-contiguous `dtype`.

    Floats may be rounded to a shorter float; nothing else may be lost.

    Raises:
        DoesNotFitError: a value is outside the dtype's range, or is not whole and an integer is asked for, or is an
            integer that a float would round.
    """
    target = np.dtype(dtype)
    if values.dtype.newbyteorder("=") == target:
        # After another element values may lie at odd addresses.
        return np.require(values, target, ["C_CONTIGUOUS", "ALIGNED"])
    with np.errstate(over="ignore", invalid="ignore"):
        result = np.ascontiguousarray(values.astype(target))
        if target.kind != "f":
            bad = result != values
        elif values.dtype.kind == "f":
            bad = np.isinf(result) & ~np.isinf(values)
        else:
            bad = result.astype(values.dtype) != values
    if bad.any():
        index = tuple(int(i[0]) for i in np.nonzero(bad))
        raise DoesNotFitError(values[index].item(), index)
    return result
