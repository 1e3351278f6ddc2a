"""Scans one HDF5 file: its fields, its samples, and what the manifest keeps of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py

from packer.sources.hdf5.attributes import attributes, single, summary
from packer.sources.hdf5.choice import chosen, columns, is_skipped
from packer.sources.hdf5.dataset import dataset_at
from packer.sources.hdf5.family import advice, family
from packer.sources.hdf5.file import faults_named, opened
from packer.sources.hdf5.listing import SINGLE, Inventory, Listed, inventory
from packer.sources.hdf5.stored_types import stored_types
from packer.sources.hdf5.types import Column

#: Objects whose attributes are kept: the manifest is read by people.
_MAX_DESCRIBED = 500
_BEYOND = {"summary": f"beyond the first {_MAX_DESCRIBED}"}


@dataclass(frozen=True)
class Request:
    """What is asked of every file.

    Attributes:
        fields: path of the dataset for each field wanted; empty takes all.
        skip: paths or field names to leave out.
        axis: number of the sample axis, from the end where negative.
    """

    fields: Mapping[str, str] = field(default_factory=dict)
    skip: Collection[str] = ()
    axis: int = 0


@dataclass(frozen=True)
class Scan:
    """What one file holds.

    Attributes:
        path: the file.
        columns: its fields.
        samples: number of samples.
        files: further files that are read for it.
        origin: attributes, groups that have some, single values, enum names and unusual datatypes as JSON values.
        notes: sentences for the plan.
        useless: entries of the request's `skip` that fit nothing here.
    """

    path: str
    columns: tuple[Column, ...]
    samples: int
    files: tuple[str, ...]
    origin: dict[str, Any]
    notes: tuple[str, ...]
    useless: tuple[str, ...]


def scanned(path: str, request: Request) -> Scan:
    """The fields of one file, from its headers, with every file and size they stand on checked.

    Raises:
        SourceError: no HDF5 file, no common sample axis, or a dataset that cannot be stored or read.
    """
    with opened(path) as file, faults_named(path, "listing the file"):
        kind = family(file)
        held = inventory(file, path, request.axis)
        entries = held.entries
        wanted = chosen(entries, request.fields, request.skip, kind, path)
        samples = next(iter(wanted.values())).samples or 0
        files, notes = _storage(file, path, wanted.values(), samples)
        files = [*(held.homes[e.dataset] for e in wanted.values() if e.dataset in held.homes), *files]
        notes += [f"{Path(path).name}: {note}" for note in conversions(wanted.values())]
        origin = _origin(file, held, wanted)
        if not request.fields:
            notes += _asides(entries, request.skip, origin.get("values", {}))
        if kind == "matlab":
            notes.append(f"{Path(path).name}:{advice(kind)}")
        types = stored_types(file, columns(wanted), of_rows=True)
        origin |= {"datasets": types} if types else {}
        useless = tuple(name for name in request.skip if not any(is_skipped(e, [name]) for e in entries))
        return Scan(path, columns(wanted), samples, tuple(dict.fromkeys(files)), origin, tuple(notes), useless)


def _storage(file: h5py.File, path: str, wanted: Iterable[Listed], samples: int) -> tuple[list[str], list[str]]:
    """Further files, and notes on values never written, of all datasets wanted."""
    files: list[str] = []
    notes: list[str] = []
    for name in dict.fromkeys(entry.dataset for entry in wanted):
        _dataset, storage = dataset_at(file, path, name, samples)
        files.extend(storage.files)
        notes.extend([f"{Path(path).name}: {storage.note}"] if storage.note else [])
    return files, notes


def conversions(wanted: Iterable[Listed]) -> list[str]:
    """What is not stored as it is in the file, for each dataset."""
    return [f"dataset {name} {note}" for name, note in {e.dataset: e.note for e in wanted}.items() if note]


def _asides(entries: list[Listed], skip: Collection[str], values: Mapping[str, Any]) -> list[str]:
    """What is left out, and what becomes of it; first what is not kept at all."""
    lost, linked, kept = [], [], []
    for entry in entries:
        if not entry.aside or is_skipped(entry, skip):
            continue
        if entry.same is not None:
            linked.append(f"{entry.path} {entry.aside}: packed once")
        elif entry.aside != SINGLE:
            lost.append(f"{entry.path} {entry.aside}")
        elif (why := summary(values.get(entry.path, _BEYOND))) is None:
            kept.append(f"{entry.path} is a single value: kept with the attributes")
        else:
            lost.append(f"{entry.path} is a single value, too large or of a kind that is not kept ({why})")
    return [*_some(lost), *_some(linked), *_some(kept)]


def _some(notes: list[str]) -> list[str]:
    return notes if len(notes) <= 10 else [*notes[:10], f"{len(notes) - 10} more datasets left out like these"]


def _origin(file: h5py.File, held: Inventory, wanted: Mapping[str, Listed]) -> dict[str, Any]:
    """Attributes by path, which of these are groups, single values by path, what further names stand for, enum names
    and numbers by field.
    """
    described = {path: attributes(file[path]) for path in ("/", *held.paths[:_MAX_DESCRIBED])}
    described = {path: found for path, found in described.items() if found}
    groups = {"groups": [path for path in described if isinstance(file[path], h5py.Group)]} if described else {}
    singles = [e.dataset for e in held.entries if e.aside == SINGLE]
    values = {path: single(file[path]) for path in singles[:_MAX_DESCRIBED]}
    links = {e.path: e.same for e in [e for e in held.entries if e.same is not None][:_MAX_DESCRIBED]}
    enums = {name: entry.leaf.enum for name, entry in wanted.items() if entry.leaf and entry.leaf.enum}
    parts = {"attributes": described, "values": values, "links": links, "enums": enums}
    return {name: part for name, part in parts.items() if part} | groups
