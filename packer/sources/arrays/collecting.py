"""The samples of many trees in one table, with what they say besides their fields. Those that fit most are packed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.sources.agreeing import misfits
from packer.sources.arrays.choosing import Constant
from packer.sources.arrays.pairing import choice_of
from packer.sources.arrays.tree import Remark
from packer.sources.arrays.units import Listing, SampleFacts
from packer.sources.looking import Header, Looked, counts_of
from packer.sources.options import SourceOptions
from packer.sources.table import LaidField, SampleTable
from packer.watcher import Watcher

Item = TypeVar("Item")

_DIFFERING = "attributes are kept if all files and samples agree; these are not"
#: Samples whose attributes are kept: the manifest is read by people.
MAX_KEPT = 500
#: Columns that say the number of each sample before some were left out, and that of its group.
_NUMBER, _GROUP = "number", "group"


@dataclass
class Agreed:
    """The attributes of each field on which all units agree, and remarks on the others."""

    fields: dict[str, dict[str, Any]] | None = None
    remarks: dict[Remark, None] = field(default_factory=dict)

    def add(self, names: Iterable[str], fields: Mapping[str, Mapping[str, Any]]) -> None:
        """Add the attributes of the fields of a unit, or those on which some units agree."""
        if self.fields is None:
            self.fields = {name: dict(attributes) for name, attributes in fields.items()}
        if self.fields == fields:
            return
        for name in names:
            shared, of_unit = self.fields.setdefault(name, {}), fields.get(name, {})
            for key in {**shared, **of_unit}:
                if key not in shared or shared[key] != of_unit.get(key):
                    self.remarks[_DIFFERING, f"{key} of {name}"] = None
                    shared.pop(key, None)


@dataclass
class FactGroup:
    """What samples say besides their fields, of which all have the same fields and constants.

    Attributes:
        names: of the fields.
        constants: arrays kept once, by name.
        attributes: of samples, by their number; at most one more than are kept.
        agreed: attributes of the arrays that the fields are.
        remarks: on what is not packed or kept.
        unwritten: as in `SampleFacts`, of the first sample that lacks anything.
    """

    names: list[str]
    constants: Mapping[str, Constant]
    attributes: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    agreed: Agreed = field(default_factory=Agreed)
    remarks: dict[Remark, None] = field(default_factory=dict)
    unwritten: str = ""

    def add(self, number: int, facts: SampleFacts) -> None:
        """Add what a sample says."""
        if facts.attributes and len(self.attributes) <= MAX_KEPT:
            self.attributes[number] = facts.attributes
        self.agreed.add(self.names, facts.fields)
        self.remarks |= dict.fromkeys(facts.remarks)
        self.unwritten = self.unwritten or facts.unwritten


@dataclass
class ArrayFacts:
    """What samples say besides their fields, or files if rows are samples. It is filled while they are looked at.

    Attributes:
        text: the words that name the files, for errors.
        groups: in the order of the first samples that have them.
        group_of: of each sample the number of its group, (n,).
        splits: those in which its tree lists a sample, by the number of the sample.
        ends: of each the row after each of its episodes; empty if rows are no episodes.
        rows: as in `SampleFacts`, of the last tree.
        further: by the path of a file, further files that are read with it.
        used: what of the option `skip` names something.
        remarks: on trees.
    """

    text: str
    groups: list[FactGroup] = field(default_factory=list)
    group_of: NDArray[Any] = field(default_factory=lambda: np.zeros(0, np.int64))
    splits: dict[int, Sequence[str]] = field(default_factory=dict)
    ends: list[NDArray[np.int64]] = field(default_factory=list)
    rows: Sequence[Sequence[int]] = ()
    further: dict[str, list[str]] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    remarks: dict[Remark, None] = field(default_factory=dict)

    def headers(self, table: SampleTable, looked_at: Iterable[Listing | SourceError]) -> Iterator[Looked | SourceError]:
        """Yield the headers of the samples of every tree; each says its number and that of its group.

        Args:
            table: of trees.
        """
        groups, number = dict[Any, int](), 0
        is_one_file = all(files.bounds is None for files in table.inputs.values())  # else rows are those of several
        for tree, listing in enumerate(looked_at):
            if isinstance(listing, SourceError):
                yield listing if listing.path else SourceError(listing.reason, table.row(tree).path)
                continue
            self.used |= listing.used
            self.remarks |= dict.fromkeys(listing.remarks)
            headers = list[Header | SourceError]()
            for sample in listing.samples:
                if isinstance(sample, SourceError):
                    headers.append(sample)
                    continue
                header, facts = sample
                group = groups.setdefault((header.layout, tuple(facts.constants.items())), len(groups))
                if group == len(self.groups):
                    self.groups.append(FactGroup([laid.name for laid in header.layout], facts.constants))
                self.groups[group].add(number, facts)
                self._add(number, facts, table.row(tree).path if facts.files else "")
                numbers = {**header.numbers, _NUMBER: number, _GROUP: group}
                headers.append(header._replace(numbers=numbers, rows=header.rows if is_one_file else None))
                number += 1
            yield headers

    def _add(self, number: int, facts: SampleFacts, path: str) -> None:
        self.rows = facts.rows
        if facts.files:
            self.further[path] = list(dict.fromkeys([*self.further.get(path, ()), *facts.files]))
        if facts.splits:
            self.splits[number] = facts.splits
        if facts.ends is not None:
            self.ends.append(facts.ends)

    def unwritten(self, table: SampleTable, number: int) -> str:
        """Return what of a sample, or of the first that is like it, was never written."""
        return self.groups[int(table.numbers[_GROUP][number])].unwritten

    def kept(self, table: SampleTable) -> SampleTable:
        """Keep what the samples of a table say, and return the table without the columns of `headers`."""
        numbers = {name: column for name, column in table.numbers.items() if name not in (_NUMBER, _GROUP)}
        kept = table.numbers[_NUMBER]
        used, self.group_of = np.unique(table.numbers[_GROUP], return_inverse=True)
        self.groups = [self.groups[number] for number in used.tolist()]
        for group in self.groups:
            group.attributes = _renumbered(group.attributes, kept)
        self.splits = _renumbered(self.splits, kept)
        self.ends = [self.ends[number] for number in kept.tolist()] if self.ends else []
        return msgspec.structs.replace(table, numbers=numbers, further=self.further)

    @property
    def attributes(self) -> dict[int, Mapping[str, Any]]:
        """Return the attributes of samples that have any; not of all, if more than `MAX_KEPT` have some."""
        return dict(sorted((number, kept) for group in self.groups for number, kept in group.attributes.items()))

    def constants(self, table: SampleTable, unit: str) -> Mapping[str, Constant]:
        """Return the constants that all samples share.

        Raises:
            SourceError: a sample has another value, or lacks one.
        """
        first = self.groups[0].constants
        for number, group in enumerate(self.groups):
            for name in sorted(first.keys() | group.constants.keys()):
                expected, constant = first.get(name), group.constants.get(name)
                if expected is None or constant is None or expected.digest != constant.digest:
                    how = "differs between" if expected and constant else "is not in both of"
                    other = int(np.argmax(self.group_of == number))
                    raise SourceError(
                        f"{name} {how} {in_words(table, 0, unit)} and {in_words(table, other, unit)}, so --once cannot "
                        "keep one for all; without --once it is packed with every sample",
                        table.row(other if constant else 0).path,
                    )
        return first

    def field_attributes(self, names: Iterable[str]) -> tuple[dict[str, dict[str, Any]], list[Remark]]:
        """Return the attributes of each field on which all samples agree, and remarks on the others."""
        agreed = Agreed()
        for group in self.groups:
            agreed.add(group.names, group.agreed.fields or {})
            agreed.remarks |= group.agreed.remarks
        fields = agreed.fields or {}
        return {name: fields[name] for name in names if fields.get(name)}, list(agreed.remarks)


def _renumbered(by_number: Mapping[int, Item], kept: NDArray[Any]) -> dict[int, Item]:
    """Return the items of the numbers that are kept, which ascend, by their place among these."""
    new = dict(zip(by_number, kept.searchsorted(list(by_number)).tolist(), strict=True)) if by_number else {}
    return {new[old]: item for old, item in by_number.items() if new[old] < len(kept) and kept[new[old]] == old}


def in_words(table: SampleTable, number: int, unit: str) -> str:
    """Return what an error calls a sample, or the file that holds the rows."""
    row = table.row(number)
    file = Path(row.path).name
    return table.names[number] if table.names else f"{unit} {row.root} of {file}" if row.root else file


def agree(table: SampleTable, options: SourceOptions, remarks: list[str], watcher: Watcher) -> SampleTable:
    """Return the samples that have the fields of most, in one order; `watcher.bad` is called for each other one.

    HDF5 may list fields in the order in which they were made.
    """
    unit = choice_of(options).unit
    most, apart = misfits(table.in_words(), table.counts())
    order, layout_of = [laid.name for laid in table.layouts[most]], table.numbers_of_layouts()
    model = in_words(table, int(np.argmax(layout_of == most)), unit)
    is_apart = np.isin(layout_of, list(apart))
    for number in np.flatnonzero(is_apart).tolist():
        row, how = table.row(number), apart[int(layout_of[number])]
        who = f"sample {table.names[number]!r} " if table.names else f"{unit} {row.root} " if row.root else ""
        advice = (
            "pick the same fields with --field, leave some out with --skip or this one with --on-error skip, or take "
            "another unit: --samples files, or for a folder a sample --samples folders"
        )
        watcher.bad(SourceError(f"{who}does not fit most, such as {model}: {how}; {advice}", row.path))
    table = table.keep(~is_apart) if apart else table
    layouts = [tuple(sorted(layout, key=lambda laid: order.index(laid.name))) for layout in table.layouts]
    return _without_unknown(msgspec.structs.replace(table, layouts=layouts))


def _without_unknown(table: SampleTable) -> SampleTable:
    """Return samples in which the length of an axis is unknown to all if it is unknown to one."""
    fields = [laid for layout in table.layouts for laid in layout]
    unknown = {(laid.name, axis) for laid in fields for axis, length in enumerate(laid.shape) if length is None}

    def known(laid: LaidField) -> LaidField:
        axes = enumerate(laid.shape)
        return laid._replace(shape=tuple(None if (laid.name, axis) in unknown else length for axis, length in axes))

    table = table.relaid(known)
    axes = {axis for layout in table.layouts for laid in layout for axis in laid.shape}
    kept = {*axes, *counts_of(table), _NUMBER, _GROUP}
    numbers = {name: column for name, column in table.numbers.items() if name in kept}
    return msgspec.structs.replace(table, numbers=numbers)
