"""What samples are read from, found from the headers of one file: its rows, or units that are one sample each.

What the units of a file are is decided in `roots.py`; all else takes a unit as a path of a file and a root within it.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import msgspec

from packer.errors import SourceError, first_few
from packer.sources.hdf5.choice import chosen, picked_paths, takes
from packer.sources.hdf5.file import faults_named, opened
from packer.sources.hdf5.listing import Inventory, inventory
from packer.sources.hdf5.origin import Constant, Described, asides, attributes, constants_at, kept_of_rows, kept_of_unit
from packer.sources.hdf5.reading import SparseRows
from packer.sources.hdf5.roots import find_roots, numbered
from packer.sources.hdf5.storage import storage_of
from packer.sources.hdf5.types import Column, Listed, leaves
from packer.sources.options import SourceOptions, naming
from packer.sources.units import Asked


@dataclass(frozen=True)
class Unit:
    """What one sample is made from; or all rows of a file, which are a sample each.

    Attributes:
        path: the file.
        root: path of the group or dataset, with a leading slash; empty for the whole file.
        kind: `row`, `file`, `dataset` or `group`.
        columns: its fields; with the shapes that they have in this sample.
        samples: how many there are.
        files: further files that are read for it.
        notes: sentences for the plan.
        once: what it holds that is to be the same in all units, by name.
        kept: what the manifest keeps of it.
        lost: what of it is not kept, in the words that a sentence begins with.
    """

    path: str
    root: str
    kind: str
    columns: tuple[Column, ...]
    samples: int
    files: tuple[str, ...]
    notes: tuple[str, ...]
    once: dict[str, Constant]
    kept: Described = field(default_factory=partial(Described, "", 0))
    lost: tuple[str, ...] = ()

    def __str__(self) -> str:
        return Path(self.path).name if self.kind == "row" else f"{self.kind} {self.root or Path(self.path).name}"


@dataclass(frozen=True)
class FileUnits:
    """The units of one file in natural order, and the errors of those that cannot be packed.

    Attributes:
        used: entries of the option `skip` that name something here.
        splits: by name, the roots of the samples of each split that the file itself lists.
        notes: sentences for the plan: what was taken for a unit if nobody said it, and names that lead nowhere.
        once: what lies outside of the units and is to be the same in all files, by name.
        above: attributes of the groups above the units, by path.
        groups: pattern of the groups that could be samples as well as rows; None if nothing speaks for it.
    """

    units: list[Unit | SourceError]
    used: set[str]
    splits: dict[str, set[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    once: dict[str, Constant] = field(default_factory=dict)
    above: dict[str, dict[str, Any]] = field(default_factory=dict)
    groups: str | None = None


def units_of(path: str, asked: Asked, options: SourceOptions) -> FileUnits:
    """Return the units of one file, after checking every file and size that they depend on.

    Args:
        path: the file.
        options: `pick` and `skip` are relative to a unit; `skip` may name what belongs to no unit too.

    Raises:
        UsageError: there are more fields than a dataset may have.
        SourceError: the file cannot be read, has no such units, holds what belongs to none of them; or its rows cannot
            be packed.
    """
    with opened(path) as file:
        if asked.name == "rows":
            with faults_named(path, "listing the file"):
                return _rows(file, path, options)
        return _units(file, path, asked, options)


def _unit(file: h5py.File, path: str, root: str, kind: str, held: Inventory, options: SourceOptions) -> Unit:
    """Return a file's rows, or one of its units, without what the manifest keeps of it.

    Args:
        held: all that lies there.
    """
    columns, samples, notes = chosen(held.entries, options, path)
    taken = {column.spec.name for column in columns}
    columns += tuple(_attribute_column(file[root or "/"], name, taken) for name in options.attrs)
    count = 1 if samples is None else samples
    names = dict.fromkeys(column.dataset for column in columns if not column.attribute)
    storages = [storage_of(file[root + name], path, count) for name in names]
    files = dict.fromkeys(name for storage in storages for name in storage.files)
    unwritten = [storage.note for storage in storages if storage.note and kind == "row"]
    once = constants_at(file, path, root, options.once)
    return Unit(path, root, kind, columns, count, tuple(files), (*unwritten, *notes), once)


def _named(held: Inventory, options: SourceOptions) -> set[str]:
    """Return the entries of the option `skip` that name something of what lies in a file or unit."""
    return {name for entry in held.entries for name in naming(entry.name, options.skip)}


# ---------------------------------------------------------------- rows


def _rows(file: h5py.File, path: str, options: SourceOptions) -> FileUnits:
    held = inventory(file, path, options.axis, partial(takes, options), picked_paths(options))
    rows = _unit(file, path, "", "row", held, options)
    names = list(dict.fromkeys(column.dataset for column in rows.columns))

    def is_kept(thing: str) -> bool:
        if options.pick:
            return any(f"{name}/".startswith(f"{thing.rstrip('/')}/") for name in names)
        return not naming(thing, options.skip)

    kept, lost = kept_of_rows(file, path, rows.samples, held, is_kept)
    notes = [f"{rows}: {note}" for note in (*rows.notes, *lost)]
    notes += [] if options.pick else asides(held.entries, options.skip, kept.values)
    for column in rows.columns:
        if column.starts:
            SparseRows(file, path, column)  # checks where its rows start
    rows = replace(rows, notes=tuple(notes), kept=kept)
    return FileUnits([rows], _named(held, options), groups=None if options.pick else numbered(names))


# ---------------------------------------------------------------- units that are one sample each


def _units(file: h5py.File, path: str, asked: Asked, options: SourceOptions) -> FileUnits:
    used: set[str] = set()

    def is_left_out(place: str) -> bool:
        found = naming(place, (*options.skip, *options.once))
        used.update(found)
        return bool(found)

    with faults_named(path, "listing the file"):
        roots = find_roots(file, asked, is_left_out)
        _refuse_others(roots.others, asked, path)
        outside = [name for name in options.once if asked.name != "files" and file.get(name) is not None]
        once = constants_at(file, path, "", outside)
        # What names something next to the units, from the root of the file, is not also the name of a field.
        within = tuple(skip for skip in options.skip if skip not in used or skip[0] != "/")
        inner = replace(options, skip=within, once=tuple(name for name in options.once if name not in outside))
        places = dict.fromkeys(place for root in roots.roots for place in _groups_above(root))
        above = {place: found for place in places if (found := attributes(file[place]))}
    units: list[Unit | SourceError] = []
    for root in roots.roots:
        kind = asked.name[:-1]
        try:
            with faults_named(path, "listing it"):
                held = inventory(file[root or "/"], path, None, partial(takes, inner), picked_paths(inner))
                used |= _named(held, inner)
                units.append(_one_sample(file, path, root, kind, held, inner))
        except SourceError as error:
            units.append(SourceError(f"{kind} {root}: {error.reason}" if root else error.reason, path))
    return FileUnits(units, used, roots.splits, roots.notes, once, above)


def _refuse_others(others: list[str], asked: Asked, path: str) -> None:
    """Raise SourceError if something belongs to no unit."""
    if others:
        skips = " ".join(f"--skip {shlex.quote(other)}" for other in others)
        raise SourceError(
            f"{first_few(others)} {'belongs' if len(others) == 1 else 'belong'} to no sample: --samples {asked} "
            f"packs what lies in these {asked.name}. Leave it out with {skips}, or try another unit: --samples files "
            "takes all that is in a file",
            path,
        )


def _groups_above(root: str) -> list[str]:
    """Return the paths of the groups above a root, from the root of the file down."""
    parts = root.split("/")
    return ["/".join(parts[:number]) or "/" for number in range(1, len(parts))]


def _one_sample(file: h5py.File, path: str, root: str, kind: str, held: Inventory, options: SourceOptions) -> Unit:
    """Return a unit, of which `held` is all that lies there."""
    unit = _unit(file, path, root, kind, held, options)
    kept, notes = kept_of_unit(file[root or "/"], root)
    lost = {
        "attributes of datasets and groups": any(held.described),
        "further names of datasets and groups": any(entry.same is not None for entry in held.entries),
    }
    return replace(
        unit,
        notes=(*unit.notes, *notes),
        kept=kept,
        lost=tuple(what for what, is_lost in lost.items() if is_lost),
    )


def _attribute_column(thing: h5py.HLObject, name: str, taken: set[str]) -> Column:
    """Return the field that an attribute of a unit becomes.

    Raises:
        SourceError: the unit has none of this name, it cannot be stored, or a dataset is called so.
    """
    if name not in thing.attrs:
        raise SourceError(f"has no attribute {name} for --attr; it has {', '.join(thing.attrs) or 'none'}")
    header = thing.attrs.get_id(name)
    found = list(leaves(Listed(""), header.dtype, header.shape or ()))
    problem = "is empty" if header.shape is None else found[0].problem if len(found) == 1 else "is a compound"
    if problem or found[0].spec is None:
        raise SourceError(f"has the attribute {name}, but it {problem}; leave out --attr {name}")
    if name in taken:
        raise SourceError(
            f"also has a dataset named {name}; leave that out with --skip {name}, or leave out --attr {name}"
        )
    try:
        return Column(msgspec.structs.replace(found[0].spec, name=name), "", attribute=name)
    except ValueError as error:
        raise SourceError(f"has an attribute that cannot be a field: {error}") from None
