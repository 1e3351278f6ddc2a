"""PLY point clouds and meshes as a source: one file a sample.

Every field is ragged in its first axis, as the number of points is, even where all files of a set agree.
`packer.sources.ply.fields` says which properties become which field. The plan comes from headers; of files with lists
(faces), the lengths of the lists are looked at as well, since no header tells them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError, UsageError
from packer.format.schema import DTYPES, FieldSpec
from packer.sources.base import HEADERS, Block, Looking, OnBad, Source, not_looking, stop, watched
from packer.sources.ply.body import check_size, measure_lists, read_tables
from packer.sources.ply.fields import Rule, rules_of
from packer.sources.ply.files import find_files
from packer.sources.ply.header import Header, Property, read_header, read_whole
from packer.sources.ply.origin import origin_of
from packer.sources.ply.set import Choice, Column, Member, agreeing, columns_of, first_axes
from packer.sources.ply.table import DoesNotFitError, Table, convert, row_error
from packer.sources.ply.triangles import corners_of, triangulated

#: The rules of files with the same elements are made once and shared: sets have many files of few kinds.
Kinds = dict[tuple[tuple[str, tuple[Property, ...]], ...], Mapping[str, Rule]]


def open_ply(
    path: str,
    *,
    on_bad: OnBad = stop,
    fields: Choice = "same",
    cast: Mapping[str, str] | None = None,
    triangulate: bool = False,
    looking: Looking = not_looking,
) -> PlySource:
    """The PLY files of a folder (and all below it), one file, or a glob, in natural order of their names.

    Args:
        path: folder, file or glob; a sample's name is the relative path without suffix.
        on_bad: told of each file whose header is wrong or that does not fit the others.
        fields: `same`: all files must have the same fields; `common`: those that all have; `all`: those that
            any has, with no rows where a file has none; or names, which every file must have.
        cast: dtypes to convert fields to, as `{"xyz": "float32"}`. A float may be rounded; a value outside
            the range of its new dtype is an error.
        triangulate: makes polygons into triangles, so that `face` is (m, 3): a fan from the first corner of each
            face, in order; what else a face has is repeated for each triangle. See `triangles`.
        looking: told how far reading headers is.

    Raises:
        UsageError: nothing is at `path`, or `fields`, `cast` or `triangulate` asks for what is not there.
        SourceError: no file is good; or whatever `on_bad` raises.
    """
    casts = dict(cast or {})
    _check_cast(casts)
    _check_choice(fields)
    found = find_files(path)
    members = _open_members(found.paths, found.names, casts, triangulate, on_bad, looking)
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
    hidden = [f"{found.hidden} hidden files left out"] if found.hidden else []
    return PlySource(
        paths=[m.path for m in members],
        names=[m.name for m in members],
        columns=tuple(columns),
        axes=first_axes(members, columns),
        cast=casts,
        origin=origin_of(members, fields, casts, triangulate),
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
    cast: Mapping[str, str],
    triangulate: bool,
    on_bad: OnBad,
    looking: Looking,
) -> list[Member]:
    """The files with a good header and a name of their own."""
    members: dict[str, Member] = {}
    kinds: Kinds = {}
    for path, name in watched(zip(paths, names, strict=True), HEADERS, looking, len(paths)):
        if not _is_text(name):
            on_bad(SourceError("has a name that is not valid text (UTF-8), which a sample must have; rename it", path))
            continue
        if name in members:
            reason = f"has the same sample name, {name}, as {members[name].path}; rename one of them"
            on_bad(SourceError(reason, path))
            continue
        try:
            members[name] = _open_member(path, name, cast, kinds, triangulate)
        except SourceError as error:
            on_bad(error)
    return list(members.values())


def _is_text(name: str) -> bool:
    """Whether a file name is text: others hold surrogates, which cannot be encoded."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _open_member(path: str, name: str, cast: Mapping[str, str], kinds: Kinds, triangulate: bool) -> Member:
    header = read_header(path)
    check_size(header, os.stat(path).st_size, path)  # noqa: PTH116  # Path takes 5 us more a file
    rules = _rules(header, cast, kinds, path)
    lists = measure_lists(header, path, corners_of(rules) if triangulate else None)
    return Member(path, name, header, rules, lists, triangulate)


def _rules(header: Header, cast: Mapping[str, str], kinds: Kinds, path: str) -> Mapping[str, Rule]:
    """The rules of a file, found once for all files that declare the same."""
    kind = tuple((e.name, e.properties) for e in header.elements)
    if kind not in kinds:
        kinds[kind] = rules_of(header.elements, cast, path)
    return kinds[kind]


def _remarks(members: Sequence[Member]) -> list[str]:
    stray = [m for m in members if m.header.stray]
    if not stray:
        return []
    line = stray[0].header.stray[0][:60]
    return [f"header lines without meaning passed over in {len(stray)} files, such as {line!r} in {stray[0].name}"]


@dataclass
class PlySource(Source):
    """PLY files of one set of fields; made by `open_ply`."""

    paths: list[str]
    names: list[str]
    columns: tuple[Column, ...]
    #: Length of every sample's first axis, int64 (samples,), by `Column.axis`.
    axes: dict[str, NDArray[np.int64]]
    cast: dict[str, str]
    origin: dict[str, Any] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    triangulate: bool = False

    fields: tuple[FieldSpec, ...] = field(init=False)
    _kinds: Kinds = field(default_factory=dict, init=False, repr=False, compare=False)
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
            self.paths[within], self.names[within], self.columns, axes, self.cast, triangulate=self.triangulate
        )

    def files(self) -> list[str]:
        return list(self.paths)

    def provenance(self) -> dict[str, Any]:
        return self.origin

    def notes(self) -> list[str]:
        return list(self.remarks)

    def read(self) -> Iterator[Block]:
        """One block a file; see `Source.read`."""
        for number, path in enumerate(self.paths):
            try:
                sample = self._read_file(number, path)
            except SourceError as error:
                raise SourceError(error.reason, error.path, number) from error
            yield {name: [array] for name, array in sample.items()}

    def _read_file(self, number: int, path: str) -> dict[str, NDArray[Any]]:
        header, body = read_whole(path)
        check_size(header, header.body + len(body), path)
        rules = _rules(header, self.cast, self._kinds, path)
        tables = read_tables(header, body, path)
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
    """The array of one field of one file; no rows where the file lacks the field."""
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
