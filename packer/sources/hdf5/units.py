"""What samples are read from, found from the headers of one file: its rows, or units that are one sample each.

What the units of a file are is decided in `roots.py`; all else takes a unit as a path of a file and a root within it.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import h5py

from packer.errors import SourceError, first_few
from packer.format.schema import check_field_name
from packer.sources.hdf5.choice import (
    Request,
    advice,
    chosen,
    columns_of,
    conversions,
    family,
    is_skipped,
    is_wanted,
)
from packer.sources.hdf5.file import faults_named, opened
from packer.sources.hdf5.listing import Inventory, Listed, inventory
from packer.sources.hdf5.once import Constant, constants_at
from packer.sources.hdf5.origin import asides, attributes, kept_of_rows, stored_types, unkept
from packer.sources.hdf5.reading import RowBlocks, SparseRows, boxed, field_values, row_bytes
from packer.sources.hdf5.roots import find_roots, numbered
from packer.sources.hdf5.storage import Storage, dataset_at
from packer.sources.hdf5.types import Column, leaves
from packer.sources.units import Unit as Asked

#: Text of fixed length that is decoded while a file is looked at: a bad one is found before hours of packing.
_LOOKED_AT_BYTES = 64 * 2**20


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
        kept: what the manifest keeps of it, as `packer.sources.hdf5.origin` has it.
        once: what it holds that is to be the same in all units, by name.
        lost: what of it is not kept, in the words that a sentence begins with.
        bad: the error of the first row found that cannot be read.
    """

    path: str
    root: str
    kind: str
    columns: tuple[Column, ...]
    samples: int
    files: tuple[str, ...]
    notes: tuple[str, ...]
    kept: dict[str, Any]
    once: dict[str, Constant]
    lost: tuple[str, ...] = ()
    bad: SourceError | None = None

    def __str__(self) -> str:
        return Path(self.path).name if self.kind == "row" else f"{self.kind} {self.root or Path(self.path).name}"


@dataclass(frozen=True)
class FileUnits:
    """The units of one file in natural order, and the errors of those that cannot be packed.

    Attributes:
        useless: entries of the request's `skip` that fit nothing here.
        splits: by name, the roots of the samples of each split that the file itself lists.
        note: what was taken for a unit; None if the user said it.
        once: what lies outside of the units and is to be the same in all files, by name.
        above: attributes of the groups above the units, by path.
        groups: pattern of the groups that could be samples as well as rows; None if nothing speaks for it.
    """

    units: list[Unit | SourceError]
    useless: tuple[str, ...]
    splits: dict[str, list[str]] = field(default_factory=dict)
    note: str | None = None
    once: dict[str, Constant] = field(default_factory=dict)
    above: dict[str, dict[str, Any]] = field(default_factory=dict)
    groups: str | None = None


def units_of(path: str, asked: Asked, request: Request) -> FileUnits:
    """Return the units of one file, with every file and size they stand on checked.

    Args:
        path: the file.
        request: `fields` and `skip` are relative to a unit; `skip` may name what belongs to no unit too.

    Raises:
        UsageError: there are more fields than a dataset may have.
        SourceError: the file cannot be read, has no such units, holds what belongs to none of them; or its rows cannot
            be packed.
    """
    with opened(path) as file:
        if asked.name == "rows":
            with faults_named(path, "listing the file"):
                return _rows(file, path, request)
        return _units(file, path, asked, request)


class _Fields(NamedTuple):
    """What of a root was chosen, the fields that it becomes, and where each dataset is stored."""

    wanted: Mapping[str, Listed]
    columns: tuple[Column, ...]
    storages: dict[str, Storage]
    files: tuple[str, ...]


def _fields(
    file: h5py.File, path: str, root: str, held: Inventory, request: Request, where: str = "", kind: str | None = None
) -> _Fields:
    """Return the fields of a file's rows, or of a unit.

    Args:
        held: all that lies there.
        where: the unit, for errors.
        kind: the family of a file of rows.
    """
    try:
        wanted = chosen(held.entries, request, kind, path)
        columns = columns_of(wanted, request.encoding)
        columns += tuple(_attribute_column(file[root or "/"], name, set(wanted)) for name in request.attrs)
    except SourceError as error:
        raise SourceError(f"{where} {error.reason}".lstrip(), path) from error
    samples = next(iter(wanted.values())).samples or 1
    names = dict.fromkeys(column.dataset for column in columns if not column.attribute)
    storages = {name: dataset_at(file, path, root + name, samples)[1] for name in names}
    homes = [held.homes[name] for name in names if name in held.homes]
    files = dict.fromkeys([*homes, *(name for storage in storages.values() for name in storage.files)])
    return _Fields(wanted, columns, storages, tuple(files))


# ---------------------------------------------------------------- rows


def _rows(file: h5py.File, path: str, request: Request) -> FileUnits:
    kind = family(file)
    held = inventory(file, path, request.axis, partial(is_wanted, request=request))
    found = _fields(file, path, "", held, request, kind=kind)
    names = list(found.storages)
    samples = next(iter(found.wanted.values())).samples or 0

    def is_kept(thing: str) -> bool:
        if request.fields:
            return any(f"{name}/".startswith(f"{thing.rstrip('/')}/") for name in names)
        return not is_skipped(Listed(thing), request.skip)

    kept, lost = kept_of_rows(file, held, found.columns, is_kept)
    of_file = [storage.note for storage in found.storages.values() if storage.note]
    of_file += conversions(found.wanted.values()) + unkept(kept.get("attributes", {})) + lost
    notes = [f"{Path(path).name}: {note}" for note in of_file]
    notes += [] if request.fields else asides(held.entries, request.skip, kept.get("values", {}))
    notes += [f"{Path(path).name}:{advice(kind)}"] if kind == "matlab" else []
    bad = _bad_text(file, path, found.columns, request.axis, samples)
    for column in found.columns:
        if column.starts:
            SparseRows(file, path, column)  # checks where its rows start
    once = constants_at(file, path, "", request.once)
    rows = Unit(path, "", "row", found.columns, samples, found.files, tuple(notes), kept, {}, bad=bad)
    useless = tuple(name for name in request.skip if not any(is_skipped(entry, [name]) for entry in held.entries))
    return FileUnits([rows], useless, once=once, groups=None if request.fields else numbered(names))


def _bad_text(file: h5py.File, path: str, fields: Sequence[Column], axis: int, samples: int) -> SourceError | None:
    """Return the error of the first text of fixed length that cannot be decoded, among rows that are quick to read."""
    texts = [c for c in fields if c.spec.kind == "text" and not file[c.dataset].dtype.hasobject]
    nbytes = sum(row_bytes(file[name], axis) for name in {c.dataset for c in texts})
    if nbytes:
        try:
            for _ in RowBlocks(file, path, texts, axis, 0, min(samples, max(1, _LOOKED_AT_BYTES // nbytes))):
                pass
        except SourceError as error:
            return SourceError(f"row {error.sample or 0:,}: {error.reason}", path, error.sample)
    return None


# ---------------------------------------------------------------- units that are one sample each


def _units(file: h5py.File, path: str, asked: Asked, request: Request) -> FileUnits:
    skips, used = request.skip, set[str]()
    once: dict[str, Constant] = {}
    with faults_named(path, "listing the file"):
        roots = find_roots(file, asked, partial(_is_left_out, request=request, used=used))
        _refuse_others(roots.others, asked, path)
        if asked.name != "files":
            outside = [name for name in request.once if file.get(name) is not None]
            once = constants_at(file, path, "", outside)
            request = replace(request, once=tuple(name for name in request.once if name not in outside))
        # What names something next to the units from the root of the file is no field of that name.
        request = replace(request, skip=[skip for skip in skips if skip not in used or skip[0] != "/"])
        places = dict.fromkeys(place for root in roots.roots for place in _groups_above(root))
        above = {place: found for place in places if (found := attributes(file[place]))}
    units: list[Unit | SourceError] = []
    for root in roots.roots:
        try:
            with faults_named(path, f"listing {asked.name[:-1]} {root}".rstrip()):
                units.append(_unit(file, path, root, asked.name[:-1], request, used))
        except SourceError as error:
            units.append(error)
    useless = tuple(skip for skip in skips if skip not in used)
    return FileUnits(units, useless, roots.splits, roots.note, once, above)


def _is_left_out(path: str, request: Request, used: set[str]) -> bool:
    """Return whether a path from the root of the file, or a group above it, is named in `skip` or `once`.

    What names it is put into `used`.
    """
    naming = [skip for skip in (*request.skip, *request.once) if f"{path}/".startswith(f"/{skip.strip('/')}/")]
    used.update(naming)
    return bool(naming)


def _refuse_others(others: list[str], asked: Asked, path: str) -> None:
    """Raise SourceError if something belongs to no unit."""
    if others:
        skips = " ".join(f"--skip {shlex.quote(other)}" for other in others[:5])
        raise SourceError(
            f"{first_few(others)} {'belongs' if len(others) == 1 else 'belong'} to no sample: --samples {asked} "
            f"packs what lies in these {asked.name}. Another unit may take more, as --samples files does. Leave out "
            f"with {skips}",
            path,
        )


def _groups_above(root: str) -> list[str]:
    """Return the paths of the groups above a root, from the root of the file down."""
    parts = root.split("/")
    return ["/".join(parts[:number]) or "/" for number in range(1, len(parts))]


def _unit(file: h5py.File, path: str, root: str, kind: str, request: Request, used: set[str]) -> Unit:
    thing, where = file[root or "/"], f"{kind} {root}" if root else ""
    held = inventory(thing, path, None, partial(is_wanted, request=request))
    used.update(skip for skip in request.skip if any(is_skipped(entry, [skip]) for entry in held.entries))
    found = _fields(file, path, root, held, request, where)
    try:
        for column in found.columns:
            is_text = column.spec.kind == "text" and not column.attribute
            if is_text and not file[root + column.dataset].dtype.hasobject:
                # Text that cannot be decoded is found before hours of packing.
                field_values(boxed(file[root + column.dataset]), column, path)
    except SourceError as error:
        raise SourceError(f"{where}: {error.reason}".removeprefix(": "), path) from error
    own = attributes(thing)
    kept = {"attributes": own, "types": stored_types(thing, found.columns)}
    lost = {
        "attributes of datasets and groups": any(held.described),
        "further names of datasets and groups": any(entry.same is not None for entry in held.entries),
    }
    return Unit(
        path,
        root,
        kind,
        found.columns,
        1,
        found.files,
        (*conversions(found.wanted.values()), *unkept({"samples": own})),
        kept,
        constants_at(file, path, root, request.once),
        tuple(what for what, is_lost in lost.items() if is_lost),
    )


def _attribute_column(thing: h5py.HLObject, name: str, taken: set[str]) -> Column:
    """Return the field that an attribute of a unit becomes.

    Raises:
        SourceError: the unit has none of this name, it cannot be stored, or a dataset is called so.
    """
    if name not in thing.attrs:
        raise SourceError(f"has no attribute {name} for --attr; it has {', '.join(thing.attrs) or 'none'}")
    header = thing.attrs.get_id(name)
    found = list(leaves(header.dtype, header.shape or ()))
    problem = "is empty" if header.shape is None else found[0].problem if len(found) == 1 else "is a compound"
    if problem:
        raise SourceError(f"has the attribute {name}, which {problem}; leave --attr {name} out")
    if name in taken:
        raise SourceError(f"has a dataset of the name {name} too; leave it out with --skip {name}, or --attr {name}")
    try:
        check_field_name(name)
    except ValueError as error:
        raise SourceError(f"has an attribute that cannot be a field: {error}") from None
    return Column(found[0].spec(name), "", attribute=name)
