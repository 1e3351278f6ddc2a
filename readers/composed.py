"""Orders made of other orders: of a subset, of several passes, and of several datasets by weight."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from packer.errors import UsageError
from packer.format import Numbers
from readers.order import Order, digest, random_state
from readers.valid import check_count, check_seed


@dataclass(frozen=True, eq=False)
class _OfOrder(Order):
    """Orders as another order does, which is drawn or not, and in windows or not."""

    order: Order

    @property
    def is_drawn(self) -> bool:  # type: ignore[override]
        return self.order.is_drawn

    @property
    def window(self) -> int | None:  # type: ignore[override]
        return self.order.window


@dataclass(frozen=True, eq=False)
class SubsetOrder(_OfOrder):
    """The numbers of a subset, in the order of their places in it.

    Args:
        order: of the places, 0 to m - 1.
        numbers: of the samples, (m,).
    """

    numbers: Numbers

    def __len__(self) -> int:
        return len(self.order)

    def epoch(self, epoch: int) -> Numbers:
        """Return the sample numbers of an epoch, (n,)."""
        chosen: Numbers = self.numbers[self.order.epoch(epoch)]
        return chosen

    def at(self, epoch: int) -> Callable[[Numbers], Numbers]:
        """Return a function that gives the samples at positions (n,) of this epoch, (n,)."""
        places = self.order.at(epoch)
        return lambda positions: self.numbers[places(positions)]

    @property
    def words(self) -> str:
        return f"{self.order.words}, of numbers {digest(self.numbers)}"


@dataclass(frozen=True)
class Repeated(_OfOrder):
    """Several epochs of another order, one after another, as one: each pass in an order of its own.

    Raises:
        UsageError: `times` is not a whole number from 1 on.
    """

    times: int

    def __post_init__(self) -> None:
        check_count("repeat", self.times)

    def __len__(self) -> int:
        return len(self.order) * self.times

    def epoch(self, epoch: int) -> Numbers:
        """Return the sample numbers of all passes of an epoch, (n,)."""
        first = epoch * self.times
        return np.concatenate([self.order.epoch(number) for number in range(first, first + self.times)])

    def at(self, epoch: int) -> Callable[[Numbers], Numbers]:
        """Return a function that gives the samples at positions (n,) of this epoch, (n,)."""
        functions: dict[int, Callable[[Numbers], Numbers]] = {}  # those of the last call, by the number of their pass

        def samples_at(positions: Numbers) -> Numbers:
            passes = positions // len(self.order)
            samples = np.empty(len(positions), np.int64)
            numbers = np.unique(passes).tolist()
            for number in set(functions) - set(numbers):
                del functions[number]
            for number in numbers:
                if number not in functions:
                    functions[number] = self.order.at(epoch * self.times + number)
                is_in_pass = passes == number
                samples[is_in_pass] = functions[number](positions[is_in_pass] - number * len(self.order))
            return samples

        return samples_at

    @property
    def words(self) -> str:
        return f"{self.order.words}, {self.times} times"

    def save(self) -> dict[str, Any]:
        """Return the entries of a saved state that describe the order."""
        return self.order.save() | super().save()

    def resume(self, state: Mapping[str, Any]) -> Order:
        """Return as many passes of the order in which a state was saved."""
        return replace(self, order=self.order.resume(state))


@dataclass(frozen=True)
class Mixed(Order):
    """The numbers of several datasets by weight. Those of the second dataset come after those of the first, and so on.

    An epoch holds from each dataset a number of samples in proportion to its weight, as closely as whole numbers can. A
    dataset with too few samples gives them again, in another order; one with too many leaves some out, different ones
    in each epoch.

        sizes 6 and 2, weights 1 and 1    stop at the first    0 6 4 7          one of them is through
                                          stop at all          3 6 1 7 5 6 0 7 2 6 4 7

    Args:
        sizes: samples of each dataset.
        weights: of each, above 0.
        shuffle: whether to shuffle; else each dataset is read in order, evenly among the others, and each epoch goes on
            where the last one stopped.
        until_all: whether an epoch ends when every dataset was read once; else when the first one was.
        together: how many numbers, one after another, are of one dataset.
        orders: of the samples of each dataset, in place of full shuffles: each pass over a dataset is an epoch of its
            order.

    Raises:
        UsageError: one of the datasets would give nothing.
    """

    is_drawn = True
    sizes: tuple[int, ...]
    weights: tuple[float, ...]
    seed: int = 0
    shuffle: bool = True
    until_all: bool = False
    together: int = 1
    orders: tuple[Order, ...] = ()

    def __post_init__(self) -> None:
        check_seed(self.seed)
        # The smallest dataset first, to name that one: without a batch of it, an epoch has none of any other.
        for number in sorted(range(len(self.sizes)), key=self.sizes.__getitem__):
            if not self._turns[number]:
                unit = f"batches of {self.together}" if self.together > 1 else "samples"
                raise UsageError(
                    f"mix: an epoch would have no {unit} of dataset {number} ({self.sizes[number]:,} samples, weight "
                    f"{self.weights[number]:g} of {sum(self.weights):g}); give it more "
                    'weight, take smaller batches, or stop="all"'
                )

    @cached_property
    def _turns(self) -> Numbers:
        """Return the turns of each dataset in an epoch, (datasets,); in each it gives `together` numbers."""
        sizes, weights = np.array(self.sizes), np.array(self.weights, np.float64)
        full_turns = -(-sizes // self.together) if self.until_all else sizes // self.together
        rounds = full_turns / weights
        turns = np.rint(weights * (rounds.max() if self.until_all else rounds.min())).astype(np.int64)
        limited: Numbers = np.maximum(turns, full_turns) if self.until_all else np.minimum(turns, full_turns)
        return limited

    def __len__(self) -> int:
        return int(self._turns.sum()) * self.together

    def epoch(self, epoch: int) -> Numbers:
        """Return the sample numbers of an epoch, (n,)."""
        state = random_state(self.seed, epoch)
        turns = self._turns
        turn = np.repeat(np.arange(len(turns)), turns)
        if self.shuffle:
            state.shuffle(turn)
        else:
            turn = turn[np.argsort(np.concatenate([(np.arange(n) + 0.5) / n for n in turns]), kind="stable")]
        turn = np.repeat(turn, self.together)
        order = np.empty(len(turn), np.int64)
        first = 0
        for number, (size, count) in enumerate(zip(self.sizes, (turns * self.together).tolist(), strict=True)):
            if self.orders:
                passes = -(-count // size)
                # Each dataset has epochs of its own numbers: those of shards that are alike are drawn unlike.
                epochs = number + len(turns) * np.arange(epoch * passes, (epoch + 1) * passes)
                samples = np.concatenate(list(map(self.orders[number].epoch, epochs.tolist())))[:count]
            elif self.shuffle:
                samples = np.concatenate([state.permutation(size) for _ in range(-(-count // size))])[:count]
            else:
                samples = (epoch * count + np.arange(count)) % size  # from where the last epoch stopped
            order[turn == number] = first + samples
            first += size
        return order

    @property
    def words(self) -> str:
        stop = "all" if self.until_all else "first"
        settings = f"sizes {list(self.sizes)}, shuffle {self.shuffle}, stop {stop}, {self.together} together"
        return ", ".join([super().words, settings, *(order.words for order in self.orders)])

    @property
    def window(self) -> int | None:  # type: ignore[override]
        return sum(order.window or 0 for order in self.orders) or None

    def save(self) -> dict[str, Any]:
        """Return the entries of a saved state that describe the order, with the weights, which may change later."""
        return super().save() | {"weights": list(self.weights)}

    def resume(self, state: Mapping[str, Any]) -> Order:
        """Return the order with the weights that it had when a state was saved.

        Raises:
            UsageError: the state's weights do not fit this mix.
        """
        weights = state.get("weights")
        if weights is None:
            return self
        are_positive = isinstance(weights, Sequence) and all(isinstance(w, int | float) and w > 0 for w in weights)
        if not are_positive or len(weights) != len(self.weights):
            raise UsageError(f"the state's weights are {weights!r}; {len(self.weights)} numbers above 0 are expected")
        return replace(self, weights=tuple(weights))
