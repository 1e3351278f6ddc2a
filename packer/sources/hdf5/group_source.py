"""Samples that are one HDF5 group each: fields of one shape or of many, named by their groups."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import h5py
import msgspec
import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError, shortened
from packer.sources.base import Block, Source
from packer.sources.hdf5.blocks import BLOCK_BYTES, boxed, field_values
from packer.sources.hdf5.dataset import dataset_at
from packer.sources.hdf5.file import faults_named, opened
from packer.sources.hdf5.group_origin import group_origin
from packer.sources.hdf5.groups import GroupSample, sample_shapes
from packer.sources.hdf5.types import Column, paths


class HDF5GroupSource(Source):
    """Groups as samples; made by `open_hdf5`."""

    kind = "hdf5"

    def __init__(self, columns: Sequence[Column], samples: Sequence[GroupSample], options: dict[str, Any]) -> None:
        self._columns = tuple(columns)
        self.fields = tuple(c.spec for c in columns)
        self.names = self._names = _names(samples)
        self._places = [(s.path, s.group) for s in samples]
        self._files = list(dict.fromkeys(name for s in samples for name in (s.path, *s.files)))
        ragged = [f.name for f in self.fields if f.is_ragged]
        self._shapes = {name: sample_shapes(list(samples), name) for name in ragged}
        self._origin = {"options": options, "paths": paths(columns), **group_origin(self._names, samples)}
        self._notes = list(dict.fromkeys(note for s in samples for note in s.notes)) + self._origin.get("lost", [])

    def __len__(self) -> int:
        return len(self._places)

    def shapes(self, field: str) -> NDArray[np.int64] | None:
        shapes = self._shapes.get(field)
        return None if shapes is None or (shapes < 0).any() else shapes

    def part(self, start: int, stop: int) -> HDF5GroupSource:
        part = object.__new__(HDF5GroupSource)
        part._columns, part.fields = self._columns, self.fields
        part.names = part._names = self._names[start:stop]
        part._places = self._places[start:stop]
        part._files = list(dict.fromkeys(path for path, _group in part._places))
        part._shapes = {name: shapes[start:stop] for name, shapes in self._shapes.items()}
        part._origin, part._notes = {}, []
        return part

    def read(self) -> Iterator[Block]:
        before = 0
        for path, places in groupby(self._places, key=lambda place: place[0]):
            groups = [group for _path, group in places]
            yield from self._file_blocks(path, groups, before)
            before += len(groups)

    def _file_blocks(self, path: str, groups: list[str], before: int) -> Iterator[Block]:
        pending: list[dict[str, Any]] = []
        held = 0
        with opened(path) as file:
            for number, group in enumerate(groups, before):
                try:
                    sample = self._sample(file, path, group)
                except SourceError as error:
                    if pending:
                        yield self._block(pending)
                    raise SourceError(f"group {group}: {error.reason}", path, number) from error
                size = sum(len(v) if isinstance(v, str) else v.nbytes for v in sample.values())
                if pending and held + size > BLOCK_BYTES:
                    yield self._block(pending)
                    pending, held = [], 0
                pending.append(sample)
                held += size
            if pending:
                yield self._block(pending)

    def _sample(self, file: h5py.File, path: str, group: str) -> dict[str, Any]:
        with faults_named(path, "reading"):
            names = dict.fromkeys(c.dataset for c in self._columns)
            values = {name: boxed(dataset_at(file, path, group + name, 1)[0]) for name in names}
            return {c.spec.name: _value(values[c.dataset], c, path) for c in self._columns}

    def _block(self, samples: list[dict[str, Any]]) -> Block:
        return {
            spec.name: [s[spec.name] for s in samples] if spec.is_ragged else np.stack([s[spec.name] for s in samples])
            for spec in self.fields
        }

    def files(self) -> list[str]:
        return list(self._files)

    def provenance(self) -> dict[str, Any]:
        return self._origin

    def notes(self) -> list[str]:
        return [shortened(note) for note in self._notes]


def _value(values: NDArray[Any], column: Column, path: str) -> Any:
    """The field of one sample: an array, or a str.

    Raises:
        SourceError: it is not of the shape that was planned.
    """
    inner = values
    for member in column.members:
        inner = inner[member]
    if column.spec.kind == "text" or h5py.check_vlen_dtype(inner.dtype) is not None:
        return field_values(values, column, path)[0]
    shape, planned = inner.shape[1:], column.spec.shape
    if len(shape) != len(planned) or any(p not in (None, n) for n, p in zip(shape, planned, strict=True)):
        raise SourceError(f"field {column.spec.name} has shape {shape} now: the file has changed", path)
    exact = replace(column, spec=msgspec.structs.replace(column.spec, shape=shape))
    return field_values(values, exact, path)[0]


def _names(samples: Sequence[GroupSample]) -> list[str]:
    """The group's name, behind the file's path where there are several files.

    Raises:
        SourceError: two samples would have one name.
    """
    paths = list(dict.fromkeys(s.path for s in samples))
    if len(paths) == 1:
        return [Path(s.group).name for s in samples]
    folder = os.path.commonpath([Path(p).parent for p in paths])
    prefix = {p: Path(os.path.relpath(p, folder)).with_suffix("").as_posix() for p in paths}
    if len(set(prefix.values())) < len(paths):
        raise SourceError("two files differ in their suffixes alone: samples would share a name", paths[0])
    return [f"{prefix[s.path]}/{s.group.rsplit('/', 1)[-1]}" for s in samples]
