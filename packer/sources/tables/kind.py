"""Tables, each row a sample: CSV, TSV, JSON lines, Parquet, and Arrow with Feather, by pyarrow.

Numbers and booleans are fields, text is a field of text, lists of one length are arrays and others ragged fields, a
member of a struct is `struct.member`. Times are int64, their unit is in the manifest. Dictionaries, and `ClassLabel`
of Hugging Face, are numbers of classes. What has no such form is refused, and so is a value that is missing.

The plan reads the footers of Parquet and Arrow, and the dictionaries. Text has none: it is read once, in pieces of
some MiB, which say the types of all rows. A group of rows, or a piece of text, is read as one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import msgspec

from packer.errors import SourceError, UsageError, first_few
from packer.sources.agreeing import agree_on_most
from packer.sources.base import BLOCK_BYTES, Block
from packer.sources.dtypes import DoesNotFitError
from packer.sources.files import suffix_of
from packer.sources.kinds import Kind, pair_in_order
from packer.sources.looking import Header
from packer.sources.options import SourceOptions, naming
from packer.sources.table import LaidField, Layout, Row, SampleTable
from packer.sources.tables.arrow import ARROW, GROUP, PARQUET, faults, groups_of, leaves, stored
from packer.sources.tables.columns import Members, columns_of, with_joined
from packer.sources.tables.fields import CLASS, EMPTY, SKIPPED, as_fields, is_class, layout_of, merged, said_of_text
from packer.sources.tables.pictures import pictured
from packer.sources.tables.text import CSV, JSON, Odd, parsed, piece, pieces
from packer.sources.tables.values import filled, first_null, values_of
from packer.watcher import Watcher

#: Numbers of a group or piece: the row of the file with which it begins, or the bytes it is in.
_FIRST, _OFFSET, _SIZE = "first", "offset", "size"
#: How the types of times begin, whose unit follows.
_TIMES = ("timestamp", "date", "time", "duration")
#: Bytes of pixels of each byte of a picture, about.
_PIXELS = 16
_MISFIT = "lists of one value have several lengths, or a number does not fit; --skip the column"
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_NO_ROWS = "has no rows; move it away"

# ---------------------------------------------------------------- what is in the files


def look(row: Row, options: SourceOptions) -> list[Header | SourceError]:
    """Return the groups or pieces of a file whose rows are the samples, all with the columns of the file.

    Raises:
        SourceError: the file is damaged, has no rows, or a column that cannot be a field.
    """
    with faults(row.path):
        if suffix_of(row.path) in PARQUET + ARROW:
            return _look_at_columns(row.path, options)
        places, count, laid = list[tuple[int, tuple[int, int], int]](), 0, dict[str, LaidField]()
        for span, data in pieces(row.path, options):
            batch = parsed(row.path, data, options)
            laid = merged(laid, {field.name: field for field in layout_of(batch.schema, options)}, row.path)
            places.append((count, span, batch.num_rows))
            count += batch.num_rows
        if not count:
            raise SourceError(_NO_ROWS)
    layout = tuple(laid.values())
    return [
        Header(layout, {_FIRST: first, _OFFSET: offset, _SIZE: size}, rows=rows)
        for first, (offset, size), rows in places
    ]


def _look_at_columns(path: str, options: SourceOptions) -> list[Header | SourceError]:
    """Return the groups of a file of Parquet or Arrow; reads the dictionaries."""
    schema, groups = groups_of(path)
    layout = layout_of(schema, options)
    classes: dict[str, dict[str, None]] = {laid.name: {} for laid in layout if laid.detail == ()}
    for number, rows in enumerate(groups if classes else ()):
        for batch in stored(path, number, 0, rows, list(classes)):
            for name, array in leaves(batch):
                if name in classes:
                    classes[name].update(dict.fromkeys(array.dictionary.drop_null().to_pylist()))
    layout = tuple(f._replace(detail=tuple(classes[f.name])) if f.name in classes else f for f in layout)
    if not any(groups):
        raise SourceError(_NO_ROWS)
    firsts = [0, *accumulate(groups)]
    return [Header(layout, {_FIRST: firsts[n], GROUP: n}, rows=rows) for n, rows in enumerate(groups) if rows]


def agree(table: SampleTable, options: SourceOptions, remarks: list[str], watcher: Watcher) -> SampleTable:
    """Return the files that have the columns of most, whose classes are numbered as one.

    Raises:
        UsageError: `--skip` or `--fill` names no column.
        SourceError: what `watcher.bad` raises; a column has no value.
    """
    path = table.row(0).path if table.count else ""
    layouts = _with_types_of_all_rows(table.layouts, path)
    _check_named(layouts, options)
    classes = _classes_of(layouts, path)
    kept = [
        tuple(
            laid._replace(detail=classes[laid.name]) if is_class(laid) else laid
            for laid in layout
            if laid.in_words != SKIPPED
        )
        for layout in layouts
    ]
    table = agree_on_most(msgspec.structs.replace(table, layouts=kept), watcher)
    if empty := [laid.name for laid in table.layouts[0] if laid.in_words == EMPTY]:
        raise SourceError(f"column {empty[0]} has no value in any row; --skip {empty[0]} leaves it out", path)
    if not table.layouts[0]:
        raise UsageError(f"--skip leaves no column; columns are {first_few(_names(layouts))}")
    remarks += _what_is_odd(table, path)
    table = table.relaid(lambda laid: laid._replace(detail=None) if isinstance(laid.detail, Odd) else laid)
    if times := [f"{laid.name} in {laid.in_words}" for laid in table.layouts[0] if laid.in_words.startswith(_TIMES)]:
        remarks.append(f"times are whole numbers, and the manifest has their units: {first_few(times)}")
    order = {laid.name: number for number, laid in enumerate(table.layouts[0])}  # files may have another one
    in_order = [tuple(sorted(layout, key=lambda laid: order[laid.name])) for layout in table.layouts]
    joined = [with_joined(layout, options) for layout in in_order]
    return pictured(msgspec.structs.replace(table, layouts=joined), options, remarks)


def _with_types_of_all_rows(layouts: Sequence[Layout], path: str) -> Sequence[Layout]:
    """Return the layouts of files: of text, whose columns have types by their values, those of all files alike."""
    if suffix_of(path) not in CSV + JSON:
        return layouts
    by_names: dict[frozenset[str], dict[str, LaidField]] = {}
    for layout in layouts:
        key = frozenset(laid.name for laid in layout)
        by_names[key] = merged(by_names.get(key, {}), {laid.name: laid for laid in layout}, path)
    return [tuple(by_names[frozenset(laid.name for laid in layout)].values()) for layout in layouts]


def _check_named(layouts: Sequence[Layout], options: SourceOptions) -> None:
    """Raise UsageError if an option names a column that is not there."""
    names = _names(layouts)
    for flag, named in (("--skip", options.skip), ("--fill", tuple(options.fill)), ("--encoded", options.encoded)):
        if unknown := [one for one in named if not any(naming(name, [one]) for name in names)]:
            raise UsageError(f"{flag} {unknown[0]}: there is no such column; columns are {first_few(names)}")


def _names(layouts: Sequence[Layout]) -> list[str]:
    """Return the names of all columns, each once."""
    return list(dict.fromkeys(laid.name for layout in layouts for laid in layout))


def _classes_of(layouts: Sequence[Layout], path: str) -> dict[str, tuple[str, ...]]:
    """Return by column the names of its classes in all files; raises SourceError if one number has two names."""
    classes: dict[str, tuple[str, ...]] = {}
    for laid in (laid for layout in layouts for laid in layout if is_class(laid)):
        known = classes.get(laid.name, ())
        if known and laid.in_words != CLASS and known != laid.detail:
            both = f"{first_few(list(known))} in some files, and {first_few(list(laid.detail))} in others"
            raise SourceError(f"numbers of column {laid.name} stand for {both}; convert them apart", path)
        classes[laid.name] = tuple(dict.fromkeys((*known, *laid.detail)))
    return classes


def _what_is_odd(table: SampleTable, path: str) -> Iterator[str]:
    """Yield sentences on names of folders and columns that look like values, and on text."""
    (files,) = table.inputs.values()
    if folders := [folder for file in files.files if "=" in (folder := file.rpartition("/")[0])]:
        yield f"values in names of folders, such as {folders[0]}, are no columns, and not packed: write them as one"
    if suffix_of(path) in CSV and _are_numbers(names := [laid.name for laid in table.layouts[0]]):
        yield f"the first line has the names of columns, {first_few(names)}; if it is a row, write names above it"
    for laid in table.layouts[0]:
        yield from said_of_text(laid, table.count, path)


def _are_numbers(names: Sequence[str]) -> bool:
    """Return whether names of columns look as values do, and not as the numbers that pandas gives to columns."""
    is_number = [_NUMBER.fullmatch(name) is not None for name in names]
    has_point = any("." in name for name, is_one in zip(names, is_number, strict=True) if is_one)
    return (all(is_number) or has_point) and names != [str(number) for number in range(len(names))]


def origin(options: SourceOptions, table: SampleTable) -> dict[str, Any]:
    """Return the names of classes, those of `label` as the manifest has them, and the units of times."""
    classes = {laid.name: list(laid.detail) for laid in table.layouts[0] if is_class(laid)}
    times = {laid.name: laid.in_words for laid in table.layouts[0] if laid.in_words.startswith(_TIMES)}
    own = {"classes": classes.pop("label", None), "categories": classes, "times": times, "fill": dict(options.fill)}
    return {name: value for name, value in own.items() if value}


# ---------------------------------------------------------------- values


def read_rows(row: Row, start: int, stop: int, options: SourceOptions) -> Iterator[Block]:
    """Yield rows of a group or piece; raises SourceError with the number of a row that lacks a value."""
    at, fields, is_csv = start, columns_of(row.layout), suffix_of(row.path) in CSV
    with faults(row.path):
        for batch in _batches(row._replace(layout=fields), start, stop, options):
            columns = dict(leaves(batch))
            arrays = {
                laid.name: filled(columns.get(laid.name), laid, batch.num_rows, options, is_csv) for laid in fields
            }
            yield from _blocks(row, arrays, at, options)
            at += batch.num_rows


def _batches(row: Row, start: int, stop: int, options: SourceOptions) -> Iterator[Any]:
    if GROUP in row.numbers:
        yield from stored(row.path, row.numbers[GROUP], start, stop, [laid.name for laid in row.layout])
    else:
        span = row.numbers[_OFFSET], row.numbers[_SIZE]
        yield piece(row.path, span, options, row.layout).slice(start, stop - start)


def _blocks(row: Row, arrays: dict[str, Any], first: int, options: SourceOptions) -> Iterator[Block]:
    """Yield rows in blocks; raises SourceError for the first one that lacks a value, or whose value does not fit."""
    good = count = len(next(iter(arrays.values())))
    reason = ""
    for name, array in arrays.items():
        if (null := first_null(array)) is not None and null < good:
            advice = f"--fill {name}=VALUE gives it one, --skip {name} leaves out the column, --on-error skip the row"
            good, reason = null, f"column {name} has no value; {advice}"
    nbytes = sum(arrays[f.name].nbytes * (_PIXELS if f.kind == "image" else 1) for f in columns_of(row.layout))
    step = max(1, BLOCK_BYTES * count // max(1, nbytes))
    begin = 0
    while begin < good:
        end = min(begin + step, good)
        try:
            rows = {name: array[begin:end] for name, array in arrays.items()}
            block = {f.name: values_of(rows, f, options) for f in row.layout}
        except (DoesNotFitError, ValueError, SourceError) as error:
            if end - begin > 1:
                step = max(1, (end - begin) // 2)  # it is among these
                continue
            good, reason = begin, error.reason if isinstance(error, SourceError) else _reason(error)
            break
        yield block
        begin = end
    if reason:
        raise SourceError(f"row {row.numbers[_FIRST] + first + good:,}: {reason}", row.path, 0)


def _reason(error: Exception) -> str:
    return "text that is not in UTF-8; save it as such" if isinstance(error, UnicodeDecodeError) else _MISFIT


KIND = Kind(
    "tables",
    CSV + JSON + PARQUET + ARROW,
    look,
    read_rows=read_rows,
    units=("rows",),
    names_fields=True,
    needs=("pyarrow", "a table", "tables"),
    options=(
        "columns",
        "files",
        "root",
        "key",
        "skip",
        "fill",
        "delimiter",
        "encoded",
        "mode",
        "palette",
        "max_pixels",
        "orient",
    ),
    exports="parquet",
    pair=pair_in_order,
    agree=agree,
    as_fields=as_fields,
    detail=Members | tuple[str, ...] | str | None,
    origin=origin,
)
