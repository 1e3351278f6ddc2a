"""Samples out of trees of arrays: rows in blocks of bounded size, or units one after another."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from copy import copy
from itertools import chain, groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.sources.arrays.choosing import row_starts
from packer.sources.arrays.fields import ArrayLeaf, check, values_of
from packer.sources.arrays.origin import ArraysOrigin
from packer.sources.arrays.places import RowTable
from packer.sources.arrays.tree import CACHE_BYTES, Tree, Values, open_tree
from packer.sources.base import (
    BLOCK_BYTES,
    LARGE_BYTES,
    Block,
    LargeArray,
    Source,
    block_bytes,
    joined,
)
from packer.sources.files import walk

if TYPE_CHECKING:
    from typing_extensions import Self  # which typing has from Python 3.11 on

#: The length of an axis that is known only after reading.
UNKNOWN = -1
#: What a str costs besides its characters.
_STR_BYTES = 64
#: Variable-length rows that are read at once, at first and at most: their lengths are known only after reading.
_FIRST_RUN, _LONGEST_RUN = 16, 1024


class ArraySource(Source):
    """Samples out of trees of arrays.

    Args:
        kind: of the trees: `hdf5`, `npy` or `zarr`.
    """

    #: Shapes of ragged fields, (n, axes), except those that are known only after reading.
    _shapes: Mapping[str, NDArray[np.int64]] = {}
    _tables: Sequence[RowTable]

    def __init__(self, kind: str, tables: Sequence[RowTable], origin: ArraysOrigin) -> None:
        self.kind, self._tables = kind, tables
        self.has_files_of_parts = kind != "zarr"  # whose files are in each part
        leaves = [leaf for table in tables for leaf in table.leaves(0)]
        self.fields = tuple(leaf.spec for leaf in leaves)
        # The path of a field is kept if it is not its name with slashes for dots: names may hold dots of their own.
        paths = {c.spec.name: c.path for c in leaves if not c.attribute}
        paths = {name: path for name, path in paths.items() if path != "/" + name.replace(".", "/")}
        kept = msgspec.to_builtins(msgspec.structs.replace(origin, paths=paths, files=origin.files[:1]))
        # A dict of each file would take ten times its memory.
        self.origin = {name: origin.files if name == "files" else value for name, value in kept.items()}

    def __len__(self) -> int:
        return int(self._tables[0].ends[-1]) if len(self._tables[0].ends) else 0

    def shapes(self, field: str) -> NDArray[np.int64] | None:
        return self._shapes.get(field)

    def part(self, start: int, stop: int) -> Self:
        part = copy(self)
        part._tables = [table.cut(start, stop) for table in self._tables]
        part.origin, part.remarks, part.constants, part.splits = {}, [], {}, {}
        part.names = self.names and self.names[start:stop]
        part._shapes = {name: shapes[start:stop] for name, shapes in self._shapes.items()}
        return part

    def files(self) -> list[str]:
        files = [path for table in self._tables for path in table.places.paths()]
        further = dict.fromkeys(path for table in self._tables for paths in table.files.values() for path in paths)
        if further:
            files = list(dict.fromkeys([*files, *further]))
        if self.kind != "zarr":
            return files
        inside = (sorted(f"{top}/{file}" for file, _ in walk(top)) if Path(top).is_dir() else [top] for top in files)
        return list(chain.from_iterable(inside))


# ---------------------------------------------------------------- rows


class RowSource(ArraySource):
    """One sample a row, of tables that all have as many rows.

    Args:
        axis: number of the sample axis.
    """

    names = None

    def __init__(self, kind: str, tables: Sequence[RowTable], origin: ArraysOrigin, axis: int) -> None:
        super().__init__(kind, tables, origin)
        self._axis = axis

    def read(self) -> Iterator[Block]:
        ends = {int(end) for table in self._tables for end in table.ends}
        numbers = [0] * len(self._tables)
        rows: list[_RowReader] = []
        try:
            for start, stop in pairwise(sorted({0, *ends})):
                for number, table in enumerate(self._tables):
                    if start == 0 or start == table.ends[numbers[number] - 1]:
                        while table.ends[numbers[number]] <= start:  # a file without rows
                            numbers[number] += 1
                        if start:
                            rows.pop(number).tree.close()
                        rows.insert(number, _RowReader(self.kind, table, numbers[number], self._axis))
                        numbers[number] += 1
                yield from _blocks(rows, self.fields, start, stop)
        finally:
            for table_rows in rows:
                table_rows.tree.close()


class _RowReader:
    """The rows of one run of a table, numbered as in the source.

    Raises:
        SourceError: a file is bad or has changed.
    """

    def __init__(self, kind: str, table: RowTable, number: int, axis: int) -> None:
        run = table.run(number)
        self._leaves, self._axis = run.leaves, axis
        self._before = int(table.ends[number]) - run.stop
        self.tree = open_tree(kind, run.place)
        with ExitStack() as stack:  # an error may be kept for long, and with it this reader
            stack.callback(self.tree.close)
            with self.tree.faults("opening the arrays"):
                names = dict.fromkeys(leaf.array for leaf in run.leaves)
                share = CACHE_BYTES // len(names)
                is_sparse = {leaf.array: bool(leaf.starts) for leaf in run.leaves}
                self._arrays = {name: self.tree.open(name, 0 if is_sparse[name] else axis, share) for name in names}
                self._starts = {c.array: row_starts(self.tree, c) for c in run.leaves if c.starts}
            self.is_variable = bool(self._starts) or any(array.dtype.hasobject for array in self._arrays.values())
            self.row_bytes = sum(_STR_BYTES for leaf in run.leaves if leaf.spec.kind == "text")
            for name, array in self._arrays.items():
                length = len(self._starts[name]) - 1 if name in self._starts else array.shape[axis]
                if length < run.stop:
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


def _blocks(rows: Sequence[_RowReader], fields: Sequence[Any], start: int, stop: int) -> Iterator[Block]:
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


class UnitSource(ArraySource):
    """One sample a unit; axes of fields that differ between units are ragged.

    Args:
        table: a row for each unit, with fields whose axes have no length.
        unit: `file`, `folder`, `dataset` or `group`.
        names: of the units.
        sizes: of each field, the length of each axis in every unit, (units,); `UNKNOWN` if only reading shows it.
    """

    names: Sequence[str]

    def __init__(
        self,
        kind: str,
        table: RowTable,
        origin: ArraysOrigin,
        unit: str,
        names: Sequence[str],
        sizes: Sequence[Sequence[NDArray[np.int64]]],
    ) -> None:
        self.names, self._unit, self._shapes = names, unit, {}
        common = []
        for leaf, axes in zip(table.leaves(0), sizes, strict=True):
            common.append(tuple(map(_common_length, axes)))
            if None in common[-1] and all((axis != UNKNOWN).all() for axis in axes):
                self._shapes[leaf.spec.name] = np.column_stack(axes)
        layouts = [
            tuple(leaf.changed(shape=shape) for leaf, shape in zip(leaves, common, strict=True))
            for leaves in table.layouts
        ]
        super().__init__(kind, [table._replace(layouts=layouts)], origin)

    def read(self) -> Iterator[Block]:
        yield from joined(self._samples(), self.fields, BLOCK_BYTES)

    def _samples(self) -> Iterator[dict[str, Any]]:
        (table,) = self._tables
        number = 0
        for place, runs in groupby(map(table.run, range(len(self))), key=lambda run: run.place):
            root = ""
            try:
                with open_tree(self.kind, place) as tree:
                    for run in runs:
                        root = run.root
                        yield _sample(tree, root, run.leaves, number)
                        number += 1
            except SourceError as error:
                reason = f"{self._unit} {root}: {error.reason}" if root else error.reason
                raise SourceError(reason, error.path or place[0].paths[0], number) from error


def _common_length(axis: NDArray[np.int64]) -> int | None:
    return int(axis[0]) if axis[0] != UNKNOWN and (axis == axis[0]).all() else None


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
