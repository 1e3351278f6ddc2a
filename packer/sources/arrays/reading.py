"""Samples out of trees of arrays: rows in blocks of bounded size, or units one after another."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import groupby, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.format import FieldSpec
from packer.sources.arrays.choosing import row_starts
from packer.sources.arrays.fields import ArrayLeaf, check, leaves_in, values_of
from packer.sources.arrays.pairing import choice_of
from packer.sources.arrays.tree import CACHE_BYTES, Tree, Values, open_tree, tree_files
from packer.sources.base import BLOCK_BYTES, LARGE_BYTES, Block, LargeArray, block_bytes, joined
from packer.sources.options import SourceOptions
from packer.sources.table import SampleTable

#: What a str costs besides its characters.
_STR_BYTES = 64
#: Variable-length rows that are read at once, at first and at most: their lengths are known only after reading.
_FIRST_RUN, _LONGEST_RUN = 16, 1024


def read_table(kind: str, table: SampleTable, fields: Sequence[FieldSpec], options: SourceOptions) -> Iterator[Block]:
    """Yield the samples of a table, as `Source.read` does.

    Args:
        kind: of the trees: `hdf5`, `npy` or `zarr`.
        fields: of all samples.
    """
    if table.has_rows:
        return _read_rows(kind, table, fields, options.axis)
    return joined(_samples(kind, table, fields, choice_of(options).unit), fields, BLOCK_BYTES)


# ---------------------------------------------------------------- rows


def _read_rows(kind: str, table: SampleTable, fields: Sequence[FieldSpec], axis: int) -> Iterator[Block]:
    """Yield rows of trees that all have as many rows.

    Args:
        axis: number of the sample axis.
    """
    ends = {int(end) for files in table.inputs.values() for end in np.asarray(files.ends)}
    numbers = dict.fromkeys(table.inputs, 0)
    readers: dict[str, _RowReader] = {}
    try:
        for start, stop in pairwise(sorted({0, *ends})):
            for name, files in table.inputs.items():
                if start == 0 or start == readers[name].end:
                    while np.asarray(files.ends)[numbers[name]] <= start:  # a file without rows
                        numbers[name] += 1
                    if start:
                        readers.pop(name).tree.close()
                    readers[name] = _RowReader(kind, table, name, numbers[name], fields, axis)
                    numbers[name] += 1
            yield from _blocks(readers, fields, start, stop)
    finally:
        for reader in readers.values():
            reader.tree.close()


class _RowReader:
    """The rows of one file of an input, numbered as in the source.

    Raises:
        SourceError: a file is bad or has changed.
    """

    def __init__(
        self, kind: str, table: SampleTable, name: str, number: int, fields: Sequence[FieldSpec], axis: int
    ) -> None:
        files = table.inputs[name]
        ends = np.asarray(files.ends)
        before, self.end = int(ends[number - 1]) if number else 0, int(ends[number])
        first = 0 if files.firsts is None else int(files.firsts[number])
        self._leaves = [leaf for leaf in leaves_in(table.layout(number), fields) if leaf.file == name]
        self._axis, self._before = axis, before - first
        self.tree = open_tree(kind, tree_files({name: files.paths_of(number)}))
        with ExitStack() as stack:  # an error may be kept for long, and with it this reader
            stack.callback(self.tree.close)
            with self.tree.faults("opening the arrays"):
                names = dict.fromkeys(leaf.array for leaf in self._leaves)
                share = CACHE_BYTES // len(names)
                is_sparse = {leaf.array: bool(leaf.starts) for leaf in self._leaves}
                self._arrays = {name: self.tree.open(name, 0 if is_sparse[name] else axis, share) for name in names}
                self._starts = {c.array: row_starts(self.tree, c) for c in self._leaves if c.starts}
            self.is_variable = bool(self._starts) or any(array.dtype.hasobject for array in self._arrays.values())
            self.row_bytes = sum(_STR_BYTES for leaf in self._leaves if leaf.spec.kind == "text")
            for name, array in self._arrays.items():
                length = len(self._starts[name]) - 1 if name in self._starts else array.shape[axis]
                if length < self.end - self._before:
                    raise SourceError(
                        f"{name or 'it'} has {length:,} rows now: the file has changed; run again", self.path
                    )
                self.row_bytes += math.prod(array.shape) * array.dtype.itemsize // max(1, length)
            stack.pop_all()

    @property
    def path(self) -> str:
        return self.tree.path

    def read(self, first: int, last: int) -> Block:
        """Return some samples, by field."""
        start, stop = first - self._before, last - self._before
        with self.tree.faults(f"reading rows {start:,} to {stop - 1:,}"):
            values = {name: self._slice(name, array, start, stop) for name, array in self._arrays.items()}
            return {
                leaf.spec.name: self._lists(leaf, values[leaf.array], start, stop)
                if leaf.starts
                else values_of(values[leaf.array], leaf, self.path)
                for leaf in self._leaves
            }

    def _slice(self, name: str, array: Values, start: int, stop: int) -> NDArray[Any]:
        """Return rows start..stop, (stop - start, ...); of a sparse matrix their values."""
        if name in self._starts:
            values: NDArray[Any] = array[int(self._starts[name][start]) : int(self._starts[name][stop]),]
            return values
        axis = self._axis % len(array.shape)
        rows = (*[slice(None)] * axis, slice(start, stop))
        return np.moveaxis(array[rows], axis, 0)

    def _lists(self, leaf: ArrayLeaf, values: NDArray[Any], start: int, stop: int) -> list[NDArray[Any]]:
        cuts = self._starts[leaf.array][start + 1 : stop] - self._starts[leaf.array][start]
        return np.split(values.astype(leaf.spec.dtype, copy=False), cuts)


def _blocks(readers: Mapping[str, _RowReader], fields: Sequence[FieldSpec], start: int, stop: int) -> Iterator[Block]:
    """Yield the samples start..stop in blocks.

    Raises:
        SourceError: with the number of the bad sample, after all blocks before it.
    """

    def read(first: int, last: int) -> Block:
        return {name: values for of_table in rows for name, values in of_table.read(first, last).items()}

    def is_bad(row: int) -> bool:
        try:
            read(first, row + 1)
        except SourceError:
            return True
        return False

    rows = list(readers.values())
    is_variable = any(of_table.is_variable for of_table in rows)
    most = max(1, BLOCK_BYTES // max(1, sum(of_table.row_bytes for of_table in rows)))
    length = min(_FIRST_RUN, most) if is_variable else most
    first = start
    while first < stop:
        last = min(stop, first + length)
        try:
            block = read(first, last)
        except SourceError as error:
            bad = first + bisect_left(range(first, last), True, key=is_bad)
            if bad > first:
                yield read(first, bad)
            raise SourceError(error.reason, error.path or rows[0].path, bad) from error
        size = block_bytes(block)
        if size <= BLOCK_BYTES or last - first == 1:
            yield block
        else:
            samples = ({name: values[i] for name, values in block.items()} for i in range(last - first))
            yield from joined(samples, fields, BLOCK_BYTES)
        if is_variable:
            fitting = BLOCK_BYTES * (last - first) // max(1, size)
            length = max(1, min(length * 4, fitting, most, _LONGEST_RUN))
        first = last


# ---------------------------------------------------------------- units


def _samples(kind: str, table: SampleTable, fields: Sequence[FieldSpec], unit: str) -> Iterator[dict[str, Any]]:
    """Yield samples one after another; a tree of several is opened once."""
    leaves = {id(layout): leaves_in(layout, fields) for layout in table.layouts}
    number = 0
    for paths, rows in groupby(table.rows(), key=lambda row: row.paths):
        root = ""
        try:
            with open_tree(kind, tree_files(paths)) as tree:
                for row in rows:
                    root = row.root
                    yield _sample(tree, root, leaves[id(row.layout)], number)
                    number += 1
        except SourceError as error:
            reason = f"{unit} {root}: {error.reason}" if root else error.reason
            raise SourceError(reason, error.path or next(iter(paths.values()))[0], number) from error


def _sample(tree: Tree, root: str, leaves: Sequence[ArrayLeaf], number: int) -> dict[str, Any]:
    """Return a unit as one sample, by field; large fields as `LargeArray`.

    Args:
        number: number of the sample within its source, for errors.
    """
    sample: dict[str, Any] = {}
    arrays: dict[str, Values] = {}
    wholes: dict[str, NDArray[Any]] = {}
    with tree.faults("reading"):
        for leaf in leaves:
            name = leaf.array
            if leaf.attribute:
                if (value := tree.attribute(root, leaf.attribute)) is None:
                    raise SourceError(f"attribute {leaf.attribute} has gone: the file has changed; run again")
                sample[leaf.spec.name] = values_of(value[np.newaxis], leaf, tree.path)[0]
                continue
            array = arrays[name] = arrays[name] if name in arrays else tree.open(root + name)
            nbytes = math.prod(array.shape) * array.dtype.itemsize
            # Rows of a large array are read one after another; lists and texts of any length have no size.
            is_file = not isinstance(array, np.ndarray) or (isinstance(array, np.memmap) and array.flags.c_contiguous)
            is_large = nbytes > LARGE_BYTES and array.shape and is_file and not array.dtype.hasobject
            if is_large and leaf.spec.kind != "text":
                sample[leaf.spec.name] = _large(array, leaf, tree, number)
                continue
            if name not in wholes:
                wholes[name] = _boxed(array)
            sample[leaf.spec.name] = values_of(wholes[name], leaf, tree.path)[0]
    return sample


def _boxed(array: Values) -> NDArray[Any]:
    """Return a whole array as the one sample of a batch: (1, ...), a copy, so that no file stays open for it."""
    if array.dtype.hasobject and not array.dtype.names:
        box = np.empty(1, array.dtype)
        box[0] = array[()]
        return box
    values = array[()]
    return (np.array(values) if isinstance(values, np.memmap) else np.asarray(values))[np.newaxis]


def _large(array: Values, leaf: ArrayLeaf, tree: Tree, number: int) -> LargeArray:
    """Return a field of one sample from a large array. Chunks are decoded once if rows are read in order."""
    inner = array.dtype
    for member in leaf.members:
        inner = inner[member]
    shape = (*array.shape, *inner.shape)
    check(inner.base, shape, leaf, tree.path)
    rows = leaf.changed(shape=shape[1:])

    def read(start: int, stop: int) -> NDArray[Any]:
        with tree.faults("reading"):
            return np.array(values_of(array[(slice(start, stop),)], rows, tree.path))

    return LargeArray(np.dtype(leaf.spec.dtype), shape, read, tree.path, number)
