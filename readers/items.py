"""Which sample each number of a dataset means: one of all samples, one of a split, or one window of them.

All that comes after works with the numbers of samples in the whole dataset, and with windows an anchor step each.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from packer.format.column import Finder
from readers.arrays import Numbers


class Anchors(NamedTuple):
    """The anchor steps of some samples: `first`, `first + stride`, ...

    Attributes:
        first: of each sample, (n,).
        counts: how many each sample has, (n,).
    """

    first: Numbers
    counts: Numbers
    stride: int


class Items:
    """What a dataset is asked for by number: its samples, those of a split, or their windows.

    Args:
        total: samples of the whole dataset.
        chosen: numbers of the samples of a split, ascending, (n,); all samples if None.
        anchors: of the windows of the chosen samples; None if whole samples are asked for.
    """

    def __init__(self, total: int, chosen: Numbers | None = None, anchors: Anchors | None = None) -> None:
        self.total = total
        self._chosen = chosen
        self._anchors = anchors
        self.samples = total if chosen is None else len(chosen)
        if anchors is not None:
            self._ends: Numbers = anchors.counts.cumsum()
            self._finder = Finder(self._ends[:-1])

    def __len__(self) -> int:
        if self._anchors is None:
            return self.samples
        return int(self._ends[-1]) if len(self._ends) else 0

    def in_windows(self, anchors: Anchors) -> Items:
        """Return the windows of these samples."""
        return Items(self.total, self._chosen, anchors)

    def of(self, numbers: Numbers) -> tuple[Numbers, Numbers | None]:
        """Return sample (n,), by its number in the whole dataset, and anchor step (n,) or None, of items (n,)."""
        if self._anchors is None:
            return self.in_whole(numbers), None
        sample = self._finder.find(numbers)
        within = numbers - self._finder.starts[sample]
        return self.in_whole(sample), self._anchors.first[sample] + within * self._anchors.stride

    def in_whole(self, samples: Numbers) -> Numbers:
        """Return the numbers in the whole dataset of samples of the split (n,)."""
        return samples if self._chosen is None else self._chosen[samples]

    def in_split(self, samples: Numbers) -> Numbers:
        """Return the numbers in the split of samples of the whole dataset (n,); -1 if one is not in it."""
        if self._chosen is None:
            return samples
        if not self.samples:
            return np.full_like(samples, -1)
        place = self._chosen.searchsorted(samples)
        held = self._chosen.take(place, mode="clip") == samples
        return np.where(held, place, -1)

    def before(self, samples: Numbers) -> Numbers:
        """Return how many items are of samples with numbers in the whole dataset less than each of (n,)."""
        place = samples if self._chosen is None else self._chosen.searchsorted(samples)
        return place if self._anchors is None else np.append(0, self._ends)[place]
