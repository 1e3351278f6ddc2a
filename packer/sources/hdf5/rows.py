"""Reads rows of one dataset in the runs that its chunks ask for."""

from __future__ import annotations

import math
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray


def row_bytes(dataset: h5py.Dataset, axis: int) -> int:
    """Bytes of one row along `axis`; of variable-length values only what points to them."""
    return int(math.prod(dataset.shape)) * int(dataset.dtype.itemsize) // max(1, int(dataset.shape[axis]))


class DatasetRows:
    """Rows of a dataset along its sample axis, each chunk decoded once where memory allows.

    Rows that lie behind those asked for, in the same chunks, are held for the next call.

    Args:
        dataset: the open dataset.
        axis: number of the sample axis, from the end where negative.
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
        """Rows to read at once so that no chunk is decoded twice; `most` where that is too many."""
        if self._dataset.dtype.hasobject:
            # How long variable-length values are is not known, so none are read before they are asked for.
            return 1
        if self._dataset.chunks is not None:
            return min(int(self._dataset.chunks[self._axis]), most)
        # Rows of a later axis lie scattered: the fewer passes over the file, the better.
        return 1 if self._axis == 0 else most

    def take(self, start: int, stop: int) -> NDArray[Any]:
        """Rows start..stop, (stop - start, ...), C-contiguous, in the dataset's own dtype."""
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
