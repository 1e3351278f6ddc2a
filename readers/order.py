"""The order of an epoch: which samples come when, and how saved states describe it.

No files are needed. An `Order` gives the numbers of all samples of an epoch, in the order in which all ranks together
read them. It depends on the seed and the epoch alone, so that any number of ranks, threads and restarts sees the same
one; `share.py` cuts it into batches for one rank.

    shuffled    samples one after another, a full shuffle, a shuffle of blocks
    samplers    numbers, a sampler or a sampler of batches that the caller gives
    composed    a subset, several passes, or several datasets by weight
    shard_order a shuffle of windows of whole shards

An order is worked out for some positions at a time. A full shuffle of more than `LISTED` samples is computed as it is
read; smaller ones, block shuffles, samplers and mixes keep an epoch in memory, 8 bytes a sample.

Random orders come from `numpy.random.RandomState` on PCG64, seeded with SeedSequence([seed, epoch]). numpy promises
that a RandomState gives the same stream in every version (NEP 19), but not that a `Generator` does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.format import Numbers
from readers.share import Batches, Share, SharedBatches

#: Raise it when the same seed gives another order than before: a saved state would go on with other samples.
ORDER_VERSION = 5
#: Stands before that version in the words of an order.
_VERSION_MARK = ", way "
#: Between two parts of these words; not within a list of numbers.
_PARTS = re.compile(r", (?![^\[]*\])")


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
        return f"{self.words}{_VERSION_MARK}{ORDER_VERSION}" if self.is_drawn else self.words

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


# ---------------------------------------------------------------- saved states


def digest(numbers: Numbers) -> str:
    """Return a short text that differs for other numbers."""
    return str(xxhash.xxh3_64_hexdigest(np.ascontiguousarray(numbers).data))


def check_state(state: Any) -> None:
    """Raise UsageError if this is no saved state of a loader."""
    if not isinstance(state, Mapping):
        raise UsageError(f"the state is {state!r:.60}: what Loader.state_dict() gave is expected")
    for name in ("epoch", "done", "samples"):
        number = state.get(name)
        if not isinstance(number, int | np.integer) or number < 0:
            raise UsageError(f"the state's {name} is {number!r}: what Loader.state_dict() gave is expected")


def check_order(state: Mapping[str, Any], order: Order) -> None:
    """Raise UsageError if a saved state is of an order of another length or description."""
    samples, expected = len(order), order.in_words
    if state["samples"] != samples:
        raise UsageError(
            f"the state is of {state['samples']} samples; this loader reads {samples}. Give the same dataset, split "
            "and repeat, and of a Mix of batches='one' the same batch_size and number of ranks"
        )
    if state.get("order", expected) != expected:
        if str(state["order"]).partition(_VERSION_MARK)[0] == expected.partition(_VERSION_MARK)[0]:
            raise UsageError(
                "the state was saved by another version of readers, in which this seed gave another order; begin the "
                "epoch again: set_epoch(state['epoch'])"
            )
        saved, ours = _PARTS.split(str(state["order"])), _PARTS.split(expected)
        its, own = ([part for part in a if part not in b] for a, b in ((saved, ours), (ours, saved)))
        raise UsageError(
            f"the state is of another order: it has {', '.join(its) or 'nothing'}, where this loader has "
            f"{', '.join(own) or 'nothing'}. Give the same shuffle, seed, shuffle_window and sampler; the blocks of "
            "shuffle='block' follow from the fields that are read, the "
            "window of shuffle='shards' from cache_bytes unless it is given, the order of a Mix of batches='one' from "
            "batch_size and the number of ranks"
        )
