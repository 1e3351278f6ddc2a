"""Samples as rows of HDF5 datasets, one dataset a field.

Text becomes strings, lists of numbers become variable-length values. What is ragged otherwise becomes a group:
`values` (all samples one after another), `offsets` (samples + 1,), and `shapes` (samples, axes) where more than the
first axis differs; then `values` is flat.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol

import h5py
import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.export.hdf5_attributes import type_for, value, write_all
from packer.export.hdf5_layout import Segment, typed_datasets
from packer.export.hdf5_types import StoredType
from packer.format.schema import FieldSpec
from packer.sources.packed.source import PackedSource

#: Values of unusual types are made so many bytes at a time.
_WRITE_BYTES = 32 * 2**20


class _Rows(Protocol):
    @property
    def fields(self) -> Collection[str]:
        """Names of the fields it writes."""

    def write(self, block: Mapping[str, Any], start: int, stop: int) -> None:
        """Writes the fields of the samples start..stop of the file."""


class RowsFile:
    """One file of rows.

    Args:
        file: open and empty.
        notes: told of what cannot be written.
    """

    def __init__(self, file: h5py.File, segment: Segment, source: PackedSource, notes: list[str]) -> None:
        self._file = file
        self._segment = segment
        self._notes = notes
        count = segment.stop - segment.start
        self._rows: list[_Rows] = list(self._typed(source.fields, count))
        made = {name for rows in self._rows for name in rows.fields}
        self._rows += [self._plain(spec, count, source) for spec in source.fields if spec.name not in made]
        if source.names is not None:
            taken = {spec.name for spec in source.fields}
            path = "names" if "names" not in taken else "sample_names"
            names = file.create_dataset(path, count, h5py.string_dtype())
            names[:] = list(source.names[segment.start : segment.stop])

    def write(self, block: dict[str, Any], start: int, stop: int) -> None:
        """Writes the samples start..stop of the file."""
        for rows in self._rows:
            rows.write(block, start, stop)

    def finish(self) -> None:
        """Writes what the source file had beside the samples."""
        described = self._segment.described
        self._notes.extend(f"{self._segment.file}: {sentence}" for sentence in described.lost)
        for path, held in described.values.items():
            try:
                self._write_single(path, held)
            except (ValueError, TypeError, OSError, RuntimeError) as error:
                self._notes.append(f"{path} is not written: {error}")
        for path, target in described.links.items():
            self._link(path, target)
        write_all(self._file, described.attributes, described.groups, self._notes)

    def _link(self, path: str, target: str) -> None:
        if target not in self._file:
            return  # it was not packed, or is not exported
        try:
            self._file[path] = self._file[target]
        except (ValueError, OSError, RuntimeError) as error:
            self._notes.append(f"{path}, another name of {target}, is not written: {error}")

    def _write_single(self, path: str, held: Any) -> None:
        found = value(held)
        dtype = h5py.string_dtype() if isinstance(found, str) else type_for(held, found)
        if dtype is not None and dtype.subdtype is not None:  # h5py takes its axes for those of the dataset
            self._file.create_dataset(path, tuple(held["shape"]), dtype)[()] = found
        else:
            self._file.create_dataset(path, data=found, dtype=dtype)

    def _typed(self, specs: Sequence[FieldSpec], count: int) -> Iterator[_Typed]:
        """Datasets of unusual types, such as compounds made of several fields."""
        for path, (type_, axes) in typed_datasets(self._segment, specs, self._notes).items():
            if None in axes:
                continue  # ragged now: values and offsets
            shape = [n or 0 for n in axes]
            axis = _sample_axis(self._segment.options.axis, len(shape))
            shape.insert(axis, count)
            yield _Typed(self._file.create_dataset(path, tuple(shape), type_.dtype), type_, axis)

    def _plain(self, spec: FieldSpec, count: int, source: PackedSource) -> _Rows:
        path = self._segment.paths[spec.name]
        if spec.kind == "text":
            return _Texts(self._file.create_dataset(path, count, h5py.string_dtype()), spec.name)
        dtype = _dtype(spec, self._segment.described.enums.get(spec.name))
        if spec.shape == (None,):
            return _Lists(self._file.create_dataset(path, count, h5py.vlen_dtype(dtype)), spec.name)
        if spec.is_ragged:
            shapes = source.part(self._segment.start, self._segment.stop).shapes(spec.name)
            assert shapes is not None  # packed datasets know all shapes
            return _Ragged(self._file.create_group(path), spec, dtype, shapes)
        return _Fixed(self._file, path, spec, dtype, count, self._segment.options.axis)


def _sample_axis(asked: int, others: int) -> int:
    """Number of the axis that counts samples, beside `others` more; the first where there is none of the number."""
    number = asked if asked >= 0 else others + 1 + asked
    return number if 0 <= number <= others else 0


class _Typed:
    """Samples of one shape, of a type that is made of one field or more."""

    def __init__(self, dataset: h5py.Dataset, type_: StoredType, axis: int) -> None:
        self.fields = type_.fields
        self._dataset = dataset
        self._type = type_
        self._axis = axis
        self._rest = tuple(n for i, n in enumerate(dataset.shape) if i != axis)
        # Fixed strings can be far longer than the texts in a block.
        self._run = max(1, _WRITE_BYTES // max(1, math.prod(self._rest) * dataset.dtype.itemsize))

    def write(self, block: Mapping[str, Any], start: int, stop: int) -> None:
        for first in range(start, stop, self._run):
            last = min(first + self._run, stop)
            some = {name: block[name][first - start : last - start] for name in self.fields}
            values = self._type.array(some, (last - first, *self._rest))
            if h5py.check_vlen_dtype(self._type.dtype) is not None:
                _write_lists(self._dataset, values, first)
            elif values.size:
                place = (*[slice(None)] * self._axis, slice(first, last))
                self._dataset[place] = np.moveaxis(values, 0, self._axis)


class _Fixed:
    """Samples of one shape; `axis` counts the samples."""

    def __init__(self, file: h5py.File, path: str, spec: FieldSpec, dtype: Any, count: int, axis: int) -> None:
        self.fields = (spec.name,)
        self._axis = _sample_axis(axis, len(spec.shape))
        shape = [*spec.shape]
        shape.insert(self._axis, count)
        self._dataset = file.create_dataset(path, tuple(shape), dtype)

    def write(self, block: Mapping[str, Any], start: int, stop: int) -> None:
        values = block[self.fields[0]]
        place = (*[slice(None)] * self._axis, slice(start, stop))
        if values.size:
            self._dataset[place] = np.moveaxis(values, 0, self._axis)


class _Texts:
    def __init__(self, dataset: h5py.Dataset, field: str) -> None:
        self.fields = (field,)
        self._dataset = dataset

    def write(self, block: Mapping[str, Any], start: int, stop: int) -> None:
        values = block[self.fields[0]]
        ends = [i for i, text in enumerate(values) if "\0" in text]
        if ends:
            raise UsageError(
                f"field {self.fields[0]!r}, sample {start + ends[0]} of its file: the text holds a zero byte, "
                "which ends a string in HDF5; name other fields with --fields"
            )
        self._dataset[start:stop] = list(values)


class _Lists:
    def __init__(self, dataset: h5py.Dataset, field: str) -> None:
        self.fields = (field,)
        self._dataset = dataset

    def write(self, block: Mapping[str, Any], start: int, stop: int) -> None:
        values = block[self.fields[0]]
        boxed = np.empty(len(values), self._dataset.dtype)
        for i, value_ in enumerate(values):  # one by one: numpy would join lists of one length
            boxed[i] = value_
        _write_lists(self._dataset, boxed, start)


def _write_lists(dataset: h5py.Dataset, values: NDArray[Any], start: int) -> None:
    """Writes arrays of any length as the rows from `start` on; h5py itself would join those of one length."""
    place = dataset.id.get_space()
    place.select_hyperslab((start,), (len(values),))
    dataset.id.write(h5py.h5s.create_simple((len(values),)), place, values)


class _Ragged:
    def __init__(self, group: h5py.Group, spec: FieldSpec, dtype: Any, shapes: NDArray[np.int64]) -> None:
        self.fields = (spec.name,)
        self._flat = spec.ragged_axes != (0,)
        sizes = shapes.prod(axis=1) if self._flat else shapes[:, 0]
        self._offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        rest = () if self._flat else spec.shape[1:]
        self._values = group.create_dataset("values", (int(self._offsets[-1]), *rest), dtype)
        group.create_dataset("offsets", data=self._offsets)
        if self._flat:
            group.create_dataset("shapes", data=shapes)

    def write(self, block: Mapping[str, Any], start: int, stop: int) -> None:
        values = block[self.fields[0]]
        joined = np.concatenate([value_.reshape(-1) if self._flat else value_ for value_ in values])
        if joined.size:
            self._values[int(self._offsets[start]) : int(self._offsets[stop])] = joined


def _dtype(spec: FieldSpec, enum: dict[str, int] | None) -> Any:
    plain = np.dtype(str(spec.dtype))
    return h5py.enum_dtype(enum, plain) if enum and plain.kind in "iu" else plain
