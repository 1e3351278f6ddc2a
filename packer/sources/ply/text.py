"""The body of a text PLY file: one line a row.

Numbers are parsed as float64, which is exact for every integer type of PLY. In float properties `nan` and `inf` are
values, as in plyfile; in integer properties they are errors.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.sources.dtypes import DoesNotFitError, convert
from packer.sources.ply.header import Element
from packer.sources.ply.table import ListColumn, Table, gather, row_error, row_of

#: Text is parsed in pieces of this size, whose masks and words stay in cache.
PIECE_BYTES = 2**18

#: Text is parsed to float64, which rounds whole numbers from here on.
_FIRST_ROUNDED = 2.0**53

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


# ---------------------------------------------------------------- lines of numbers


class BadNumberError(Exception):
    """`token` is not a number, or does not fit a float64; it stands in line `row`, from 0, after `before` others."""

    def __init__(self, token: str, row: int, before: int) -> None:
        super().__init__(token, row, before)
        self.token, self.row, self.before = token, row, before


def parse_rows(body: bytes) -> tuple[Floats, Ints]:
    """Return all numbers of a text body, (t,), and how many each line that is not blank holds, (lines,).

    Raises:
        BadNumberError: something in it is not a number.
    """
    values: list[Floats] = [np.empty(0)]
    sizes: list[Ints] = [np.empty(0, np.int64)]
    for piece in _pieces(body):
        line_sizes = _line_sizes(piece)
        numbers = _numbers(piece, int(line_sizes.sum()))
        if numbers is None:
            raise _bad_number(piece, line_sizes, sum(map(len, sizes)))
        values.append(numbers)
        sizes.append(line_sizes)
    return np.concatenate(values), np.concatenate(sizes)


def count_rows(body: bytes) -> Ints:
    """Return how many values each line that is not blank holds, int64 (lines,), without parsing them."""
    return np.concatenate([np.empty(0, np.int64), *map(_line_sizes, _pieces(body))])


def _pieces(body: bytes) -> Iterator[bytes]:
    """Cut the body after line ends, with LF as the only line end."""
    if b"\r" in body:
        body = body.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    start = 0
    while start < len(body):
        stop = body.find(b"\n", start + PIECE_BYTES) + 1 or len(body)
        yield body[start:stop]
        start = stop


def _line_sizes(piece: bytes) -> Ints:
    """Return how many values each line that is not blank holds."""
    text = np.frombuffer(b" " + piece, np.uint8)
    # The bytes that `bytes.split` splits at: the blank, and tab to carriage return (9 to 13).
    blank = (text == ord(" ")) | (text - np.uint8(9) <= 4)
    words = np.flatnonzero(blank[:-1] > blank[1:])
    before = np.searchsorted(words, np.flatnonzero(text[1:] == ord("\n")))
    sizes = np.diff(before, prepend=0, append=len(words))
    return sizes[sizes > 0]


def _numbers(text: bytes, count: int) -> Floats | None:
    """Return the numbers of a text of `count` words; None if a word is no number, or too large for a float64."""
    if not count:
        return np.empty(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # older versions of numpy warn where newer ones raise ValueError
        try:
            values = np.fromstring(text, sep=" ")
        except (ValueError, DeprecationWarning):
            return None
    # Two numbers in one word, as in 1-2, are read as two; 1e999 is read as infinity.
    infinite = np.count_nonzero(np.isinf(values))
    return None if len(values) != count or infinite > text.lower().count(b"inf") else values


def _bad_number(piece: bytes, sizes: Ints, lines: int) -> BadNumberError:
    """Return the error of the first word that is no number, in a piece that has one.

    Args:
        sizes: how many words each of its lines holds.
        lines: how many lines come before it.
    """
    index, word = next((i, word) for i, word in enumerate(piece.split()) if _numbers(word, 1) is None)
    row = row_of(index, sizes)
    return BadNumberError(word[:40].decode("latin-1"), lines + row, index - int(sizes[:row].sum()))


def line_of(body: bytes, row: int) -> int:
    """Return the number of a line, from 1, that is row `row`, from 0; blank lines are no rows."""
    lines = body.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    return [number for number, line in enumerate(lines, 1) if line.strip()][row]


# ---------------------------------------------------------------- tables


def read_text(elements: Sequence[Element], data: bytes, path: str, lines_before: int = 0) -> list[Table]:
    """Return the tables of `elements`, whose rows are the lines of `data`; blank lines are skipped.

    Args:
        lines_before: lines of the file before `data`, such as those of the header.

    Raises:
        SourceError: a value is no number or does not fit its type, or a row or line is missing or too long; names the
            line of the file, from 1.
    """

    def bad_row(start: int, element: Element | None, row: int, reason: str, prop: int | None = None) -> SourceError:
        name = "" if element is None or prop is None else f", {element.properties[prop].name}"
        return SourceError(f"line {lines_before + line_of(data, start + row)}{name}: {reason}", path)

    starts = np.cumsum([0, *(element.count for element in elements)]).tolist()
    spans = list(zip(elements, starts[:-1], starts[1:], strict=True))
    try:
        values, sizes = parse_rows(data)
    except BadNumberError as error:
        element = next((e for e, start, stop in spans if start <= error.row < stop), None)
        # Without lists, a property's number is that of its word.
        is_known = element is not None and not element.has_lists and error.before < len(element.properties)
        reason = f"{error.token!r} is not a number that can be stored"
        raise bad_row(0, element, error.row, reason, error.before if is_known else None) from None
    ends = np.cumsum(sizes)
    tables = []
    for element, start, stop in spans:
        if stop > len(sizes):
            reason = f"the file ends here, but the header declares {element.count} rows"
            raise row_error(path, element, len(sizes) - start, reason)
        rows = slice(start, stop)
        report = partial(bad_row, start, element)
        tables.append(_read_element(element, values, ends[rows] - sizes[rows], ends[rows], report))
    if starts[-1] < len(sizes):
        reason = (
            f"{len(sizes) - starts[-1]} lines are left over after the last element; correct the count in the header"
        )
        raise bad_row(starts[-1], None, 0, reason)
    return tables


def _read_element(
    element: Element, values: Floats, starts: Ints, ends: Ints, bad_row: Callable[..., SourceError]
) -> Table:
    """Return the table of rows that start and stop at these values: all rows at once, property by property."""
    table, at = Table(element), starts

    def typed(chosen: Floats, i: int, dtype: str, sizes: Ints | None = None) -> NDArray[Any]:
        """Return values of property `i` as `dtype`: one a row, or lists of `sizes`."""
        try:
            if dtype in ("int64", "uint64") and (rounded := abs(chosen) >= _FIRST_ROUNDED).any():
                raise DoesNotFitError(_FIRST_ROUNDED, (int(np.argmax(rounded)),))
            return convert(chosen, dtype)
        except DoesNotFitError as error:
            row = error.index[0] if sizes is None else row_of(error.index[0], sizes)
            p = element.properties[i]
            kind = p.dtype if p.count_dtype is None else f"list of {p.dtype} counted by {p.count_dtype}"
            reason = f"{error.value:g} does not fit its type, {kind}"
            if error.value == _FIRST_ROUNDED and dtype in ("int64", "uint64"):
                reason = "text is read as float64, which holds whole numbers below 2**53 alone; save this one as .npy"
            raise bad_row(row, reason, i) from None

    def check_reach(stops: Ints, i: int) -> None:
        if (stops > ends).any():
            row = int(np.argmax(stops > ends))
            raise bad_row(row, f"{stops[row] - ends[row]} values are missing", i)

    for i, p in enumerate(element.properties):
        check_reach(at + 1, i)
        numbers = typed(values[at], i, p.count_dtype or p.dtype)
        at = at + 1
        if p.count_dtype is None:
            table.numbers[i] = numbers
            continue
        sizes = numbers.astype(np.int64)
        if (sizes < 0).any():
            row = int(np.argmax(sizes < 0))
            raise bad_row(row, f"a list cannot have {sizes[row]} entries", i)
        check_reach(at + sizes, i)
        table.lists[i] = ListColumn(typed(gather(values, at, sizes), i, p.dtype, sizes), sizes)
        at = at + sizes
    if (at < ends).any():
        row = int(np.argmax(at < ends))
        count, expected = ends[row] - starts[row], at[row] - starts[row]
        raise bad_row(row, f"{expected} values are expected, {count} are there")
    return table
