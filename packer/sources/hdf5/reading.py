"""Reads samples of an open HDF5 file: rows in blocks of bounded size, or units one after another."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import h5py
import msgspec
import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.sources.base import BLOCK_BYTES, LARGE_BYTES, Block, LargeArray, block_bytes, fits, joined
from packer.sources.hdf5.file import CACHE_BYTES, dataset_at, faults_named
from packer.sources.hdf5.listing import Column

#: Datasets of a sparse matrix: numbers of columns, values, and where each row starts.
SPARSE_PARTS = ("indices", "data", "indptr")
#: What a str costs besides its characters.
_STR_BYTES = 64
#: Variable-length rows that are read at once, at first and at most: their lengths are known only after reading.
_FIRST_RUN, _LONGEST_RUN = 16, 1024


# ---------------------------------------------------------------- rows


def row_blocks(
    file: h5py.File, path: str, columns: Sequence[Column], axis: int, start: int, stop: int, number: int = 0
) -> Iterator[Block]:
    """Yield the rows start..stop of an open file in blocks.

    Args:
        file: the open file.
        path: its path as the user gave it.
        columns: the fields.
        axis: number of the sample axis.
        number: number of the first of these rows within its source, for errors.

    Raises:
        SourceError: with the number of the bad sample, after all blocks before it.
    """
    with faults_named(path, "opening the datasets"):
        sparse = {c.spec.name: SparseRows(file, path, c) for c in columns if c.starts}
        names = dict.fromkeys(c.dataset for c in columns if not c.starts)
        share = CACHE_BYTES // max(1, len(names))
        datasets = {name: dataset_at(file, path, name, axis, share) for name in names}
        for name, dataset in datasets.items():
            have = dataset.shape[axis]
            if have < stop:
                raise SourceError(f"dataset {name} has {have:,} rows now: the file has changed; run again", path)

    def read(first: int, last: int) -> Block:
        with faults_named(path, f"reading rows {first:,} to {last - 1:,}"):
            values = {name: _rows(dataset, axis, first, last) for name, dataset in datasets.items()}
            return {
                c.spec.name: sparse[c.spec.name].take(first, last)
                if c.starts
                else field_values(values[c.dataset], c, path)
                for c in columns
            }

    is_variable = bool(sparse) or any(d.dtype.hasobject for d in datasets.values())
    nbytes = sum(_row_bytes(d, axis) for d in datasets.values()) + sum(rows.row_bytes for rows in sparse.values())
    nbytes += sum(_STR_BYTES for c in columns if c.spec.kind == "text")
    most = max(1, BLOCK_BYTES // max(1, nbytes))
    run = min(_FIRST_RUN, most) if is_variable else most
    first = start
    while first < stop:
        last = min(stop, first + run)
        try:
            block = read(first, last)
        except SourceError as error:
            bad = _first_bad(read, first, last)
            if bad > first:
                yield read(first, bad)
            raise SourceError(error.reason, path, number + bad - start) from error
        size = block_bytes(block)
        if size <= BLOCK_BYTES or last - first == 1:
            yield block
        else:
            samples = ({name: values[i] for name, values in block.items()} for i in range(last - first))
            yield from joined(samples, [c.spec for c in columns], BLOCK_BYTES)
        if is_variable:
            fitting = BLOCK_BYTES * (last - first) // max(1, size)
            run = max(1, min(run * 4, fitting, most, _LONGEST_RUN))
        first = last


def _first_bad(read: Callable[[int, int], Block], first: int, last: int) -> int:
    """Return the first row that cannot be read, of rows first..last, which cannot be read together."""

    def is_bad(row: int) -> bool:
        try:
            read(first, row + 1)
        except SourceError:
            return True
        return False

    return first + bisect_left(range(first, last), True, key=is_bad)


def _rows(dataset: h5py.Dataset, axis: int, start: int, stop: int) -> NDArray[Any]:
    """Return rows start..stop, (stop - start, ...), C-contiguous, in the dataset's own dtype."""
    axis %= dataset.ndim
    place = (*[slice(None)] * axis, slice(start, stop))
    values: NDArray[Any] = dataset[place]
    return np.ascontiguousarray(np.moveaxis(values, axis, 0))


def _row_bytes(dataset: h5py.Dataset, axis: int) -> int:
    """Return the bytes of one row along `axis`; variable-length values count as the pointers to them."""
    return int(math.prod(dataset.shape)) * int(dataset.dtype.itemsize) // max(1, int(dataset.shape[axis]))


class SparseRows:
    """Rows of a sparse matrix (CSR): of each, the numbers of its columns or its values.

    Raises:
        SourceError: the matrix is stored by columns (CSC), or `indptr` does not say where each row starts.
    """

    def __init__(self, file: h5py.File, path: str, column: Column) -> None:
        group = column.dataset.rpartition("/")[0]
        if str(file[group].attrs.get("encoding-type")).startswith("csc"):
            raise SourceError(
                f"{group} is a sparse matrix by columns (CSC), whose rows lie scattered; make it CSR", path
            )
        self._values = dataset_at(file, path, column.dataset)
        self._starts = np.asarray(dataset_at(file, path, column.starts)[()])
        is_good = self._starts.ndim == 1 and self._starts.dtype.kind in "iu" and len(self._starts) > 0
        ends = (int(self._starts[0]), int(self._starts[-1])) if is_good else ()
        if ends != (0, len(self._values)) or (self._starts[1:] < self._starts[:-1]).any():
            raise SourceError(
                f"{column.starts} does not say where each row of {column.dataset} starts: it must ascend from 0 to "
                f"{len(self._values):,}",
                path,
            )
        self._dtype = column.spec.np_dtype.newbyteorder("=")
        self.row_bytes = self._values.nbytes // max(1, len(self._starts) - 1)

    def take(self, start: int, stop: int) -> list[NDArray[Any]]:
        """Return rows start..stop, each (n,)."""
        cuts = self._starts[start : stop + 1].astype(np.int64)
        values = self._values[int(cuts[0]) : int(cuts[-1])].astype(self._dtype, copy=False)
        return np.split(values, cuts[1:-1] - cuts[0])


# ---------------------------------------------------------------- units


def unit_sample(file: h5py.File, path: str, root: str, columns: Sequence[Column], number: int) -> dict[str, Any]:
    """Return a file, dataset or group as one sample, by field; large fields as `LargeArray`.

    Args:
        number: number of the sample within its source, for errors.
    """
    with faults_named(path, "reading"):
        names = dict.fromkeys(c.dataset for c in columns if not c.attribute)
        datasets = {name: dataset_at(file, path, root + name) for name in names}
        # Rows of a large dataset are read one after another; lists and texts of any length have no size.
        large = [
            name for name, one in datasets.items() if one.shape and not one.dtype.hasobject and one.nbytes > LARGE_BYTES
        ]
        values = {name: _boxed(dataset) for name, dataset in datasets.items() if name not in large}
        sample: dict[str, Any] = {}
        for c in columns:
            if c.attribute:
                value = file[root or "/"].attrs[c.attribute]
                is_text = c.spec.kind == "text" and isinstance(value, str)
                sample[c.spec.name] = value if is_text else field_values(np.asarray(value)[np.newaxis], c, path)[0]
            elif c.dataset in large:
                sample[c.spec.name] = _large_field(datasets[c.dataset], c, path, number)
            else:
                sample[c.spec.name] = field_values(values[c.dataset], c, path)[0]
        return sample


def _boxed(dataset: h5py.Dataset) -> NDArray[Any]:
    """Return the whole dataset as the one sample of a batch: (1, ...)."""
    if dataset.dtype.hasobject and not dataset.dtype.names:
        box = np.empty(1, dataset.dtype)
        box[0] = dataset[()]
        return box
    return np.asarray(dataset[()])[np.newaxis]


def _large_field(dataset: h5py.Dataset, column: Column, path: str, number: int) -> LargeArray:
    """Return a field of one sample from a large dataset. Chunks are decoded once if rows are read in order.

    Args:
        number: number of the sample within its source.
    """
    inner = dataset.dtype
    for member in column.members:
        inner = inner[member]
    shape = (*dataset.shape, *inner.shape)
    _check(inner.base, shape, column, path)
    rows = shaped(column, shape[1:])

    def read(start: int, stop: int) -> NDArray[Any]:
        with faults_named(path, "reading"):
            return np.asarray(field_values(dataset[start:stop], rows, path))

    return LargeArray(column.spec.np_dtype.newbyteorder("="), shape, read, path, number)


# ---------------------------------------------------------------- values of fields


def field_values(values: NDArray[Any], column: Column, path: str) -> NDArray[Any] | list[NDArray[Any]] | list[str]:
    """Return the values of a field, for m samples, from those of its dataset, in the form that a block holds.

    Raises:
        SourceError: text is not UTF-8, a bool is neither 0 nor 1, or the file has changed since it was planned.
    """
    for member in column.members:
        values = values[member]
    spec = column.spec
    if spec.kind == "text" and values.ndim == 1 and h5py.check_string_dtype(values.dtype) is not None:
        return _texts(values, column, path)
    native = spec.np_dtype.newbyteorder("=")
    lists = h5py.check_vlen_dtype(values.dtype)
    if lists is not None and spec.shape == (None,):
        return [np.ascontiguousarray(row, dtype=native) for row in values]
    _check(values.dtype, values.shape[1:], column, path)
    if native == np.bool_:
        most = np.ascontiguousarray(values).view(np.uint8).max(initial=0)
        if most > 1:
            raise SourceError(f"field {spec.name}: it holds {most}, but a bool is 0 or 1", path)
    # The view drops h5py's metadata of the dtype (enum names).
    found = np.ascontiguousarray(values.astype(native, copy=False)).view(native)
    return list(found) if spec.is_ragged else found


def _check(dtype: np.dtype[Any], shape: tuple[int, ...], column: Column, path: str) -> None:
    """Raise SourceError if the dtype or shape of one sample is not what was planned."""
    spec = column.spec
    if spec.kind == "text" or not fits(shape, spec.shape) or dtype.newbyteorder("=").name != spec.dtype:
        raise SourceError(f"field {spec.name} is {dtype} {shape} now: the file has changed; run again", path)


def shaped(column: Column, shape: tuple[int | None, ...]) -> Column:
    """Return a column whose samples have this shape."""
    return replace(column, spec=msgspec.structs.replace(column.spec, shape=shape))


def _texts(values: NDArray[Any], column: Column, path: str) -> list[str]:
    found = []
    for text in values.tolist():
        try:
            found.append(text.decode())
        except UnicodeDecodeError:
            raise SourceError(
                f"field {column.spec.name}: text that is not UTF-8 ({text[:40]!r}); write it as UTF-8, or leave it out "
                f"with --skip {column.dataset}",
                path,
            ) from None
    return found
