"""Chooses the fields of one file from headers alone: those of its rows, or of units that are a sample each.

`roots.py` decides which groups or datasets are the units of a file. Everything else takes a unit as the path of a file
and a root within it.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import h5py
import msgspec

from packer.errors import SourceError, first_few
from packer.format import DTYPES, FieldSpec, check_count
from packer.sources.hdf5.file import FAULTS, faults_named, files_of, opened, unwritten
from packer.sources.hdf5.listing import UNNAMED, Column, leaves, listed, walk
from packer.sources.hdf5.origin import Constant, attributes, constants_at
from packer.sources.hdf5.reading import SPARSE_PARTS, SparseRows
from packer.sources.hdf5.roots import find_roots
from packer.sources.options import SourceOptions, naming
from packer.sources.units import Asked, upwards

_MAX_LINES = 10


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
        asides: why datasets below it are left out, by path.
        once: constants that it holds, by name.
        attributes: those of its attributes that are kept.
        lost: the names of its other attributes.
    """

    path: str
    root: str
    kind: str
    columns: tuple[Column, ...]
    samples: int
    files: tuple[str, ...]
    asides: dict[str, str]
    once: dict[str, Constant]
    attributes: dict[str, Any]
    lost: list[str]

    def __str__(self) -> str:
        return f"{self.kind} {self.root} of {Path(self.path).name}" if self.root else Path(self.path).name


@dataclass(frozen=True)
class FileUnits:
    """The units of one file in natural order, and the errors of those that cannot be packed.

    Attributes:
        used: entries of the option `skip` that name something here.
        splits: by name, the roots of the samples of each split that the file itself lists.
        notes: sentences for the plan.
        once: constants that lie outside of the units, by name.
        above: attributes of the groups above the units, by path.
    """

    units: list[Unit | SourceError]
    used: set[str]
    splits: dict[str, set[str]]
    notes: list[str]
    once: dict[str, Constant]
    above: dict[str, dict[str, Any]]


class _LeftOut:
    """Says whether the user left a path out, and remembers which entries of the options named something."""

    def __init__(self, *asked: Sequence[str]) -> None:
        self._asked = [one for some in asked for one in some]
        self.used: set[str] = set()

    def __call__(self, path: str) -> bool:
        found = naming(path, self._asked)
        self.used.update(found)
        return bool(found)


def units_of(path: str, asked: Asked, options: SourceOptions) -> FileUnits:
    """Return the units of one file, after checking every file and size that they depend on.

    Args:
        path: the file.
        options: `pick` and `skip` are relative to a unit; `skip` may also name something outside of all units.

    Raises:
        UsageError: there are more fields than a dataset may have.
        SourceError: the file cannot be read, has no such units, or holds something that belongs to none of them.
    """
    with opened(path) as file, faults_named(path, "listing the file"):
        is_out = _LeftOut(options.skip, options.once)
        roots, splits, notes = find_roots(file, asked, is_out)
        outside = [name for name in options.once if roots != [""] and file.get(name) is not None]
        # A path from the root of the file that names something next to the units is not also the name of a field.
        within = tuple(skip for skip in options.skip if skip not in is_out.used or skip[0] != "/")
        inner = replace(options, skip=within, once=tuple(name for name in options.once if name not in outside))
        is_inner_out = _LeftOut(inner.skip, inner.once, inner.sparse)
        above = {}
        for place in dict.fromkeys(place for root in roots for place in _above(root)):
            if found := attributes(file[place])[0]:
                above[place] = found
        kind = asked.name[:-1]
        units: list[Unit | SourceError] = []
        for root in roots:
            try:
                with faults_named(path, "listing it"):
                    units.append(_unit(file, path, root, kind, is_inner_out, inner))
            except SourceError as error:
                units.append(SourceError(f"{kind} {root}: {error.reason}" if root else error.reason, path))
        if kind == "row" and isinstance(rows := units[0], Unit):
            datasets = dict.fromkeys(column.dataset for column in rows.columns)
            notes += [f"{rows}: {note}" for note in map(unwritten, map(file.get, datasets)) if note]
        once = constants_at(file, path, "", outside)
        return FileUnits(units, is_out.used | is_inner_out.used, splits, notes, once, above)


def _above(root: str) -> list[str]:
    """Return the paths of the groups above a root, from the root of the file down."""
    return ["/", *reversed([*upwards(root)][1:])] if root else []


# ---------------------------------------------------------------- fields


def _unit(file: h5py.File, path: str, root: str, kind: str, is_out: _LeftOut, options: SourceOptions) -> Unit:
    """Return a file's rows, or one of its units.

    Raises:
        UsageError: there are more fields than a dataset may have.
        SourceError: a field is missing or cannot be stored, or the sample axes differ.
    """
    thing = file[root or "/"]
    axis = options.axis if kind == "row" else None
    asides: dict[str, str] = {}
    if options.pick:
        is_out.used.update(options.skip)  # without a listing, nobody can say what it names
        wanted = {
            name: entry for name, where in options.pick.items() for name, entry in _picked(thing, name, where, axis)
        }
    else:
        entries, asides = _below(thing, axis, is_out)
        wanted = _all(entries)
    for group in options.sparse:
        wanted.update(_sparse(thing, group.strip("/")))
    check_count(len(wanted))
    if not wanted:
        raise SourceError(f"holds no dataset with a sample axis{_and(asides)}" if asides else "holds no datasets")
    if len({entry.samples for entry in wanted.values()}) > 1:
        raise SourceError(
            "the datasets have no common sample axis: pick those that belong together with --field NAME=/path, or "
            "leave some out with --skip FIELD; if rows are not samples, try --samples groups, --samples files or "
            f"--samples datasets. It holds:\n{_lines(list(wanted.values()))}"
        )
    for name in options.attrs:
        if name in wanted:
            advice = f"leave that out with --skip {name}, or leave out --attr {name}"
            raise SourceError(f"also has a dataset named {name}; {advice}")
        wanted[name] = _attribute(thing, name)
    columns = []
    for name, entry in wanted.items():
        try:
            columns.append(replace(entry, spec=msgspec.structs.replace(entry.spec, name=name)))
        except ValueError as error:
            raise SourceError(f"{entry.path or name}: {error}; name it with --field NAME=/path") from None
        if entry.starts:
            SparseRows(file, path, entry)  # checks where its rows start
    datasets = dict.fromkeys(column.dataset for column in columns if not column.attribute)
    files = [other for name in datasets for other in files_of(file[root + name], path)]
    samples = next(iter(wanted.values())).samples
    return Unit(
        path, root, kind, tuple(columns), 1 if samples is None else samples, tuple(dict.fromkeys(files)), asides,
        constants_at(file, path, root, options.once), *attributes(thing),
    )  # fmt: skip


def _below(thing: h5py.Group | h5py.Dataset, axis: int | None, is_out: _LeftOut) -> tuple[list[Column], dict[str, str]]:
    """Return the fields that datasets of a file or unit can become, and why others are left out, by path."""
    entries: list[Column] = []
    asides: dict[str, str] = {}
    for path, found in walk(thing, is_out) if isinstance(thing, h5py.Group) else [("", thing)]:
        some = listed(path, found, axis) if isinstance(found, h5py.Dataset) else found
        if isinstance(some, str):
            asides[path] = some
        elif isinstance(some, list):
            entries += [entry for entry in some if not entry.members or not is_out(entry.path)]
    return entries, asides


def _all(entries: Sequence[Column]) -> dict[str, Column]:
    """Return all entries by field name. Raises SourceError if one cannot be a field, or if two would have one name."""
    bad = [entry for entry in entries if entry.problem]
    if bad:
        what = first_few([f"{entry.path or 'it'} {entry.problem}" for entry in bad], joined="; ")
        if len(bad) == len(entries):
            raise SourceError(f"holds nothing that can be packed: {what}")
        skips = " ".join(f"--skip {shlex.quote(entry.own_name)}" for entry in bad[:5])
        raise SourceError(f"{what}. Leave out with {skips}, or pick fields with --field NAME=/path")
    wanted: dict[str, Column] = {}
    for entry in entries:
        twin = wanted.setdefault(entry.own_name, entry)
        if twin is not entry:
            raise SourceError(
                f"{twin.path} and {entry.path} would both be field {entry.own_name}; pick with --field NAME=/path"
            )
    return wanted


def _picked(thing: h5py.Group | h5py.Dataset, name: str, where: str, axis: int | None) -> list[tuple[str, Column]]:
    """Return the fields of the dataset or compound member at a path, which is opened directly and may be a link.

    Raises:
        SourceError: nothing is at the path, or it cannot be a field.
    """
    asked = "/" + where.strip("/")
    hits: list[Column] = []
    for place in upwards(asked):
        try:
            found = thing[place[1:]]
        except FAULTS:
            continue
        some = listed(place, found, axis) if isinstance(found, h5py.Dataset) else []
        if isinstance(some, str):
            raise SourceError(f"field {name}: {asked} {some}")
        hits = [entry for entry in some if asked in (entry.path, entry.dataset)]
        break
    if not hits:
        entries, asides = _below(thing, axis, _LeftOut())
        raise SourceError(f"has no dataset {asked} for field {name}; it holds:\n{_lines(entries)}{_and(asides)}")
    for entry in hits:
        if entry.problem:
            raise SourceError(f"field {name}: {entry.path} {entry.problem}")
    return [(".".join((name, *entry.members)) if entry.path != asked else name, entry) for entry in hits]


def _sparse(thing: h5py.Group, group: str) -> dict[str, Column]:
    """Return the two fields that a sparse matrix becomes: of each row the numbers of its columns, and its values.

    Raises:
        SourceError: the group holds no such matrix.
    """
    parts = {name: thing.get(f"{group}/{name}") for name in SPARSE_PARTS}
    for part in parts.values():
        is_part = isinstance(part, h5py.Dataset) and part.ndim == 1 and part.dtype.newbyteorder("=").name in DTYPES
        if not is_part:
            raise SourceError(
                f"--sparse {group}: a group with the datasets data, indices and indptr, each of one axis, is expected"
            )
    starts = parts.pop("indptr")
    return {
        f"{group.replace('/', '.')}.{name}": Column(
            f"/{group}/{name}",
            spec=FieldSpec(name=UNNAMED, dtype=part.dtype.newbyteorder("=").name, shape=(None,)),
            samples=len(starts) - 1,
            starts=f"/{group}/indptr",
        )
        for name, part in parts.items()
    }


def _attribute(thing: h5py.HLObject, name: str) -> Column:
    """Return the field that an attribute of a unit becomes.

    Raises:
        SourceError: the unit has no attribute of this name, or it cannot be stored.
    """
    if name not in thing.attrs:
        raise SourceError(f"has no attribute {name} for --attr; it has {', '.join(thing.attrs) or 'none'}")
    header = thing.attrs.get_id(name)
    first, *more = leaves(Column("", attribute=name), header.dtype, header.shape or ())
    problem = "is empty" if header.shape is None else "is a compound" if more else first.problem
    if problem:
        raise SourceError(f"has the attribute {name}, but it {problem}; leave out --attr {name}")
    return first


# ---------------------------------------------------------------- words


def left_out(asides: dict[str, str]) -> str:
    """Return the paths that are left out, with the reasons, in words."""
    return first_few([f"{path} {why}" for path, why in asides.items()], joined="; ")


def _and(asides: dict[str, str]) -> str:
    return f"\nLeft out: {left_out(asides)}. --field NAME=/path takes a link" if asides else ""


def _lines(entries: Sequence[Column]) -> str:
    return first_few([f"  {entry.in_words}" for entry in entries], _MAX_LINES, "\n")
