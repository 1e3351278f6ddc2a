"""Where the samples of one field lie, over all shards: numbers to addresses, for a whole batch at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from packer.format.column import Finder as Finder
from packer.format.column import Locator
from packer.format.column import Numbers as Numbers
from packer.format.column_index import ColumnIndex
from packer.format.schema import Field
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


def common_finder(fields: Sequence[Places]) -> Finder:
    """Finds stretches of samples within which no field begins a chunk: one search serves them all."""
    return Finder(np.unique(np.concatenate([np.zeros(0, np.int64), *(places.ends[:-1] for places in fields)])))
