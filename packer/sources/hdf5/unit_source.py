"""Reads samples that are one unit each, large fields in pieces, and says what the manifest keeps of the units."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError, first_few
from packer.sources.base import LARGE_BYTES, Block, LargeArray, joined
from packer.sources.hdf5.file import faults_named, opened
from packer.sources.hdf5.origin import MAX_KEPT, beyond
from packer.sources.hdf5.reading import BLOCK_BYTES, DatasetRows, HDF5Source, boxed, field_values
from packer.sources.hdf5.storage import dataset_at
from packer.sources.hdf5.types import Column, paths
from packer.sources.hdf5.units import Unit, shaped, shapes_of

#: Rows held of a large dataset since they share chunks with others.
_HELD_BYTES = 32 * 2**20


class UnitSource(HDF5Source):
    """One sample a unit.

    Args:
        found: the units.
        lists: for each file, the splits that it lists: names, and the roots of their samples.
        notes: further sentences for the plan.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        found: Sequence[Unit],
        options: dict[str, Any],
        lists: Mapping[str, Mapping[str, Sequence[str]]],
        notes: Sequence[str],
    ) -> None:
        homes = _homes(found)
        self.names = self._names = [_name(unit, homes) for unit in found]
        self.splits = _splits(found, self._names, lists)
        kept, lost = _origin(self._names, found, homes)
        origin = {"options": options, "paths": paths(columns), **kept}
        origin |= {"attrs": attrs} if (attrs := [c.attribute for c in columns if c.attribute]) else {}
        files = [name for unit in found for name in (unit.path, *unit.files)]
        said = [*notes, *(note for unit in found for note in unit.notes), *lost]
        super().__init__(columns, files, origin, said)
        self._kind = found[0].kind
        self._places = [(unit.path, unit.root) for unit in found]
        self._shapes = {spec.name: shapes_of(found, spec.name) for spec in self.fields if spec.is_ragged}

    def __len__(self) -> int:
        return len(self._places)

    def shapes(self, field: str) -> NDArray[np.int64] | None:
        shapes = self._shapes.get(field)
        return None if shapes is None or (shapes < 0).any() else shapes

    def part(self, start: int, stop: int) -> UnitSource:
        part = self._cut(path for path, _root in self._places[start:stop])
        part.names = part._names = self._names[start:stop]
        part.splits = {}
        part._places = self._places[start:stop]
        part._shapes = {name: shapes[start:stop] for name, shapes in self._shapes.items()}
        return part

    def read(self) -> Iterator[Block]:
        before = 0
        for path, places in groupby(self._places, key=lambda place: place[0]):
            roots = [root for _path, root in places]
            with opened(path) as file:
                yield from joined(self._samples(file, path, roots, before), self.fields, BLOCK_BYTES)
            before += len(roots)

    def _samples(self, file: h5py.File, path: str, roots: list[str], before: int) -> Iterator[dict[str, Any]]:
        for number, root in enumerate(roots, before):
            try:
                yield self._sample(file, path, root, number)
            except SourceError as error:
                raise SourceError(
                    f"{self._kind} {root}: {error.reason}" if root else error.reason, path, number
                ) from error

    def _sample(self, file: h5py.File, path: str, root: str, number: int) -> dict[str, Any]:
        with faults_named(path, "reading"):
            names = dict.fromkeys(c.dataset for c in self._columns if not c.attribute)
            datasets = {name: dataset_at(file, path, root + name, 1)[0] for name in names}
            large = [name for name in names if _is_large(datasets[name])]
            values = {name: boxed(datasets[name]) for name in names if name not in large}
            sample: dict[str, Any] = {}
            for c in self._columns:
                if c.attribute:
                    sample[c.spec.name] = _attribute(file[root or "/"], c, path)
                elif c.dataset in large:
                    sample[c.spec.name] = _LargeField(datasets[c.dataset], c, path, number)
                else:
                    sample[c.spec.name] = _value(values[c.dataset], c, path)
            return sample


def _is_large(dataset: h5py.Dataset) -> bool:
    """Return whether rows of a dataset are read one after another; lists and texts of any length have no size."""
    return bool(dataset.shape) and not dataset.dtype.hasobject and dataset.nbytes > LARGE_BYTES


class _LargeField(LargeArray):
    """A field of one sample out of a large dataset, whose chunks are decoded once if its rows are read in order.

    Args:
        number: of the sample, within its source.
    """

    def __init__(self, dataset: h5py.Dataset, column: Column, path: str, number: int) -> None:
        inner = dataset.dtype
        for member in column.members:
            inner = inner[member]
        self.dtype = column.spec.np_dtype.newbyteorder("=")
        self.shape = (*dataset.shape, *inner.shape)
        _check_shape(self.shape, column, path)
        self._rows = DatasetRows(dataset, 0, len(dataset), _HELD_BYTES)
        self._column = shaped(column, self.shape[1:])
        self._path, self._number = path, number

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        start, stop, _ = rows.indices(len(self))
        try:
            with faults_named(self._path, "reading"):
                return np.asarray(field_values(self._rows.take(start, stop), self._column, self._path))
        except SourceError as error:
            raise SourceError(error.reason, self._path, self._number) from error


def _check_shape(shape: tuple[int, ...], column: Column, path: str) -> None:
    planned = column.spec.shape
    if len(shape) != len(planned) or any(p not in (None, n) for n, p in zip(shape, planned, strict=True)):
        raise SourceError(f"field {column.spec.name} has shape {shape} now: the file has changed", path)


def _value(values: NDArray[Any], column: Column, path: str) -> Any:
    """Return the field of one sample: an array, or a str.

    Raises:
        SourceError: it is not of the shape that was planned.
    """
    inner = values
    for member in column.members:
        inner = inner[member]
    if column.spec.kind == "text" or h5py.check_vlen_dtype(inner.dtype) is not None:
        return field_values(values, column, path)[0]
    _check_shape(inner.shape[1:], column, path)
    return field_values(values, shaped(column, inner.shape[1:]), path)[0]


def _attribute(thing: h5py.HLObject, column: Column, path: str) -> Any:
    """Return the value of an attribute of a unit: an array, or a str."""
    value = thing.attrs[column.attribute]
    if column.spec.kind == "text" and isinstance(value, str):
        return value
    return _value(np.asarray(value)[np.newaxis], column, path)


def _homes(found: Sequence[Unit]) -> dict[str, str]:
    """Return what the names of a file's units begin with, by file: its path without suffix, if there are several files.

    Raises:
        SourceError: two samples would have one name.
    """
    files = list(dict.fromkeys(unit.path for unit in found))
    folder = os.path.commonpath([Path(p).parent for p in files])
    homes = {p: Path(os.path.relpath(p, folder)).with_suffix("").as_posix() for p in files}
    if len(set(homes.values())) < len(files):
        raise SourceError("two files differ in their suffixes alone: samples would share a name", files[0])
    is_one = len(files) == 1 and found[0].root
    return dict.fromkeys(files, "") if is_one else homes


def _name(unit: Unit, homes: Mapping[str, str]) -> str:
    return f"{homes[unit.path]}{unit.root}".lstrip("/")


def _splits(
    found: Sequence[Unit], names: Sequence[str], lists: Mapping[str, Mapping[str, Sequence[str]]]
) -> dict[str, list[str]]:
    """Return the names of the samples of each split that files list, without units that were left out."""
    splits: dict[str, list[str]] = {split: [] for listed in lists.values() for split in listed}
    held = {file: {split: set(roots) for split, roots in listed.items()} for file, listed in lists.items()}
    for unit, name in zip(found, names, strict=True):
        for split, roots in held.get(unit.path, {}).items():
            if unit.root in roots:
                splits[split].append(name)
    return splits


def _origin(names: Sequence[str], found: Sequence[Unit], homes: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Return what the manifest keeps, and sentences on what is lost.

    `homes`, what the names of a file's samples begin with; attributes of samples by name; those `above` by file (its
    home) and path; and the `types` of fields.
    """
    described = {name: unit.attributes for name, unit in zip(names, found, strict=True) if unit.attributes}
    types = found[0].types
    mixed = {
        held["dataset"]
        for unit in found
        for name in (unit.types.keys() | types.keys() if unit.types != types else ())
        if unit.types.get(name) != types.get(name)
        for held in (unit.types.get(name), types.get(name))
        if held
    }
    above: dict[str, dict[str, Any]] = {}
    for unit in found:
        if unit.above:
            above.setdefault(homes[unit.path], {}).update(unit.above)
    within = Counter(what for unit in found for what in unit.lost)
    parts = {
        "homes": list(homes.values()) if found[0].root else [],  # of files that are samples they are the names
        "attributes": _some(described),
        "above": _some(above),
        "types": {name: kept for name, kept in types.items() if kept["dataset"] not in mixed},
    }
    lost = [
        *beyond(len(described), "attributes of {} samples"),
        *beyond(len(above), "attributes of groups above the samples of {} files"),
        *(f"{what} within samples are not kept: {count:,} samples have some" for what, count in within.items()),
    ]
    if mixed:
        names = first_few([name or "the samples" for name in sorted(mixed)])
        lost.append(f"byte orders, string lengths or compounds of {names} differ between samples: no export has them")
    return {name: part for name, part in parts.items() if part}, lost


def _some(parts: dict[str, Any]) -> dict[str, Any]:
    return dict(list(parts.items())[:MAX_KEPT])
