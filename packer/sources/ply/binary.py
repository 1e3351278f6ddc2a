"""The body of a binary PLY file as tables.

Elements of fixed size, and lists that all have the length of the first one, are read as one structured
array. Lists of different lengths are found by walking the rows, then gathered at once. No declared count
is believed before it is held against the bytes that are there.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.sources.ply.header import SIZES, Element, Property
from packer.sources.ply.table import ListColumn, Table, gather, number_name, row_error

#: numpy holds the size of a record in a C int.
_MAX_RECORD = 2**31 - 1
Order = Literal["<", ">"]


def read_binary(elements: Sequence[Element], data: bytes, order: Order, path: str) -> list[Table]:
    """Return the tables of `elements`, whose rows fill `data` exactly.

    Raises:
        SourceError: data is missing or left over, or a list has a length below 0.
    """
    tables, start = [], 0
    for element in elements:
        body = _Body(element, data, order, path)
        table, start = body.read(start)
        tables.append(table)
    if start != len(data):
        raise SourceError(f"{len(data) - start} bytes are left over after the last element", path)
    return tables


def least_bytes(element: Element) -> int:
    """Return the bytes of the smallest body an element can have: every list empty."""
    return element.count * sum([SIZES[p.count_dtype or p.dtype] for p in element.properties])


class _Lists(NamedTuple):
    """Where the lists of an element lie, (rows, lists) each, in bytes and entries; and where the element ends."""

    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    end: int


class _Body:
    """The rows of one element within `data`."""

    def __init__(self, element: Element, data: bytes, order: Order, path: str) -> None:
        self.element, self.data, self.order, self.path = element, data, order, path

    def read(self, start: int) -> tuple[Table, int]:
        """Return the table whose rows begin at `start`, and where they end."""
        if least_bytes(self.element) > len(self.data) - start:
            raise self._cut_off(start)
        if not self.element.count:
            return self._record(start, [0] * len(self.element.properties)), start
        if not self.element.has_lists:
            return self._record(start, []), start + least_bytes(self.element)
        return self._uniform(start) or self._walked(start)

    def _uniform(self, start: int) -> tuple[Table, int] | None:
        """Return the table if all lists of a property are as long as the first."""
        first = self._walk(start, 1)
        size = (first.end - start) * self.element.count
        if first.end - start > _MAX_RECORD or start + size > len(self.data):
            return None
        lengths = [int(n) for n in first.sizes[0]]
        table = self._record(start, lengths)
        same = all((column.sizes == n).all() for column, n in zip(table.lists.values(), lengths, strict=True))
        return (table, start + size) if same else None

    def _record(self, start: int, lengths: list[int]) -> Table:
        """Return the table read as one structured array, whose lists have these lengths."""
        dtype, count = _record_dtype(self.element.properties, self.order, tuple(lengths)), self.element.count
        rows = np.frombuffer(self.data, dtype, count, start) if count else np.empty(0, dtype)
        table = Table(self.element, records=rows)
        for i, p in enumerate(self.element.properties):
            if p.count_dtype:
                table.lists[i] = ListColumn(rows[number_name(i)].reshape(-1), rows[f"n{i}"].astype(np.int64))
            else:
                table.numbers[i] = rows[number_name(i)]
        return table

    def _walked(self, start: int) -> tuple[Table, int]:
        """Return the table whose lists differ in length."""
        lists = self._walk(start, self.element.count)
        table = Table(self.element)
        number = 0
        # Where the next property of each row lies.
        at = self._row_starts(start, lists)
        for i, p in enumerate(self.element.properties):
            dtype = np.dtype(p.dtype).newbyteorder(self.order)
            # Every byte as the start of a value: PLY rows are packed, so values lie at any address.
            anywhere = np.ndarray((max(0, len(self.data) - dtype.itemsize + 1),), dtype, self.data, strides=(1,))
            if p.count_dtype:
                starts, sizes = lists.starts[:, number], lists.sizes[:, number]
                table.lists[i] = ListColumn(gather(anywhere, starts, sizes, dtype.itemsize), sizes)
                at = starts + sizes * dtype.itemsize
                number += 1
            else:
                table.numbers[i] = anywhere[at]
                at = at + dtype.itemsize
        return table, lists.end

    def _row_starts(self, start: int, lists: _Lists) -> NDArray[np.int64]:
        segments, tail = _segments(self.element.properties)
        ends = lists.starts[:, -1] + lists.sizes[:, -1] * segments[-1].item + tail
        return np.concatenate([[start], ends[:-1]])

    def _walk(self, start: int, rows: int) -> _Lists:
        """Find every list of the first rows, one after another: each says where the next one lies."""
        segments, tail = _segments(self.element.properties)
        only = segments[0]
        if len(segments) == 1 and only.count_bytes == 1 and not only.signed:
            return self._walk_bytes(start, rows, only, tail)
        data, end, at = self.data, len(self.data), start
        byteorder: Any = "little" if self.order == "<" else "big"
        starts, sizes = [], []
        for row in range(rows):
            for segment in segments:
                at += segment.lead
                n = int.from_bytes(data[at : at + segment.count_bytes], byteorder, signed=segment.signed)
                if n < 0:
                    raise row_error(self.path, self.element, row, f"a list cannot have {n} entries", segment.prop)
                at += segment.count_bytes
                starts.append(at)
                sizes.append(n)
                at += n * segment.item
            at += tail
            if at > end:
                raise self._overrun(row)
        shape = (rows, len(segments))
        return _Lists(np.array(starts, np.int64).reshape(shape), np.array(sizes, np.int64).reshape(shape), at)

    def _walk_bytes(self, start: int, rows: int, only: _Segment, tail: int) -> _Lists:
        """Do what `_walk` does for the usual case, one list a row with its length in one byte, six times as fast."""
        data, end, item, rest = self.data, len(self.data), only.item, 1 + tail + only.lead
        at, sizes = start + only.lead, []
        for row in range(rows):
            if at >= end:
                raise self._overrun(row)
            n = data[at]
            sizes.append(n)
            at += rest + n * item
        counts = np.array(sizes, np.int64)
        ends = start + np.cumsum(rest + counts * item)
        if ends[-1] > end:
            raise self._overrun(rows - 1)
        starts = ends - tail - counts * item
        return _Lists(starts[:, None], counts[:, None], int(ends[-1]))

    def _overrun(self, row: int) -> SourceError:
        reason = "the file ends within it: a list length is wrong, or the file is cut short"
        return row_error(self.path, self.element, row, reason)

    def _cut_off(self, start: int) -> SourceError:
        element, left = self.element, len(self.data) - start
        row = left // (least_bytes(element) // element.count)
        return row_error(
            self.path,
            element,
            row,
            f"the file ends here, but the header declares {element.count} rows: it is cut short or the header is wrong",
        )


# Sets have many files of few kinds.
@lru_cache(maxsize=64)
def _record_dtype(properties: tuple[Property, ...], order: Order, lengths: tuple[int, ...]) -> np.dtype[Any]:
    """Return the dtype of a row of these properties, whose lists have these lengths."""
    left = iter(lengths)
    fields: list[tuple[Any, ...]] = []
    for i, p in enumerate(properties):
        value = np.dtype(p.dtype).newbyteorder(order)
        if p.count_dtype:
            fields += [(f"n{i}", np.dtype(p.count_dtype).newbyteorder(order)), (number_name(i), value, (next(left),))]
        else:
            fields.append((number_name(i), value))
    return np.dtype(fields)


class _Segment(NamedTuple):
    """A list within a row: bytes of numbers before it, of its length, of an entry; its property number."""

    lead: int
    count_bytes: int
    signed: bool
    item: int
    prop: int


def _segments(properties: Sequence[Property]) -> tuple[list[_Segment], int]:
    """Return the lists of a row, and the bytes of numbers after the last."""
    segments, lead = [], 0
    for i, p in enumerate(properties):
        size = np.dtype(p.dtype).itemsize
        if p.count_dtype:
            count = np.dtype(p.count_dtype)
            segments.append(_Segment(lead, count.itemsize, count.kind == "i", size, i))
            lead = 0
        else:
            lead += size
    return segments, lead
