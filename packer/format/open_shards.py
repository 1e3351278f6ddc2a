"""Where the chunks and the index arrays of a field lie in memory, of all its shards that are open.

`locator.py` finds samples by it.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.format.arrays import Numbers, finder, starts_of
from packer.format.column_index import ColumnIndex
from packer.format.layout import index_arrays
from packer.format.schema import Field


class OpenShards:
    """What a locator knows of the shards that are open. It is never changed: threads read it while others open shards.

    Addresses count from the beginning of the memory.

    Args:
        first: number of the first sample of each shard and the number after the last, (shards + 1,).
        base: position of the memory in the process.
        indexes: weak references to that of the field's column in each shard, (shards,); None if it was never open.
        table: `_chunk_table` of all shards, one after another, (5, chunks).
        counts: chunks of each shard in it, (shards,).
        frames: of each shard, (shards,); an attribute, too.
        arrays: where each index array of each shard starts, (shards,), by name; an attribute, too.

    Attributes:
        are_closed: whether each shard was never open, (shards,).
        are_all: whether all shards were opened.
        zero_at: address of sample 0 of all, as seen from each chunk, (chunks,), if samples lie there one after another.
        span_at: address of byte 0 of the column's stored bytes, as seen from each chunk, (chunks,).
        low: address of the first byte of each chunk, (chunks,).
        high: address after its last byte, (chunks,).
        odd: a number that is a multiple of 2**k, k up to 3, only if the addresses of all chunks are.
        find_chunk: gives the chunk of each sample (n,). The last one takes every number after it, too.
    """

    def __init__(
        self,
        first: Numbers,
        base: int,
        indexes: list[weakref.ref[ColumnIndex] | None],
        table: Numbers,
        counts: Numbers,
        frames: Numbers,
        arrays: dict[str, Numbers],
    ) -> None:
        self._first, self._base = first, base
        self.indexes = indexes
        self.are_closed = np.array([index is None for index in indexes], bool)
        self.are_all = not self.are_closed.any()
        self.zero_at, self.span_at, self.low, self.high, ends = table
        self.odd = int(np.bitwise_or.reduce(self.low, initial=0)) & 7  # Python is quicker with a small number
        self.find_chunk = finder(ends[:-1])
        self.frames = frames
        self.arrays = arrays
        self._table = table
        self._counts = counts

    @classmethod
    def none_open(cls, field: Field, first: Numbers, memory: NDArray[np.uint8]) -> OpenShards:
        """Return what is known of shards before any of them is open."""
        count = len(first) - 1
        closed = _no_chunks(first[1:] if count else first)
        counts, frames = np.ones(count, np.int64), np.zeros(count, np.int64)
        arrays = {name: np.zeros(count, np.int64) for name in index_arrays(field)}
        return cls(first, _position(memory), [None] * count, closed, counts, frames, arrays)

    def adding(self, shards: Sequence[int], opened: Sequence[tuple[ColumnIndex, int]]) -> OpenShards:
        """Return a copy that knows of more shards, or of shards opened again.

        Args:
            shards: numbers of these, which ascend.
            opened: of each, the index of the field's column, and the address of the shard.
        """
        references, counts, frames = list(self.indexes), self._counts.copy(), self.frames.copy()
        edges = starts_of(counts).tolist()
        arrays = {name: array.copy() for name, array in self.arrays.items()}
        parts, first_chunk = [], 0
        for shard, (index, start) in zip(shards, opened, strict=True):
            table = _chunk_table(int(self._first[shard]), start, index)
            parts += [self._table[:, first_chunk : edges[shard]], table]
            first_chunk = edges[shard + 1]
            references[shard], counts[shard], frames[shard] = weakref.ref(index), table.shape[1], index.frames
            for name, array in arrays.items():
                array[shard] = _position(index.arrays[name]) - self._base
        table = np.concatenate([*parts, self._table[:, first_chunk:]], axis=1)
        return OpenShards(self._first, self._base, references, table, counts, frames, arrays)

    def index_of(self, shard: int) -> ColumnIndex:
        """Return the index of an open shard."""
        reference = self.indexes[shard]
        index = None if reference is None else reference()
        assert index is not None, "what is located lies in open shards"
        return index


def _chunk_table(first: int, start: int, index: ColumnIndex) -> Numbers:
    """Return `zero_at`, `span_at`, `low` and `high` of each chunk of a shard, and the sample after it; (5, chunks)."""
    table = index.arrays["chunks"].astype(np.int64)
    if not len(table):
        return _no_chunks(np.array([first + index.samples]))
    before = np.concatenate([[0], table[:-1, 2]])
    low = start + index.chunk_at
    span_at = low - before
    ends = first + index.samples_of(table[:, 1] - 1)[:, 1]
    return np.stack([span_at - first * index.field.fixed_bytes, span_at, low, span_at + table[:, 2], ends])


def _no_chunks(ends: Numbers) -> Numbers:
    """Return the table of shards (n,) that are not open, or have no bytes: one chunk each, where nothing lies, (5, n).

    Args:
        ends: the sample after the last one of each.
    """
    table = np.zeros((5, len(ends)), np.int64)
    table[3], table[4] = -1, ends
    return table


def _position(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])
