"""Point clouds whose files have no header, one file a sample: rows of numbers, whose columns `--columns` names.

    x,y,z,intensity:float32                 .bin of KITTI
    x,y,z,intensity,ring:float32            .bin of nuScenes
    x,y,z:float32,r,g,b:uint8               .txt, .xyz and .pts

A type holds for its column, and for columns before it that have none. A `.bin` file is its rows back to back,
little-endian. Text has a row a line, with blanks or commas between the numbers. A comment, from `#` or `//` after a
blank, is skipped, and so is a first line with the number of lines after it, as `.pts` files have. Columns of text
without a type are float64, which is closest to the digits of the text.

Columns become fields as the properties of PLY vertices do (`packer.sources.ply.fields`): x, y, z are `xyz`, and so on.
Columns that are given for a field, as in boxes=cls,x,y,w,h:float32, are that one field, (n, 5); a single one is (n,).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError, UsageError
from packer.format import MAX_CHUNK_BYTES
from packer.sources.files import LABELS, FileSet, open_raw, refuse_pointer, suffix_of, unreadable
from packer.sources.headers import wait_if_large
from packer.sources.kinds import Kind, pair_in_order
from packer.sources.looking import Header
from packer.sources.options import SourceOptions, columns_by_field
from packer.sources.ply.fields import Rule, rules_of
from packer.sources.ply.header import COLUMN_TYPES, SIZES, Element, Property
from packer.sources.ply.header import Header as PlyHeader
from packer.sources.ply.table import Table, least_row, read_binary
from packer.sources.ply.text import count_rows, line_of, read_text
from packer.sources.table import LaidField, Row, SampleTable
from packer.watcher import Watcher

#: Suffixes of files that need types: nobody can guess them from bytes, as from text.
_BINARY = (".bin", LABELS)
_TEXT_TYPE = "float64"
#: The number of a file that its rows are.
_ROWS = "rows"
#: Files that are larger than a sample can be are samples of about as many bytes.
_PIECE_BYTES = 2**30
#: How many columns of float32 such files usually have, and by how much the logarithm of their spread must be less.
_USUAL_WIDTHS, _LOOKS_BETTER = (3, 4, 5, 6), 0.2
#: Bytes of a file whose spread is looked at.
_LOOKED_AT = 2**26
#: Short names of colours, and what PLY calls them.
_COLOURS = {"r": "red", "g": "green", "b": "blue"}
#: A pointer of git-LFS is shorter than this.
_POINTER_BYTES = 1024
#: Not within a word: `1.#IND` is how some compilers write NaN.
_COMMENT = re.compile(rb"(?<![^\s,])(#|//)[^\n]*")
_NO_VALUE = re.compile(rb"(^|,)[ \t]*,", re.MULTILINE)


def pair(file_sets: Mapping[str, FileSet], options: SourceOptions, watcher: Watcher) -> tuple[SampleTable, list[str]]:
    """Return the files in natural order; raises UsageError if they have several suffixes, or columns are wrong."""
    ((field, file_set),) = file_sets.items()
    suffixes = sorted({suffix_of(file) for file in file_set.files})
    if len(suffixes) > 1:
        raise UsageError(f"{file_set.text}: files of several kinds, {' and '.join(suffixes)}; name one, as in '*.bin'")
    try:
        _columns_of(field, options.columns, suffixes[0] not in _BINARY)
    except SourceError as error:
        raise UsageError(f"--columns {_columns(field, options)}: {error.reason}") from None
    return pair_in_order(file_sets, options, watcher)


def look(row: Row, options: SourceOptions) -> Header:
    """Return what a file holds: of a binary one by its size; in text, lines and the numbers in each are counted."""
    ((field, (path,)),) = row.paths.items()
    is_text = suffix_of(path) not in _BINARY
    columns = _columns_of(field, options.columns, is_text)
    rows = _text_rows(path, columns.element) if is_text else _binary_rows(path, columns.element)
    return Header(columns.layout, {_ROWS: rows})


def _laid(rule: Rule) -> LaidField:
    width = len(rule.properties)
    shape = (_ROWS, width) if width > 1 else (_ROWS,)
    return LaidField(rule.field, rule.dtype, shape, str(rule), detail=(rule.field, "numbers"))


def agree(table: SampleTable, options: SourceOptions, remarks: list[str], watcher: Watcher) -> SampleTable:
    """Return all files, and say what may be wrong with the columns."""
    ((field, files),) = table.inputs.items()
    is_text = suffix_of(files.files[0]) not in _BINARY
    element, untyped, _, _ = _columns_of(field, options.columns, is_text)
    if not is_text:
        remarks += _other_widths(table, element)
        table = _in_pieces(table, least_row(element), remarks)
    if untyped:
        typed = f"{untyped[-1]}:float32 takes half the room"
        remarks.append(f"{', '.join(untyped)}: {_TEXT_TYPE}, since --columns gives no type; {typed}")
    return table


def _in_pieces(table: SampleTable, row_bytes: int, remarks: list[str]) -> SampleTable:
    """Return binary files as they are, but those that are larger than a sample can be in pieces, a sample each."""
    sizes = table.numbers[_ROWS].astype(np.int64) * row_bytes
    is_large = sizes > MAX_CHUNK_BYTES
    if not is_large.any():
        return table
    steps = np.where(is_large, _PIECE_BYTES // row_bytes * row_bytes, np.maximum(sizes, 1))
    counts = np.maximum(-(-sizes // steps), 1)
    largest = int(sizes.argmax())
    remarks.append(
        f"{table.row(largest).path} has {sizes[largest]:,} bytes, more than the {MAX_CHUNK_BYTES:,} that a sample can "
        f"have: it becomes {counts[largest]} samples of {steps[largest] // row_bytes:,} rows, the last one shorter; "
        "windows do not go from one to the next"
    )
    file_of = np.repeat(np.arange(table.count), counts)
    piece = np.arange(len(file_of)) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = piece * steps[file_of]
    spans = np.stack([starts, np.minimum(sizes[file_of] - starts, steps[file_of])], axis=1)
    table = table.take(file_of)
    names = [
        f"{name}/{number}" if is_piece else name
        for name, number, is_piece in zip(table.names or [], piece.tolist(), is_large[file_of].tolist(), strict=True)
    ]
    inputs = {field: msgspec.structs.replace(files, spans=spans) for field, files in table.inputs.items()}
    numbers = {**table.numbers, _ROWS: spans[:, 1] // row_bytes}
    return msgspec.structs.replace(table, inputs=inputs, names=names, numbers=numbers)


def _columns(field: str, options: SourceOptions) -> str:
    """Return the columns that are given for a field, or for all."""
    by_field = columns_by_field(options)
    return by_field.get(field) or by_field[""]


class _Columns(NamedTuple):
    """The columns of files: as an element, those without a type, and the fields that they become."""

    element: Element
    untyped: list[str]
    rules: Mapping[str, Rule]
    layout: tuple[LaidField, ...]


@lru_cache(64)
def _columns_of(field: str, option: str | tuple[str, ...], is_text: bool) -> _Columns:
    options = SourceOptions(columns=option)
    element, untyped = element_of(_columns(field, options), is_text)
    rules = _rules(element, field if field in columns_by_field(options) else "")
    return _Columns(element, untyped, rules, tuple(map(_laid, rules.values())))


def read(row: Row, options: SourceOptions) -> dict[str, Any]:
    """Return the columns of a file, by field."""
    ((field, (path,)),) = row.paths.items()
    columns = _columns_of(field, options.columns, suffix_of(path) not in _BINARY)
    is_text, element = suffix_of(path) not in _BINARY, columns.element
    if is_text:
        return _arrays(row, columns, _text_table(path, element))
    ((start, size),) = row.spans[field].tolist() if row.spans else [(0, -1)]
    return _arrays(row, columns, _binary_table(_load(path, size, start), path, element))


def _arrays(row: Row, columns: _Columns, table: Table) -> dict[str, NDArray[Any]]:
    """Return the rows that were read, by field."""
    from packer.sources.ply.kind import Contents, array_of

    # Nothing is asked of a header once its rows are read.
    contents = Contents(PlyHeader("ascii", (columns.element,), (0,)), columns.rules, {columns.element.name: table})
    return {laid.name: array_of(laid, contents, row.path) for laid in row.layout}


def _rules(element: Element, field: str) -> dict[str, Rule]:
    """Return the fields that columns become: the one named `field`, or those of PLY vertices if that is empty.

    Raises:
        UsageError: the columns of one field differ in their types.
        SourceError: a name cannot be that of a field.
    """
    if not field:
        return rules_of((element,))
    types = sorted({prop.dtype for prop in element.properties})
    if len(types) > 1:
        raise UsageError(f"--columns {field}=: one field has one type, but these are {' and '.join(types)}")
    return {field: Rule(field, element.name, tuple(range(len(element.properties))), types[0])}


def element_of(columns: str, is_text: bool) -> tuple[Element, list[str]]:
    """Return the columns as properties of a PLY element, and the names of those for which no type was given.

    Raises:
        UsageError: a name is missing or occurs twice, or a type is missing or unknown.
    """
    types: list[tuple[str, str]] = []
    waiting: list[str] = []
    for part in columns.split(","):
        name, colon, dtype = (text.strip() for text in part.partition(":"))
        if not name or len(name.split()) != 1:
            raise UsageError(
                f"--columns {columns}: {part!r} is not a name; names and commas, as in x,y,z, are expected"
            )
        if name in waiting or name in dict(types):
            raise UsageError(f"--columns {columns}: {name} is there twice; name each column once")
        waiting.append(name)
        if colon:
            if dtype not in COLUMN_TYPES:
                raise UsageError(f"--columns {columns}: {dtype!r} is not a type; one of {', '.join(SIZES)} is expected")
            types += [(name, COLUMN_TYPES[dtype]) for name in waiting]
            waiting = []
    if waiting and not is_text:
        raise UsageError(
            f"--columns {columns}: no type is given for {', '.join(waiting)}, and {_BINARY[0]} files do not say; put "
            f"one after the last of them, as in {waiting[-1]}:float32"
        )
    types += [(name, _TEXT_TYPE) for name in waiting]
    short = _COLOURS if all(name in dict(types) for name in _COLOURS) else {}
    properties = [Property(short.get(name, name), COLUMN_TYPES[dtype]) for name, dtype in types]
    return Element("vertex", tuple(properties)), waiting


def _load(path: str, most: int = -1, start: int = 0) -> bytes:
    try:
        with open_raw(path) as file:
            file.seek(start)
            data = file.read(most)
    except OSError as error:
        raise unreadable(error, path) from error
    refuse_pointer(data[:_POINTER_BYTES], path)
    return data


# ---------------------------------------------------------------- binary


def _binary_rows(path: str, element: Element) -> int:
    """Return the rows of a file, by its size alone.

    Raises:
        SourceError: it does not hold whole rows, or cannot be read.
    """
    try:
        size = os.stat(path).st_size  # noqa: PTH116
    except OSError as error:
        raise unreadable(error, path) from error
    if size < _POINTER_BYTES:
        _load(path)
    row = least_row(element)
    if size % row:
        columns = ", ".join(f"{p.name} {p.dtype}" for p in element.properties)
        reason = f"has {size:,} bytes, not a multiple of the {row} bytes of a row of {columns}"
        raise SourceError(f"{reason}; give the columns of the file with --columns", path)
    return size // row


def _binary_table(data: bytes, path: str, element: Element) -> Table:
    counted = msgspec.structs.replace(element, count=len(data) // least_row(element))
    (table,), _ = read_binary([counted], data, "<", path)
    return table


def _other_widths(table: SampleTable, element: Element) -> list[str]:
    """Return a sentence if columns of float32 look as if there were another usual number of them.

    In rows of the right length every column has a spread of its own; in others all columns are mixed alike.
    """
    width = len(element.properties)
    if {p.dtype for p in element.properties} != {"float32"}:
        return []
    counts = table.numbers[_ROWS].astype(np.int64) * width
    data = _load(table.row(int(np.argmax(counts))).path, _LOOKED_AT)
    values = np.frombuffer(data[: len(data) // 4 * 4], "<f4").astype(np.float64)
    spreads = {width: _spread(values, width)}
    spreads |= {k: _spread(values, k) for k in _USUAL_WIDTHS if k != width and not (counts % k).any()}
    if not min(spreads.values()) < spreads[width] - _LOOKS_BETTER:  # all are infinite if files have one row
        return []
    best = min(k for k in spreads if spreads[k] < min(spreads.values()) + _LOOKS_BETTER / 2)  # 3 rather than 6
    names = ", ".join(p.name for p in element.properties)
    return [f"these files look as if they had {best} columns of float32, not {width} ({names}); check --columns"]


def _spread(values: NDArray[np.float64], width: int) -> float:
    """Return the mean of the logarithms of the spread of each column, if rows have `width` of them."""
    rows = values[: len(values) // width * width].reshape(-1, width)
    with np.errstate(all="ignore"):
        spread = np.log(np.std(rows, axis=0) + np.finfo(np.float32).tiny).mean() if len(rows) > 1 else np.nan
    return float(spread) if np.isfinite(spread) else np.inf


# ---------------------------------------------------------------- text


def _lines(path: str, element: Element) -> bytes:
    """Return the text of a file with LF as line ends, and without commas, comments and the number of lines."""
    text = _load(path).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    if b"#" in text or b"//" in text:
        text = _COMMENT.sub(b"", text)
    if b"," in text:
        gap = _NO_VALUE.search(text)
        if gap:
            line = text.count(b"\n", 0, gap.end()) + 1
            raise SourceError(f"line {line}: there is no value between two commas; fix the line", path)
        text = text.replace(b",", b" ")
    if len(element.properties) > 1:
        text = _without_count(text, path)
    return text


def _without_count(text: bytes, path: str) -> bytes:
    """Return the text with its first line blanked if that is only the number of lines after it."""
    start = len(text) - len(text.lstrip())
    end = text.find(b"\n", start)
    first = text[start : end if end >= 0 else len(text)].split()
    if len(first) != 1 or not first[0].isdigit():
        return text
    lines = len(count_rows(text)) - 1
    if int(first[0]) != lines:
        line = text.count(b"\n", 0, start) + 1
        reason = (
            f"line {line} says that there are {int(first[0])} points, but there are {lines}; download the file again"
        )
        raise SourceError(reason, path)
    return text[:start] + b" " * len(first[0]) + text[start + len(first[0]) :]


def _text_rows(path: str, element: Element) -> int:
    """Return the rows of a file; raises SourceError if it cannot be read, or a row does not hold a number a column."""
    try:
        size = os.stat(path).st_size  # noqa: PTH116
    except OSError as error:
        raise unreadable(error, path) from error
    with wait_if_large(size):
        return _rows_of(_lines(path, element), path, element)


def _rows_of(text: bytes, path: str, element: Element) -> int:
    sizes, width = count_rows(text), len(element.properties)
    if (sizes != width).any():
        row = int(np.argmax(sizes != width))
        names = ", ".join(p.name for p in element.properties)
        reason = f"line {line_of(text, row)} has {sizes[row]} columns, {width} are expected ({names})"
        raise SourceError(f"{reason}; give the columns of the file with --columns", path)
    return len(sizes)


def _text_table(path: str, element: Element) -> Table:
    text = _lines(path, element)
    rows = _rows_of(text, path, element)
    try:
        (table,) = read_text([msgspec.structs.replace(element, count=rows)], text, path)
    except SourceError as error:
        raise SourceError(f"{error.reason}; give the types with --columns", path) from None
    return table


CLOUDS = Kind(
    "clouds",
    (),  # many other files have these suffixes, so they count only if `--columns` names the columns
    look,
    read,
    names_fields=True,
    lies_beside=True,
    may_be_missing=True,
    options=("columns",),
    exports="ply",
    none_left="none of its files can be packed",
    pair=pair,
    agree=agree,
    are_ragged=True,
    origin=lambda options, table: {"columns": _columns(next(iter(table.inputs)), options)},
)
