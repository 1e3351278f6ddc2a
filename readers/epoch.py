"""Where a loader stands: in which epoch and order, and how much of it is done. That is what a saved state holds.

A state that was saved is compared with the order of the loader that takes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from operator import index
from typing import Any

import numpy as np
from torch.utils.data import BatchSampler
from torch.utils.data.distributed import DistributedSampler

from packer.errors import UsageError
from readers.order import VERSION_MARK, Order
from readers.share import GROUP_SAMPLES, Share
from readers.valid import check_count, remark

_READ_BY_ANOTHER = (
    "another loader reads the samplers of this Loader and not the Loader itself, as the one does that Accelerate's "
    "prepare() returns, so {}: keep the Loader out of prepare() and call accelerator.register_for_checkpointing(loader)"
    ", or prepare it with DataLoaderConfiguration(use_stateful_dataloader=True) and use the state of the other loader"
)
#: Between two parts of the words of an order; not within a list of numbers.
_PARTS = re.compile(r", (?![^\[]*\])")


@dataclass
class Epoch:
    """An epoch that is read, or that will be.

    Attributes:
        order: of the samples.
        number: of the epoch, from 0 on.
        done: samples of the order that were handed out on all ranks; batches, of a `BatchOrder`.
    """

    order: Order
    number: int = 0
    done: int = 0

    def state(self) -> dict[str, Any]:
        """Return what `Loader.load_state_dict` takes to go on here."""
        return {"epoch": self.number, "done": self.done, **self.order.save()}

    def next_epoch(self, order: Order) -> Epoch:
        """Return the beginning of the next epoch, which may have another order."""
        return Epoch(order, self.number + 1)


class Position:
    """Where a loader stands; `set_epoch` of its samplers changes it, too.

    Args:
        order: of the epochs that begin from now on.

    Attributes:
        epoch: that of the last batch handed out, or one that was chosen since.
    """

    def __init__(self, order: Order) -> None:
        self.order = order
        self.epoch = Epoch(order)
        #: The epoch in which the next loop begins, if the caller said so. A loop that goes on meanwhile leaves it.
        self._chosen: Epoch | None = None
        #: Whether the last samples were taken from a sampler: how many of them were handed out, nobody says.
        self._is_read_by_another = False

    def use(self, order: Order) -> None:
        """Take another order for the epochs that are not begun."""
        self.order = order
        for epoch in (self.epoch, self._chosen):
            if epoch is not None and not epoch.done:
                epoch.order = order

    def choose(self, epoch: Epoch) -> None:
        """Let the next loop begin in this epoch."""
        self.epoch = self._chosen = epoch
        self._is_read_by_another = False

    def set_epoch(self, epoch: int) -> None:
        """See `Loader.set_epoch`."""
        check_count("epoch", epoch, minimum=0)
        if self._chosen is None or epoch != self._chosen.number:
            if self._chosen and self._chosen.done:
                remark(
                    f"set_epoch({epoch}): the state that was loaded, in the middle of epoch {self._chosen.number}, is "
                    "not used; the rest of that epoch is left out"
                )
            self.choose(Epoch(self.order, index(epoch)))

    def begin(self) -> Epoch:
        """Return the epoch that a loop begins now, an object of its own."""
        epoch, self._chosen = self._chosen, None
        if epoch is None:
            # If the last loop was left in the middle of its epoch, a new one begins, as with torch's DataLoader.
            epoch = self.epoch.next_epoch(self.order) if self.epoch.done else self.epoch
        return replace(epoch)

    def begin_elsewhere(self) -> Epoch:
        """Return the epoch that a sampler gives from now on to another loader.

        Raises:
            UsageError: a state was loaded, of which the other loader knows nothing.
        """
        if self._chosen and self._chosen.done:
            raise UsageError(_READ_BY_ANOTHER.format("the state that was loaded into the Loader has no effect on it"))
        self._is_read_by_another = True
        return self.epoch

    def state(self) -> dict[str, Any]:
        """See `Loader.state_dict`."""
        if self._is_read_by_another:
            raise UsageError(_READ_BY_ANOTHER.format("the Loader does not know where that one stands"))
        return self.epoch.state()

    def advance(self, epoch: Epoch, is_through: bool) -> None:
        """Stand where a loop is that handed out a batch of this epoch, or behind the epoch if it is through."""
        self._is_read_by_another = False
        self.epoch = (self._chosen or epoch.next_epoch(self.order)) if is_through else epoch


class EpochSampler(DistributedSampler[int]):
    """A share of a loader's order as a torch sampler, for frameworks that take a loader apart or set its epoch.

    It is a DistributedSampler, so that frameworks do not put one of their own in its place.
    """

    def __init__(self, position: Position, share: Share) -> None:
        super().__init__(range(len(position.order)), share.world_size, share.rank, shuffle=False)  # type: ignore[arg-type]
        self._position, self._share = position, share

    def __iter__(self) -> Iterator[int]:
        batches, first = self._position.order.batches(self._position.begin_elsewhere().number, self._share, 0), 0
        while first < len(batches):
            stop = batches.group_end(first, GROUP_SAMPLES)
            yield from batches.group(first, stop)[0].tolist()
            first = stop

    def __len__(self) -> int:
        n, share = len(self._position.order), self._share
        batches = share.count_batches(n)
        remaining = 0 if share.drop_last else n % share.global_batch_size
        return (batches - bool(remaining)) * share.batch_size + -(-remaining // share.world_size)

    def set_epoch(self, epoch: int) -> None:
        """See `Loader.set_epoch`."""
        self._position.set_epoch(epoch)


class EpochBatchSampler(BatchSampler):
    """The batches of an `EpochSampler`; frameworks set the epoch of either."""

    def set_epoch(self, epoch: int) -> None:
        """See `Loader.set_epoch`."""
        self.sampler.set_epoch(epoch)  # type: ignore[union-attr]  # torch knows it as any sampler


# ---------------------------------------------------------------- saved states


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
        if str(state["order"]).partition(VERSION_MARK)[0] == expected.partition(VERSION_MARK)[0]:
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
