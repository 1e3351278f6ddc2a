"""The order of an epoch: which samples come when.

No files are needed. An `Order` gives the numbers of all samples of an epoch, in the order in which all ranks together
read them. It depends on the seed and the epoch alone, so that any number of ranks, threads and restarts sees the same
one; `share.py` cuts it into batches for one rank. `epoch.py` compares it with that of a saved state.

Those of all samples of a dataset are here: one after another, a full shuffle, a shuffle of blocks. Others are in

    samplers    numbers, a sampler or a sampler of batches that the caller gives
    composed    a subset, several passes, or several datasets by weight
    shard_order a shuffle of windows of whole shards

An order is worked out for some positions at a time. A full shuffle of more than `LISTED` samples is computed as it is
read; smaller ones, block shuffles, samplers and mixes keep an epoch in memory, 8 bytes a sample.

Random orders come from `numpy.random.RandomState` on PCG64, seeded with SeedSequence([seed, epoch]). numpy promises
that a RandomState gives the same stream in every version (NEP 19), but not that a `Generator` does.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.format import Numbers
from readers.keyed import Permutation
from readers.share import Batches, SequentialBatches, Share, SharedBatches
from readers.valid import check_count, check_seed

#: Shuffled orders of more samples are worked out from a key; up to this many, all orders are equally likely.
LISTED = 2**24
#: Samples of a window if the caller does not say.
WINDOW = 16_384
#: Raise it when the same seed gives another order than before: a saved state would go on with other samples.
ORDER_VERSION = 5
#: Stands before that version in the words of an order.
VERSION_MARK = ", way "


class Order:
    """The order in which the samples of an epoch are read.

    Attributes:
        is_drawn: whether it is drawn by our own random numbers, so that a saved state names their version.
        window: samples that a shuffle of blocks or shards shuffles among each other; None for other orders.
    """

    is_drawn = False
    window: int | None = None

    def __len__(self) -> int:
        """Return how many numbers an epoch has."""
        raise NotImplementedError

    def epoch(self, epoch: int) -> NDArray[Any]:
        """Return the sample numbers of this epoch, (n,), a new array; the same for the same epoch, on every rank."""
        raise NotImplementedError

    def at(self, epoch: int) -> Callable[[Numbers], Numbers]:
        """Return a function that gives the samples at positions (n,) of this epoch, (n,)."""
        return self.epoch(epoch).take

    def batches(self, epoch: int, share: Share, done: int) -> Batches:
        """Return the batches that one rank still has of an epoch, of which `done` numbers were taken.

        Raises:
            UsageError: the order has fewer numbers than `done`.
        """
        share.check_done(len(self), done)
        return SharedBatches(self.at(epoch), len(self), share, done)

    @property
    def words(self) -> str:
        """Return in words what the order depends on, without the version of the random numbers."""
        return f"{type(self).__name__}, seed {getattr(self, 'seed', None)}, window {self.window}"

    @cached_property
    def in_words(self) -> str:
        """Return in words what the order depends on. A saved state with other words would go on with other samples.

        Of a torch sampler only the kind and the seed are known.
        """
        return f"{self.words}{VERSION_MARK}{ORDER_VERSION}" if self.is_drawn else self.words

    def save(self) -> dict[str, Any]:
        """Return the entries of a saved state that describe the order."""
        return {"samples": len(self), "order": self.in_words}

    def resume(self, state: Mapping[str, Any]) -> Order:
        """Return the order of the epoch in which a state was saved.

        Raises:
            UsageError: the state's weights do not fit this mix.
        """
        return self


def check_within(numbers: Numbers, samples: int, source: str) -> Numbers:
    """Return the same numbers; raises UsageError if no sample has one of them."""
    wrong = numbers[(numbers < 0) | (numbers >= samples)]
    if len(wrong):
        raise UsageError(f"{source} gives number {wrong[0]}, outside of the {samples} samples")
    return numbers


def check_epoch(epoch: int) -> None:
    """Raise UsageError if there is no epoch of this number."""
    if epoch < 0:
        raise UsageError(f"epoch {epoch}: a number from 0 on is expected")


def random_state(seed: int, epoch: int, *part: int) -> np.random.RandomState:
    """Return the source of the random numbers of one epoch, or of a part of it.

    Raises:
        UsageError: the epoch is negative.
    """
    check_epoch(epoch)
    return np.random.RandomState(np.random.PCG64(np.random.SeedSequence([seed, epoch, *part])))


def digest(numbers: Numbers) -> str:
    """Return a short text that differs for other numbers."""
    return str(xxhash.xxh3_64_hexdigest(np.ascontiguousarray(numbers).data))


# ---------------------------------------------------------------- orders of all samples of a dataset


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
