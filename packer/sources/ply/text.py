"""The body of a text PLY file: one line a row.

Numbers are parsed as float64, exactly for every integer type of PLY. JSON's number syntax is what nearly all writers
use, and msgspec's JSON decoder reads it two to four times as fast as numpy does. Text that JSON refuses (`+1`, `.5`,
`nan`) goes through Python's `float`, piece by piece. `nan` and `inf` are values of float properties, as for plyfile;
in an integer property they are errors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.sources.ply.header import Element
from packer.sources.ply.table import DoesNotFitError, ListColumn, Table, convert, gather, row_error

#: Text is parsed in pieces of this size, so that the Python floats in flight stay few and in cache.
PIECE_BYTES = 2**18

_decoder = msgspec.json.Decoder(list[float])

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


# ---------------------------------------------------------------- lines of numbers


class Rows(NamedTuple):
    """Numbers of a text body: values float64 (t,), and how many each line that is not blank holds, int64 (lines,)."""

    values: Floats
    sizes: Ints


class BadNumberError(Exception):
    """`token` is not a number, or does not fit a float64; it stands in line `row`, from 0, after `before`."""

    def __init__(self, token: str, row: int, before: list[float]) -> None:
        super().__init__(token, row, before)
        self.token, self.row, self.before = token, row, before


def parse_rows(body: bytes) -> Rows:
    """Return all numbers of a text body.

    Raises:
        BadNumberError: something in it is not a number.
    """
    values: list[Floats] = [np.empty(0)]
    sizes: list[Ints] = [np.empty(0, np.int64)]
    for piece in _pieces(body):
        starts = _token_starts(piece)
        sizes.append(_line_sizes(piece, starts))
        numbers = _json_numbers(piece, len(starts))
        values.append(_plain_numbers(piece, sizes) if numbers is None else numbers)
    return Rows(np.concatenate(values), np.concatenate(sizes))


def count_rows(body: bytes) -> Ints:
    """Return how many values each line that is not blank holds, int64 (lines,), without parsing them."""
    return np.concatenate([np.empty(0, np.int64), *(_line_sizes(p, _token_starts(p)) for p in _pieces(body))])


def _pieces(body: bytes) -> Iterator[bytes]:
    """Cut the body after line ends, with LF as the only line end."""
    if b"\r" in body:
        body = body.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    start = 0
    while start < len(body):
        stop = body.find(b"\n", start + PIECE_BYTES) + 1 or len(body)
        yield body[start:stop]
        start = stop


def _token_starts(piece: bytes) -> NDArray[np.intp]:
    blank = _blank(np.frombuffer(b" " + piece, np.uint8))
    return np.flatnonzero(blank[:-1] > blank[1:])


def _blank(text: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return where the bytes are that `bytes.split` splits at: the blank, and tab to carriage return (9 to 13)."""
    blank: NDArray[np.bool_] = (text == ord(" ")) | (text - np.uint8(9) <= 4)
    return blank


def _line_sizes(piece: bytes, starts: NDArray[np.intp]) -> Ints:
    ends = np.flatnonzero(np.frombuffer(piece, np.uint8) == 10)
    before = np.searchsorted(starts, ends)
    sizes = np.diff(before, prepend=0, append=len(starts))
    return sizes[sizes > 0]


def _json_numbers(piece: bytes, count: int) -> Floats | None:
    """Return the numbers of `1 2\\n 3\\n`, read as `[1,2, 3]`: the first blank after each becomes a comma.

    None if JSON refuses them; `1,2` is two numbers in JSON and none in PLY.
    """
    text = np.frombuffer(b"[" + piece.rstrip() + b"]", np.uint8).copy()
    blank = _blank(text)
    after_number = blank[1:] > blank[:-1]
    after_number[0] = False
    np.putmask(text[1:], after_number, ord(","))
    # The decoder reads -0 as the integer 0, which has no sign.
    held = text.tobytes().replace(b"-0,", b"-0.0,").replace(b"-0]", b"-0.0]")
    try:
        values = _decoder.decode(held)
    except msgspec.DecodeError:
        return None
    return np.fromiter(values, np.float64, count) if len(values) == count else None


def _plain_numbers(piece: bytes, sizes: Sequence[Ints]) -> Floats:
    """Return the numbers of a piece by Python's rules.

    Args:
        sizes: of all lines up to now; the last are those of this piece.

    Raises:
        BadNumberError: a token is not a number, or is too large for a float64.
    """
    tokens = piece.split()
    try:
        values = np.fromiter(map(float, tokens), np.float64, len(tokens))
    except ValueError:
        values = None
    # float() takes 1_000; no other reader does.
    if values is not None and not np.isinf(values).any() and b"_" not in piece:
        return values
    for index, token in enumerate(tokens):
        if not _is_number(token):
            ends = np.cumsum(sizes[-1])
            row = int(np.searchsorted(ends, index, side="right"))
            before = [float(t) for t in tokens[int(ends[row] - sizes[-1][row]) : index]]
            raise BadNumberError(token[:40].decode("latin-1"), row + sum(map(len, sizes[:-1])), before)
    assert values is not None  # every token is a number
    return values


def _is_number(token: bytes) -> bool:
    try:
        overflows = math.isinf(float(token)) and b"inf" not in token.lower()
    except ValueError:
        return False
    return not overflows and b"_" not in token


# ---------------------------------------------------------------- tables


def read_text(elements: Sequence[Element], data: bytes, path: str) -> list[Table]:
    """Return the tables of `elements`, whose rows are the lines of `data`; blank lines are passed over.

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
    """Raise SourceError if the body has more or fewer lines than the elements have rows."""
    start = 0
    for element in elements:
        if start + element.count > lines:
            reason = f"the file ends here, but the header declares {element.count} rows"
            raise row_error(path, element, lines - start, reason)
        start += element.count
    if lines > start:
        raise SourceError(f"{lines - start} lines are left over after the last element", path)


def _read_fixed(element: Element, rows: Rows, path: str) -> Table:
    """Return an element without lists: every line holds one value a property."""
    width = len(element.properties)
    if (rows.sizes != width).any():
        row = int(np.argmax(rows.sizes != width))
        size = int(rows.sizes[row])
        reason = f"{width} values are expected, {size} are there"
        raise row_error(path, element, row, reason, size if size < width else None)
    block = rows.values.reshape(element.count, width)
    table = Table(element)
    # Properties of one type are converted together, and this way come to lie side by side.
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
    """Return an element with lists: goes through the properties in order, for all rows at once."""
    ends = np.cumsum(rows.sizes)
    at = ends - rows.sizes
    table = Table(element)
    for i, p in enumerate(element.properties):
        _check_reach(element, i, at + 1, ends, path)
        numbers = _typed(rows.values[at], p.count_dtype or p.dtype, element, i, path)
        at = at + 1
        if p.count_dtype:
            sizes = numbers.astype(np.int64)
            if (sizes < 0).any():
                row = int(np.argmax(sizes < 0))
                raise row_error(path, element, row, f"a list cannot have {sizes[row]} entries", i)
            _check_reach(element, i, at + sizes, ends, path)
            values = _typed(gather(rows.values, at, sizes), p.dtype, element, i, path, sizes)
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


def _typed(
    values: Floats, dtype: str, element: Element, prop: int, path: str, sizes: Ints | None = None
) -> NDArray[np.generic]:
    """Return values of a property as `dtype`: one a row, or lists of `sizes`."""
    try:
        return convert(values, dtype)
    except DoesNotFitError as error:
        row = error.index[0]
        if sizes is not None:
            row = int(np.searchsorted(np.cumsum(sizes), row, side="right"))
        raise _no_fit(element, row, prop, error.value, path) from None


def _no_fit(element: Element, row: int, prop: int, value: float, path: str) -> SourceError:
    p = element.properties[prop]
    dtype = p.dtype if p.count_dtype is None else f"list of {p.dtype} counted by {p.count_dtype}"
    return row_error(path, element, row, f"{value:g} does not fit its type, {dtype}", prop)


def _bad_number(elements: Sequence[Element], error: BadNumberError, path: str) -> SourceError:
    row = error.row
    for element in elements:
        if row < element.count:
            prop = _property_after(element, error.before)
            return row_error(path, element, row, f"{error.token!r} is not a number that can be stored", prop)
        row -= element.count
    return SourceError(f"lines are left over after the last element: {error.token!r}", path)


def _property_after(element: Element, before: list[float]) -> int | None:
    """Return the number of the property that the value after `before` belongs to; None after the last."""
    at = 0
    for i, p in enumerate(element.properties):
        if at >= len(before):
            return i
        # A length that is no whole number is reported as such later; here it only must not fail.
        at += 1 + (int(min(max(before[at], 0), 2**40)) if p.count_dtype and not math.isnan(before[at]) else 0)
        if at > len(before):
            return i
    return None
