"""Orders of all samples of a dataset: one after another, a full shuffle, or a shuffle of blocks."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from packer.format import Numbers
from readers.keyed import Permutation
from readers.order import Order, check_epoch, digest, random_state
from readers.share import Batches, SequentialBatches, Share
from readers.valid import check_count, check_seed

#: Shuffled orders of more samples are worked out from a key; up to this many, all orders are equally likely.
LISTED = 2**24
#: Samples of a window if the caller does not say.
WINDOW = 16_384


@dataclass(frozen=True)
class Sequential(Order):
    """0 to n - 1, in every epoch."""

    n: int

    def __len__(self) -> int:
        return self.n

    def epoch(self, epoch: int) -> Numbers:
        """Return the sample numbers, (n,)."""
        return np.arange(self.n, dtype=np.int64)

    def at(self, epoch: int) -> Callable[[Numbers], Numbers]:
        """Return a function that gives the samples at positions (n,): the positions themselves."""
        return lambda positions: positions

    def batches(self, epoch: int, share: Share, done: int) -> Batches:
        """Return the batches that one rank still has of an epoch."""
        share.check_done(len(self), done)
        return SequentialBatches(self.at(epoch), len(self), share, done)


@dataclass(frozen=True)
class Shuffled(Order):
    """0 to n - 1, every epoch in another order: a permutation; above `LISTED` samples one that a key chooses."""

    is_drawn = True
    n: int
    seed: int = 0

    def __post_init__(self) -> None:
        check_seed(self.seed)

    def __len__(self) -> int:
        return self.n

    def epoch(self, epoch: int) -> Numbers:
        """Return the sample numbers of an epoch, (n,)."""
        if self.n > LISTED:
            return self.at(epoch)(np.arange(self.n))
        return random_state(self.seed, epoch).permutation(self.n).astype(np.int64, copy=False)

    def at(self, epoch: int) -> Callable[[Numbers], Numbers]:
        """Return a function that gives the samples at positions (n,) of this epoch, (n,)."""
        check_epoch(epoch)
        return Permutation(self.n, self.seed, epoch).at if self.n > LISTED else super().at(epoch)


@dataclass(frozen=True, eq=False)
class WindowShuffled(Order):
    """Shuffles stretches of 0 to n - 1, and then the samples of each window of stretches, anew in every epoch.

    Args:
        edges: where each stretch starts, and the end of the last, (stretches + 1,), from 0 to n; some may be empty.
        window: samples that are shuffled among each other, rounded to whole stretches.

    Raises:
        UsageError: the window is below 1.
    """

    is_drawn = True
    edges: Numbers
    window: int = WINDOW
    seed: int = 0

    def __post_init__(self) -> None:
        check_seed(self.seed)
        check_count("shuffle_window", self.window)

    def __len__(self) -> int:
        return int(self.edges[-1])


class BlockShuffled(WindowShuffled):
    """Shuffles blocks of samples that lie side by side; the last block of a window may end beyond it."""

    def epoch(self, epoch: int) -> Numbers:
        """Return the sample numbers of an epoch, (n,)."""
        state = random_state(self.seed, epoch)
        lengths = np.diff(self.edges)
        blocks = state.permutation(len(lengths))
        lengths = lengths[blocks]
        starts = np.cumsum(lengths) - lengths  # of the blocks, one after another
        order = np.repeat(self.edges[blocks] - starts, lengths)
        order += np.arange(len(order))
        # A window holds the blocks that start within it.
        edges = [*starts[np.diff(starts // min(self.window, len(self) or 1), prepend=-1) > 0].tolist(), len(order)]
        for start, stop in itertools.pairwise(edges):
            state.shuffle(order[start:stop])
        return order

    @property
    def words(self) -> str:
        return f"{super().words}, blocks {digest(self.edges)}"
