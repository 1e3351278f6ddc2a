"""The body of a text PLY file as tables: one line a row.

`nan` and `inf` are values of float properties, as for plyfile; in an integer property they are errors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.sources.ply.binary import gather
from packer.sources.ply.header import Element
from packer.sources.ply.table import DoesNotFitError, ListColumn, Table, convert, row_error
from packer.sources.ply.text import BadNumberError, Rows, parse_rows

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def read_ascii(elements: Sequence[Element], data: bytes, path: str) -> list[Table]:
    """The tables of `elements`, whose rows are the lines of `data`; blank lines are passed over.

    Raises:
        SourceError: a value is no number or does not fit its type, or a row or line is missing or too long.
    """
    try:
        rows = parse_rows(data)
    except BadNumberError as error:
        raise _bad_number(elements, error, path) from None
    check_line_count(elements, len(rows.sizes), path)
    tables, line, value = [], 0, 0
    for element in elements:
        sizes = rows.sizes[line : line + element.count]
        stop = value + int(sizes.sum())
        read = _read_lists if element.has_lists else _read_fixed
        tables.append(read(element, Rows(rows.values[value:stop], sizes), path))
        line, value = line + element.count, stop
    return tables


def check_line_count(elements: Sequence[Element], lines: int, path: str) -> None:
    """Raises SourceError where the body has more or fewer lines than the elements have rows."""
    start = 0
    for element in elements:
        if start + element.count > lines:
            reason = f"the file ends here, but the header declares {element.count} rows"
            raise row_error(path, element, lines - start, reason)
        start += element.count
    if lines > start:
        raise SourceError(f"{lines - start} lines are left over behind the last element", path)


def _read_fixed(element: Element, rows: Rows, path: str) -> Table:
    """An element without lists: every line holds one value a property."""
    width = len(element.properties)
    if (rows.sizes != width).any():
        row = int(np.argmax(rows.sizes != width))
        raise _wrong_size(element, row, int(rows.sizes[row]), path)
    block = rows.values.reshape(element.count, width)
    table = Table(element)
    # Properties of one type are converted together, and so come to lie side by side.
    for dtype, run in groupby(range(width), lambda i: element.properties[i].dtype):
        run_of = list(run)
        try:
            columns = convert(block[:, run_of[0] : run_of[-1] + 1], dtype)
        except DoesNotFitError as error:
            row, column = error.index
            raise _no_fit(element, row, run_of[column], error.value, path) from None
        table.numbers |= {i: columns[:, i - run_of[0]] for i in run_of}
    return table


def _read_lists(element: Element, rows: Rows, path: str) -> Table:
    """An element with lists: goes through the properties in order, for all rows at once."""
    ends = np.cumsum(rows.sizes)
    at = ends - rows.sizes
    table = Table(element)
    for i, p in enumerate(element.properties):
        _check_reach(element, i, at + 1, ends, path)
        numbers = _typed(element, i, rows.values[at], p.count_dtype or p.dtype, path)
        at = at + 1
        if p.count_dtype:
            sizes = numbers.astype(np.int64)
            if (sizes < 0).any():
                row = int(np.argmax(sizes < 0))
                raise row_error(path, element, row, f"a list cannot have {sizes[row]} entries", i)
            _check_reach(element, i, at + sizes, ends, path)
            values = _typed_entries(element, i, gather(rows.values, at, sizes), sizes, path)
            table.lists[i] = ListColumn(values, sizes)
            at = at + sizes
        else:
            table.numbers[i] = numbers
    if (at < ends).any():
        row = int(np.argmax(at < ends))
        raise row_error(path, element, row, f"{ends[row] - at[row]} values too many")
    return table


def _check_reach(element: Element, prop: int, at: Ints, ends: Ints, path: str) -> None:
    if (at > ends).any():
        row = int(np.argmax(at > ends))
        raise row_error(path, element, row, f"{at[row] - ends[row]} values are missing", prop)


def _typed(element: Element, prop: int, values: Floats, dtype: str, path: str) -> NDArray[np.generic]:
    try:
        return convert(values, dtype)
    except DoesNotFitError as error:
        raise _no_fit(element, error.index[0], prop, error.value, path) from None


def _typed_entries(element: Element, prop: int, values: Floats, sizes: Ints, path: str) -> NDArray[np.generic]:
    try:
        return convert(values, element.properties[prop].dtype)
    except DoesNotFitError as error:
        row = int(np.searchsorted(np.cumsum(sizes), error.index[0], side="right"))
        raise _no_fit(element, row, prop, error.value, path) from None


def _no_fit(element: Element, row: int, prop: int, value: float, path: str) -> SourceError:
    p = element.properties[prop]
    dtype = p.dtype if p.count_dtype is None else f"list of {p.dtype} counted by {p.count_dtype}"
    return row_error(path, element, row, f"{value:g} does not fit its type, {dtype}", prop)


def _wrong_size(element: Element, row: int, size: int, path: str) -> SourceError:
    width = len(element.properties)
    return row_error(
        path, element, row, f"{width} values are expected, {size} are there", size if size < width else None
    )


def _bad_number(elements: Sequence[Element], error: BadNumberError, path: str) -> SourceError:
    row = error.row
    for element in elements:
        if row < element.count:
            prop = _property_behind(element, error.before)
            return row_error(path, element, row, f"{error.token!r} is not a number that can be stored", prop)
        row -= element.count
    return SourceError(f"lines are left over behind the last element: {error.token!r}", path)


def _property_behind(element: Element, before: list[float]) -> int | None:
    """The number of the property that the value behind `before` belongs to; None behind the last."""
    at = 0
    for i, p in enumerate(element.properties):
        if at >= len(before):
            return i
        # A length that is no whole number is reported as such later; here it only must not fail.
        at += 1 + (int(min(max(before[at], 0), 2**40)) if p.count_dtype and not math.isnan(before[at]) else 0)
        if at > len(before):
            return i
    return None
