"""Where the samples of one field lie, over all shards: numbers to addresses, for a whole batch at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from packer.errors import DamagedError
from packer.format.column_index import ColumnIndex
from packer.format.schema import Field
from readers.memory import Address, Memory

Numbers = NDArray[np.int64]


class Places:
    """Tables of one field over all shards; a few numbers a chunk and a shard, none a sample.

    Attributes:
        field: the schema of the field.
        indexes: index of the field's column in each shard.
        first: number of the first sample of each shard and the number behind the last, (shards + 1,).
        ends: number of the sample behind each chunk, over all shards, (chunks,).
        span_at: address of byte 0 of the column's stored bytes, as seen from each chunk, (chunks,).
    """

    def __init__(self, field: Field, indexes: Sequence[ColumnIndex], memory: Memory) -> None:
        self.field = field
        self.indexes = indexes
        self.memory = memory
        self.first: Numbers = np.cumsum([0, *(index.samples for index in indexes)], dtype=np.int64)
        tables = [_chunk_table(self.first[s], memory.starts[s], index) for s, index in enumerate(indexes)]
        joined = np.concatenate([np.zeros((0, 4), np.int64), *tables])
        self.span_at: Address = joined[:, 0]
        self._low: Address = joined[:, 1]
        self._high: Address = joined[:, 2]
        self.ends: Numbers = joined[:, 3]
        # The last chunk takes every number behind it too: samples of no bytes may have no chunk at all.
        self._finder = Finder(self.ends[:-1])

    def shard_of(self, numbers: Numbers) -> Numbers:
        """Shard of each sample."""
        return self.first[1:-1].searchsorted(numbers, side="right")

    def chunk_of(self, numbers: Numbers) -> Numbers:
        """Chunk of each sample, counted over all shards."""
        return self._finder.find(numbers)

    def stored_at(self, numbers: Numbers, offsets: Numbers) -> Address:
        """Addresses of ascending offsets (n, k) in the stored bytes of the columns of samples (n,).

        Raises:
            DamagedError: they lie outside the chunk that holds the sample; reading there could crash.
        """
        if not len(self.span_at):
            if len(offsets) and (offsets != 0).any():
                raise self.damaged()
            return offsets
        chunk = self.chunk_of(numbers)
        addresses: Address = offsets + self.span_at.take(chunk)[:, None]
        ascending = (addresses[:, 1:] >= addresses[:, :-1]).all()
        inside = (addresses[:, 0] >= self._low.take(chunk)) & (addresses[:, -1] <= self._high.take(chunk))
        # Samples of no bytes lie nowhere.
        if not ascending or not (inside | (offsets[:, 0] == offsets[:, -1])).all():
            raise self.damaged()
        return addresses

    def damaged(self) -> DamagedError:
        return DamagedError(
            f"field {self.field.name!r}: an index of its column is damaged; `packer verify` tells where, "
            "`packer repair` packs its shard again"
        )

    def array_at(self, name: str) -> Address:
        """Address of an index array in each shard."""
        found = [self.memory.address_of(s, index.arrays[name]) for s, index in enumerate(self.indexes)]
        return np.array(found, np.int64)


class Finder:
    """Which stretch a number lies in: `searchsorted(ends, numbers, side="right")`, seven times as fast for many.

    A search among 64 stretches for numbers in random order costs 37 ns each. Here a table tells in which stretch every
    2**k numbers begin, and as many comparisons put right those behind an end as there are ends among 2**k: 4.5 ns with
    one, 5.2 with two.

    Args:
        ends: where each stretch but the last ends, ascending, (stretches - 1,).

    Attributes:
        starts: where each stretch starts, (stretches,).
    """

    #: Fewer numbers are searched for: six calls take longer than the search.
    LEAST = 512
    #: A longer table would not fit the processor's cache.
    MOST = 2**15
    #: With more ends among 2**k numbers the search is as fast.
    MOST_ENDS = 3

    def __init__(self, ends: Numbers) -> None:
        self._ends = ends
        self.starts: Numbers = np.concatenate([[0], ends])
        mean = int(ends[-1]) // len(ends) if len(ends) else 0
        self._shift = max(mean.bit_length() - 1, 0)
        self._compared = 0
        buckets = (int(ends[-1]) >> self._shift) + 2 if mean else 0
        self._table: Numbers | None = None
        if 0 < buckets <= self.MOST:
            starts = np.arange(buckets, dtype=np.int64) << self._shift
            table = ends.searchsorted(starts, side="right")
            self._compared = int(np.diff(table).max())
            if self._compared <= self.MOST_ENDS:
                self._table = table
                self._padded = np.append(ends, np.iinfo(np.int64).max)

    def find(self, numbers: Numbers) -> Numbers:
        """Stretch of each number, (n,)."""
        if self._table is None or len(numbers) < self.LEAST:
            return self._ends.searchsorted(numbers, "right")
        found = self._table.take(numbers >> self._shift, mode="clip")
        for _ in range(self._compared):
            found += numbers >= self._padded.take(found)
        return found


def common_finder(fields: Sequence[Places]) -> Finder:
    """Finds stretches of samples within which no field begins a chunk: one search serves them all."""
    return Finder(np.unique(np.concatenate([np.zeros(0, np.int64), *(places.ends[:-1] for places in fields)])))


def _chunk_table(first: int, start: int, index: ColumnIndex) -> Numbers:
    """For each chunk of a shard: `span_at`, addresses of its start and end, the sample behind it; (chunks, 4)."""
    table = index.arrays["chunks"].astype(np.int64)
    before = np.concatenate([[0], table[:-1, 2]])[: len(table)]
    low = start + index.chunk_at
    ends = first + _samples_up_to(index, table[:, 1])
    return np.stack([low - before, low, low + table[:, 2] - before, ends], axis=1)


def _samples_up_to(index: ColumnIndex, frames: Numbers) -> Numbers:
    """Samples of a shard that lie before each of the frame numbers given, which begin a sample."""
    rule = index.field.frame
    if rule.samples is not None:
        return np.minimum(frames * rule.samples, index.samples)
    if index.field.is_ragged:
        return np.searchsorted(index.arrays["sample_frames"], frames.astype(np.uint64), side="left")
    return frames // index.field.bands
