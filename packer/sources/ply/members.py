"""The files of a set of clouds: what their headers say, in columns, and the fields on which they agree."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.errors import NothingLeftError, SourceError, UsageError, first_few
from packer.format import FieldSpec
from packer.sources.files import FileSet, join
from packer.sources.headers import Columns, count_layouts, difference, misfits, read_headers
from packer.sources.ply.fields import Part, PlyField, Rule
from packer.watcher import Watcher

#: Which fields are packed: those of every file, which must agree (`same`); those that all files have; those
#: that any file has, empty if a file has none; or those named.
Choice = Literal["same", "common", "all"] | Sequence[str]

_ADVICE = (
    "pack the files apart, choose with --fields (common, all or names), give a field one type with --cast, or keep "
    "numbered properties apart with --group none"
)
#: The length of each list of a file that has no lists, or whose lists differ in length.
NO_LISTS, UNEQUAL = -1, -2


class Member(NamedTuple):
    """One file of a set, as its header and the lengths of its lists describe it.

    Attributes:
        rules: its fields.
        rows: by element, its rows.
        entries: by field of lists, the entries of all lists.
        widths: by field of lists, the length of each list, or `NO_LISTS` or `UNEQUAL`.
        extra: how many bytes follow the last row.
    """

    rules: Mapping[str, Rule]
    rows: Mapping[str, int]
    entries: Mapping[str, int] = {}
    widths: Mapping[str, int] = {}
    extra: int = 0


@dataclass(frozen=True)
class Members:
    """The files of a set; attributes with `(n,)` have a number for each file.

    Attributes:
        folder: the folder that `files` count from.
        files: relative paths, (n,).
        rules: the fields of each layout, which many files share; by their names.
        layouts: (n,) the number of the layout of each in `rules`.
        rows, entries, widths: columns of (n,), as for `Member`.
        extra: (n,) as for `Member`.
    """

    folder: str
    files: list[str]
    rules: Sequence[Mapping[str, Rule]]
    layouts: NDArray[np.uint32]
    rows: Mapping[str, NDArray[np.int64]]
    entries: Mapping[str, NDArray[np.int64]]
    widths: Mapping[str, NDArray[np.int64]]
    extra: NDArray[np.int64]

    def path(self, number: int) -> str:
        """Return the path of a file."""
        return join(self.folder, self.files[number])

    def take(self, are_kept: NDArray[np.bool_]) -> Members:
        """Return some of the files."""
        if are_kept.all():
            return self
        rows, entries, widths = (
            {name: column[are_kept] for name, column in columns.items()}
            for columns in (self.rows, self.entries, self.widths)
        )
        files = [self.files[number] for number in np.flatnonzero(are_kept)]
        layouts, extra = self.layouts[are_kept], self.extra[are_kept]
        return replace(self, files=files, layouts=layouts, rows=rows, entries=entries, widths=widths, extra=extra)

    def rows_of(self, field: str) -> NDArray[np.int64]:
        """Return the rows of a field in every file, (n,): none in files that lack it."""
        elements = [rules[field].element if field in rules else None for rules in self.rules]
        present = {elements[layout] for layout in np.unique(self.layouts)}
        if len(present) == 1 and (element := present.pop()) is not None:
            return self.rows[element]
        rows = np.zeros(len(self.files), np.int64)
        for layout, element in enumerate(elements):
            if element is not None:
                np.copyto(rows, self.rows[element], where=self.layouts == layout)
        return rows


def sample_name(file: str) -> str:
    """Return the name of the sample that a file is: its path without suffix."""
    return file.rpartition(".")[0]


def read_members(file_set: FileSet, files: list[str], read: Callable[[str], Member], watcher: Watcher) -> Members:
    """Return the members of a set of files.

    Args:
        files: the files of `file_set` to read.
        read: returns the member for the path of a file; a bad file is a SourceError.

    Raises:
        SourceError: what `watcher.bad` raises, which is called with the error of every bad file; or no file is good.
    """
    have_one_suffix = len({file.rpartition(".")[2] for file in files}) == 1
    named: dict[str, str] = {}  # only files whose suffixes differ can have one name
    good: list[str] = []
    rules: dict[tuple[Rule, ...], int] = {}
    layouts, extra, rows, entries, widths = array("I"), array("q"), Columns(), Columns(), Columns(missing=NO_LISTS)
    for file, member in zip(files, read_headers(read, map(file_set.path, files), len(files), watcher), strict=True):
        path, name = file_set.path(file), sample_name(file)
        if name in named:
            reason = f"has the same sample name, {name}, as {named[name]}; rename one of them"
            watcher.bad(SourceError(reason, path))
            continue
        if isinstance(member, SourceError):
            watcher.bad(member)
            continue
        if not have_one_suffix:
            named[name] = path
        for columns, numbers in ((rows, member.rows), (entries, member.entries), (widths, member.widths)):
            columns.put(len(good), numbers)
        layouts.append(rules.setdefault(tuple(member.rules.values()), len(rules)))
        extra.append(member.extra)
        good.append(file)
    if not good:
        raise NothingLeftError("none of its files can be packed", file_set.text)
    return Members(
        file_set.folder,
        files if len(good) == len(files) else good,
        [{rule.field: rule for rule in layout} for layout in rules],
        np.array(layouts, np.uint32),
        rows.arrays(len(good)),
        entries.arrays(len(good)),
        widths.arrays(len(good)),
        np.array(extra, np.int64),
    )


def agreeing(members: Members, choice: Choice, watcher: Watcher) -> tuple[Members, dict[str, Rule], list[str]]:
    """Return the members that have the fields of most members, the rules of their fields, and remarks for the plan.

    `watcher.bad` is called for each other member.

    Raises:
        UsageError: a field is asked for that most files do not have, or the files have none in common.
    """
    in_words = [
        {name: str(rule) for name, rule in rules.items() if isinstance(choice, str) or name in choice}
        for rules in members.rules
    ]
    counts, widths = count_layouts(members.layouts), _widths(members)
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
            has = ", ".join(members.rules[model])
            path = members.path(int(np.argmax(members.layouts == model)))
            raise UsageError(f"{path}: has no field {', '.join(unknown)}; it has {has}")
    advice = _advice(widths, {name for layout in in_words for name in layout})
    are_good = ~np.isin(members.layouts, list(apart))
    for number in np.flatnonzero(~are_good).tolist():
        reason = f"its fields differ from those of most files: {apart[int(members.layouts[number])]}; {advice}"
        watcher.bad(SourceError(reason, members.path(number)))
    good = members.take(are_good)
    good_counts = {layout: count for layout, count in counts.items() if layout not in apart}
    chosen: dict[str, Rule] = {}
    for layout in good_counts:
        for name in in_words[layout]:
            chosen.setdefault(name, members.rules[layout][name])
    remarks = []
    if choice == "common":
        chosen = {n: rule for n, rule in chosen.items() if all(n in members.rules[layout] for layout in good_counts)}
        omitted: Counter[str] = Counter()
        for layout, count in good_counts.items():
            omitted.update({name: count for name in members.rules[layout] if name not in chosen})
        if omitted:
            listed = [f"{name} (in {count:,} of {len(good.files):,} files)" for name, count in omitted.items()]
            remarks.append(f"--fields common skips {first_few(listed)}, which not all files have alike")
    if good.files and not chosen:
        raise UsageError("the files have no field in common; take --fields all, or pack them apart")
    return good, chosen, remarks


def _widths(members: Members) -> dict[str, dict[int, list[str]]]:
    """Return the samples by number of columns of each numbered field that has more of them in some than in others.

    Spherical harmonics of Gaussians are such fields: each degree has its own number of columns.
    """
    widths: dict[str, dict[int, list[int]]] = {}
    for layout, rules in enumerate(members.rules):
        for name, rule in rules.items():
            widths.setdefault(name, {}).setdefault(len(rule.properties), []).append(layout)

    def names(layouts: Sequence[int]) -> list[str]:
        return [sample_name(members.files[number]) for number in np.flatnonzero(np.isin(members.layouts, layouts))]

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


def columns_of(members: Members, rules: Mapping[str, Rule]) -> Iterator[tuple[PlyField, NDArray[np.int64]]]:
    """Yield the columns that the members' fields become, and the length of each in every member, (members,).

    Lists become a table if all have the same length; lists of faces only if they are triangles.
    """

    def column(name: str, dtype: str, width: int | None, part: Part) -> PlyField:
        shape = (None,) if width is None else (None, width)
        return PlyField(FieldSpec(name=name, dtype=dtype, shape=shape), rule, part)

    for rule in rules.values():
        rows = members.rows_of(rule.field)
        if not rule.is_list:
            width = len(rule.properties)
            yield column(rule.field, rule.dtype, width if width > 1 else None, "numbers"), rows
            continue
        widths = set(np.unique(members.widths[rule.field]).tolist()) - {NO_LISTS} or ({3} if rule.is_face else set())
        common = widths.pop() if len(widths) == 1 else UNEQUAL
        if common != UNEQUAL and (common == 3 or not rule.is_face):
            yield column(rule.field, rule.dtype, common, "table"), rows
        else:
            yield column(rule.field, rule.dtype, None, "entries"), members.entries[rule.field]
            yield column(f"{rule.field}_size", "int32", None, "sizes"), rows
