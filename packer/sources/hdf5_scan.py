"""Scans one HDF5 file: its fields, its samples, and what the manifest keeps of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py

from packer.errors import SourceError
from packer.sources.hdf5_attributes import attributes, json_value
from packer.sources.hdf5_choice import chosen, columns, is_skipped
from packer.sources.hdf5_family import advice, family
from packer.sources.hdf5_file import faults_named, opened
from packer.sources.hdf5_filters import missing_filter
from packer.sources.hdf5_listing import Listed, listed
from packer.sources.hdf5_rows import dataset_at
from packer.sources.hdf5_storage import checked
from packer.sources.hdf5_types import Column
from packer.sources.hdf5_walk import Found, walk

#: Objects whose attributes are kept: the manifest is read by people.
_MAX_DESCRIBED = 500


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
        origin: attributes, single values and enum names as JSON values.
        notes: sentences for the plan.
    """

    path: str
    columns: tuple[Column, ...]
    samples: int
    files: tuple[str, ...]
    origin: dict[str, Any]
    notes: tuple[str, ...]


def scanned(path: str, request: Request) -> Scan:
    """The fields of one file, from its headers, with every file and size they stand on checked.

    Raises:
        SourceError: no HDF5 file, no common sample axis, or a dataset that cannot be stored or read.
    """
    with opened(path) as file, faults_named(path, "listing the file"):
        kind = family(file)
        found = list(walk(file))
        entries = [entry for thing in found for entry in listed(thing, request.axis)]
        wanted = chosen(entries, request.fields, request.skip, kind, path)
        samples = next(iter(wanted.values())).samples or 0
        files, notes = _storage(file, path, wanted.values(), samples)
        files = [*_linked(found, wanted.values(), path), *files]
        if not request.fields:
            notes += _asides(entries, request.skip)
        if kind == "matlab":
            notes.append(f"{Path(path).name}:{advice(kind)}")
        origin = _origin(found, entries, wanted)
        return Scan(path, columns(wanted), samples, tuple(dict.fromkeys(files)), origin, tuple(notes))


def _storage(file: h5py.File, path: str, wanted: Iterable[Listed], samples: int) -> tuple[list[str], list[str]]:
    """Further files, and notes on values never written, of all datasets wanted."""
    files: list[str] = []
    notes: list[str] = []
    for name in dict.fromkeys(entry.dataset for entry in wanted):
        try:
            dataset = dataset_at(file, name)
            storage = checked(dataset, samples)
        except SourceError as error:
            raise SourceError(error.reason, path) from error
        lacking = missing_filter(dataset)
        if lacking:
            raise SourceError(f"dataset {name} cannot be read: {lacking}", path)
        files.extend(storage.files)
        notes.extend([f"{Path(path).name}: {storage.note}"] if storage.note else [])
    return files, notes


def _linked(found: list[Found], wanted: Iterable[Listed], path: str) -> list[str]:
    """Files that external links lead to."""
    names = {entry.dataset for entry in wanted}
    files = [str(f.thing.file.filename) for f in found if f.path in names and f.thing is not None]
    return [name for name in dict.fromkeys(files) if name != path]


def _asides(entries: list[Listed], skip: Collection[str]) -> list[str]:
    notes = [f"{entry.path} {entry.aside}" for entry in entries if entry.aside and not is_skipped(entry, skip)]
    return notes if len(notes) <= 10 else [*notes[:10], f"{len(notes) - 10} more datasets left out like these"]


def _origin(found: list[Found], entries: list[Listed], wanted: Mapping[str, Listed]) -> dict[str, Any]:
    """Attributes by path, single values by path, enum names and numbers by field."""
    things = [(f.path, f.thing) for f in found if f.thing is not None]
    described = {path: attributes(thing) for path, thing in things[:_MAX_DESCRIBED]}
    if things:
        described["/"] = attributes(things[0][1].file)
    singles = {entry.dataset for entry in entries if entry.aside and entry.looks.startswith("()")}
    values = {path: _single(thing) for path, thing in things if path in singles}
    enums = {name: entry.leaf.enum for name, entry in wanted.items() if entry.leaf and entry.leaf.enum}
    parts = {"attributes": {k: v for k, v in described.items() if v}, "values": values, "enums": enums}
    return {name: part for name, part in parts.items() if part}


def _single(dataset: h5py.Dataset) -> Any:
    # A value beside the samples must not cost the data, whatever it is.
    try:
        value = dataset[()]
    except Exception as error:
        return {"summary": f"cannot be read: {type(error).__name__}"}
    return json_value(value)
