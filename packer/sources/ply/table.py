"""One element of a PLY file in memory: columns of numbers, and columns of lists; and the body of a binary file as such.

In a binary body, elements of fixed size, and lists that all have the length of the first one, are read as one
structured array. Lists of different lengths are found by walking the rows, then gathered at once. Every declared count
is compared with the bytes of the file before it is used.

Polygons become triangles here: a fan from the first corner of each face, in order. A face of the corners a b c d e
becomes the triangles a b c, a c d, a d e; faces keep their order. All other properties of a face (numbers, and other
lists whole) are repeated for each of its triangles. A face of fewer than 3 corners is an error. A fan covers a convex
polygon exactly; if a polygon is not convex, some triangles may lie outside of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.sources.ply.header import SIZES, Element, Property

#: Most entries of lists that are repeated for every triangle: they may grow with the square of the file.
MAX_ENTRIES = 2**28
#: numpy holds the size of a record in a C int.
_MAX_RECORD = 2**31 - 1

Order = Literal["<", ">"]
_BYTEORDERS: dict[Order, Literal["little", "big"]] = {"<": "little", ">": "big"}


class ListColumn(NamedTuple):
    """The lists of a property: `values` (t,) one list after another, `sizes` (rows,) int64 how long each is."""

    values: NDArray[Any]
    sizes: NDArray[np.int64]


@dataclass
class Table:
    """The rows of an element, by property number: numbers (rows,), perhaps strided and byte-swapped, or lists.

    If rows were made from others, `made_from` holds the number of the row in the file for each, (rows,). `records` has
    the rows of a binary file as they lie there, with property i as its field i.
    """

    element: Element
    numbers: dict[int, NDArray[Any]] = field(default_factory=dict)
    lists: dict[int, ListColumn] = field(default_factory=dict)
    made_from: NDArray[np.int64] | None = None
    records: NDArray[Any] | None = None

    def __len__(self) -> int:
        return self.element.count if self.made_from is None else len(self.made_from)

    def columns(self, properties: Sequence[int]) -> NDArray[Any]:
        """Return numbers of several properties, (rows, properties)."""
        first, width = properties[0], len(properties)
        types = {self.element.properties[i].dtype for i in properties}
        if self.records is None or len(types) > 1 or tuple(properties) != tuple(range(first, first + width)):
            return np.stack([self.numbers[i] for i in properties], axis=1)
        # Side by side in the file, they are copied as one item a row: a third of the time.
        dtype, offset = self.records.dtype[f"v{first}"], self.records.dtype.fields[f"v{first}"][1]  # type: ignore[index]
        item = np.dtype((np.void, width * dtype.itemsize))
        layout = {"names": ["all"], "formats": [item], "offsets": [offset], "itemsize": self.records.itemsize}
        values = np.ascontiguousarray(self.records.view(np.dtype(layout))["all"])  # type: ignore[call-overload]
        return values.view(dtype).reshape(len(self.records), width)


def row_error(path: str, element: Element, row: int, reason: str, prop: int | None = None) -> SourceError:
    """Return a SourceError that names element, row (from 0) and property."""
    name = "" if prop is None else f", property {element.properties[prop].name}"
    return SourceError(f"element {element.name}, row {row}{name}: {reason}", path)


def row_of(entry: int, sizes: NDArray[np.int64]) -> int:
    """Return the row whose list holds an entry, where the lists of all rows lie one after another."""
    return int(np.searchsorted(np.cumsum(sizes), entry, side="right"))


def gather(values: NDArray[Any], starts: NDArray[np.int64], sizes: NDArray[np.int64], step: int = 1) -> NDArray[Any]:
    """Return runs of `values`, one after another: `sizes[i]` values from `starts[i]` on, `step` apart."""
    ends = np.cumsum(sizes)
    within = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - sizes, sizes)
    chosen: NDArray[Any] = values[np.repeat(starts, sizes) + within * step]
    return chosen


# ---------------------------------------------------------------- binary bodies


def read_binary(
    elements: Sequence[Element], data: bytes, order: Order, path: str, start: int = 0
) -> tuple[list[Table], int]:
    """Return the tables of `elements`, whose rows begin at byte `start` of `data`, and where the last row ends.

    Raises:
        SourceError: data is missing, or a list has a length below 0.
    """
    tables = []
    for element in elements:
        table, start = _Body(element, data, order, path).read(start)
        tables.append(table)
    return tables, start


def least_row(element: Element) -> int:
    """Return the bytes of the smallest row an element can have: every list empty."""
    return sum(SIZES[p.count_dtype or p.dtype] for p in element.properties)


@lru_cache(maxsize=64)
def _record(properties: tuple[Property, ...], lengths: tuple[int, ...], order: Order) -> np.dtype[Any]:
    """Return the type of a row; `lengths`: the length of the list of each property."""
    fields: list[tuple[Any, ...]] = []
    for i, p in enumerate(properties):
        value = np.dtype(p.dtype).newbyteorder(order)
        if p.count_dtype:
            fields += [(f"n{i}", np.dtype(p.count_dtype).newbyteorder(order)), (f"v{i}", value, (lengths[i],))]
        else:
            fields.append((f"v{i}", value))
    return np.dtype(fields)


class _Body:
    """The rows of one element within `data`."""

    def __init__(self, element: Element, data: bytes, order: Order, path: str) -> None:
        self.element, self.data, self.order, self.path = element, data, order, path

    def read(self, start: int) -> tuple[Table, int]:
        """Return the table whose rows begin at `start`, and where they end."""
        element, left = self.element, len(self.data) - start
        if element.count * least_row(element) > left:
            declared = f"the header declares {element.count} rows"
            reason = f"the file ends here, but {declared}: it is cut short or the header is wrong"
            raise row_error(self.path, element, left // least_row(element), reason)
        if not element.has_lists:
            return self._uniform(start, ()), start + element.count * least_row(element)
        sizes, ends = self._walk(start, min(element.count, 1))
        first, row_bytes = tuple(sizes.sum(axis=0).tolist()), int(ends[-1]) - start
        if row_bytes <= _MAX_RECORD and row_bytes * element.count <= left:
            table = self._uniform(start, first)
            if all((lists.sizes == first[i]).all() for i, lists in table.lists.items()):
                return table, start + row_bytes * element.count
        return self._walked(start)

    def _uniform(self, start: int, lengths: tuple[int, ...]) -> Table:
        """Return the table, read as one structured array; `lengths`: the length of the lists of each property."""
        record = _record(self.element.properties, lengths, self.order)
        rows: Any = np.ndarray((self.element.count,), record, self.data, start)
        table = Table(self.element, records=rows)
        for i, p in enumerate(self.element.properties):
            if p.count_dtype:
                table.lists[i] = ListColumn(rows[f"v{i}"].reshape(-1), rows[f"n{i}"].astype(np.int64))
            else:
                table.numbers[i] = rows[f"v{i}"]
        return table

    def _walked(self, start: int) -> tuple[Table, int]:
        """Return the table whose lists differ in length, and where it ends."""
        sizes, ends = self._walk(start, self.element.count)
        table, at = Table(self.element), ends[:-1]
        for i, p in enumerate(self.element.properties):
            dtype = self._dtype(p.dtype)
            # Every byte as the start of a value: PLY rows are packed, so values lie at any address.
            anywhere = np.ndarray((max(0, len(self.data) - dtype.itemsize + 1),), dtype, self.data, strides=(1,))
            if p.count_dtype:
                at = at + SIZES[p.count_dtype]
                table.lists[i] = ListColumn(gather(anywhere, at, sizes[:, i], dtype.itemsize), sizes[:, i])
                at = at + sizes[:, i] * dtype.itemsize
            else:
                table.numbers[i] = anywhere[at]
                at = at + dtype.itemsize
        return table, int(ends[-1])

    def _walk(self, start: int, rows: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Find every list of the first rows, one after another: the length of each says where the next one begins.

        Returns:
            the length of the lists, (rows, properties), 0 for numbers; where the rows begin, and the last ends,
            (rows + 1,).

        Raises:
            SourceError: a list has a length below 0, or ends after the file does.
        """
        properties = self.element.properties
        sizes = np.zeros((rows, len(properties)), np.int64)
        lists = [i for i, p in enumerate(properties) if p.count_dtype]
        sizes[:, lists] = np.array(self._lengths(start, rows), np.int64).reshape(rows, len(lists))
        row_bytes = least_row(self.element) + sizes @ [SIZES[p.dtype] for p in properties]
        ends = start + np.cumsum(np.append(0, row_bytes))
        if ends[-1] > len(self.data):
            reason = "the file ends within it: a list length is wrong, or the file is cut short"
            raise row_error(self.path, self.element, int(np.argmax(ends > len(self.data))) - 1, reason)
        return sizes, ends

    def _lengths(self, start: int, rows: int) -> list[int]:
        """Return the length of every list of the first rows, row by row; 0 for lists after the end of the data."""
        data, at, lengths = self.data, start, list[int]()
        lists = [(i, p.count_dtype, SIZES[p.dtype]) for i, p in enumerate(self.element.properties)]
        if [count for _, count, _ in lists if count] == ["uint8"]:
            # Most meshes are such; indexing a byte takes a fraction of the time of `from_bytes`.
            ((place, item),) = [(i, item) for i, count, item in lists if count]
            at += sum(size for _, _, size in lists[:place])
            step = least_row(self.element)
            for _ in range(rows):
                n = data[at] if at < len(data) else 0
                lengths.append(n)
                at += step + n * item
            return lengths
        byteorder = _BYTEORDERS[self.order]
        for row in range(rows):
            for i, count, size in lists:
                if not count:
                    at += size
                    continue
                n = int.from_bytes(data[at : at + SIZES[count]], byteorder, signed=count[0] == "i")
                if n < 0:
                    raise row_error(self.path, self.element, row, f"a list cannot have {n} entries", i)
                lengths.append(n)
                at += SIZES[count] + n * size
        return lengths

    def _dtype(self, name: str) -> np.dtype[Any]:
        return np.dtype(name).newbyteorder(self.order)


# ---------------------------------------------------------------- triangles


def triangulated(table: Table, prop: int, path: str) -> Table:
    """Return the triangles of a table of faces whose corners are the lists of property `prop`.

    Raises:
        SourceError: a face has fewer than 3 corners, or repeated lists take too much memory; names the face.
    """
    corners, element = table.lists[prop], table.element
    if (corners.sizes < 3).any():
        row = int(np.argmax(corners.sizes < 3))
        reason = (
            f"a face of {corners.sizes[row]} corners has no triangle; fix the file, or pack it without --triangulate"
        )
        raise row_error(path, element, row, reason, prop)
    counts = corners.sizes - 2
    faces = np.repeat(np.arange(len(counts)), counts)
    triangles = Table(element, {i: numbers[faces] for i, numbers in table.numbers.items()}, made_from=faces)
    for i, (values, sizes) in table.lists.items():
        starts = (np.cumsum(sizes) - sizes)[faces]
        if i == prop:
            within = np.arange(len(faces)) - (np.cumsum(counts) - counts)[faces]
            fan = np.stack([starts, starts + within + 1, starts + within + 2], axis=1)
            triangles.lists[i] = ListColumn(values[fan.reshape(-1)], np.full(len(faces), 3))
            continue
        entries = counts.astype(np.float64) * sizes
        if entries.sum() > MAX_ENTRIES:
            reason = f"these lists, repeated for every triangle, come to {entries.sum():.3g} entries"
            raise row_error(path, element, int(entries.argmax()), f"{reason}; pack it without --triangulate", i)
        triangles.lists[i] = ListColumn(gather(values, starts, sizes[faces]), sizes[faces])
    return triangles
