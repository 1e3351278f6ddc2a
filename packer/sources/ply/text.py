"""The body of a text PLY file: one line a row.

Numbers are parsed as float64, which is exact for every integer type of PLY. Nearly all writers use the number syntax of
JSON, which msgspec's decoder reads faster than numpy does, above all numbers of many digits. Text that JSON refuses
(`+1`, `.5`, `nan`) goes through Python's `float`. In float properties `nan` and `inf` are values, as in plyfile; in
integer properties they are errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.sources.ply.header import Element
from packer.sources.ply.table import DoesNotFitError, ListColumn, Table, convert, gather, row_error, row_of

#: Text is parsed in pieces of this size, so that the Python floats in flight stay few and in cache.
PIECE_BYTES = 2**18

_decoder = msgspec.json.Decoder(list[float])

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
        held, blank = _line_sizes(piece)
        numbers = _json_numbers(piece, blank, int(held.sum()))
        if numbers is None:
            numbers = _python_numbers(piece, held, sum(map(len, sizes)))
        values.append(numbers)
        sizes.append(held)
    return np.concatenate(values), np.concatenate(sizes)


def count_rows(body: bytes) -> Ints:
    """Return how many values each line that is not blank holds, int64 (lines,), without parsing them."""
    return np.concatenate([np.empty(0, np.int64), *(_line_sizes(piece)[0] for piece in _pieces(body))])


def _pieces(body: bytes) -> Iterator[bytes]:
    """Cut the body after line ends, with LF as the only line end."""
    if b"\r" in body:
        body = body.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    start = 0
    while start < len(body):
        stop = body.find(b"\n", start + PIECE_BYTES) + 1 or len(body)
        yield body[start:stop]
        start = stop


def _line_sizes(piece: bytes) -> tuple[Ints, NDArray[np.bool_]]:
    """Return how many values each line that is not blank holds; and which bytes are blank, after a blank in front."""
    text = np.frombuffer(b" " + piece, np.uint8)
    # The bytes that `bytes.split` splits at: the blank, and tab to carriage return (9 to 13).
    blank = (text == ord(" ")) | (text - np.uint8(9) <= 4)
    words = np.flatnonzero(blank[:-1] > blank[1:])
    before = np.searchsorted(words, np.flatnonzero(text[1:] == ord("\n")))
    sizes = np.diff(before, prepend=0, append=len(words))
    return sizes[sizes > 0], blank


def _json_numbers(piece: bytes, blank: NDArray[np.bool_], count: int) -> Floats | None:
    """Return the numbers of `1 2\\n 3\\n`, read as `[1,2, 3]`: the first blank after each becomes a comma.

    None if JSON refuses them; `1,2` is two numbers in JSON and none in PLY.
    """
    text = np.frombuffer(b"[" + piece.rstrip() + b"]", np.uint8).copy()
    inner = blank[1 : len(text) - 1]
    np.putmask(text[1:-1], inner > blank[: len(inner)], ord(","))
    # The decoder reads -0 as the integer 0, which has no sign.
    held = text.tobytes().replace(b"-0,", b"-0.0,").replace(b"-0]", b"-0.0]")
    try:
        values = _decoder.decode(held)
    except msgspec.DecodeError:
        return None
    return np.fromiter(values, np.float64, count) if len(values) == count else None


def _python_numbers(piece: bytes, sizes: Ints, lines: int) -> Floats:
    """Return the numbers of a piece by Python's rules.

    Args:
        sizes: how many numbers each of its lines holds.
        lines: how many lines come before it.

    Raises:
        BadNumberError: a word is not a number, or is too large for a float64.
    """
    values: list[float] = []
    for index, word in enumerate(piece.split()):
        number = _number(word)
        if number is None:
            row = row_of(index, sizes)
            raise BadNumberError(word[:40].decode("latin-1"), lines + row, index - int(sizes[:row].sum()))
        values.append(number)
    return np.array(values, np.float64)


def _number(word: bytes) -> float | None:
    try:
        number = float(word)
    except ValueError:
        return None
    # float() takes 1_000; no other reader does.
    overflows = math.isinf(number) and b"inf" not in word.lower()
    return None if overflows or b"_" in word else number


# ---------------------------------------------------------------- tables


def read_text(
    elements: Sequence[Element], data: bytes, path: str, row_error: Callable[..., SourceError] = row_error
) -> list[Table]:
    """Return the tables of `elements`, whose rows are the lines of `data`; blank lines are skipped.

    Args:
        row_error: returns the error of a bad row, as `row_error` of `table` does.

    Raises:
        SourceError: a value is no number or does not fit its type, or a row or line is missing or too long.
    """
    try:
        values, sizes = parse_rows(data)
    except BadNumberError as error:
        bad, row = f"{error.token!r} is not a number that can be stored", error.row
        for element in elements:
            if row < element.count:
                is_in = not element.has_lists and error.before < len(element.properties)
                raise row_error(path, element, row, bad, error.before if is_in else None) from None
            row -= element.count
        raise SourceError(f"lines are left over after the last element: {error.token!r}", path) from None
    ends = np.cumsum(sizes)
    tables, line = [], 0
    for element in elements:
        lines = slice(line, line + element.count)
        if lines.stop > len(sizes):
            reason = f"the file ends here, but the header declares {element.count} rows"
            raise row_error(path, element, len(sizes) - line, reason)
        starts = ends[lines] - sizes[lines]
        tables.append(_read_element(element, values, starts, ends[lines], partial(row_error, path, element)))
        line = lines.stop
    if line < len(sizes):
        raise SourceError(f"{len(sizes) - line} lines are left over after the last element", path)
    return tables


def _read_element(
    element: Element, values: Floats, starts: Ints, ends: Ints, row_error: Callable[..., SourceError]
) -> Table:
    """Return the table of rows that start and stop at these values: all rows at once, property by property."""
    table, at = Table(element), starts

    def typed(chosen: Floats, i: int, dtype: str, sizes: Ints | None = None) -> NDArray[Any]:
        """Return values of property `i` as `dtype`: one a row, or lists of `sizes`."""
        try:
            return convert(chosen, dtype)
        except DoesNotFitError as error:
            row = error.index[0] if sizes is None else row_of(error.index[0], sizes)
            p = element.properties[i]
            kind = p.dtype if p.count_dtype is None else f"list of {p.dtype} counted by {p.count_dtype}"
            raise row_error(row, f"{error.value:g} does not fit its type, {kind}", i) from None

    def check_reach(stops: Ints, i: int) -> None:
        if (stops > ends).any():
            row = int(np.argmax(stops > ends))
            raise row_error(row, f"{stops[row] - ends[row]} values are missing", i)

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
            raise row_error(row, f"a list cannot have {sizes[row]} entries", i)
        check_reach(at + sizes, i)
        table.lists[i] = ListColumn(typed(gather(values, at, sizes), i, p.dtype, sizes), sizes)
        at = at + sizes
    if (at < ends).any():
        row = int(np.argmax(at < ends))
        held, expected = ends[row] - starts[row], at[row] - starts[row]
        raise row_error(row, f"{expected} values are expected, {held} are there")
    return table
