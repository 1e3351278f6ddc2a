"""The body of a text PLY file as numbers: all values, and how many stand in each line.

Numbers are parsed as float64, exactly for every integer type of PLY. JSON's number syntax is what nearly
all writers use, and msgspec's JSON decoder reads it two to four times as fast as `np.loadtxt` or
`np.fromstring` (100,000 rows of x y z: 30 ms, 72 ms, 74 ms). Text that JSON refuses (`+1`, `.5`, `nan`)
goes through Python's `float`, piece by piece (90 ms).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

#: Text is parsed in pieces of this size, so that the Python floats in flight stay few and in cache.
PIECE_BYTES = 2**18

_decoder = msgspec.json.Decoder(list[float])


class Rows(NamedTuple):
    """Numbers of a text body: values float64 (t,), and how many each line that is not blank holds, int64 (lines,)."""

    values: NDArray[np.float64]
    sizes: NDArray[np.int64]


class BadNumberError(Exception):
    """`token` is not a number, or does not fit a float64; it stands in line `row`, from 0, behind `before`."""

    def __init__(self, token: str, row: int, before: list[float]) -> None:
        super().__init__(token, row, before)
        self.token, self.row, self.before = token, row, before


def parse_rows(body: bytes) -> Rows:
    """All numbers of a text body.

    Raises:
        BadNumberError: something in it is not a number.
    """
    values: list[NDArray[np.float64]] = [np.empty(0)]
    sizes: list[NDArray[np.int64]] = [np.empty(0, np.int64)]
    for piece in _pieces(body):
        starts = _token_starts(piece)
        sizes.append(_line_sizes(piece, starts))
        try:
            values.append(_numbers(piece, len(starts)))
        except _PieceError as error:
            raise _located(error, sizes) from None
    return Rows(np.concatenate(values), np.concatenate(sizes))


def count_rows(body: bytes) -> NDArray[np.int64]:
    """How many values each line that is not blank holds, without parsing them; int64 (lines,)."""
    return np.concatenate(
        [np.empty(0, np.int64), *(_line_sizes(piece, _token_starts(piece)) for piece in _pieces(body))]
    )


class _PieceError(Exception):
    def __init__(self, tokens: list[bytes], index: int) -> None:
        super().__init__(tokens, index)
        self.tokens, self.index = tokens, index


def _located(error: _PieceError, sizes: list[NDArray[np.int64]]) -> BadNumberError:
    """The error with its line counted from the start of the body; the last of `sizes` is of its own piece."""
    ends = np.cumsum(sizes[-1])
    row = int(np.searchsorted(ends, error.index, side="right"))
    before = error.tokens[int(ends[row] - sizes[-1][row]) : error.index]
    token = error.tokens[error.index][:40].decode("latin-1")
    return BadNumberError(token, row + sum(len(s) for s in sizes[:-1]), [float(t) for t in before])


def _pieces(body: bytes) -> Iterator[bytes]:
    """The body cut behind line ends, with LF as the only line end."""
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
    """Where the bytes are that `bytes.split` splits at: the blank, and tab to carriage return (9 to 13)."""
    blank: NDArray[np.bool_] = (text == ord(" ")) | (text - np.uint8(9) <= 4)
    return blank


def _line_sizes(piece: bytes, starts: NDArray[np.intp]) -> NDArray[np.int64]:
    ends = np.flatnonzero(np.frombuffer(piece, np.uint8) == 10)
    before = np.searchsorted(starts, ends)
    sizes = np.diff(before, prepend=0, append=len(starts))
    return sizes[sizes > 0]


def _numbers(piece: bytes, count: int) -> NDArray[np.float64]:
    try:
        values = _decoder.decode(_as_json(piece))
    except msgspec.DecodeError:
        return _plain_numbers(piece)
    # `1,2` is two numbers in JSON and none in PLY.
    return np.fromiter(values, np.float64, count) if len(values) == count else _plain_numbers(piece)


def _as_json(piece: bytes) -> bytes:
    """`1 2\\n 3\\n` as `[1,2, 3]`: the first blank behind each number becomes a comma."""
    text = np.frombuffer(b"[" + piece.rstrip() + b"]", np.uint8).copy()
    blank = _blank(text)
    behind_number = blank[1:] > blank[:-1]
    behind_number[0] = False
    np.putmask(text[1:], behind_number, ord(","))
    # The decoder reads -0 as the integer 0, which has no sign.
    return text.tobytes().replace(b"-0,", b"-0.0,").replace(b"-0]", b"-0.0]")


def _plain_numbers(piece: bytes) -> NDArray[np.float64]:
    tokens = piece.split()
    try:
        # float() takes 1_000; no other reader does.
        values = np.fromiter(map(float, tokens), np.float64, len(tokens))
        good = b"_" not in piece
    except ValueError:
        good = False
    if not good or np.isinf(values).any():
        _check_tokens(tokens)
    return values


def _check_tokens(tokens: list[bytes]) -> None:
    """Raises for the first token that is not a number, or is too large for a float64."""
    for index, token in enumerate(tokens):
        try:
            overflows = math.isinf(float(token)) and b"inf" not in token.lower()
        except ValueError:
            overflows = True
        if overflows or b"_" in token:
            raise _PieceError(tokens, index)
