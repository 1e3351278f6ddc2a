"""Arrays of `.npy` and `.npz` files as samples: the rows that all fields share, or whole arrays; opened by `opening`.

A sample that is a whole array is a row too, the only one of an array with one axis more (`Array.as_row`), so that
arrays one after another are parts of one long array, or the samples of a field.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.format import FieldSpec
from packer.sources.base import BLOCK_BYTES, LARGE_BYTES, Block, LargeArray, Source, faults_of, joined
from packer.sources.npy.array import Array


@dataclass(eq=False)
class NpySource(Source):
    """Rows start..stop of fields of one length. Pickles as paths and headers.

    Attributes:
        arrays: by field, arrays whose rows lie one after another; of files and folders one array a sample, as its row.
        names: of samples that are files or folders.
    """

    fields: tuple[FieldSpec, ...]
    arrays: dict[str, tuple[Array, ...]]
    names: Sequence[str] | None
    start: int
    stop: int
    origin: Mapping[str, Any] = field(default_factory=dict)
    remarks: Sequence[str] = ()

    kind = "npy"

    def __len__(self) -> int:
        return self.stop - self.start

    def shapes(self, field: str) -> NDArray[np.int64] | None:
        """Return None for text, whose length in UTF-8 is known only when it is read."""
        if any(array.is_text for array in self.arrays[field]):
            return None
        return np.array([array.shape[1:] for array in self.arrays[field]], np.int64).reshape(len(self), -1)

    def part(self, start: int, stop: int) -> NpySource:
        if self.names is None:
            return replace(self, start=self.start + start, stop=self.start + stop, origin={}, remarks=())
        arrays = {name: some[start:stop] for name, some in self.arrays.items()}
        return replace(self, arrays=arrays, names=self.names[start:stop], stop=stop - start, origin={}, remarks=())

    def read(self) -> Iterator[Block]:
        if self.names is not None:
            yield from joined(map(self._sample, range(len(self))), self.fields, BLOCK_BYTES)
            return
        row_bytes = sum(arrays[0].row_bytes for arrays in self.arrays.values())
        rows = max(1, BLOCK_BYTES // max(1, row_bytes))
        ends = {end for arrays in self.arrays.values() for end in accumulate(map(len, arrays))}
        wholes: dict[tuple[str, str], NDArray[Any]] = {}
        borders = [self.start, *sorted(end for end in ends if self.start < end < self.stop), self.stop]
        for start, stop in pairwise(borders):
            parts = {name: _part_at(arrays, start) for name, arrays in self.arrays.items()}
            # Kept while it is read on; fields of one structured array share it.
            places = {(array.path, array.member): array for array, _ in parts.values()}
            wholes = {place: wholes[place] if place in wholes else array.whole() for place, array in places.items()}
            for first in range(start, stop, rows):
                count = min(rows, stop - first)
                yield {
                    name: array.values(wholes[array.path, array.member][first - before : first - before + count])
                    for name, (array, before) in parts.items()
                }

    def _sample(self, number: int) -> dict[str, Any]:
        with faults_of(sample=number):
            wholes = {(some[number].path, some[number].member): some[number] for some in self.arrays.values()}
            read = {place: array.whole() for place, array in wholes.items()}
            arrays = {name: some[number] for name, some in self.arrays.items()}
            return {name: _one(a, read[a.path, a.member], number) for name, a in arrays.items()}

    def files(self) -> list[str]:
        return list(dict.fromkeys(array.path for arrays in self.arrays.values() for array in arrays))


def _part_at(arrays: Sequence[Array], row: int) -> tuple[Array, int]:
    """Return which of arrays that lie one after another holds a row, and the number of rows before that array."""
    before = 0
    for array in arrays:
        if row < before + len(array):
            return array, before
        before += len(array)
    raise IndexError(row)


def _one(array: Array, whole: NDArray[Any], number: int) -> NDArray[Any] | LargeArray | str:
    """Return the one row of an array, the sample `number`, as a copy, so that no file stays open for it."""
    if array.nbytes > LARGE_BYTES and not array.member and not array.header.is_fortran:

        def read(start: int, stop: int) -> NDArray[Any]:
            values: NDArray[Any] = np.array(array.values(array.whole()[0, start:stop]))
            return values

        return LargeArray(array.dtype.newbyteorder("="), array.shape[1:], read, number=number)
    (value,) = array.values(whole)
    return value if isinstance(value, str) else np.array(value)
