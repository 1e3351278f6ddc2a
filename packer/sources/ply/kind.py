"""PLY point clouds and meshes: one file a sample.

Every field is ragged in its first axis, like the number of points, even if all files of a set agree.
`packer.sources.ply.fields` says which properties become which field. The plan comes from headers; files with lists
(faces) are read whole for it, since no header tells how long lists are.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError, UsageError, first_few
from packer.sources.agreeing import difference, leave_out, misfits
from packer.sources.base import faults_of
from packer.sources.dtypes import DoesNotFitError, check_casts, convert
from packer.sources.headers import wait_if_large
from packer.sources.kinds import Kind, pair_in_order
from packer.sources.looking import AFTER, Header, counts_of
from packer.sources.options import SourceOptions
from packer.sources.ply.clouds import CLOUDS
from packer.sources.ply.fields import Grouping, Rule, corners_of, rules_of
from packer.sources.ply.header import Element, Property, opened
from packer.sources.ply.header import Header as PlyHeader
from packer.sources.ply.table import Order, Table, least_row, read_binary, row_error, row_of, triangulated
from packer.sources.ply.text import read_text
from packer.sources.table import LaidField, Layout, Row, SampleTable
from packer.watcher import Watcher

#: Which fields are packed: those of every file, which must agree (`same`); those that all files have; those
#: that any file has, empty if a file has none; or those named.
Choice = Literal["same", "common", "all"] | Sequence[str]
#: What a field is of its rule: `numbers`: columns side by side; `table`: lists that all have one length, side by side;
#: `entries`: lists one after another; `sizes`: how long each list is.
Part = Literal["numbers", "table", "entries", "sizes"]

_ADVICE = (
    "pack the files apart, choose with --fields (common, all or names), give a field one type with --cast, or keep "
    "numbered properties apart with --group none"
)
#: Numbers of a file: rows of an element, entries of all lists of a field, and the length of each of these lists, more
#: by `_WIDTHS`; 0 in files without lists, 1 if they differ. And the bytes that follow the last row.
_ROWS, _ENTRIES, _WIDTH = "{} rows", "{} entries", "{} width"
_UNEQUAL, _WIDTHS = 1, 2


# ---------------------------------------------------------------- what headers say


def look(row: Row, options: SourceOptions) -> Header:
    """Return what the header of a file says, and its body if that holds lists; raises SourceError as `read`."""
    return header_of(_read(row.path, options, with_numbers=False), options)


def header_of(contents: Contents, options: SourceOptions) -> Header:
    """Return what is known of a file before its numbers are read."""
    header, rules, tables, extra = contents
    rows = {element.name: count for element, count in zip(header.kinds, header.counts, strict=True)}
    rows |= {name: len(table) for name, table in tables.items()}
    numbers = {_ROWS.format(name): count for name, count in rows.items()}
    for rule in rules.values():
        if rule.is_list and (table := tables.get(rule.element)) is not None and len(table):
            sizes = table.lists[rule.properties[0]].sizes
            numbers[_ENTRIES.format(rule.field)] = int(sizes.sum())
            are_equal = bool((sizes == sizes[0]).all())
            numbers[_WIDTH.format(rule.field)] = _WIDTHS + int(sizes[0]) if are_equal else _UNEQUAL
    layout = _layout(header.kinds, *_choices(options))
    return Header(layout, {**numbers, AFTER.format(""): extra} if extra else numbers)


@lru_cache(64)
def _layout(elements: tuple[Element, ...], cast: tuple[tuple[str, str], ...], grouping: Grouping) -> Layout:
    """Return the fields of files with these elements; arguments as for `rules_of`."""
    rules = rules_of(elements, cast, grouping).values()
    return tuple(LaidField(rule.field, rule.dtype, (), str(rule), detail=rule) for rule in rules)


class Contents(NamedTuple):
    """What a file holds: its header, its rules by field, and its tables by element.

    `extra` is how many bytes follow the last row.
    """

    header: PlyHeader
    rules: Mapping[str, Rule]
    tables: Mapping[str, Table]
    extra: int = 0


@lru_cache(16)
def _grouping(option: str | tuple[str, ...]) -> Grouping:
    return Grouping.of(option)


def _choices(options: SourceOptions) -> tuple[tuple[tuple[str, str], ...], Grouping]:
    return tuple(options.cast.items()), _grouping(options.group)


def contents_of(
    header: PlyHeader, tables: Mapping[str, Table], path: str, options: SourceOptions, extra: int = 0
) -> Contents:
    """Return the contents of a file with this header; raises SourceError as `rules_of`, with the path."""
    with faults_of(path):
        return Contents(header, rules_of(header.kinds, *_choices(options)), tables, extra)


def contents_of_points(
    columns: Sequence[tuple[Property, NDArray[Any]]], count: int, path: str, options: SourceOptions, extra: int = 0
) -> Contents:
    """Return the contents of a file of another format, as if its points were vertices; arguments as above.

    Args:
        columns: each with its values, (count,); or with none, if they are not read yet.
    """
    ((name, times),) = Counter(prop.name for prop, _ in columns).most_common(1) or [("", 0)]
    if times > 1:
        raise SourceError(f"has two fields named {name}; rename one of them", path)
    vertex = Element("vertex", tuple(prop for prop, _ in columns))
    numbers = {i: values for i, (_, values) in enumerate(columns)}
    table = Table(msgspec.structs.replace(vertex, count=count), numbers)
    return contents_of(PlyHeader("ascii", (vertex,), (count,)), {vertex.name: table}, path, options, extra)


def _read(path: str, options: SourceOptions, with_numbers: bool = True) -> Contents:
    """Return the contents of a file.

    Args:
        with_numbers: whether to read the body even if it holds no lists; if it is not read, there are no tables.

    Raises:
        SourceError: the file cannot be read, or is not what its header declares; names element, row and property.
    """
    with opened(path) as (header, file):
        size = os.fstat(file.fileno()).st_size
        extra = _extra_bytes(header, size, path)
        if not (with_numbers or header.has_lists):
            return contents_of(header, {}, path, options, extra)
        with wait_if_large(0 if with_numbers else size):
            # Read on its own the body lies aligned in memory, and a cloud of one field needs no copy.
            file.seek(header.body)
            body = file.readall()
            if header.format == "ascii":
                read = read_text(header.elements, body, path, header.lines)
            else:
                order: Order = "<" if header.format == "binary_little_endian" else ">"
                read, end = read_binary(header.elements, body, order, path)
                extra = len(body) - end
            tables = {table.element.name: table for table in read}
            contents = contents_of(header, tables, path, options, extra)
            if options.triangulate and (corners := corners_of(contents.rules)):
                tables[corners.element] = triangulated(tables[corners.element], corners.properties[0], path)
    return contents


def _extra_bytes(header: PlyHeader, size: int, path: str) -> int:
    """Return how many bytes of a binary file follow its last row; 0 if the header does not say how long rows are.

    Raises:
        SourceError: a file of `size` bytes cannot hold what its header declares.
    """
    body, is_text = size - header.body, header.format == "ascii"
    # A value of text takes at least a digit and a blank after it; the last one may lack the blank.
    least = sum(e.count * (2 * len(e.properties) if is_text else least_row(e)) for e in header.elements) - is_text
    is_least = is_text or header.has_lists
    if body < least:
        declared = " and ".join(f"{e.count} rows of {e.name}" for e in header.elements) or "no elements"
        need = f"{declared} need {'at least ' if is_least else ''}{least:,} bytes after the header"
        raise SourceError(f"{need}, but there are {body}; download the file again", path)
    return 0 if is_least else body - least


# ---------------------------------------------------------------- what files have in common


def agree(
    table: SampleTable,
    options: SourceOptions,
    remarks: list[str],
    watcher: Watcher,
    sentences: Mapping[str, str] = MappingProxyType({}),
) -> SampleTable:
    """Return the files that have the fields of most files, or those that `--fields` asks for.

    `watcher.bad` is called for each other one.

    Args:
        sentences: by name, a number of a file, and what is said of the files in which it is not 0.

    Raises:
        UsageError: a field is asked for that most files do not have, or the files have none in common.
    """
    check_casts(options.cast)
    all_rules = _rules(table)
    table, rules = _agreeing(table, chosen_fields(options), remarks, watcher)
    for name, properties in _grouping(options.group).named:
        if not any(name in of_layout for of_layout in all_rules):
            raise UsageError(f"--group {name}: no file has vertices with the properties {', '.join(properties)}")
    check_casts(options.cast, rules)
    if options.triangulate and corners_of(rules) is None:
        raise UsageError(
            f"--triangulate: there is no field face; fields are {', '.join(rules)}; leave --triangulate out"
        )
    names = [Path(file).name for file in next(iter(table.inputs.values())).files]
    for number, sentence in sentences.items():
        of_files = table.numbers.get(number, np.zeros(table.count, np.uint8))
        if listed := [names[i] for i in np.flatnonzero(of_files).tolist()]:
            remarks.append(f"{sentence}: {first_few(listed)}")
    layout, numbers = list[LaidField](), counts_of(table)
    for laid, name, column in _fields(table, rules):
        layout.append(laid)
        numbers[name] = column
    return msgspec.structs.replace(table, layouts=[tuple(layout)], layout_of=None, numbers=numbers)


def chosen_fields(options: SourceOptions) -> Choice:
    """Return what `--fields` says."""
    text = options.fields
    if text in ("same", "common", "all"):
        return text
    return tuple(map(str.strip, text.split(",")))


def _rules(table: SampleTable) -> list[dict[str, Rule]]:
    """Return the fields of each layout, by name."""
    return [{laid.name: laid.detail for laid in layout} for layout in table.layouts]


def _agreeing(
    table: SampleTable, choice: Choice, remarks: list[str], watcher: Watcher
) -> tuple[SampleTable, dict[str, Rule]]:
    """Return the files that have the fields of most files, and the rules of the fields that are packed."""
    all_rules = _rules(table)
    in_words = [
        {name: str(rule) for name, rule in rules.items() if isinstance(choice, str) or name in choice}
        for rules in all_rules
    ]
    counts, widths = table.counts(), _widths(table)
    if choice in ("common", "all"):
        if choice == "common":
            in_words = [{name: layout[name] for name in layout if name not in widths} for layout in in_words]
        types: dict[str, Counter[str]] = {}
        for layout, count in counts.items():
            for name, words in in_words[layout].items():
                types.setdefault(name, Counter())[words] += count
        most = {name: of_field.most_common(1)[0][0] for name, of_field in types.items()}
        expected = {layout: {name: most[name] for name in in_words[layout]} for layout in counts}
        apart = {layout: how for layout in counts if (how := difference(expected[layout], in_words[layout]))}
    else:
        model, apart = misfits(in_words, counts)
        if not isinstance(choice, str) and (unknown := [name for name in choice if name not in in_words[model]]):
            has = ", ".join(all_rules[model])
            path = table.row(int(np.argmax(table.numbers_of_layouts() == model))).path
            raise UsageError(f"{path}: has no field {', '.join(unknown)}; it has {has}")
    advice = _advice(widths, {name for layout in in_words for name in layout})
    sentence = f"its fields differ from those of most files: {{how}}; {advice}"
    good = leave_out(table, apart, sentence, watcher)
    good_counts = {layout: count for layout, count in counts.items() if layout not in apart}
    chosen: dict[str, Rule] = {}
    for layout in good_counts:
        for name in in_words[layout]:
            chosen.setdefault(name, all_rules[layout][name])
    if choice == "common":
        chosen = {n: rule for n, rule in chosen.items() if all(n in all_rules[layout] for layout in good_counts)}
        omitted: Counter[str] = Counter()
        for layout, count in good_counts.items():
            omitted.update({name: count for name in all_rules[layout] if name not in chosen})
        if omitted:
            listed = [f"{name} (in {count:,} of {good.count:,} files)" for name, count in omitted.items()]
            remarks.append(f"--fields common skips {first_few(listed)}, which not all files have alike")
    if good.count and not chosen:
        raise UsageError("the files have no field in common; take --fields all, or pack them apart")
    return good, chosen


def _widths(table: SampleTable) -> dict[str, dict[int, list[str]]]:
    """Return the samples by number of columns of each numbered field that has more of them in some than in others.

    Spherical harmonics of Gaussians are such fields: each degree has its own number of columns.
    """
    widths: dict[str, dict[int, list[int]]] = {}
    for layout, rules in enumerate(_rules(table)):
        for name, rule in rules.items():
            widths.setdefault(name, {}).setdefault(len(rule.properties), []).append(layout)

    def names(layouts: Sequence[int]) -> list[str]:
        numbers = np.flatnonzero(np.isin(table.numbers_of_layouts(), layouts)).tolist()
        return [(table.names or [])[number] for number in numbers]

    return {
        name: {width: names(layouts) for width, layouts in of_field.items()}
        for name, of_field in widths.items()
        if len(of_field) > 1
    }


def _advice(widths: Mapping[str, Mapping[int, list[str]]], wanted_fields: Container[str]) -> str:
    """Return what to do about files that differ, given the `_widths` of fields and the fields that are wanted."""
    for name in filter(wanted_fields.__contains__, widths):
        files = "; ".join(f"{width} in {first_few(names)}" for width, names in sorted(widths[name].items()))
        return (
            f"columns of {name}: {files}; pack the files of each number apart, leave {name} out with --fields common, "
            "or make every column a field with --group none --fields all"
        )
    return _ADVICE


def _fields(table: SampleTable, rules: Mapping[str, Rule]) -> Iterator[tuple[LaidField, str, NDArray[Any]]]:
    """Yield the fields that are packed, each with the name and the column of the lengths of its first axis.

    Lists become a table if all have the same length; lists of faces only if they are triangles.
    """

    def laid(name: str, dtype: str, rows: str, width: int | None, part: Part) -> LaidField:
        shape = (rows,) if width is None else (rows, width)
        return LaidField(name, dtype, shape, str(rule), detail=(rule.field, part))

    for rule in rules.values():
        name, rows = _rows_of(table, rule.field)
        if not rule.is_list:
            width = len(rule.properties)
            yield laid(rule.field, rule.dtype, name, width if width > 1 else None, "numbers"), name, rows
            continue
        every = table.numbers.get(_WIDTH.format(rule.field), np.zeros(0, np.int64))
        widths = set(np.unique(every).tolist()) - {0} or ({3 + _WIDTHS} if rule.is_face else set())
        common = widths.pop() if len(widths) == 1 else _UNEQUAL
        if common != _UNEQUAL and (common - _WIDTHS == 3 or not rule.is_face):
            yield laid(rule.field, rule.dtype, name, common - _WIDTHS, "table"), name, rows
        else:
            entries = _ENTRIES.format(rule.field)
            none = np.zeros(table.count, np.int64)
            yield laid(rule.field, rule.dtype, entries, None, "entries"), entries, table.numbers.get(entries, none)
            yield laid(f"{rule.field}_size", "int32", name, None, "sizes"), name, rows


def _rows_of(table: SampleTable, field: str) -> tuple[str, NDArray[Any]]:
    """Return the name and the column of the rows of a field in every file: none in files that lack it."""
    elements = [rules[field].element if field in rules else None for rules in _rules(table)]
    if len(set(elements)) == 1 and elements[0] is not None:  # fields of one element share their column
        name = _ROWS.format(elements[0])
        return name, table.numbers[name]
    rows = np.zeros(table.count, np.int64)
    for layout, element in enumerate(elements):
        if element is not None:
            np.copyto(rows, table.numbers[_ROWS.format(element)], where=table.numbers_of_layouts() == layout)
    return _ROWS.format(f"{field}:"), rows


# ---------------------------------------------------------------- values


def read(row: Row, options: SourceOptions) -> dict[str, Any]:
    """Return the fields of a file.

    Raises:
        SourceError: the file cannot be read, or is not what its header declares; names element, row and property.
    """
    return arrays_of(_read(row.path, options), row)


def arrays_of(contents: Contents, row: Row) -> dict[str, Any]:
    """Return the fields of a file; raises SourceError as `read`."""
    return {laid.name: array_of(laid, contents, row.path) for laid in row.layout}


def array_of(laid: LaidField, contents: Contents, path: str) -> NDArray[Any]:
    """Return the array of one field of one file; no rows if the file lacks the field."""
    field, part = laid.detail
    rule = contents.rules.get(field)
    width = laid.shape[1] if part == "table" else None
    if rule is None:
        return np.empty((0, *[int(n or 0) for n in laid.shape[1:]]), laid.dtype)
    if str(rule) != laid.in_words:
        raise _changed(path)
    table, prop = contents.tables[rule.element], rule.properties[0]
    sizes = table.lists[prop].sizes if rule.is_list else None
    if part == "sizes" and sizes is not None:
        return convert(sizes, "int32")
    if sizes is not None and width is not None and (sizes != width).any():
        raise _changed(path)
    if sizes is not None:
        values = table.lists[prop].values
    else:
        values = table.numbers[prop] if len(rule.properties) == 1 else table.columns(rule.properties)
    try:
        array = convert(values, rule.dtype)
    except DoesNotFitError as error:
        row = error.index[0] if sizes is None else row_of(error.index[0], sizes)
        if table.made_from is not None:
            row = int(table.made_from[row])
        prop = rule.properties[error.index[1] if len(error.index) > 1 else 0]
        raise row_error(path, table.element, row, f"{error.value:g} does not fit {rule.dtype}", prop) from None
    return array if width is None else array.reshape(len(table), int(width))


def _changed(path: str) -> SourceError:
    return SourceError("the file has changed since the plan was made; convert again", path)


def origin(options: SourceOptions, table: SampleTable) -> dict[str, Any]:
    """Return what the manifest keeps of the options, as JSON values."""
    choice = chosen_fields(options)
    choices = {"fields": choice if isinstance(choice, str) else list(choice), "cast": dict(options.cast)}
    return {"options": {**choices, **({"triangulate": True} if options.triangulate else {})}}


KIND = Kind(
    "ply",
    (".ply",),
    look,
    read,
    names_fields=True,
    lies_beside=True,
    options=("fields", "cast", "triangulate", "group"),
    exports="ply",
    none_left="none of its files can be packed",
    pair=pair_in_order,
    agree=agree,
    are_ragged=True,
    origin=origin,
)
KINDS = (KIND, CLOUDS)
