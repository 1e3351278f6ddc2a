"""Tables of text, CSV and JSON lines: pieces of whole rows, and the types of their values."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, NamedTuple

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
#: Key of the metadata of a table of Arrow that has `Odd` of its columns.
_ODD = b"odd"
#: Words for a value that is missing, in columns of numbers. In columns of text they are text.
_MISSING = ("", "NA", "N/A", "#N/A", "<NA>", "null", "NULL", "None")
#: Characters of a value that are shown.
_SHOWN = 40
#: Whole numbers from this one on are not all numbers of float64; and how those in JSON look that may be none.
_WHOLE_IN_FLOAT, _LONG_DIGITS, _LONG = 2**53, 19, re.compile(rb"(?<![\w.+-])-?\d{16,}(?![\d.eE])")
#: How numbers in JSON look that may be infinity or 0 as float64.
_EXTREME = re.compile(rb"(?:(?<=\d)|(?<=\d\.))[eE][+-]?\d{3,}|(?<!\d)\d{309,}")
_WHOLE, _WITH_ZEROS, _TRUTH = r"^-?[0-9]+$", r"^-?0[0-9]", r"(?i)^(true|false)$"
#: Numbers of CSV, those with a decimal comma, and those that are not 0.
_NUMBER = r"(?i)^-?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)(e[+-]?[0-9]+)?$|^-?(nan|inf|infinity)$"
_WITH_COMMA, _NOT_ZERO = r"^[+-]?[0-9]+,[0-9]+$", r"^[^eE]*[1-9]"


class Odd(NamedTuple):
    """Why a column of CSV is text: its values that are no numbers, or that none of ours holds.

    Attributes:
        times: how many values these are.
        first: the first of them.
        are_commas: whether all of them have a decimal comma.
        are_all: whether the column has no other values, but for missing ones.
    """

    times: int
    first: str
    are_commas: bool
    are_all: bool


def pieces(path: str, options: SourceOptions) -> Iterator[tuple[tuple[int, int], bytes]]:
    """Yield offset and size of pieces of whole rows of a file, and their bytes; the line of names is in none.

    Raises:
        SourceError: a quote of CSV is not closed.
    """
    at, rest, delimiter = 0, b"", _delimiter(path, options)
    with Path(path).open("rb") as file:
        end = _end_of_rows(file)
        file.seek(0)
        if file.read(2) in (b"\xff\xfe", b"\xfe\xff"):
            raise SourceError("is text in UTF-16; save it as UTF-8")
        if delimiter:
            at = _header(path, delimiter)[1]
        file.seek(at)
        while data := file.read(max(0, min(_PIECE_BYTES, end - file.tell()))):
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


def _end_of_rows(file: IO[bytes]) -> int:
    """Return where the last row of a file ends: empty lines that follow are no rows."""
    nbytes = file.seek(0, os.SEEK_END)
    file.seek(max(0, nbytes - _HEAD_BYTES))
    tail = file.read()
    last = len(tail.rstrip(b"\r\n"))
    return nbytes - len(tail) + last + tail[last:].find(b"\n") + 1


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
    end = int(ends[0]) if len(ends) else len(head)
    if b"\r" in re.sub(rb'"[^"]*"', b"", head[:end]).rstrip(b"\r\n"):
        advice = f"write it with LF, as by tr '\\r' '\\n' < {shlex.quote(path)} > NEW"
        raise SourceError(f"has lines that end with CR alone, as old Macs wrote them; {advice}")
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
        try:
            table = pa_json.read_json(pa.BufferReader(data), reading)
        except pa.ArrowInvalid:
            for name, digits in _extremes(data):
                if math.isinf(float(digits)):
                    raise _not_held(name, digits) from None
            raise
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
    odd, typed = dict[str, str](), dict[str, Any]()
    for name, text in columns.items():
        if layout and name in fields:
            typed[name] = _as_field(name, text.combine_chunks(), fields[name])
        elif not layout:
            typed[name], why = (text, None) if name in skipped else _typed(text.combine_chunks())
            odd |= {name: json.dumps(why)} if why else {}
    return pa.table(list(typed.values()), list(typed), metadata={_ODD: json.dumps(odd)})


def odd_values(schema: Any) -> dict[str, Odd]:
    """Return why columns of CSV are text, by their names, as `parsed` has found it in some rows."""
    return {name: Odd(*json.loads(why)) for name, why in json.loads((schema.metadata or {}).get(_ODD, "{}")).items()}


def _refuse_rounded(table: Any, data: bytes, options: SourceOptions) -> None:
    """Raise SourceError if numbers of JSON are others as float64: long whole ones lose digits, the smallest are 0."""
    from pyarrow import compute, types

    extremes: list[tuple[str, str]] | None = None
    for name, array in leaves(table):
        if any(naming(name, [skip]) for skip in options.skip):
            continue
        values = array.combine_chunks() if hasattr(array, "combine_chunks") else array
        while types.is_list(values.type):
            values = values.flatten()
        if not types.is_floating(values.type):
            continue
        if (compute.max(compute.abs(values)).as_py() or 0) >= _WHOLE_IN_FLOAT:
            kept = set(values.to_pylist())
            for digits in map(bytes.decode, _LONG.findall(data)):
                if (value := float(digits)) in kept and (math.isinf(value) or int(value) != int(digits)):
                    raise _not_held(name, digits)
        if compute.any(compute.equal(values, 0.0)).as_py():
            extremes = list(_extremes(data)) if extremes is None else extremes
            for key, digits in extremes:
                if key == name.rpartition(".")[2]:
                    raise _not_held(name, digits)


def _extremes(data: bytes) -> Iterator[tuple[str, str]]:
    """Yield the numbers of JSON that are infinity or 0 as float64, as they stand there, each after its column."""
    for found in _EXTREME.finditer(data):
        before = data[max(0, found.start() - _HEAD_BYTES) : found.end()]
        key, _, values = before.rpartition(b'":')
        digits = re.split(rb"[\s,\[]", values)[-1].decode(errors="replace")
        if b'"' not in values and (math.isinf(float(digits)) or (not float(digits) and re.match(_NOT_ZERO, digits))):
            yield key.rpartition(b'"')[2].decode(errors="replace"), digits


def _not_held(name: str, digits: str) -> SourceError:
    shown = digits if len(digits) <= _SHOWN else f"{digits[:_SHOWN]}..."
    return SourceError(f"column {name} holds {shown}, which float64 does not; write such numbers as text")


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

    # An empty line is an empty value where there is one column, and no row where there are several.
    parsing = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True, ignore_empty_lines=columns != 1)
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


def _numbers_in(text: Any) -> Any:
    """Return a column of text as one of numbers: without spaces, plus signs, and words for missing values."""
    import pyarrow as pa
    from pyarrow import compute

    trimmed = compute.utf8_trim_whitespace(text)
    present = compute.if_else(compute.is_in(trimmed, value_set=pa.array(_MISSING)), None, trimmed)
    return compute.replace_substring_regex(present, r"^\+([0-9.])", r"\1")


def _as_field(name: str, text: Any, laid: LaidField) -> Any:
    """Return a column of CSV as the values of its field.

    Raises:
        SourceError: the field is of float64, and does not hold a whole number.
    """
    if laid.kind == "text":
        return text
    numbers = _numbers_in(text)
    values = numbers.cast(_type_of(laid))
    if laid.dtype == "float64" and len(_lost(numbers, values)):  # whole numbers alone in a piece are int64 there
        raise SourceError(f"column {name} holds whole numbers that float64 does not, and others; --skip {name}")
    return values


def _typed(text: Any) -> tuple[Any, Odd | None]:
    """Return a column of CSV as what all of its values are; and why, if they are text."""
    import pyarrow as pa
    from pyarrow import compute

    numbers = _numbers_in(text)
    if numbers.null_count == len(numbers):
        return pa.nulls(len(numbers)), None

    def are(form: str) -> Any:
        return compute.match_substring_regex(numbers, form)

    odd = numbers.filter(compute.invert(are(_NUMBER)))
    if not compute.any(are(_WITH_ZEROS)).as_py():
        kind = next(
            (kind for kind, form in (("int64", _WHOLE), ("bool", _TRUTH)) if compute.all(are(form)).as_py()), "float64"
        )
        with suppress(pa.ArrowInvalid):
            values = numbers.cast(kind)
            lost = _lost(numbers, values) if kind == "float64" else ()
            if not len(lost):
                return values, None
            odd = lost
    if not len(odd):  # whole numbers, of which some are too long
        odd = numbers.filter(compute.greater_equal(compute.utf8_length(numbers), _LONG_DIGITS))
    commas = compute.match_substring_regex(odd, _WITH_COMMA)
    are_commas = compute.all(commas).as_py() is True
    first = odd[0].as_py()[:_SHOWN] if len(odd) else ""
    return text, Odd(len(odd), first, are_commas, len(odd) == len(numbers) - numbers.null_count)


def _has_long(values: Any) -> bool:
    """Return whether a column of Arrow holds numbers of float64 in whose place the text may have had others."""
    from pyarrow import compute, types

    return types.is_float64(values.type) and (compute.max(compute.abs(values)).as_py() or 0) >= _WHOLE_IN_FLOAT


def _lost(numbers: Any, values: Any) -> Any:
    """Return the text of numbers that are others as float64: long whole ones, and those beyond its range."""
    import pyarrow as pa
    from pyarrow import compute

    extremes = compute.greater_equal(compute.abs(values), float(_WHOLE_IN_FLOAT))
    pairs = zip(numbers.filter(extremes).to_pylist(), values.filter(extremes).to_pylist(), strict=True)
    large = [
        text
        for text, value in pairs
        if (
            not text.lstrip("-").lower().startswith("inf")
            if math.isinf(value)
            else text.lstrip("-").isdecimal() and int(value) != int(text)
        )
    ]
    zeros = numbers.filter(compute.equal(values, 0.0))
    return pa.concat_arrays(
        [pa.array(large, pa.string()), zeros.filter(compute.match_substring_regex(zeros, _NOT_ZERO))]
    )
