"""Arrays in memory as a source for packer: whole blocks at a time, where a sequence of dicts goes sample by sample."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.format.schema import FieldSpec, Kind
from packer.sources.base import Block, Source

#: Raw bytes of a block, about.
_BLOCK_BYTES = 8 * 2**20


class ArraySource(Source):
    """Samples start..stop of arrays that share their first axis, or, with `offsets`, of ragged ones.

    Fields whose samples have three axes are images.

    Args:
        arrays: by field, (n, ...); with offsets (m, ...), the samples one behind another.
        offsets: where each sample begins, and the end of the last, (n + 1,).
    """

    kind = "arrays"
    names = None

    def __init__(
        self,
        arrays: Mapping[str, NDArray[Any]],
        offsets: NDArray[np.int64] | None = None,
        start: int = 0,
        stop: int | None = None,
    ) -> None:
        self._arrays = dict(arrays)
        self._offsets = offsets
        self._start = start
        count = len(next(iter(arrays.values()))) if offsets is None else len(offsets) - 1
        self._stop = count if stop is None else stop
        self.fields = tuple(_spec(name, values, offsets is not None) for name, values in arrays.items())

    def __len__(self) -> int:
        return self._stop - self._start

    def shapes(self, field: str) -> NDArray[np.int64] | None:
        if self._offsets is None:
            return None
        return np.diff(self._offsets[self._start : self._stop + 1])[:, None]

    def part(self, start: int, stop: int) -> Source:
        return ArraySource(self._arrays, self._offsets, self._start + start, self._start + stop)

    def files(self) -> list[str]:
        return []

    def read(self) -> Iterator[Block]:
        held = sum(values.nbytes for values in self._arrays.values())
        count = len(next(iter(self._arrays.values()))) if self._offsets is None else len(self._offsets) - 1
        step = max(1, _BLOCK_BYTES * count // max(held, 1))
        for first in range(self._start, self._stop, step):
            last = min(first + step, self._stop)
            yield {name: self._cut(values, first, last) for name, values in self._arrays.items()}

    def _cut(self, values: NDArray[Any], first: int, last: int) -> NDArray[Any] | list[NDArray[Any]]:
        if self._offsets is None:
            return values[first:last]
        edges = self._offsets[first : last + 1].tolist()
        return [values[a:b] for a, b in itertools.pairwise(edges)]


def _spec(name: str, values: NDArray[Any], is_ragged: bool) -> FieldSpec:
    shape = (None, *values.shape[1:]) if is_ragged else values.shape[1:]
    kind: Kind = "image" if len(shape) == 3 else "array"
    return FieldSpec(name=name, dtype=values.dtype.name, kind=kind, shape=shape)
