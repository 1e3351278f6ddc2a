"""One element of a PLY file in memory, whatever its body was: columns of numbers, and columns of lists.

Polygons become triangles here: a fan from the first corner of each face, in order. A face of the corners a b c d e
becomes the triangles a b c, a c d, a d e, faces in their order. Everything else that a face has (numbers, and other
lists whole) is repeated for each of its triangles. A face of fewer than 3 corners is an error. A fan covers a convex
polygon; of one that is not, some triangles lie outside of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.sources.ply.header import Element

#: Lists repeated for every triangle of a large polygon may grow with the square of the file; here that ends.
MAX_ENTRIES = 2**28


class ListColumn(NamedTuple):
    """The lists of a property: `values` (t,) one list after another, `sizes` (rows,) int64 how long each is."""

    values: NDArray[Any]
    sizes: NDArray[np.int64]


@dataclass
class Table:
    """The rows of an element, by property number: numbers (rows,), perhaps strided and byte-swapped, or lists.

    `records` holds the rows of a binary body as they stand in the file, as a structured array. `rows` holds the
    row of the file that each row was made from, (rows,), where it is not the same.
    """

    element: Element
    numbers: dict[int, NDArray[Any]] = field(default_factory=dict)
    lists: dict[int, ListColumn] = field(default_factory=dict)
    records: NDArray[Any] | None = None
    rows: NDArray[np.int64] | None = None

    def joined(self, properties: Sequence[int]) -> NDArray[Any]:
        """Return columns of one dtype side by side, (rows, properties); without a copy if rows hold nothing else."""
        piece = None if self.records is None else _piece(self.records.dtype, tuple(properties))
        if self.records is None or piece is None:
            return np.stack([self.numbers[i] for i in properties], axis=1)
        # A row's values lie in one piece of bytes: copied two to three times as fast as column by column.
        pieces = np.ascontiguousarray(self.records.view(piece)["piece"])
        return pieces.view(self.numbers[properties[0]].dtype).reshape(len(pieces), len(properties))


# For many files of few kinds, as `binary._record_dtype`.
@lru_cache(maxsize=64)
def _piece(record: np.dtype[Any], properties: tuple[int, ...]) -> np.dtype[Any] | None:
    """Return a record as one piece of bytes for these properties; None if they differ in type or do not adjoin."""
    fields: Any = record.fields
    found = [fields[number_name(i)][:2] for i in properties]
    dtype, start = found[0]
    if any(field != (dtype, start + k * dtype.itemsize) for k, field in enumerate(found)):
        return None
    formats = [f"V{len(properties) * dtype.itemsize}"]
    return np.dtype({"names": ["piece"], "formats": formats, "offsets": [start], "itemsize": record.itemsize})


def number_name(prop: int) -> str:
    """Return the name of a property's value in `Table.records`."""
    return f"v{prop}"


def convert(values: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Return `values` as native, aligned, C-contiguous `dtype`.

    Floats may be rounded to a shorter float; nothing else may be lost.

    Raises:
        DoesNotFitError: a value is outside the dtype's range, or is not whole where an integer is asked for.
    """
    target = np.dtype(dtype)
    if values.dtype == target and values.flags.c_contiguous and values.flags.aligned:
        return values
    if values.dtype.newbyteorder("=") == target:
        # After another element values may lie at odd addresses.
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
    """Return a SourceError that names element, row (from 0) and property."""
    name = "" if prop is None else f", property {element.properties[prop].name}"
    return SourceError(f"element {element.name}, row {row}{name}: {reason}", path)


def gather(values: NDArray[Any], starts: NDArray[np.int64], sizes: NDArray[np.int64], step: int = 1) -> NDArray[Any]:
    """Return runs of `values`, one after another: `sizes[i]` values from `starts[i]` on, `step` apart."""
    ends = np.cumsum(sizes)
    within = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - sizes, sizes)
    chosen: NDArray[Any] = values[np.repeat(starts, sizes) + within * step]
    return chosen


def _triangle_counts(element: Element, prop: int, sizes: NDArray[np.int64], path: str) -> NDArray[np.int64]:
    """Return how many triangles every face has, int64 (faces,), whose numbers of corners are `sizes`.

    Raises:
        SourceError: a face has fewer than 3 corners; names it.
    """
    if (sizes < 3).any():
        row = int(np.argmax(sizes < 3))
        reason = f"a face of {sizes[row]} corners has no triangle; mend the file, or pack it without --triangulate"
        raise row_error(path, element, row, reason, prop)
    return sizes - 2


def triangulated_sizes(
    element: Element, prop: int, sizes: Mapping[int, NDArray[np.int64]], path: str
) -> dict[int, NDArray[np.int64]]:
    """Return the lengths of the lists of every triangle, by property number, from those of every face."""
    counts = _triangle_counts(element, prop, sizes[prop], path)
    made = {i: _repeated_sizes(element, i, counts, n, path) for i, n in sizes.items() if i != prop}
    return {i: made.get(i, np.full(int(counts.sum()), 3)) for i in sizes}


def triangulated(table: Table, prop: int, path: str) -> Table:
    """Return the triangles of a table of faces whose corners are the lists of property `prop`.

    Raises:
        SourceError: a face has fewer than 3 corners.
    """
    corners = table.lists[prop]
    counts = _triangle_counts(table.element, prop, corners.sizes, path)
    faces = np.repeat(np.arange(len(counts)), counts)
    made = Table(table.element, rows=faces)
    made.numbers = {i: numbers[faces] for i, numbers in table.numbers.items()}
    for i, (values, sizes) in table.lists.items():
        if i == prop:
            made.lists[i] = ListColumn(_fan(corners, counts).reshape(-1), np.full(len(faces), 3))
            continue
        longer = _repeated_sizes(table.element, i, counts, sizes, path)
        made.lists[i] = ListColumn(gather(values, (np.cumsum(sizes) - sizes)[faces], longer), longer)
    return made


def _fan(corners: ListColumn, counts: NDArray[np.int64]) -> NDArray[np.generic]:
    """Return the corners of all triangles, (t, 3) in their own dtype; `counts` triangles come from each face."""
    firsts = np.repeat(np.cumsum(corners.sizes) - corners.sizes, counts)
    within = np.arange(len(firsts)) - np.repeat(np.cumsum(counts) - counts, counts)
    made: NDArray[np.generic] = corners.values[np.stack([firsts, firsts + within + 1, firsts + within + 2], axis=1)]
    return made


def _repeated_sizes(
    element: Element, prop: int, counts: NDArray[np.int64], sizes: NDArray[np.int64], path: str
) -> NDArray[np.int64]:
    entries = float(counts.astype(np.float64) @ sizes.astype(np.float64))
    if entries > MAX_ENTRIES:
        row = int(np.argmax(counts.astype(np.float64) * sizes))
        reason = f"repeated for every triangle these lists come to {entries:.3g} entries; pack it without --triangulate"
        raise row_error(path, element, row, reason, prop)
    return np.repeat(sizes, counts)
