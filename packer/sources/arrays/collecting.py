"""The units of many trees, in columns: what many have in common is there once. Those that fit most are packed."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from packer.errors import NothingLeftError, SourceError
from packer.sources.arrays.choosing import Constant
from packer.sources.arrays.fields import ArrayLeaf
from packer.sources.arrays.places import Places, RowTable
from packer.sources.arrays.source import UNKNOWN
from packer.sources.arrays.units import Listing, Remark, Unit
from packer.sources.headers import Columns, count_layouts, misfits
from packer.watcher import Watcher

Item = TypeVar("Item")

_DIFFERING = "attributes are kept if all files and samples agree; these are not"
#: Samples whose attributes are kept: the manifest is read by people.
MAX_KEPT = 500


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
class UnitLayout:
    """What units have in common whose fields and constants are equal.

    Attributes:
        constants: arrays kept once, by name.
        attributes: those of units, by number of the unit; at most one more than are kept.
        agreed: attributes of the arrays that the fields are.
        remarks: on what is not packed or kept.
    """

    leaves: tuple[ArrayLeaf, ...]
    constants: Mapping[str, Constant]
    attributes: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    agreed: Agreed = field(default_factory=Agreed)
    remarks: dict[Remark, None] = field(default_factory=dict)

    def add(self, number: int, unit: Unit) -> None:
        """Add what a unit says besides its fields."""
        if unit.attributes and len(self.attributes) <= MAX_KEPT:
            self.attributes[number] = unit.attributes
        self.agreed.add(self.names, unit.fields)
        self.remarks |= dict.fromkeys(unit.remarks)

    @property
    def names(self) -> list[str]:
        return [leaf.spec.name for leaf in self.leaves]

    @property
    def in_words(self) -> dict[str, str]:
        """Return type and place of each field in words; units that differ in them cannot be packed together."""
        return {leaf.spec.name: _in_words(leaf) for leaf in self.leaves}


def _in_words(leaf: ArrayLeaf) -> str:
    where = f"attribute {leaf.attribute}" if leaf.attribute else leaf.array
    where += "".join(f"[{member}]" for member in leaf.members)
    # An array that is a sample has no path of its own.
    return " of ".join(filter(None, (leaf.spec.in_words, where)))


@dataclass(frozen=True)
class Units:
    """Units of many trees, (n,) of each column.

    Attributes:
        kind: `row`, `file`, `folder`, `dataset` or `group`.
        table: where their rows are; its layouts are the leaves of `layouts`.
        names: of the samples that they are; empty if they have no names of their own.
        layouts: in the order of the first units that have them.
        sizes: by `size_name`, the length of each axis of each field, or `UNKNOWN`; of rows nothing.
        attributes: those of units that have any, by number of the unit; not all, if more than `MAX_KEPT` have some.
        splits: those in which its tree lists a unit, by number of the unit.
        ends: of each unit the row after each of its episodes; empty if rows are no episodes.
        parts: of a tree of numbered parts, the rows of each, by files of the tree; else empty.
    """

    kind: str
    table: RowTable
    names: Sequence[str]
    layouts: Sequence[UnitLayout]
    sizes: Mapping[str, NDArray[np.int64]]
    attributes: Mapping[int, Mapping[str, Any]]
    splits: Mapping[int, Sequence[str]]
    ends: Sequence[NDArray[np.int64]]
    parts: Sequence[tuple[int, ...]]

    def __len__(self) -> int:
        return len(self.table.ends)

    @property
    def leaves(self) -> tuple[ArrayLeaf, ...]:
        """Return the fields of the first unit."""
        return self.layouts[0].leaves

    def root(self, number: int) -> str:
        """Return the path of a unit in its tree; empty for a whole tree."""
        return self.table.roots[number] if self.table.roots else ""

    def in_words(self, number: int) -> str:
        """Return what an error calls a unit."""
        root, file = self.root(number), Path(self.table.places.path(number)).name
        return self.names[number] if self.names else f"{self.kind} {root} of {file}" if root else file

    def take(self, numbers: NDArray[np.int64]) -> Units:
        """Return the units of these numbers, which ascend."""
        if len(numbers) == len(self):
            return self
        new_numbers = {old: new for new, old in enumerate(numbers.tolist())}

        def renumbered(by_number: Mapping[int, Item]) -> dict[int, Item]:
            return {new_numbers[old]: item for old, item in by_number.items() if old in new_numbers}

        used, layout_of = np.unique(self.table.layout_of[numbers], return_inverse=True)
        table = self.table._replace(
            places=self.table.places.take(numbers),
            roots=[self.table.roots[number] for number in new_numbers] if self.table.roots else (),
            ends=np.cumsum(self.table.lengths[numbers]),
            layout_of=layout_of.astype(np.uint32),
            files=renumbered(self.table.files),
        )
        return replace(
            self,
            table=table,
            names=[self.names[number] for number in new_numbers] if self.names else (),
            layouts=[self.layouts[number] for number in used],
            sizes={name: column[numbers] for name, column in self.sizes.items()},
            attributes=renumbered(self.attributes),
            splits=renumbered(self.splits),
            ends=[self.ends[number] for number in new_numbers] if self.ends else (),
        )

    def constants(self) -> Mapping[str, Constant]:
        """Return the constants that all units share.

        Raises:
            SourceError: a unit has another value, or lacks one.
        """
        first = self.layouts[0].constants
        for number, layout in enumerate(self.layouts):
            for name in sorted(first.keys() | layout.constants.keys()):
                expected, constant = first.get(name), layout.constants.get(name)
                if expected is None or constant is None or expected.digest != constant.digest:
                    how = "differs between" if expected and constant else "is not in both of"
                    unit = int(np.argmax(self.table.layout_of == number))
                    raise SourceError(
                        f"{name} {how} {self.in_words(0)} and {self.in_words(unit)}, so --once cannot keep one for "
                        "all; without --once it is packed with every sample",
                        self.table.places.path(unit if constant else 0),
                    )
        return first

    def field_attributes(self) -> tuple[dict[str, dict[str, Any]], list[Remark]]:
        """Return the attributes of each field on which all units agree, and remarks on the others."""
        agreed = Agreed()
        for layout in self.layouts:
            agreed.add(layout.names, layout.agreed.fields or {})
            agreed.remarks |= layout.agreed.remarks
        fields = agreed.fields or {}
        return {name: fields[name] for name in self.layouts[0].names if fields.get(name)}, list(agreed.remarks)


def size_name(field: str, axis: int) -> str:
    """Return the name of the column with the length of an axis of a field."""
    return f"{field}[{axis}]"


def collect_units(
    places: Places,
    names: Sequence[str],
    kind: str,
    listings: Iterable[Listing | SourceError],
    text: str,
    watcher: Watcher,
) -> tuple[Units, set[str], list[Remark]]:
    """Return the units that can be packed together, what of the option `skip` names something, and remarks.

    Args:
        places: the trees.
        names: of the sample that each tree is; empty if they have no names of their own.
        kind: of the units.
        listings: the units of each tree, or why it cannot be read.
        text: what the trees are, for errors.
        watcher: its `bad` is called with the errors of all others.

    Raises:
        SourceError: none is left.
    """
    used: set[str] = set()
    remarks: dict[Remark, None] = {}
    layouts, layout_numbers = list[UnitLayout](), dict[Any, int]()
    trees, layout_of, rows, sizes = array("q"), array("I"), array("q"), Columns(UNKNOWN)
    roots, ends, parts = list[str](), list[NDArray[np.int64]](), list[tuple[int, ...]]()
    files, splits = dict[int, tuple[str, ...]](), dict[int, Sequence[str]]()
    for tree, listing in enumerate(listings):
        if isinstance(listing, SourceError):
            watcher.bad(listing if listing.path else SourceError(listing.reason, places.path(tree)))
            continue
        used |= listing.used
        remarks |= dict.fromkeys(listing.remarks)
        for unit in listing.units:
            if isinstance(unit, SourceError):
                watcher.bad(unit)
                continue
            number = len(trees)
            layout_number = layout_numbers.setdefault((unit.leaves, tuple(unit.constants.items())), len(layouts))
            if layout_number == len(layouts):
                layouts.append(UnitLayout(unit.leaves, unit.constants))
            layouts[layout_number].add(number, unit)
            trees.append(tree)
            layout_of.append(layout_number)
            roots.append(unit.root)
            rows.append(unit.samples)
            if kind != "row":
                sizes.put(number, _lengths(unit))
            if unit.files:
                files[number] = unit.files
            if unit.splits:
                splits[number] = unit.splits
            if unit.ends is not None:
                ends.append(unit.ends)
            parts = [of_field.rows for of_field in unit.place]
    if not trees:
        raise NothingLeftError("every file or sample of it is bad; nothing is left to pack", text)
    tree_of = np.array(trees, np.int64)
    units = Units(
        kind,
        RowTable(
            places.take(tree_of),
            roots if any(roots) else (),
            np.cumsum(rows),
            (),
            np.array(layout_of, np.uint32),
            files,
        ),
        names if len(names) == len(trees) else [names[tree] for tree in trees] if names else (),
        layouts,
        sizes.arrays(len(trees)),
        dict(sorted((number, kept) for layout in layouts for number, kept in layout.attributes.items())),
        splits,
        ends,
        parts,
    )
    units = _without_misfits(units, watcher)
    of_units = [remark for layout in units.layouts for remark in layout.remarks]
    return units, used, [*remarks, *of_units]


def _lengths(unit: Unit) -> dict[str, int]:
    """Return the length of each axis of each field, by `size_name`."""
    return {
        size_name(leaf.spec.name, axis): UNKNOWN if length is None else length
        for leaf, shape in zip(unit.leaves, unit.shapes, strict=True)
        for axis, length in enumerate(shape)
    }


def _without_misfits(units: Units, watcher: Watcher) -> Units:
    """Return the units that have the fields of most, in one order; `watcher.bad` is called for each other one.

    HDF5 may list fields in the order in which they were made.
    """
    layout_of = units.table.layout_of
    most, apart = misfits([layout.in_words for layout in units.layouts], count_layouts(layout_of))
    model = units.in_words(int(np.argmax(layout_of == most)))
    is_apart = np.isin(layout_of, list(apart))
    for number in np.flatnonzero(is_apart).tolist():
        root, how = units.root(number), apart[int(layout_of[number])]
        who = f"sample {units.names[number]!r} " if units.names else f"{units.kind} {root} " if root else ""
        advice = (
            "pick the same fields with --field, leave some out with --skip or this one with --on-error skip, or take "
            "another unit: --samples files, or for a folder a sample --samples folders"
        )
        reason = f"{who}does not fit most, such as {model}: {how}; {advice}"
        watcher.bad(SourceError(reason, units.table.places.path(number)))
    order = units.layouts[most].names
    units = units.take(np.flatnonzero(~is_apart))
    for layout in units.layouts:
        by_name = dict(zip(layout.names, layout.leaves, strict=True))
        layout.leaves = tuple(by_name[name] for name in order)
    return replace(units, table=units.table._replace(layouts=[layout.leaves for layout in units.layouts]))
