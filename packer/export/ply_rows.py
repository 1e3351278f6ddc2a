"""The rows of one PLY element as bytes, binary or text; made some rows at a time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.export.ply_headers import Property

#: Rows made at a time: enough that a call's overhead is nothing, few enough to lie in the cache.
ROWS = 2**14

#: How a number is written so that it is read back the same: 9 digits identify a float32 even where it is read
#: as float64 and rounded again; `%r` is the shortest text of a float64.
_FORMATS = {"float32": "%.9g", "float64": "%r"}


@dataclass(frozen=True)
class Column:
    """The values of one property: one a row, or where `sizes` (rows,) is set lists, one after another."""

    property: Property
    values: NDArray[Any]
    sizes: NDArray[Any] | None = None

    def __len__(self) -> int:
        return len(self.values if self.sizes is None else self.sizes)


class _Slices:
    """Cuts columns into pieces of `ROWS` rows."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._ends = [None if c.sizes is None else _ends(c.sizes) for c in columns]

    def piece(self, start: int, stop: int) -> list[Column]:
        out = []
        for column, ends in zip(self._columns, self._ends, strict=True):
            if ends is None or column.sizes is None:
                out.append(Column(column.property, column.values[start:stop]))
            else:
                values = column.values[int(ends[start]) : int(ends[stop])]
                out.append(Column(column.property, values, column.sizes[start:stop]))
        return out


def binary_rows(columns: Sequence[Column], rows: int, order: str) -> Iterator[bytes]:
    """The rows in binary; `order` is `<` or `>`."""
    slices = _Slices(columns)
    for start in range(0, rows if columns else 0, ROWS):
        piece = slices.piece(start, min(start + ROWS, rows))
        same = all(column.sizes is None or (column.sizes == column.sizes[0]).all() for column in piece)
        yield _records(piece, order) if same else _scattered(piece, order)


def _records(columns: Sequence[Column], order: str) -> bytes:
    """Rows that all have one size, as one structured array."""
    parts: list[tuple[str, str, NDArray[Any], int]] = []
    for i, column in enumerate(columns):
        prop = column.property
        if column.sizes is None:
            parts.append((f"v{i}", prop.type, column.values, 0))
            continue
        width = int(column.sizes[0])
        parts.append((f"n{i}", str(prop.count_type), column.sizes, 0))
        if width:
            parts.append((f"v{i}", prop.type, column.values.reshape(-1, width), width))
    dtype = [
        (name, order + np.dtype(t).str[1:], (w,)) if w else (name, order + np.dtype(t).str[1:])
        for name, t, _, w in parts
    ]
    records = np.empty(len(columns[0]), dtype)
    for name, _, values, _ in parts:
        records[name] = values
    return records.tobytes()


def _scattered(columns: Sequence[Column], order: str) -> bytes:
    """Rows of different sizes: the bytes of every property are put where their rows have them."""
    count = len(columns[0])
    at = np.zeros(count, np.int64)  # where the next property begins within its row
    placed: list[tuple[NDArray[np.int64], NDArray[Any], NDArray[np.int64] | None]] = []
    for column in columns:
        prop = column.property
        kind = np.dtype(prop.type).newbyteorder(order)  # type: ignore[arg-type]  # `<` or `>`
        if column.sizes is None:
            placed.append((at.copy(), column.values.astype(kind), None))
            at += kind.itemsize
            continue
        count_kind = np.dtype(str(prop.count_type)).newbyteorder(order)  # type: ignore[arg-type]
        placed.append((at.copy(), column.sizes.astype(count_kind), None))
        at += count_kind.itemsize
        sizes = column.sizes.astype(np.int64)
        placed.append((at.copy(), column.values.astype(kind), sizes))
        at += sizes * kind.itemsize
    starts = _ends(at)
    out = np.empty(int(starts[-1]), np.uint8)
    for within, values, lengths in placed:
        first = starts[:-1] + within
        if lengths is not None:
            before = np.repeat(_ends(lengths)[:-1], lengths)
            first = np.repeat(first, lengths) + (np.arange(len(values)) - before) * values.itemsize
        # No reshape(-1, ...): there may be no value.
        data = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), values.itemsize)
        out[first[:, None] + np.arange(values.itemsize)] = data
    return out.tobytes()


def text_rows(columns: Sequence[Column], rows: int) -> Iterator[bytes]:
    """The rows as text, a line each."""
    slices = _Slices(columns)
    for start in range(0, rows if columns else 0, ROWS):
        piece = slices.piece(start, min(start + ROWS, rows))
        if any(column.sizes is not None for column in piece):
            words = [_words(column) for column in piece]
            yield "".join(f"{' '.join(row)}\n" for row in zip(*words, strict=True)).encode()
            continue
        line = " ".join(_format(column) for column in piece) + "\n"
        values = itertools.chain.from_iterable(zip(*(column.values.tolist() for column in piece), strict=True))
        yield (line * len(piece[0]) % tuple(values)).encode()


def _words(column: Column) -> list[str]:
    """What each row says of a property."""
    texts = [_format(column) % value for value in column.values.tolist()]
    if column.sizes is None:
        return texts
    ends = _ends(column.sizes).tolist()
    return [" ".join([str(b - a), *texts[a:b]]) for a, b in itertools.pairwise(ends)]


def _format(column: Column) -> str:
    return _FORMATS.get(column.property.type, "%d")


def _ends(sizes: NDArray[Any]) -> NDArray[np.int64]:
    """Where each of some runs begins, and where the last ends."""
    ends = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=ends[1:])
    return ends
