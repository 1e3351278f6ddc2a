"""Which samples are read: chosen by chance over the whole dataset, pass after pass."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from packer.cli.benching.settings import Setting
from readers import PackedDataset
from readers.dataset_order import order_of
from readers.order import random_bits
from readers.places import Numbers


class Draws(Protocol):
    """Gives sample numbers, others at each call; the same in every run."""

    def take(self, count: int) -> Numbers:
        """`count` sample numbers, (count,)."""


def draws_of(setting: Setting, dataset: PackedDataset) -> Draws:
    """What gives the numbers that a setting reads; the dataset has one sample at least."""
    return BlockDraws(dataset) if setting.shuffle == "block" else FullDraws(len(dataset))


class FullDraws:
    """Numbers below `n` by chance; within a call each comes once before any comes again."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._chance = np.random.Generator(random_bits(0, 0))

    def take(self, count: int) -> Numbers:
        """`count` sample numbers, (count,)."""
        epochs, rest = divmod(count, self._n)
        whole = [self._chance.permutation(self._n) for _ in range(epochs)]
        return np.concatenate([*whole, self._chance.choice(self._n, rest, replace=False)]).astype(np.int64)


class BlockDraws:
    """The numbers of epochs that are shuffled by blocks, each call going on where the last one ended.

    Frames that a loader keeps decoded are then used again as they are in an epoch, no more and no less.
    """

    def __init__(self, dataset: PackedDataset) -> None:
        self._order = order_of(dataset, "block", 0, None, None)
        self._epoch = 0
        self._left = self._order.epoch(0)

    def take(self, count: int) -> Numbers:
        """`count` sample numbers, (count,)."""
        while len(self._left) < count:
            self._epoch += 1
            self._left = np.concatenate([self._left, self._order.epoch(self._epoch)])
        taken, self._left = np.split(self._left, [count])
        return taken
