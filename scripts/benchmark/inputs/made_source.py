"""Pictures made while they are packed: as many gigabytes as are wanted, and none on the disk."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from packer.format.schema import FieldSpec
from packer.sources.base import Block, Source

_SIDES = {"lr": 48, "hr": 192}
#: Pairs of one block, 7.5 MB.
_PAIRS = 64


class MadePairs(Source):
    """Pairs `start` to `stop` of 48/192 px, RGB; no two are alike."""

    kind = "made"
    names = None
    fields = tuple(
        FieldSpec(name=name, dtype="uint8", kind="image", shape=(side, side, 3)) for name, side in _SIDES.items()
    )

    def __init__(self, start: int, stop: int) -> None:
        self._start, self._stop = start, stop

    @classmethod
    def of_bytes(cls, nbytes: int) -> MadePairs:
        """As many as hold about `nbytes` bytes."""
        return cls(0, max(1, nbytes // sum(spec.fixed_bytes for spec in cls.fields)))

    def __len__(self) -> int:
        return self._stop - self._start

    def shapes(self, field: str) -> None:
        return None

    def part(self, start: int, stop: int) -> MadePairs:
        return MadePairs(self._start + start, self._start + stop)

    def files(self) -> list[str]:
        return []

    def read(self) -> Iterator[Block]:
        noise = {name: _noise(side) for name, side in _SIDES.items()}
        for first in range(self._start, self._stop, _PAIRS):
            count = min(_PAIRS, self._stop - first)
            # Each picture is the noise brighter by its number, and wraps.
            brighter = np.arange(first, first + count).astype(np.uint8)[:, None, None, None]
            yield {name: values[:count] + brighter for name, values in noise.items()}


def _noise(side: int) -> NDArray[np.uint8]:
    return np.random.default_rng(side).integers(0, 32, (_PAIRS, side, side, 3), np.uint8)
