"""What a set of PLY files has in common: the fields of the packed dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError, UsageError
from packer.format.schema import FieldSpec
from packer.sources.base import OnBad
from packer.sources.ply.body import Extent
from packer.sources.ply.fields import Rule
from packer.sources.ply.header import Header
from packer.sources.ply.triangles import corners_of

#: Which fields are packed: those of every file, which must agree (`same`); those that all files have; those
#: that any file has, empty where a file has none; or those named.
Choice = Literal["same", "common", "all"] | Sequence[str]


Part = Literal["numbers", "table", "entries", "sizes"]


@dataclass(frozen=True)
class Member:
    """One file of a set, as its header (and the lengths of its lists) describe it.

    With `triangles`, `lists` tells of the triangles that its faces become.
    """

    path: str
    name: str
    header: Header
    rules: Mapping[str, Rule]
    lists: Mapping[tuple[str, int], Extent]
    triangles: bool = False

    def rows(self, field: str) -> int:
        """Rows of the element that a field comes from; 0 where the file lacks it."""
        rule = self.rules.get(field)
        corners = corners_of(self.rules) if self.triangles else None
        if rule and corners and rule.element == corners.element:
            return self.extent(corners.field).total // 3
        return next(e.count for e in self.header.elements if e.name == rule.element) if rule else 0

    def extent(self, field: str) -> Extent:
        """The lists of a field; none where the file lacks it."""
        rule = self.rules.get(field)
        return self.lists[rule.element, rule.properties[0]] if rule else Extent(0, -1)


@dataclass(frozen=True)
class Column:
    """A field as it is packed, and how it comes from its rule.

    `numbers`: columns side by side; `table`: lists that all have one length, side by side; `entries`: lists
    one after another; `sizes`: how long each list is.
    """

    spec: FieldSpec
    rule: Rule
    part: Part
    #: Columns that share this key have equally long first axes.
    axis: str


def agreeing(members: Sequence[Member], choice: Choice, on_bad: OnBad) -> tuple[list[Member], dict[str, Rule]]:
    """The members that fit together, and the rules of the fields they give.

    Members that do not fit those before them go to `on_bad`.

    Raises:
        UsageError: a field is asked for that the first file does not have, or the files have none in common.
    """
    chosen: dict[str, Rule] = dict(members[0].rules)
    if not isinstance(choice, str):
        chosen = _named(members[0], choice)
    good = []
    # Files of one kind share one mapping of rules, and so one verdict.
    verdicts: dict[int, str] = {}
    for member in members:
        kind = id(member.rules)
        if kind not in verdicts:
            verdicts[kind] = _difference(chosen, member.rules, choice, members[0].path)
        if verdicts[kind]:
            on_bad(SourceError(verdicts[kind], member.path))
            continue
        good.append(member)
        if choice == "common":
            chosen = {name: rule for name, rule in chosen.items() if name in member.rules}
        elif choice == "all":
            chosen |= {name: rule for name, rule in member.rules.items() if name not in chosen}
    if not chosen:
        raise UsageError("the files have no field in common; choose fields=all, or pack them apart")
    return good, chosen


def _named(first: Member, names: Sequence[str]) -> dict[str, Rule]:
    unknown = [n for n in names if n not in first.rules]
    if unknown:
        raise UsageError(f"{first.path}: has no field {', '.join(unknown)}; it has {', '.join(first.rules)}")
    return {name: first.rules[name] for name in first.rules if name in names}


def _difference(expected: Mapping[str, Rule], found: Mapping[str, Rule], choice: Choice, first: str) -> str:
    """How a file's fields differ from those expected, as a sentence; empty where they fit."""
    parts = [
        f"{name} is {found[name]} where {expected[name]} is expected"
        for name in expected
        if name in found and found[name].layout != expected[name].layout
    ]
    if choice not in ("common", "all"):
        parts += [f"{name} is missing" for name in expected if name not in found]
    if choice == "same":
        parts += [f"{name} is extra" for name in found if name not in expected]
    if not parts:
        return ""
    advice = "pack the files apart, choose fields (common, all or names), or cast a field to one type"
    return f"its fields differ from those of {first}: {'; '.join(parts)}; {advice}"


def columns_of(members: Sequence[Member], rules: Mapping[str, Rule]) -> list[Column]:
    """The columns that the members' fields become; lists of one length become a table."""
    kinds = list({id(m.rules): m.rules for m in members}.values())
    columns = []
    for rule in rules.values():
        # A field that some file lacks, or has in another element, has lengths of its own.
        everywhere = all(rule.field in k and k[rule.field].element == rule.element for k in kinds)
        axis = f"rows of {rule.element}" if everywhere else f"rows of field {rule.field}"
        columns += _columns_of_rule(rule, axis, members)
    return columns


def _columns_of_rule(rule: Rule, axis: str, members: Sequence[Member]) -> list[Column]:
    def column(name: str, dtype: str, width: int | None, part: Part, axis: str) -> Column:
        shape = (None,) if width is None else (None, width)
        return Column(FieldSpec(name=name, dtype=dtype, shape=shape), rule, part, axis)

    if not rule.is_list:
        width = len(rule.properties)
        return [column(rule.field, rule.dtype, width if width > 1 else None, "numbers", axis)]
    length = _common_width(rule, members)
    if length is not None:
        return [column(rule.field, rule.dtype, length, "table", axis)]
    return [
        column(rule.field, rule.dtype, None, "entries", f"entries of {rule.field}"),
        column(f"{rule.field}_size", "int32", None, "sizes", axis),
    ]


def _common_width(rule: Rule, members: Sequence[Member]) -> int | None:
    """The length that all lists of the set have; None where they differ, or faces are no triangles."""
    widths = {m.extent(rule.field).width for m in members} - {-1}
    if rule.is_face:
        return 3 if widths <= {3} else None
    return widths.pop() if len(widths) == 1 else None


def first_axes(members: Sequence[Member], columns: Sequence[Column]) -> dict[str, NDArray[np.int64]]:
    """Length of the first axis of every sample, int64 (members,), by `Column.axis`."""
    axes = {}
    for column in columns:
        if column.axis not in axes:
            axes[column.axis] = np.array([_first_axis(m, column) for m in members], np.int64)
    return axes


def _first_axis(member: Member, column: Column) -> int:
    field = column.rule.field
    return member.extent(field).total if column.part == "entries" else member.rows(field)
