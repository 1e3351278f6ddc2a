"""Scans one HDF5 file: its fields, its samples, and what the manifest keeps of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py

from packer.errors import SourceError
from packer.sources.hdf5.blocks import FileBlocks
from packer.sources.hdf5.choice import chosen, columns, is_skipped
from packer.sources.hdf5.dataset import dataset_at
from packer.sources.hdf5.family import advice, family
from packer.sources.hdf5.file import faults_named, opened
from packer.sources.hdf5.kept import asides, origin
from packer.sources.hdf5.listing import Listed, inventory
from packer.sources.hdf5.rows import row_bytes
from packer.sources.hdf5.types import Column

#: Text of fixed length that is decoded while a file is scanned: a bad one is found before hours of packing.
_LOOKED_AT_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Request:
    """What is asked of every file.

    Attributes:
        fields: path of the dataset for each field wanted; empty takes all.
        skip: paths or field names to leave out.
        axis: number of the sample axis, from the end where negative.
        encoding: of text that is not UTF-8 by its type.
    """

    fields: Mapping[str, str] = field(default_factory=dict)
    skip: Collection[str] = ()
    axis: int = 0
    encoding: str = "utf-8"


@dataclass(frozen=True)
class Scan:
    """What one file holds.

    Attributes:
        path: the file.
        columns: its fields.
        samples: number of samples.
        files: further files that are read for it.
        origin: as of `packer.sources.hdf5.kept`, with names and numbers of enumerations by field.
        notes: sentences for the plan.
        useless: entries of the request's `skip` that fit nothing here.
        bad: the error of the first sample found that cannot be read.
    """

    path: str
    columns: tuple[Column, ...]
    samples: int
    files: tuple[str, ...]
    origin: dict[str, Any]
    notes: tuple[str, ...]
    useless: tuple[str, ...]
    bad: SourceError | None = None


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
        packed = [f"{e.dataset}/" for e in wanted.values()]

        def is_kept(thing: str) -> bool:
            if request.fields:
                return any(dataset.startswith(f"{thing.rstrip('/')}/") for dataset in packed)
            return not is_skipped(Listed(thing), request.skip)

        found = columns(wanted, request.encoding)
        kept = origin(file, held, found, is_kept)
        enums = {name: entry.leaf.enum for name, entry in wanted.items() if entry.leaf and entry.leaf.enum}
        kept |= {"enums": enums} if enums else {}
        notes += [f"{Path(path).name}: {sentence}" for sentence in kept.get("lost", [])]
        if not request.fields:
            notes += asides(entries, request.skip, kept.get("values", {}))
        if kind == "matlab":
            notes.append(f"{Path(path).name}:{advice(kind)}")
        useless = tuple(name for name in request.skip if not any(is_skipped(e, [name]) for e in entries))
        bad = _bad_text(file, path, found, request.axis, samples)
        return Scan(path, found, samples, tuple(dict.fromkeys(files)), kept, tuple(notes), useless, bad)


def _bad_text(file: h5py.File, path: str, fields: Sequence[Column], axis: int, samples: int) -> SourceError | None:
    """The error of the first text of fixed length that cannot be decoded, among the rows that are quick to read."""
    texts = [c for c in fields if c.spec.kind == "text" and not file[c.dataset].dtype.hasobject]
    nbytes = sum(row_bytes(file[name], axis) for name in {c.dataset for c in texts})
    if nbytes:
        try:
            for _ in FileBlocks(file, path, texts, axis, 0, min(samples, max(1, _LOOKED_AT_BYTES // nbytes))):
                pass
        except SourceError as error:
            return SourceError(f"row {error.sample or 0:,}: {error.reason}", path, error.sample)
    return None


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
