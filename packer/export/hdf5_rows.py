"""Samples as rows of HDF5 datasets, one dataset a field.

Text becomes strings, lists of numbers become variable-length values. What is ragged otherwise becomes a group:
`values` (all samples one after another), `offsets` (samples + 1,), and `shapes` (samples, axes) where more than the
first axis differs; then `values` is flat.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import h5py
import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.export.hdf5_attributes import value, write_attributes
from packer.export.hdf5_layout import Segment
from packer.format.schema import FieldSpec
from packer.sources.packed.source import PackedSource


class _Rows(Protocol):
    def write(self, values: Any, start: int, stop: int) -> None:
        """Writes the samples start..stop of the file."""


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
        self._fields = {spec.name: self._rows(spec, count, source) for spec in source.fields}
        if source.names is not None:
            taken = {spec.name for spec in source.fields}
            path = "names" if "names" not in taken else "sample_names"
            names = file.create_dataset(path, count, h5py.string_dtype())
            names[:] = list(source.names[segment.start : segment.stop])

    def write(self, block: dict[str, Any], start: int, stop: int) -> None:
        """Writes the samples start..stop of the file."""
        for name, values in block.items():
            self._fields[name].write(values, start, stop)

    def finish(self) -> None:
        """Writes what the source file had beside the samples."""
        described = self._segment.described
        for path, held in described.values.items():
            try:
                found = value(held)
                self._file.create_dataset(
                    path, data=found, dtype=h5py.string_dtype() if isinstance(found, str) else None
                )
            except (ValueError, TypeError, OSError, RuntimeError) as error:
                self._notes.append(f"{path} is not written: {error}")
        for path, attributes in described.attributes.items():
            write_attributes(self._file, path, attributes, self._notes)

    def _rows(self, spec: FieldSpec, count: int, source: PackedSource) -> _Rows:
        path = self._segment.paths[spec.name]
        if spec.kind == "text":
            return _Texts(self._file.create_dataset(path, count, h5py.string_dtype()), spec.name)
        dtype = _dtype(spec, self._segment.described.enums.get(spec.name))
        if spec.shape == (None,):
            return _Lists(self._file.create_dataset(path, count, h5py.vlen_dtype(dtype)))
        if spec.is_ragged:
            shapes = source.part(self._segment.start, self._segment.stop).shapes(spec.name)
            assert shapes is not None  # packed datasets know all shapes
            return _Ragged(self._file.create_group(path), spec, dtype, shapes)
        return _Fixed(self._file, path, spec, dtype, count, self._segment.options.axis)


class _Fixed:
    """Samples of one shape; `axis` counts the samples."""

    def __init__(self, file: h5py.File, path: str, spec: FieldSpec, dtype: Any, count: int, axis: int) -> None:
        number = axis if axis >= 0 else len(spec.shape) + 1 + axis
        self._axis = number if 0 <= number <= len(spec.shape) else 0
        shape = [*spec.shape]
        shape.insert(self._axis, count)
        self._dataset = file.create_dataset(path, tuple(shape), dtype)

    def write(self, values: NDArray[Any], start: int, stop: int) -> None:
        place = (*[slice(None)] * self._axis, slice(start, stop))
        if values.size:
            self._dataset[place] = np.moveaxis(values, 0, self._axis)


class _Texts:
    def __init__(self, dataset: h5py.Dataset, field: str) -> None:
        self._dataset = dataset
        self._field = field

    def write(self, values: Sequence[str], start: int, stop: int) -> None:
        ends = [i for i, text in enumerate(values) if "\0" in text]
        if ends:
            raise UsageError(
                f"field {self._field!r}, sample {start + ends[0]} of its file: the text holds a zero byte, "
                "which ends a string in HDF5; name other fields with --fields"
            )
        self._dataset[start:stop] = list(values)


class _Lists:
    def __init__(self, dataset: h5py.Dataset) -> None:
        self._dataset = dataset

    def write(self, values: Sequence[NDArray[Any]], start: int, stop: int) -> None:
        boxed = np.empty(len(values), object)
        for i, value_ in enumerate(values):  # one by one: numpy would join lists of one length
            boxed[i] = value_
        self._dataset[start:stop] = boxed


class _Ragged:
    def __init__(self, group: h5py.Group, spec: FieldSpec, dtype: Any, shapes: NDArray[np.int64]) -> None:
        self._flat = spec.ragged_axes != (0,)
        sizes = shapes.prod(axis=1) if self._flat else shapes[:, 0]
        self._offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        rest = () if self._flat else spec.shape[1:]
        self._values = group.create_dataset("values", (int(self._offsets[-1]), *rest), dtype)
        group.create_dataset("offsets", data=self._offsets)
        if self._flat:
            group.create_dataset("shapes", data=shapes)

    def write(self, values: Sequence[NDArray[Any]], start: int, stop: int) -> None:
        joined = np.concatenate([value_.reshape(-1) if self._flat else value_ for value_ in values])
        if joined.size:
            self._values[int(self._offsets[start]) : int(self._offsets[stop])] = joined


def _dtype(spec: FieldSpec, enum: dict[str, int] | None) -> Any:
    plain = np.dtype(str(spec.dtype))
    return h5py.enum_dtype(enum, plain) if enum and plain.kind in "iu" else plain
