"""Where the samples of fields lie in the mapped shards: numbers to addresses, for a whole batch at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from packer.format.column import Finder, Locator
from packer.format.column_index import ColumnIndex
from packer.format.schema import Field
from readers.arrays import Numbers
from readers.memory import Memory


class Places(Locator):
    """Finds the samples of one field in the mapped shards of a dataset."""

    def __init__(self, field: Field, indexes: Sequence[ColumnIndex], memory: Memory) -> None:
        super().__init__(field, indexes, memory.array, memory.starts)
        self.memory = memory

    def has_shapes_of(self, other: Places) -> bool:
        """Whether each sample has the same lengths of its ragged axes in another field of the dataset."""
        pairs = zip(self.indexes, other.indexes, strict=True)
        return all(np.array_equal(a.arrays["shapes"], b.arrays["shapes"]) for a, b in pairs)


class Addresses:
    """Finds samples of all uncompressed fields of fixed shape: one search for their chunks, one product and one sum.

    Args:
        fields: where the samples of each field lie.
        at: for each field and chunk, the address that sample 0 of the dataset would have, in elements, (chunks,) each.
        lengths: elements of a sample of each field.
    """

    def __init__(self, fields: Sequence[Places], at: Sequence[Numbers], lengths: Sequence[int]) -> None:
        self._finder = _common_finder(fields)
        starts = self._finder.starts
        self._at: NDArray[np.int64] = np.zeros((len(fields), len(starts)), np.int64)
        for row, places, known in zip(self._at, fields, at, strict=True):
            if len(known):  # samples of no bytes may have no chunk
                row[:] = known[places.chunk_of(starts)]
        self._several = len(starts) > 1
        self._lengths = np.array(lengths, np.int64)[:, None]

    def of_all(self, numbers: Numbers) -> Numbers:
        """Address of each sample in each field, in elements, (fields, n)."""
        addresses: Numbers = numbers * self._lengths
        if self._several:
            addresses += self._at.take(self._finder.find(numbers), 1)
        else:
            addresses += self._at
        return addresses

    def of(self, field: int, numbers: Numbers) -> Numbers:
        """Address of each sample in one field, in elements, (n,)."""
        addresses: Numbers = numbers * self._lengths[field]
        addresses += self._at[field].take(self._finder.find(numbers))
        return addresses


def _common_finder(fields: Sequence[Places]) -> Finder:
    """Return what finds stretches of samples within which no field begins a chunk: one search serves them all."""
    return Finder(np.unique(np.concatenate([np.zeros(0, np.int64), *(places.ends[:-1] for places in fields)])))
