"""Which samples are read: chosen by chance over the whole dataset."""

from __future__ import annotations

import numpy as np

from readers import PackedDataset
from readers.dataset_order import order_of
from readers.order import random_bits
from readers.places import Numbers


class Draws:
    """Draws sample numbers, others at each call; the same in every run.

    Args:
        dataset: has one sample at least.
    """

    def __init__(self, dataset: PackedDataset) -> None:
        self._n = len(dataset)
        self._chance = np.random.Generator(random_bits(0, 0))
        self._blocks = order_of(dataset, "block", 0, None, None)
        self._epoch = 0
        self._epoch_order = self._blocks.epoch(0)

    def numbers(self, shuffle: str, count: int) -> Numbers:
        """`count` sample numbers (count,) in the order of a full shuffle, or of one by blocks."""
        return self._block(count) if shuffle == "block" else self._full(count)

    def _full(self, count: int) -> Numbers:
        """Each sample comes once before any comes again."""
        epochs, rest = divmod(count, self._n)
        whole = [self._chance.permutation(self._n) for _ in range(epochs)]
        return np.concatenate([*whole, self._chance.choice(self._n, rest, replace=False)]).astype(np.int64)

    def _block(self, count: int) -> Numbers:
        """A run of an epoch, beginning anywhere; of several epochs where one has too few."""
        numbers = self._epoch_order
        while len(numbers) < count:
            self._epoch += 1
            numbers = np.concatenate([numbers, self._blocks.epoch(self._epoch)])
        start = int(self._chance.integers(len(numbers) - count + 1))
        return numbers[start : start + count]
