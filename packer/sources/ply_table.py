"""One element of a PLY file in memory, whatever its body was: columns of numbers, and columns of lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.sources.ply_header import Element


class ListColumn(NamedTuple):
    """The lists of a property: `values` (t,) one list after another, `sizes` (rows,) int64 how long each is."""

    values: NDArray[Any]
    sizes: NDArray[np.int64]


@dataclass
class Table:
    """The rows of an element, by property number: numbers (rows,), perhaps strided and byte-swapped, or lists."""

    element: Element
    numbers: dict[int, NDArray[Any]] = field(default_factory=dict)
    lists: dict[int, ListColumn] = field(default_factory=dict)

    def joined(self, properties: Sequence[int]) -> NDArray[Any]:
        """Columns of one dtype side by side: (rows, len(properties)), without a copy where they lie side by side."""
        columns = [self.numbers[i] for i in properties]
        first = columns[0]
        # One strided view is copied in one pass; a pass for each column takes three times as long.
        if len(first) and _adjacent(columns):
            return as_strided(first, (len(first), len(columns)), (first.strides[0], first.itemsize), writeable=False)
        return np.stack(columns, axis=1)


def _adjacent(columns: list[NDArray[Any]]) -> bool:
    """Whether each column's first value lies directly behind that of the column before, in the same rows."""
    first = columns[0]
    start = first.__array_interface__["data"][0]
    return all(
        c.dtype == first.dtype
        and c.strides == first.strides
        and c.__array_interface__["data"][0] == start + i * first.itemsize
        for i, c in enumerate(columns)
    )


def convert(values: NDArray[Any], dtype: str) -> NDArray[Any]:
    """`values` as native, aligned, C-contiguous `dtype`.

    Floats may be rounded to a shorter float; nothing else may be lost.

    Raises:
        DoesNotFitError: a value is outside the dtype's range, or is not whole where an integer is asked for.
    """
    target = np.dtype(dtype)
    if values.dtype.newbyteorder("=") == target:
        # A body begins at any byte of its file, so that values may lie at odd addresses.
        return np.require(values, target, ["C_CONTIGUOUS", "ALIGNED"])
    with np.errstate(over="ignore", invalid="ignore"):
        result = np.ascontiguousarray(values.astype(target))
    if target.kind != "f":
        bad = result != values
    elif np.isinf(result).any():
        bad = np.isinf(result) & ~np.isinf(values)
    else:
        return result
    if bad.any():
        index = tuple(int(i[0]) for i in np.nonzero(bad))
        raise DoesNotFitError(values[index].item(), index)
    return result


class DoesNotFitError(Exception):
    """`value`, at `index` of the array, cannot be represented in the dtype asked for."""

    def __init__(self, value: float, index: tuple[int, ...]) -> None:
        super().__init__(value, index)
        self.value, self.index = value, index


def row_error(path: str, element: Element, row: int, reason: str, prop: int | None = None) -> SourceError:
    """A SourceError that names element, row (from 0) and property."""
    name = "" if prop is None else f", property {element.properties[prop].name}"
    return SourceError(f"element {element.name}, row {row}{name}: {reason}", path)
