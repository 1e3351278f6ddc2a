"""All shards of a dataset as one stretch of memory, and where in it the samples of each field lie.

Every shard is mapped read-only. One array is laid over the lowest to the highest map, and bytes are addressed by their
distance from its start: one gather then fetches records of any number of chunks and shards. What lies between the maps
is never read: every address comes from a checked index.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

from packer.format.column import Finder, Locator
from packer.format.column_index import ColumnIndex
from packer.format.schema import Field
from packer.format.shard import Shard
from readers.arrays import Numbers
from readers.gather import Records

Address = NDArray[np.int64]


class Memory:
    """The maps of all shards, addressed as one.

    Attributes:
        starts: address of the first byte of each shard, (shards,) int64.
        bytes: the whole window; slice it only at addresses that an index gives.
        array: the same as an array, for slices that numpy joins.
    """

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._maps = [np.frombuffer(shard.bytes, np.uint8) for shard in shards]
        at = np.array([_position(array) for array in self._maps], np.int64)
        ends = at + np.array([array.nbytes for array in self._maps], np.int64)
        base = int(at.min()) if len(at) else 0
        span = int(ends.max()) - base if len(at) else 0
        self.starts: Address = at - base
        # numpy 2.2 makes no array of what begins at address 0.
        window = np.asarray(_Span(base, span)) if span else np.empty(0, np.uint8)
        self.bytes: memoryview = window.data.toreadonly()
        self._flat = torch.from_numpy(window)
        window = window.view()
        window.flags.writeable = False
        self.array: NDArray[np.uint8] = window

    def records(self, unit: torch.dtype, dtype: DTypeLike, shape: tuple[int, ...]) -> Records:
        """Return the memory as records of a dtype and shape; record i begins at address `i * unit.itemsize`."""
        elements = self._flat[: len(self._flat) // unit.itemsize * unit.itemsize].view(unit)
        return Records(elements, dtype, shape)


class _Span:
    """A stretch of memory for numpy. It is declared writable, since torch warns of anything else; nothing
    here writes to it, and no tensor on it is handed out."""

    def __init__(self, base: int, nbytes: int) -> None:
        self.__array_interface__ = {"data": (base, False), "shape": (nbytes,), "typestr": "|u1", "version": 3}


def _position(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


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
