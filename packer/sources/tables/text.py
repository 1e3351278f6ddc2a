"""Tables of text, CSV and JSON lines: pieces of whole rows, and the types of their values."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError, UsageError
from packer.sources.base import BLOCK_BYTES
from packer.sources.files import suffix_of
from packer.sources.options import SourceOptions, naming
from packer.sources.table import LaidField, Layout
from packer.sources.tables.arrow import leaves

CSV, JSON = (".csv", ".tsv"), (".jsonl", ".ndjson")
#: Bytes of text that are parsed at once.
_PIECE_BYTES = BLOCK_BYTES
#: A row that is longer has a quote that nobody closed.
_LONGEST_ROW = 2**28
_QUOTE, _MARK = ord('"'), b"\xef\xbb\xbf"
#: Bytes that are read of a file for its first line.
_HEAD_BYTES = 2**16
#: What the first column is called if it has no name: pandas writes the index of a table so.
_INDEX = "index"
#: Words for a value that is missing, in columns of numbers. In columns of text they are text.
_MISSING = ("", "NA", "N/A", "#N/A", "<NA>", "null", "NULL", "None")
#: Whole numbers from this one on are not all numbers of float64; and how those in JSON look that may be none.
_WHOLE_IN_FLOAT, _LONG = 2**53, re.compile(rb"(?<![\w.+-])-?\d{16,}(?![\d.eE])")
_WHOLE, _WITH_ZEROS, _WITH_COMMA = r"^-?[0-9]+$", r"^-?0[0-9]", r"^-?[0-9]+,[0-9]+$"


def pieces(path: str, options: SourceOptions) -> Iterator[tuple[tuple[int, int], bytes]]:
    """Yield offset and size of pieces of whole rows of a file, and their bytes; the line of names is in none.

    Raises:
        SourceError: a quote of CSV is not closed.
    """
    at, rest, delimiter = 0, b"", _delimiter(path, options)
    with Path(path).open("rb") as file:
        if delimiter:
            at = _header(path, delimiter)[1]
            file.seek(at)
        while data := file.read(_PIECE_BYTES):
            data = rest + data
            ends, is_open = _row_ends(data, delimiter)
            if len(ends):
                cut = int(ends[-1])
                yield (at, cut), data[:cut]
                at, data = at + cut, data[cut:]
            rest = data
            if is_open and len(rest) > _LONGEST_ROW:
                break
    if delimiter and rest and _row_ends(rest, delimiter)[1]:
        begin = rest[: rest.find(b"\n") if b"\n" in rest else None][:40].decode(errors="replace")
        raise SourceError(f"a quote is never closed in the row that begins with {begin!r}; close it, or double it")
    if rest.strip():
        yield (at, len(rest)), rest


def _delimiter(path: str, options: SourceOptions) -> str:
    """Return what is between the columns of CSV; empty for other text."""
    if suffix_of(path) not in CSV:
        return ""
    usual = "\t" if suffix_of(path) == ".tsv" else ","
    delimiter = {None: usual, "tab": "\t", "\\t": "\t"}.get(options.delimiter, options.delimiter)
    if not delimiter or len(delimiter) > 1 or not delimiter.isascii() or delimiter in '"\r\n':
        raise UsageError(f"--delimiter {options.delimiter}: one character is expected, such as ';', or tab")
    return delimiter


def _row_ends(data: bytes, delimiter: str) -> tuple[NDArray[np.intp], bool]:
    """Return where rows end, and whether a quote is open then; an end of a line within quotes ends no row of CSV.

    Args:
        delimiter: empty if quotes mean nothing.
    """
    text = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(text == ord("\n"))
    quotes = np.flatnonzero(text == _QUOTE) if delimiter else ends[:0]
    if not len(quotes):
        return ends + 1, False
    before = np.where(quotes > 0, text[quotes - 1], ord("\n"))
    begins = np.isin(before, [ord("\n"), ord("\r"), ord(delimiter)])
    if not (begins | (before == _QUOTE))[::2].all():  # some are within values without quotes, such as 5" of inches
        quotes = _that_count(quotes.tolist(), begins.tolist())
    return ends[quotes.searchsorted(ends) % 2 == 0] + 1, len(quotes) % 2 == 1


def _that_count(quotes: list[int], begins: list[bool]) -> NDArray[np.intp]:
    """Return the quotes that open a value or close it: one opens where a value begins, two in one are one of text."""
    counting, is_open, number = list[int](), False, 0
    while number < len(quotes):
        if is_open and number + 1 < len(quotes) and quotes[number + 1] == quotes[number] + 1:
            number += 2
            continue
        if is_open or begins[number]:
            counting.append(quotes[number])
            is_open = not is_open
        number += 1
    return np.array(counting, np.intp)


def _header(path: str, delimiter: str) -> tuple[bytes, int]:
    """Return the names of a CSV as they stand there, without a byte order mark, and where the first row begins."""
    size, head, ends = _HEAD_BYTES, b"", np.zeros(0, np.intp)
    with Path(path).open("rb") as file:
        mark = len(_MARK) if file.read(len(_MARK)) == _MARK else 0
        file.seek(mark)
        while not len(ends) and (more := file.read(size)):
            size, head = 4 * size, head + more
            ends, _ = _row_ends(head, delimiter)
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise SourceError("is text in UTF-16; save it as UTF-8")
    end = int(ends[0]) if len(ends) else len(head)
    return head[:end], mark + end


def piece(path: str, span: tuple[int, int], options: SourceOptions, layout: Layout) -> Any:
    """Return the rows in some bytes of a file, as `parsed` does."""
    reading = options.delimiter, tuple(options.skip)
    return _piece(path, Path(path).stat().st_mtime_ns, span, reading, layout)


@lru_cache(maxsize=4)  # a piece that two shards share, or that has bad rows, is parsed once
def _piece(
    path: str, _version: int, span: tuple[int, int], reading: tuple[str | None, tuple[str, ...]], layout: Layout
) -> Any:
    with Path(path).open("rb") as file:
        file.seek(span[0])
        return parsed(path, file.read(span[1]), SourceOptions(delimiter=reading[0], skip=reading[1]), layout)


def parsed(path: str, data: bytes, options: SourceOptions, layout: Layout = ()) -> Any:
    """Return rows of text as a table of Arrow; columns of CSV as the fields are, or as all of their values allow."""
    import pyarrow as pa
    from pyarrow import json as pa_json

    if suffix_of(path) in JSON:
        reading = pa_json.ReadOptions(use_threads=False, block_size=len(data) + 1)
        table = pa_json.read_json(pa.BufferReader(data), reading)
        plain = pa.schema([(field.name, _without_times(field.type)) for field in table.schema])
        if plain != table.schema:
            table = pa_json.read_json(pa.BufferReader(data), reading, pa_json.ParseOptions(explicit_schema=plain))
        _refuse_rounded(table, data, options)
        return table
    delimiter = _delimiter(path, options)
    header = _header(path, delimiter)[0]
    first, *others = [column[0].as_py().strip() for column in _strings(header, delimiter).columns]
    names = [first or _INDEX, *others]
    marks = {mark: header.count(mark.encode()) for mark in ";\t|" if len(names) == 1}
    if (most := max(marks, key=marks.__getitem__, default="")) and marks[most]:
        shown = "tab" if most == "\t" else f"'{most}'"
        raise SourceError(f"its first line has no {delimiter!r}; is it --delimiter {shown}?")
    if "" in names:
        raise SourceError(f"column {names.index('') + 1} has no name in the first line; give it one")
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        raise SourceError(f"two columns are named {twice[0]!r}; rename one")
    fields = {laid.name: laid for laid in layout}
    with suppress(pa.ArrowInvalid):  # such as a number in other words than pyarrow knows
        if fields:
            table = _strings(
                data, delimiter, len(names), {names.index(name): fields[name] for name in names if name in fields}
            )
            if not any(map(_has_long, table.columns)):
                return table.rename_columns([name for name in names if name in fields])
    columns = dict(zip(names, _strings(data, delimiter, len(names)).columns, strict=True))
    skipped = {name for name in names if any(naming(name, [skip]) for skip in options.skip)}
    typed = {
        name: text if name in skipped else _typed(name, text.combine_chunks(), fields.get(name))
        for name, text in columns.items()
        if not layout or name in fields
    }
    return pa.table(list(typed.values()), list(typed))


def _refuse_rounded(table: Any, data: bytes, options: SourceOptions) -> None:
    """Raise SourceError if whole numbers of JSON became float64, which holds not all beyond 2**53, and lost digits."""
    from pyarrow import compute, types

    for name, array in leaves(table):
        if any(naming(name, [skip]) for skip in options.skip):
            continue
        values = array.combine_chunks() if hasattr(array, "combine_chunks") else array
        while types.is_list(values.type):
            values = values.flatten()
        if not types.is_floating(values.type) or (compute.max(compute.abs(values)).as_py() or 0) < _WHOLE_IN_FLOAT:
            continue
        kept = set(values.to_pylist())
        for digits in map(bytes.decode, _LONG.findall(data)):
            if float(digits) in kept and int(float(digits)) != int(digits):
                raise SourceError(f"column {name} holds {digits}, which float64 does not; write such numbers as text")


def _without_times(kind: Any) -> Any:
    """Return a type of Arrow with text for times: JSON has none, and pyarrow takes some text for times."""
    import pyarrow as pa

    if pa.types.is_timestamp(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _without_times(field.type)) for field in kind])
    return pa.list_(_without_times(kind.value_type)) if pa.types.is_list(kind) else kind


def _strings(
    data: bytes, delimiter: str, columns: int | None = None, fields: Mapping[int, LaidField] | None = None
) -> Any:
    """Return rows of CSV as a table of text.

    Args:
        columns: how many there must be; None for those of the first row.
        fields: of the columns that are wanted, by their number, as whose values they are read; None for all as text.
    """
    import pyarrow as pa
    from pyarrow import csv

    parsing = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    if columns is None:
        first = csv.read_csv(pa.BufferReader(data), csv.ReadOptions(autogenerate_column_names=True), parsing)
        columns = len(first.schema)
    names = [str(number) for number in range(columns)]
    reading = csv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=names)
    types = {str(number): _type_of(laid) for number, laid in (fields or {}).items()} or dict.fromkeys(
        names, pa.string()
    )
    converting = csv.ConvertOptions(
        column_types=types, null_values=_MISSING, strings_can_be_null=False, include_columns=list(types)
    )
    return csv.read_csv(pa.BufferReader(data), reading, parsing, converting)


def _type_of(laid: LaidField) -> Any:
    import pyarrow as pa

    return pa.string() if laid.kind == "text" else pa.bool_() if laid.dtype == "bool" else pa.type_for_alias(laid.dtype)


def _typed(name: str, text: Any, laid: LaidField | None) -> Any:
    """Return a column of CSV as the numbers of its field, or if there is none yet, as what its values are.

    Raises:
        SourceError: the numbers have a decimal comma.
    """
    import pyarrow as pa
    from pyarrow import compute

    if laid and laid.kind == "text":
        return text
    trimmed = compute.utf8_trim_whitespace(text)
    numbers = compute.if_else(compute.is_in(trimmed, value_set=pa.array(_MISSING)), None, trimmed)
    if laid:
        values = numbers.cast(_type_of(laid))
        if laid.dtype == "float64" and _loses(numbers, values):  # whole numbers alone in a piece are int64 there
            raise SourceError(f"column {name} holds whole numbers that float64 does not, and others; --skip {name}")
        return values

    def all_are(form: str) -> bool:
        return compute.all(compute.match_substring_regex(numbers, form)).as_py() is True

    if numbers.null_count == len(numbers):
        return pa.nulls(len(numbers)) if compute.all(compute.equal(trimmed, "")).as_py() else text
    if all_are(_WITH_COMMA):
        raise SourceError(
            f"column {name} has a decimal comma in all numbers, as in 1,5; write points, or --skip {name}"
        )
    if compute.any(compute.match_substring_regex(numbers, _WITH_ZEROS)).as_py():
        return text
    for kind in ("int64",) if all_are(_WHOLE) else ("bool", "float64"):
        with suppress(pa.ArrowInvalid):
            values = numbers.cast(kind)
            return text if kind == "float64" and _loses(numbers, values) else values
    return text


def _has_long(values: Any) -> bool:
    """Return whether a column of Arrow holds numbers of float64 in whose place the text may have had others."""
    from pyarrow import compute, types

    return types.is_float64(values.type) and (compute.max(compute.abs(values)).as_py() or 0) >= _WHOLE_IN_FLOAT


def _loses(numbers: Any, values: Any) -> bool:
    """Return whether text of numbers is not what it becomes as float64: a long whole one, or one beyond its range."""
    from pyarrow import compute

    extremes = compute.greater_equal(compute.abs(values), float(_WHOLE_IN_FLOAT))
    pairs = zip(numbers.filter(extremes).to_pylist(), values.filter(extremes).to_pylist(), strict=True)
    return any(
        not text.lstrip("+-").lower().startswith("inf")
        if math.isinf(value)
        else text.lstrip("-").isdecimal() and int(value) != int(text)
        for text, value in pairs
    )
