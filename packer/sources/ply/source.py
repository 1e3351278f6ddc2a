"""PLY point clouds and meshes as a source: one file a sample.

Every field is ragged in its first axis, as the number of points is, even if all files of a set agree.
`packer.sources.ply.fields` says which properties become which field. The plan comes from headers; of files with lists
(faces), the lengths of the lists are looked at as well, since no header tells them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import FileIO
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError, UsageError
from packer.format.schema import DTYPES, FieldSpec
from packer.sources.base import HEADERS, Block, Looking, OnBad, Source, not_looking, stop, watched
from packer.sources.files import find
from packer.sources.ply.binary import Order, least_bytes, read_binary
from packer.sources.ply.fields import (
    Choice,
    Column,
    Extent,
    Member,
    Rule,
    agreeing,
    columns_of,
    corners_of,
    first_axes,
    rules_of,
)
from packer.sources.ply.header import Element, Header, Property, opened, read_body
from packer.sources.ply.table import DoesNotFitError, Table, convert, row_error, triangulated, triangulated_sizes
from packer.sources.ply.text import check_line_count, count_rows, read_text

_SUFFIX = ".ply"

#: Length of every list, int64 (rows,), by element name and property number.
Sizes = dict[str, dict[int, NDArray[np.int64]]]
#: More different headers than this are not kept: files with a comment of their own each (a date, a path)
#: would make the manifest as large as the data.
MAX_HEADERS = 1000


@dataclass(frozen=True)
class RuleBook:
    """The rules of files, made once for all files with the same elements: sets have many files of few kinds.

    Attributes:
        cast: dtypes to convert fields to.
        numbered: whether numbered properties become one field.
    """

    cast: Mapping[str, str]
    numbered: bool = True
    _made: dict[tuple[tuple[str, tuple[Property, ...]], ...], Mapping[str, Rule]] = field(default_factory=dict)

    def of(self, header: Header, path: str) -> Mapping[str, Rule]:
        """Return the rules of the file at `path` by the names of their fields."""
        kind = tuple((e.name, e.properties) for e in header.elements)
        if kind not in self._made:
            self._made[kind] = rules_of(header.elements, self.cast, path, self.numbered)
        return self._made[kind]


def open_ply(
    path: str,
    *,
    on_bad: OnBad = stop,
    fields: Choice = "same",
    cast: Mapping[str, str] | None = None,
    triangulate: bool = False,
    group: str = "numbered",
    looking: Looking = not_looking,
) -> PlySource:
    """Open the PLY files of a folder (and all below it), one file, or a glob, in natural order of their names.

    Args:
        path: folder, file or glob; a sample's name is the relative path without suffix.
        on_bad: told of each file whose header is wrong or that does not fit the others.
        fields: `same`: all files must have the same fields; `common`: those that all have; `all`: those that
            any has, with no rows if a file has none; or names, which every file must have.
        cast: dtypes to convert fields to, as `{"xyz": "float32"}`. A float may be rounded; a value outside
            the range of its new dtype is an error.
        triangulate: makes polygons into triangles, so that `face` is (m, 3): a fan from the first corner of each
            face, in order; what else a face has is repeated for each triangle. See `table`.
        group: `numbered`: properties such as `rot_0` to `rot_3` become one field, `rot`; `none`: a field each.
        looking: told how far finding files and reading headers is.

    Raises:
        UsageError: nothing is at `path`, or `fields`, `cast` or `triangulate` asks for what is not there, or `group`
            is another word.
        SourceError: no file is good; or whatever `on_bad` raises.
    """
    casts = dict(cast or {})
    _check_cast(casts)
    _check_choice(fields)
    if group not in ("numbered", "none"):
        raise UsageError(f"--group {group}: numbered or none is expected")
    rule_book = RuleBook(casts, numbered=group == "numbered")
    found = find(path, looking)
    files = found.pick(lambda file: file.lower().endswith(_SUFFIX), on_bad)
    if not files:
        raise SourceError(f"no {_SUFFIX} file is there", path)
    names = [file[: -len(_SUFFIX)] for file in files]
    members = _open_members([found.path(file) for file in files], names, rule_book, triangulate, on_bad, looking)
    if members:
        members, rules = agreeing(members, fields, on_bad)
    if not members:
        raise SourceError("none of its files can be packed", path)
    unknown = [name for name in casts if name not in rules]
    if unknown:
        raise UsageError(f"cast: there is no field {', '.join(unknown)}; there are {', '.join(rules)}")
    if triangulate and corners_of(rules) is None:
        raise UsageError(f"--triangulate: there is no field face; there are {', '.join(rules)}; leave it out")
    columns = columns_of(members, rules)
    hidden = [f"{found.hidden} hidden files and folders left out"] if found.hidden else []
    return PlySource(
        paths=[m.path for m in members],
        names=[m.name for m in members],
        columns=tuple(columns),
        axes=first_axes(members, columns),
        rules=rule_book,
        origin=_origin_of(members, fields, casts, triangulate),
        remarks=tuple(hidden + _remarks(members)),
        triangulate=triangulate,
    )


def _check_cast(cast: Mapping[str, str]) -> None:
    for name, dtype in cast.items():
        if dtype not in DTYPES or dtype == "bool" or dtype.startswith("complex"):
            raise UsageError(f"cast of {name}: {dtype!r} is not a numeric dtype such as float32 or int64")


def _check_choice(fields: Choice) -> None:
    if isinstance(fields, str) and fields not in ("same", "common", "all"):
        raise UsageError(f"fields={fields!r} is not known; same, common, all or a list of names are")


def _open_members(
    paths: Sequence[str],
    names: Sequence[str],
    rules: RuleBook,
    triangulate: bool,
    on_bad: OnBad,
    looking: Looking,
) -> list[Member]:
    """Return the files with a good header and a name of their own."""
    members: dict[str, Member] = {}
    for path, name in watched(zip(paths, names, strict=True), HEADERS, looking, len(paths)):
        if not _is_text(name):
            on_bad(SourceError("has a name that is not valid text (UTF-8), which a sample must have; rename it", path))
            continue
        if name in members:
            reason = f"has the same sample name, {name}, as {members[name].path}; rename one of them"
            on_bad(SourceError(reason, path))
            continue
        try:
            members[name] = _open_member(path, name, rules, triangulate)
        except SourceError as error:
            on_bad(error)
    return list(members.values())


def _is_text(name: str) -> bool:
    """Return whether a file name is text: others hold surrogates, which cannot be encoded."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _open_member(path: str, name: str, book: RuleBook, triangulate: bool) -> Member:
    with opened(path) as (header, file):
        _check_size(header, os.fstat(file.fileno()).st_size, path)
        rules = book.of(header, path)
        lists = _measure_lists(header, file, path, corners_of(rules) if triangulate else None)
    return Member(path, name, header, rules, lists, triangulate)


def _remarks(members: Sequence[Member]) -> list[str]:
    stray = [m for m in members if m.header.stray]
    if not stray:
        return []
    line = stray[0].header.stray[0][:60]
    return [f"header lines that mean nothing are ignored in {len(stray)} files, such as {line!r} in {stray[0].name}"]


def _origin_of(members: Sequence[Member], fields: Choice, cast: Mapping[str, str], triangulate: bool) -> dict[str, Any]:
    """Return what the manifest keeps of the files, as JSON values, so that they can be written again as they were.

    `headers` holds each different header once (the first is that of the first sample), with the field that each
    property went into. `header_of` gives, by sample name, the number of the header of every sample whose header is
    not the first. Beyond `MAX_HEADERS` a sample's header is not kept; it counts as like the first.
    """
    numbers: dict[Header, int] = {}
    headers: list[Header] = []
    header_of: dict[str, int] = {}
    for member in members:
        key = member.header.without_counts()
        if key not in numbers and len(numbers) < MAX_HEADERS:
            numbers[key] = len(headers)
            headers.append(_with_fields(key, member.rules))
        if numbers.get(key):
            header_of[member.name] = numbers[key]
    options: dict[str, Any] = {"fields": fields if isinstance(fields, str) else list(fields), "cast": dict(cast)}
    if triangulate:
        options["triangulate"] = True
    return {"options": options, "headers": msgspec.json.decode(msgspec.json.encode(headers)), "header_of": header_of}


def _with_fields(header: Header, rules: Mapping[str, Rule]) -> Header:
    """Return a header whose properties say which field, and which column of it, they went into."""
    places = {
        (rule.element, number): {"field": name, "column": column if len(rule.properties) > 1 else None}
        for name, rule in rules.items()
        for column, number in enumerate(rule.properties)
    }
    elements = (
        Element(e.name, tuple(msgspec.structs.replace(p, **places[e.name, i]) for i, p in enumerate(e.properties)))
        for e in header.elements
    )
    return msgspec.structs.replace(header, elements=tuple(elements), stray=())


@dataclass
class PlySource(Source):
    """PLY files of one set of fields; made by `open_ply`."""

    paths: list[str]
    names: list[str]
    columns: tuple[Column, ...]
    #: Length of every sample's first axis, int64 (samples,), by `Column.axis`.
    axes: dict[str, NDArray[np.int64]]
    rules: RuleBook
    origin: dict[str, Any] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    triangulate: bool = False

    fields: tuple[FieldSpec, ...] = field(init=False)
    kind = "ply"

    def __post_init__(self) -> None:
        self.fields = tuple(c.spec for c in self.columns)

    def __len__(self) -> int:
        return len(self.paths)

    def shapes(self, field: str) -> NDArray[np.int64]:
        column = next((c for c in self.columns if c.spec.name == field), None)
        if column is None:
            raise UsageError(f"there is no field {field}; there are {', '.join(c.spec.name for c in self.columns)}")
        first = self.axes[column.axis]
        return np.stack([first, *(np.full_like(first, n) for n in column.spec.shape[1:])], axis=1)

    def part(self, start: int, stop: int) -> PlySource:
        within = slice(start, stop)
        axes = {key: lengths[within] for key, lengths in self.axes.items()}
        return PlySource(
            self.paths[within], self.names[within], self.columns, axes, self.rules, triangulate=self.triangulate
        )

    def files(self) -> list[str]:
        return list(self.paths)

    def provenance(self) -> dict[str, Any]:
        return self.origin

    def notes(self) -> list[str]:
        return list(self.remarks)

    def read(self) -> Iterator[Block]:
        """Yield one block a file; see `Source.read`."""
        for number, path in enumerate(self.paths):
            try:
                sample = self._read_file(number, path)
            except SourceError as error:
                raise SourceError(error.reason, error.path, number) from error
            yield {name: [array] for name, array in sample.items()}

    def _read_file(self, number: int, path: str) -> dict[str, NDArray[Any]]:
        with opened(path) as (header, file):
            body = read_body(header, file)
        _check_size(header, header.body + len(body), path)
        rules = self.rules.of(header, path)
        tables = {table.element.name: table for table in _tables(header.elements, header, body, path)}
        corners = corners_of(rules) if self.triangulate else None
        if corners is not None:
            tables[corners.element] = triangulated(tables[corners.element], corners.properties[0], path)
        sample = {c.spec.name: _array(c, rules.get(c.rule.field), tables, path) for c in self.columns}
        for column in self.columns:
            array = sample[column.spec.name]
            if len(array) != self.axes[column.axis][number]:
                raise SourceError("the file has changed since the plan was made; convert again", path)
        return sample


def _array(column: Column, rule: Rule | None, tables: Mapping[str, Table], path: str) -> NDArray[Any]:
    """Return the array of one field of one file; no rows if the file lacks the field."""
    if rule is None:
        return np.empty([n or 0 for n in column.spec.shape], column.spec.dtype)
    if rule.layout != column.rule.layout:
        raise SourceError(f"{rule.field} is {rule}, it was {column.rule}: the file has changed since the plan", path)
    table = tables[rule.element]
    try:
        if column.part == "numbers":
            return _numbers(table, rule)
        return _lists(column, table, rule, path)
    except DoesNotFitError as error:
        row = error.index[0]
        prop = rule.properties[error.index[1] if len(error.index) > 1 else 0]
        if column.part in ("entries", "table"):
            row = int(np.searchsorted(np.cumsum(table.lists[prop].sizes), row, side="right"))
        if table.rows is not None:
            row = int(table.rows[row])
        raise row_error(path, table.element, row, f"{error.value:g} does not fit {rule.dtype}", prop) from None


def _numbers(table: Table, rule: Rule) -> NDArray[Any]:
    if len(rule.properties) == 1:
        return convert(table.numbers[rule.properties[0]], rule.dtype)
    return convert(table.joined(rule.properties), rule.dtype)


def _lists(column: Column, table: Table, rule: Rule, path: str) -> NDArray[Any]:
    values, sizes = table.lists[rule.properties[0]]
    if column.part == "sizes":
        return convert(sizes, "int32")
    entries = convert(values, rule.dtype)
    if column.part == "entries":
        return entries
    width = column.spec.shape[1] or 0
    if (sizes != width).any():
        row = int(np.argmax(sizes != width))
        reason = f"the list has {sizes[row]} entries, {width} when the plan was made: the file has changed"
        raise row_error(path, table.element, row, reason, rule.properties[0])
    return entries.reshape(len(sizes), width)


# ---------------------------------------------------------------- bodies


def _tables(elements: Sequence[Element], header: Header, data: bytes, path: str) -> list[Table]:
    """Return the tables of some elements, whose rows are `data`.

    Raises:
        SourceError: the body is not what the header declares; names element, row and property.
    """
    if header.format == "ascii":
        return read_text(elements, data, path)
    order: Order = "<" if header.format == "binary_little_endian" else ">"
    return read_binary(elements, data, order, path)


def _check_size(header: Header, size: int, path: str) -> None:
    """Raise SourceError if a file of `size` bytes cannot hold what its header declares, or holds more."""
    body = size - header.body
    declared = " and ".join(f"{e.count} rows of {e.name}" for e in header.elements) or "no elements"
    if header.format == "ascii":
        # A value takes at least a digit and the blank after it, which the last one may lack.
        least = sum(2 * e.count * len(e.properties) for e in header.elements) - 1
    else:
        least = sum(least_bytes(e) for e in header.elements)
    if body < least:
        raise SourceError(f"{declared} need at least {least} bytes after the header, {body} are there", path)
    if header.format != "ascii" and not header.has_lists and body > least:
        raise SourceError(f"{declared} need {least} bytes after the header, {body} are there", path)


def _measure_lists(header: Header, file: FileIO, path: str, corners: Rule | None) -> dict[tuple[str, int], Extent]:
    """Return how long the lists of a file are, by element name and property number.

    With `corners`, the faces whose corner numbers these are count as the triangles that they become. A file without
    lists is not read. A binary file is read from its first element with lists on; of a text file only blanks and line
    ends are looked at, unless a row has several lists.

    Raises:
        SourceError: the body is not what the header declares; a face has no triangle.
    """
    if not header.has_lists:
        return {(e.name, i): Extent(0, -1) for e in header.elements for i in _lists_of(e)}
    elements, skipped = header.elements, 0
    if header.format != "ascii":
        first = next(i for i, e in enumerate(elements) if e.has_lists)
        elements, skipped = elements[first:], sum(least_bytes(e) for e in elements[:first])
    data = read_body(header, file, skipped)
    if header.format == "ascii" and all(len(_lists_of(e)) <= 1 for e in elements):
        found = _sizes_by_lines(elements, data, path)
    else:
        tables = _tables(elements, header, data, path)
        found = {t.element.name: {i: lists.sizes for i, lists in t.lists.items()} for t in tables}
    if corners is not None and corners.element in found:
        element = next(e for e in elements if e.name == corners.element)
        found[element.name] = triangulated_sizes(element, corners.properties[0], found[element.name], path)
    return {(name, i): _extent(sizes) for name, lists in found.items() for i, sizes in lists.items()}


def _sizes_by_lines(elements: Sequence[Element], data: bytes, path: str) -> Sizes:
    """Return the lengths of lists in a text body: what a line holds beyond its numbers, as no row has two lists."""
    lines = count_rows(data)
    check_line_count(elements, len(lines), path)
    found: Sizes = {}
    line = 0
    for element in elements:
        for i in _lists_of(element):
            sizes = lines[line : line + element.count] - len(element.properties)
            if (sizes < 0).any():
                raise row_error(path, element, int(np.argmax(sizes < 0)), "the line holds too few values")
            found.setdefault(element.name, {})[i] = sizes
        line += element.count
    return found


def _extent(sizes: NDArray[np.int64]) -> Extent:
    if not len(sizes):
        return Extent(0, -1)
    return Extent(int(sizes.sum()), int(sizes[0]) if (sizes == sizes[0]).all() else None)


def _lists_of(element: Element) -> list[int]:
    return [i for i, p in enumerate(element.properties) if p.count_dtype]
