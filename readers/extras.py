"""What a batch says of its items next to their fields: name and number of the sample, and anchor step of the window.

ds = PackedDataset(path, extras=("name", "number"))
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import torch

from packer.errors import UsageError
from packer.format.schema import Field
from packer.format.shard import Shard
from readers.arrays import Allocate, Numbers
from readers.draws import Visits
from readers.gather import fresh
from readers.items import Items

NAME, NUMBER, STEP = "name", "number", "step"


def check(extras: Sequence[str], fields: Collection[str], has_names: bool, has_windows: bool) -> None:
    """Raise UsageError if a dataset of which some fields are read has no such extras."""
    for extra in extras:
        if extra not in (NAME, NUMBER, STEP):
            raise UsageError(f"extras: {extra!r} is none of {NAME!r}, {NUMBER!r} and {STEP!r}")
        if extra == NAME and not has_names:
            raise UsageError("extras: the samples have no names; ask for their numbers")
        if extra == STEP and not has_windows:
            raise UsageError("extras: 'step' is the anchor step of a window; give windows=Windows(...)")
        if extra in fields:
            raise UsageError(f"extras: a field is called {extra!r} too; choose the others by `fields`")


class NameReader:
    """Names of samples, as their shards hold them. Reads like a field of text.

    Args:
        shards: open ones; each with the number of its samples.

    Raises:
        DamagedError: the names of a shard are damaged.
    """

    field = Field(name=NAME, dtype="uint8", kind="text", shape=(None,))

    def __init__(self, shards: Sequence[tuple[Shard, int]]) -> None:
        self._tables = [shard.name_table(samples) for shard, samples in shards]
        self._first: Numbers = np.cumsum([0, *(samples for _, samples in shards)])

    def locate(self, numbers: Numbers, visits: Visits | None = None, anchors: Numbers | None = None) -> Numbers:
        """Return shard and number within it, (n, 2)."""
        shard = self._first[1:-1].searchsorted(numbers, side="right")
        return np.stack([shard, numbers - self._first[shard]], axis=1)

    def spans(self, located: Numbers) -> Numbers:
        """Return that nothing worth asking for is touched, (n, 2)."""
        return np.zeros_like(located)

    def read(self, located: Numbers, allocate: Allocate | None = None) -> list[str]:
        """Return the names."""
        found = [""] * len(located)
        for shard in np.unique(located[:, 0]).tolist():
            data, ends = self._tables[shard]
            chosen = np.flatnonzero(located[:, 0] == shard)
            local = located[chosen, 1]
            for place, start, stop in zip(chosen.tolist(), ends[local].tolist(), ends[local + 1].tolist(), strict=True):
                found[place] = str(data[start:stop], "utf-8", "replace")
        return found


class NumberReader:
    """Numbers of samples, or anchor steps of windows. Reads like a field of int64.

    Args:
        extra: `NUMBER` or `STEP`.
    """

    def __init__(self, extra: str, items: Items) -> None:
        self.field = Field(name=extra, dtype="int64")
        self._items = items

    def locate(self, numbers: Numbers, visits: Visits | None = None, anchors: Numbers | None = None) -> Numbers:
        """Return what is read, (n,)."""
        if self.field.name == NUMBER:
            return self._items.in_split(numbers)
        assert anchors is not None, "windows lie at anchor steps"
        return anchors

    def spans(self, located: Numbers) -> Numbers:
        """Return that nothing is touched, (n, 2)."""
        return np.zeros((len(located), 2), np.int64)

    def read(self, located: Numbers, allocate: Allocate | None = None) -> torch.Tensor:
        """Return the numbers, (n,) int64, in new memory or in what `allocate` gives."""
        return (allocate or fresh)(located.nbytes).view(torch.int64).copy_(torch.from_numpy(located))
