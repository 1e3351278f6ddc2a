"""Reads rows of an open HDF5 file in blocks of samples of bounded size, each chunk decoded once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from typing import Any, Self

import h5py
import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError, shortened
from packer.sources.base import Block, Source, runs
from packer.sources.hdf5.file import faults_named
from packer.sources.hdf5.listing import text_attribute
from packer.sources.hdf5.storage import dataset_at
from packer.sources.hdf5.types import Column, swaps_are_forgotten

BLOCK_BYTES = 8 * 2**20
#: Rows held because they share chunks with rows asked for, over all datasets of a file; at most twice that.
_HELD_BYTES = 32 * 2**20
#: What a str costs besides its characters.
_STR_BYTES = 64
#: Variable-length rows are read so many at once at first, and at most; how long they are is seen only then.
_FIRST_RUN, _LONGEST_RUN = 16, 1024


class HDF5Source(Source):
    """Samples out of HDF5 files.

    Args:
        columns: the fields.
        files: all files that are read.
        origin: what the manifest keeps.
        notes: sentences for the plan.
    """

    kind = "hdf5"

    def __init__(
        self, columns: Sequence[Column], files: Iterable[str], origin: dict[str, Any], notes: Iterable[str]
    ) -> None:
        self._columns = tuple(columns)
        self.fields = tuple(column.spec for column in columns)
        self._files = list(dict.fromkeys(files))
        self._origin = origin
        self._notes = [shortened(note) for note in dict.fromkeys(notes)]

    def _cut(self, files: Iterable[str]) -> Self:
        """Return a copy that reads `files` alone, for a part."""
        part = copy(self)
        part._files = list(dict.fromkeys(files))
        part._origin, part._notes, part.constants = {}, [], {}
        return part

    def files(self) -> list[str]:
        return list(self._files)

    def provenance(self) -> dict[str, Any]:
        return self._origin

    def notes(self) -> list[str]:
        return list(self._notes)


class FileBlocks:
    """Blocks of samples start..stop of one open file.

    Args:
        file: the open file.
        path: its path as the user gave it.
        columns: the fields.
        axis: number of the sample axis.
        start: first sample.
        stop: after the last one.
    """

    def __init__(self, file: h5py.File, path: str, columns: Sequence[Column], axis: int, start: int, stop: int) -> None:
        self._path = path
        self._columns = columns
        self._start, self._stop = start, stop
        with faults_named(path, "opening the datasets"):
            self._sparse = {c.spec.name: SparseRows(file, path, c) for c in columns if c.starts}
            names = dict.fromkeys(c.dataset for c in columns if not c.starts)
            datasets = {name: dataset_at(file, path, name, stop)[0] for name in names}
            for name, dataset in datasets.items():
                have = dataset.shape[axis]
                if have < stop:
                    raise SourceError(f"dataset {name} has {have:,} rows now: the file has changed", path)
            total = sum(row_bytes(dataset, axis) for dataset in datasets.values())
            total = max(1, total + sum(rows.row_bytes for rows in self._sparse.values()))
            # By size, but enough for each that the few large chunks of small rows (labels) are decoded once.
            self._rows = {
                name: DatasetRows(d, axis, stop, _HELD_BYTES * max(row_bytes(d, axis), total // len(datasets)) // total)
                for name, d in datasets.items()
            }
        self._is_variable = bool(self._sparse) or any(d.dtype.hasobject for d in datasets.values())
        # Samples a block, a multiple of the longest chunk that fits.
        run = max(1, BLOCK_BYTES // (total + sum(_STR_BYTES for c in columns if c.spec.kind == "text")))
        longest = max((rows.run for rows in self._rows.values() if rows.is_chunked and rows.run <= run), default=1)
        self._run = run // longest * longest

    def __iter__(self) -> Iterator[Block]:
        """
        Raises:
            SourceError: with the number of the bad sample, counted from `start`, after all blocks before it.
        """
        run = min(_FIRST_RUN, self._run) if self._is_variable else self._run
        first = self._start
        while first < self._stop:
            last = min(self._stop, (first // run + 1) * run)
            try:
                block = self._block(first, last)
            except SourceError as error:
                good = self._last_good(first, last)
                if good > first:
                    yield self._block(first, good)
                raise SourceError(error.reason, self._path, good - self._start) from error
            if not self._is_variable:
                yield block
            else:
                sizes = _sample_bytes(block, last - first)
                yield from _cut(block, sizes)
                fitting = BLOCK_BYTES // max(1, int(sizes.mean()))
                run = max(1, min(run * 4, fitting, self._run, _LONGEST_RUN))
            first = last

    def _block(self, first: int, last: int) -> Block:
        with faults_named(self._path, f"reading rows {first:,} to {last - 1:,}"):
            values = {name: rows.take(first, last) for name, rows in self._rows.items()}
            return {
                c.spec.name: self._sparse[c.spec.name].take(first, last)
                if c.starts
                else field_values(values[c.dataset], c, self._path)
                for c in self._columns
            }

    def _last_good(self, first: int, last: int) -> int:
        """Return the number of the first sample that cannot be read, given that first..last cannot."""
        good, bad, step = first, last, 1
        while bad - good > 1:
            # Doubling from the front: a caller who goes on after a bad row most often meets the next bad one.
            middle = min(good + step, (good + bad) // 2)
            try:
                self._block(good, middle)
                good, step = middle, step * 2
            except SourceError:
                bad = middle
        return good


def field_values(values: NDArray[Any], column: Column, path: str) -> NDArray[Any] | list[NDArray[Any]] | list[str]:
    """Return the field's values for m samples out of the dataset's, in the form that a block holds.

    Raises:
        SourceError: text is not UTF-8, a bool is neither 0 nor 1.
    """
    for member in column.members:
        values = values[member]
    spec = column.spec
    if spec.kind == "text":
        return _texts(values, column, path)
    native = spec.np_dtype.newbyteorder("=")
    if spec.is_ragged:
        base = np.dtype(h5py.check_vlen_dtype(values.dtype))
        if swaps_are_forgotten() and not base.isnative:
            return [row.view(base).astype(native) for row in values]
        return [np.ascontiguousarray(row, dtype=native) for row in values]
    if native == np.bool_:
        most = np.ascontiguousarray(values).view(np.uint8).max(initial=0)
        if most > 1:
            raise SourceError(f"field {spec.name}: the number {most} where a bool is 0 or 1", path)
    if values.shape[1:] != spec.shape or values.dtype.newbyteorder("=").name != spec.dtype:
        raise SourceError(f"field {spec.name} is {values.dtype} {values.shape[1:]} now: the file has changed", path)
    # The view sheds h5py's notes on the dtype (enum names).
    return np.ascontiguousarray(values.astype(native, copy=False)).view(native)


def _texts(values: NDArray[Any], column: Column, path: str) -> list[str]:
    texts = values.tolist()
    for encoding in column.encodings:
        try:
            return [text.decode(encoding) for text in texts]
        except UnicodeDecodeError as error:
            bad = error
    if len(texts) > 1:  # each for itself: UTF-8 in one must not be read as something else because of another
        return [_texts(values[i : i + 1], column, path)[0] for i in range(len(texts))]
    asked = " or ".join("UTF-8" if name == "utf-8" else name for name in column.encodings)
    raise SourceError(
        f"field {column.spec.name}: text that is not {asked} ({bad.object[:40]!r}); name its encoding, as in "
        f"--encoding latin-1, or leave it out with --skip {column.dataset}",
        path,
    )


def boxed(dataset: h5py.Dataset) -> NDArray[Any]:
    """Return the whole dataset as the one sample of a batch: (1, ...)."""
    if dataset.dtype.hasobject and not dataset.dtype.names:
        box = np.empty(1, dataset.dtype)
        box[0] = dataset[()]
        return box
    return np.asarray(dataset[()])[np.newaxis]


def _sample_bytes(block: Block, count: int) -> NDArray[np.int64]:
    """Return the bytes of each sample in memory."""
    sizes = np.ones(count, np.int64)
    for values in block.values():
        if isinstance(values, np.ndarray):
            sizes += values.nbytes // max(1, count)
        else:
            sizes += [len(v) + _STR_BYTES if isinstance(v, str) else v.nbytes for v in values]
    return sizes


def _cut(block: Block, sizes: NDArray[np.int64]) -> Iterator[Block]:
    """Yield the block in pieces of at most BLOCK_BYTES, or of one sample."""
    for start, stop in runs(sizes, BLOCK_BYTES):
        yield {name: values[start:stop] for name, values in block.items()}


def row_bytes(dataset: h5py.Dataset, axis: int) -> int:
    """Return the bytes of one row along `axis`; of variable-length values only what points to them."""
    return int(math.prod(dataset.shape)) * int(dataset.dtype.itemsize) // max(1, int(dataset.shape[axis]))


class SparseRows:
    """Rows of a sparse matrix (CSR): of each, the numbers of its columns or its values.

    Raises:
        SourceError: it is one by columns, or does not say where each row starts.
    """

    def __init__(self, file: h5py.File, path: str, column: Column) -> None:
        group = column.dataset.rpartition("/")[0]
        if text_attribute(file[group], "encoding-type").startswith("csc"):
            raise SourceError(
                f"{group} is a sparse matrix by columns (CSC), of which no row lies together; make it CSR", path
            )
        self._values = dataset_at(file, path, column.dataset, 1)[0]
        starts = dataset_at(file, path, column.starts, 1)[0]
        self._starts = np.asarray(starts[()])
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


class DatasetRows:
    """Rows of a dataset along its sample axis, each chunk decoded once if memory allows.

    Rows that lie after those asked for, in the same chunks, are held for the next call.

    Args:
        dataset: the open dataset.
        axis: number of the sample axis, from the end if negative.
        stop: rows from here on are never asked for.
        held_bytes: at most about this much is held.
    """

    def __init__(self, dataset: h5py.Dataset, axis: int, stop: int, held_bytes: int) -> None:
        self._dataset = dataset
        self._axis = axis % len(dataset.shape)
        self._stop = stop
        self.is_chunked = dataset.chunks is not None
        self.row_bytes = row_bytes(dataset, axis)
        self.run = self._run(max(1, held_bytes // max(1, self.row_bytes)))
        self._held: NDArray[Any] | None = None
        self._first = 0

    def _run(self, most: int) -> int:
        """Return the rows to read at once so that no chunk is decoded twice; `most` if that is too many."""
        if self._dataset.dtype.hasobject:
            # How long variable-length values are is not known, so none are read before they are asked for.
            return 1
        if self._dataset.chunks is not None:
            return min(int(self._dataset.chunks[self._axis]), most)
        # Rows of a later axis lie scattered: the fewer passes over the file, the better.
        return 1 if self._axis == 0 else most

    def take(self, start: int, stop: int) -> NDArray[Any]:
        """Return rows start..stop, (stop - start, ...), C-contiguous, in the dataset's own dtype."""
        if stop - start >= self.run:
            return self._read(start, stop)
        pieces = []
        while start < stop:
            held = self._holding(start)
            last = min(stop, self._first + len(held))
            pieces.append(held[start - self._first : last - self._first])
            start = last
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _holding(self, row: int) -> NDArray[Any]:
        if self._held is None or not self._first <= row < self._first + len(self._held):
            self._held = None
            # Up to the next multiple of the run, so that runs and chunks have the same borders.
            end = min(self._stop, (row // self.run + 1) * self.run)
            self._held, self._first = self._read(row, end), row
        return self._held

    def _read(self, start: int, stop: int) -> NDArray[Any]:
        where = (*[slice(None)] * self._axis, slice(start, stop))
        values: NDArray[Any] = self._dataset[where]
        return np.ascontiguousarray(np.moveaxis(values, self._axis, 0))
