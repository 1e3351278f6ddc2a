"""PLY point clouds and meshes as a source: one file a sample.

Every field is ragged in its first axis, like the number of points, even if all files of a set agree.
`packer.sources.ply.fields` says which properties become which field. The plan comes from headers; files with lists
(faces) are read whole for it, since no header tells how long lists are.

Clouds without a header, whose columns the user names, are the same `PointSource`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError, UsageError, first_few
from packer.format import FieldSpec
from packer.sources.base import Block, Source, faults_of, joined
from packer.sources.dtypes import DoesNotFitError, check_casts, convert
from packer.sources.files import FileSet, join
from packer.sources.headers import wait_if_large
from packer.sources.options import SourceOptions
from packer.sources.ply.fields import Grouping, PlyField, Rule, corners_of, rules_of
from packer.sources.ply.header import Header, opened
from packer.sources.ply.members import (
    NO_LISTS,
    UNEQUAL,
    Choice,
    Member,
    Members,
    agreeing,
    columns_of,
    read_members,
    sample_name,
)
from packer.sources.ply.table import (
    Order,
    Table,
    least_row,
    read_binary,
    row_error,
    row_of,
    triangulated,
)
from packer.sources.ply.text import read_text
from packer.watcher import Watcher


def open_ply(inputs: Mapping[str, FileSet], options: SourceOptions, watcher: Watcher) -> PointSource:
    """Open PLY files, in natural order of their names: the relative paths without suffix.

    Args:
        inputs: the one source, whose files name their fields themselves.
        options: `fields` is `same`: all files must have the same fields; `common`: fields that all files have; `all`:
            fields that any file has, without rows in files that lack them; or names with commas, which every file must
            have. A float that is `cast` may be rounded; a value outside the range of its new dtype is an error.
            `triangulate` makes `face` (m, 3); other properties of a face are repeated for each triangle, see `table`.
        watcher: its `bad` is called with the error of each file whose header is wrong or that does not fit the others.

    Raises:
        UsageError: `fields`, `cast` or `triangulate` asks for a field that is not there.
        SourceError: no file is good; or what `watcher.bad` raises.
    """
    (listing,) = inputs.values()
    fields = options.fields
    choice: Choice = fields if fields in ("same", "common", "all") else tuple(map(str.strip, fields.split(",")))
    check_casts(options.cast)
    grouping = Grouping.of(options.group)
    read = partial(_read, options=options, grouping=grouping)
    good = read_members(listing, listing.pick(watcher), partial(_member, read=read), watcher)
    members, rules, remarks = agreeing(good, choice, watcher)
    for name, properties in grouping.named:
        if not any(name in rules_of_layout for rules_of_layout in good.rules):
            raise UsageError(f"--group {name}: no file has vertices with the properties {', '.join(properties)}")
    check_casts(options.cast, rules)
    if options.triangulate and corners_of(rules) is None:
        raise UsageError(
            f"--triangulate: there is no field face; fields are {', '.join(rules)}; leave --triangulate out"
        )
    numbers = np.flatnonzero(members.extra).tolist()
    if extra := [f"{Path(members.files[number]).name} ({members.extra[number]:,} bytes)" for number in numbers]:
        remarks.append(f"bytes after the last row are not packed: {first_few(extra)}")
    source = PointSource.of("ply", members, rules, read, _origin_of(choice, options))
    source.remarks = remarks
    return source


def _member(path: str, read: Callable[..., Contents]) -> Member:
    """Return a file as a member, by its header, and by its body if that holds lists; raises SourceError as `_read`."""
    header, rules, tables, extra = read(path, with_numbers=False)
    rows = {element.name: count for element, count in zip(header.kinds, header.counts, strict=True)}
    rows |= {name: len(table) for name, table in tables.items()}
    entries, widths = dict[str, int](), dict[str, int]()
    for rule in rules.values():
        if rule.is_list:
            table = tables.get(rule.element)
            sizes = np.empty(0, np.int64) if table is None else table.lists[rule.properties[0]].sizes
            entries[rule.field] = int(sizes.sum())
            are_equal = bool((sizes == sizes[:1]).all())
            widths[rule.field] = NO_LISTS if not len(sizes) else int(sizes[0]) if are_equal else UNEQUAL
    return Member(rules, rows, entries, widths, extra)


class Contents(NamedTuple):
    """What a file holds: its header, its rules by field, and its tables by element.

    `extra` is how many bytes follow the last row.
    """

    header: Header
    rules: Mapping[str, Rule]
    tables: Mapping[str, Table]
    extra: int = 0


def _read(path: str, options: SourceOptions, grouping: Grouping, with_numbers: bool = True) -> Contents:
    """Return the contents of a file.

    Args:
        with_numbers: whether to read the body even if it holds no lists; if it is not read, there are no tables.

    Raises:
        SourceError: the file cannot be read, or is not what its header declares; names element, row and property.
    """
    with opened(path) as (header, file):
        size = os.fstat(file.fileno()).st_size
        extra = _extra_bytes(header, size, path)
        with faults_of(path):
            rules = rules_of(header.kinds, tuple(options.cast.items()), grouping)
        if not (with_numbers or header.has_lists):
            return Contents(header, rules, {}, extra)
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
            if options.triangulate and (corners := corners_of(rules)):
                tables[corners.element] = triangulated(tables[corners.element], corners.properties[0], path)
    return Contents(header, rules, tables, extra)


def _extra_bytes(header: Header, size: int, path: str) -> int:
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


def _origin_of(choice: Choice, options: SourceOptions) -> dict[str, Any]:
    """Return what the manifest keeps of the options, as JSON values."""
    choices: dict[str, Any] = {
        "fields": choice if isinstance(choice, str) else list(choice),
        "cast": dict(options.cast),
    }
    if options.triangulate:
        choices["triangulate"] = True
    return {"options": choices}


# ---------------------------------------------------------------- the source


@dataclass
class PointSource(Source):
    """Files of points, of one set of fields.

    Attributes:
        folder: the folder that `paths` count from.
        paths: the file of every sample, relative.
        lengths: by field, length of every sample's first axis, int64 (samples,).
        contents: reads the file at a path; raises SourceError if it cannot.
    """

    kind: str
    folder: str
    paths: list[str]
    names: list[str]
    columns: tuple[PlyField, ...]
    lengths: dict[str, NDArray[np.int64]]
    contents: Callable[[str], Contents]
    origin: Mapping[str, Any] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    fields: tuple[FieldSpec, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.fields = tuple(c.spec for c in self.columns)

    @classmethod
    def of(
        cls,
        kind: str,
        members: Members,
        rules: Mapping[str, Rule],
        contents: Callable[[str], Contents],
        origin: dict[str, Any],
    ) -> PointSource:
        """Return the members as samples, with the fields of `rules`; `origin` goes into the manifest."""
        columns = list(columns_of(members, rules))
        lengths = {column.spec.name: lengths for column, lengths in columns}
        names = [sample_name(file) for file in members.files]
        fields = tuple(column for column, _ in columns)
        return cls(kind, members.folder, members.files, names, fields, lengths, contents, origin)

    def __len__(self) -> int:
        return len(self.paths)

    def shapes(self, field: str) -> NDArray[np.int64]:
        (spec,) = (spec for spec in self.fields if spec.name == field)
        first = self.lengths[field]
        return np.stack([first, *(np.full_like(first, n) for n in spec.shape[1:])], axis=1)

    def part(self, start: int, stop: int) -> PointSource:
        within = slice(start, stop)
        # Fields of one element share their lengths.
        cut = {id(lengths): lengths[within] for lengths in self.lengths.values()}
        lengths = {name: cut[id(lengths)] for name, lengths in self.lengths.items()}
        return replace(self, paths=self.paths[within], names=self.names[within], lengths=lengths, origin={}, remarks=[])

    def files(self) -> list[str]:
        return [join(self.folder, path) for path in self.paths]

    def read(self) -> Iterator[Block]:
        return joined(self._samples(), self.fields)

    def _samples(self) -> Iterator[dict[str, NDArray[Any]]]:
        for number, path in enumerate(self.files()):
            with faults_of(sample=number):
                contents = self.contents(path)
                sample = {c.spec.name: _array(c, contents, path) for c in self.columns}
                if any(len(sample[name]) != self.lengths[name][number] for name in sample):
                    raise _changed(path)
            yield sample


def _array(column: PlyField, contents: Contents, path: str) -> NDArray[Any]:
    """Return the array of one field of one file; no rows if the file lacks the field."""
    rule = contents.rules.get(column.rule.field)
    if rule is None:
        return np.empty([n or 0 for n in column.spec.shape], column.spec.dtype)
    if str(rule) != str(column.rule):
        raise _changed(path)
    table, prop = contents.tables[rule.element], rule.properties[0]
    sizes = table.lists[prop].sizes if rule.is_list else None
    if column.part == "sizes" and sizes is not None:
        return convert(sizes, "int32")
    width = column.spec.shape[1] if column.part == "table" else None
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
    return array if width is None else array.reshape(len(table), width)


def _changed(path: str) -> SourceError:
    return SourceError("the file has changed since the plan was made; convert again", path)
