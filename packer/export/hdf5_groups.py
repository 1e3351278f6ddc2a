"""Samples as HDF5 groups: each group holds one sample, each field is a dataset in it."""

from __future__ import annotations

from typing import Any

import h5py

from packer.errors import UsageError
from packer.export.hdf5_attributes import write_all, write_attributes
from packer.export.hdf5_layout import Segment, typed_datasets
from packer.sources.packed.source import PackedSource


class GroupsFile:
    """One file of groups; see `packer.export.hdf5_rows.RowsFile`."""

    def __init__(self, file: h5py.File, segment: Segment, source: PackedSource, notes: list[str]) -> None:
        self._file = file
        self._segment = segment
        self._notes = notes
        base = segment.options.samples.partition(":")[2].strip("/")
        self._base = file.require_group(f"/{base}")
        self._names = source.names or ()
        self._fields = source.fields

    def write(self, block: dict[str, Any], start: int, stop: int) -> None:
        """Writes the samples start..stop of the file."""
        for i, number in enumerate(range(start, stop)):
            name = self._segment.groups[number]
            group = self._base.create_group(name)
            values = {field: of_field[i] for field, of_field in block.items()}
            whole = self._names[self._segment.start + number]
            made = self._write_typed(group, values, whole)
            for field in [field for field in values if field not in made]:
                self._write_field(group, self._segment.paths[field].lstrip("/"), values[field], name)
            attributes = self._segment.described.attributes.get(whole, {})
            write_attributes(group, group.name, attributes, self._notes)

    def _write_typed(self, group: h5py.Group, values: dict[str, Any], name: str) -> set[str]:
        """Writes datasets of unusual types; returns the fields that they are made of."""
        made: set[str] = set()
        for path, (type_, axes) in typed_datasets(self._segment, self._fields, self._notes, name).items():
            first = values[next(iter(type_.fields))]
            shape = first.shape[: len(axes)] if axes else ()
            array = type_.array(values, shape)
            dataset = group.create_dataset(path.lstrip("/"), shape, type_.dtype)
            if array.size:
                dataset[()] = array[()] if h5py.check_vlen_dtype(type_.dtype) is not None else array
            made.update(type_.fields)
        return made

    def finish(self) -> None:
        """Writes what the source file had above the samples."""
        above = self._segment.described.above
        write_all(self._file, above, above, self._notes)

    def _write_field(self, group: h5py.Group, path: str, value: Any, name: str) -> None:
        if isinstance(value, str):
            if "\0" in value:
                raise UsageError(f"sample {name!r}: the text {path} holds a zero byte, which ends a string in HDF5")
            group.create_dataset(path, data=value, dtype=h5py.string_dtype())
        else:
            group.create_dataset(path, data=value)
