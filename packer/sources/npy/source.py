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

from packer.format.schema import FieldSpec
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

    def shapes(self, field: str) -> NDArray[np.int64]:
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
        borders = [self.start, *sorted(end for end in ends if self.start < end < self.stop), self.stop]
        for start, stop in pairwise(borders):
            runs = [_runs(arrays, start, stop, rows) for arrays in self.arrays.values()]
            for values in zip(*runs, strict=True):
                yield dict(zip(self.arrays, values, strict=True))

    def _sample(self, number: int) -> dict[str, Any]:
        with faults_of(sample=number):
            return {name: _whole(some[number], number) for name, some in self.arrays.items()}

    def files(self) -> list[str]:
        return list(dict.fromkeys(array.path for arrays in self.arrays.values() for array in arrays))


def _runs(arrays: Sequence[Array], start: int, stop: int, rows: int) -> Iterator[NDArray[Any]]:
    """Yield rows start..stop of arrays laid one after another, `rows` at once; all lie in one of the arrays."""
    for array in arrays:
        if start < len(array):
            return array.runs(start, stop, rows)
        start, stop = start - len(array), stop - len(array)
    return iter(())


def _whole(array: Array, number: int) -> NDArray[Any] | LargeArray:
    """Return the one row of an array, the sample `number`, as a copy, so that no file stays open for it."""
    if array.nbytes > LARGE_BYTES and not array.is_deflated and not array.is_fortran:
        whole = replace(array, shape=array.shape[1:])

        def read(start: int, stop: int) -> NDArray[Any]:
            return next(whole.runs(start, stop, stop - start)).copy()

        return LargeArray(array.native, whole.shape, read, number=number)
    (rows,) = array.runs(0, 1, 1)
    values: NDArray[Any] = rows.reshape(rows.shape[1:])
    return values.copy()
