"""The order of an epoch: which samples come when, and how saved states describe it.

No files are needed. An `Order` gives the numbers of all samples of an epoch, in the order in which all ranks together
read them. It depends on the seed and the epoch alone, so that any number of ranks, threads and restarts sees the same
one; `readers/share.py` cuts it into batches for one rank.

An order is worked out for some positions at a time. A full shuffle of more than `LISTED` samples is computed as it is
read; smaller ones, block shuffles, samplers and mixes keep an epoch in memory, 8 bytes a sample.

Random orders come from `numpy.random.RandomState` on PCG64, seeded with SeedSequence([seed, epoch]). numpy promises
that a RandomState gives the same stream in every version (NEP 19), but not that a `Generator` does.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import index
from typing import Any

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.format import Numbers
from readers.gather import CPU
from readers.keyed import Permutation
from readers.share import Batches, GivenBatches, SequentialBatches, Share, SharedBatches
from readers.valid import check_count, check_seed

#: Raise it when the same seed gives another order than before: a saved state would go on with other samples.
ORDER_VERSION = 5
#: Stands before that version in the words of an order.
_VERSION_MARK = ", way "
#: Between two parts of these words; not within a list of numbers.
_PARTS = re.compile(r", (?![^\[]*\])")
#: Shuffled orders of more samples are worked out from a key; up to this many, all orders are equally likely.
LISTED = 2**24
#: Samples of a window if the caller does not say.
WINDOW = 16_384


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
class Given(Order):
    """The numbers of a subset, in the order given, in every epoch; a number may come more than once.

    Args:
        indices: integers, (m,).
        samples: of the dataset.

    Raises:
        UsageError: these are not integers in one axis; or, from `epoch`, no sample has one of them.
    """

    indices: Numbers
    samples: int

    def __post_init__(self) -> None:
        array = np.asarray(self.indices)
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise UsageError(
                f"sampler: one axis of sample numbers is expected, not {array.dtype} of shape {array.shape}; "
                "for a mask, pass np.flatnonzero(mask)"
            )
        object.__setattr__(self, "indices", array.astype(np.int64))

    def __len__(self) -> int:
        return len(self.indices)

    def epoch(self, epoch: int) -> Numbers:
        """Return the numbers, (m,)."""
        return _check_within(self.indices.copy(), self.samples, "sampler: the array")

    @property
    def words(self) -> str:
        return f"{super().words}, numbers {digest(self.indices)}"


@dataclass(frozen=True, eq=False)
class BlockShuffled(Order):
    """0 to n - 1, every epoch in another order: blocks are shuffled, and then the samples of each window of blocks.

    Args:
        edges: where each block starts, and the end of the last, (blocks + 1,), from 0 to n; blocks may be empty.
        window: samples that are shuffled among each other; rounded to whole blocks.

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


@dataclass(frozen=True, eq=False)
class SubsetOrder(Order):
    """The numbers of a subset, in the order of their places in it.

    Args:
        order: of the places, 0 to m - 1.
        numbers: of the samples, (m,).
    """

    order: Order
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
    def is_drawn(self) -> bool:  # type: ignore[override]
        return self.order.is_drawn

    @property
    def window(self) -> int | None:  # type: ignore[override]
        return self.order.window

    @property
    def words(self) -> str:
        return f"{self.order.words}, of numbers {digest(self.numbers)}"


@dataclass(frozen=True)
class Repeated(Order):
    """Several epochs of another order, one after another, as one: each pass in an order of its own.

    Raises:
        UsageError: `times` is not a whole number from 1 on.
    """

    order: Order
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
    def is_drawn(self) -> bool:  # type: ignore[override]
        return self.order.is_drawn

    @property
    def window(self) -> int | None:  # type: ignore[override]
        return self.order.window

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


class SamplerOrder(Order):
    """The numbers of a sampler, epoch by epoch.

    While it is iterated, torch's default generator and the sampler's own `generator` are seeded by seed and epoch.
    Their states are restored afterwards. So its order, too, depends on seed and epoch alone, and every rank sees the
    same. Other threads must not draw from torch meanwhile. A sampler that draws from elsewhere has to seed that itself,
    in `set_epoch`.

    Args:
        sampler: gives sample numbers; a torch Sampler or any iterable that starts again each time, with a length.
        samples: of the dataset.
        seed: from 0 on.

    Raises:
        UsageError: the sampler is made for one rank of several, or has no length.
    """

    #: The argument of `Loader`, and what it gives, for messages.
    _argument, _unit = "sampler", "numbers"

    def __init__(self, sampler: Iterable[Any], samples: int, seed: int = 0) -> None:
        check_seed(seed)
        if isinstance(sampler, Iterator) and not hasattr(sampler, "__len__"):  # Lightning's starts again, and has one
            raise UsageError(
                f"{self._argument}: a {type(sampler).__name__} gives its numbers once, and every epoch asks for them; "
                "give a list or a torch Sampler"
            )
        if getattr(sampler, "num_replicas", 1) > 1:
            raise UsageError(
                f"sampler: {type(sampler).__name__} gives the share of one rank; give a sampler of the whole "
                "dataset: each rank then takes its share of it (with rank=0, world_size=1 all)"
            )
        try:
            len(sampler)  # type: ignore[arg-type]  # torch's Sampler has a length if it can know it
        except (TypeError, NotImplementedError):
            raise UsageError(
                f"{self._argument}: {type(sampler).__name__} has no length, and a loader must know how long an epoch "
                "is; give it a __len__, or give a list of what it gives"
            ) from None
        self._sampler = sampler
        self._samples = samples
        self.seed = seed

    def __len__(self) -> int:
        return len(self._sampler)  # type: ignore[arg-type]

    def epoch(self, epoch: int) -> NDArray[Any]:
        """Return the sampler's numbers, (n,).

        Raises:
            UsageError: it gives something other than numbers of samples.
        """
        check_epoch(epoch)
        word = int(np.random.PCG64(np.random.SeedSequence([self.seed, epoch])).random_raw())
        seeds = {torch.default_generator: word}
        # A sampler of batches takes its numbers from another sampler.
        for sampler in (self._sampler, getattr(self._sampler, "sampler", None)):
            set_epoch = getattr(sampler, "set_epoch", None)
            if set_epoch is not None:
                set_epoch(epoch)
            sampler_generator = getattr(sampler, "generator", None)
            # The seed that the user gave the sampler's own generator keeps its meaning.
            if isinstance(sampler_generator, torch.Generator):
                seeds[sampler_generator] = word ^ sampler_generator.initial_seed()
        states = {generator: generator.get_state() for generator in seeds}
        try:
            for generator, seed in seeds.items():
                generator.manual_seed(seed)
            with CPU:  # torch's samplers use its CPU generator, but the default device, which may be another
                numbers = self._numbers()
        finally:
            for generator, state in states.items():
                generator.set_state(state)
        if len(numbers) != len(self):
            raise UsageError(
                f"{self._argument}: {type(self._sampler).__name__} gave {len(numbers):,} {self._unit}, but its length "
                f"is {len(self):,}, by which epochs are shared and resumed; let its __len__ return what it gives"
            )
        return numbers

    def _numbers(self) -> NDArray[Any]:
        return self._checked_numbers(self._sampler)

    def _checked_numbers(self, numbers: Any) -> Numbers:
        """Return the sampler's items as numbers (n,); raises UsageError if they are something else."""
        source = f"{self._argument}: {type(self._sampler).__name__}"
        try:
            samples = np.fromiter(map(index, numbers), dtype=np.int64)
        except TypeError as error:
            raise UsageError(f"{source} gives {numbers!r:.60}; sample numbers are expected") from error
        return _check_within(samples, self._samples, source)


class BatchOrder(SamplerOrder):
    """The batches of a sampler of batches, epoch by epoch. `done` counts batches here, not samples.

    Args:
        batches: gives the numbers of each batch; a torch BatchSampler, or any iterable with a length that starts
            again each time.
        samples: of the dataset.
        seed: see `SamplerOrder`.
    """

    _argument, _unit = "batch_sampler", "batches"

    @cached_property
    def words(self) -> str:
        if not isinstance(self._sampler, list | tuple | np.ndarray):
            return super().words
        batches = self._numbers()
        return f"{super().words}, batches {digest(np.concatenate([[len(batch), *batch] for batch in batches] or [[]]))}"

    def batches(self, epoch: int, share: Share, done: int) -> Batches:
        """Return the batches of an epoch that are left: they are this rank's."""
        batches = self.epoch(epoch)
        share.check_done(len(batches), done)
        return GivenBatches(batches[done:].tolist(), sum(map(len, batches[:done])))

    def _numbers(self) -> NDArray[Any]:
        batches = [self._checked_numbers(batch) for batch in self._sampler]
        order = np.empty(len(batches), object)
        for number, batch in enumerate(batches):
            if not len(batch):
                raise UsageError(f"{self._argument}: {type(self._sampler).__name__} gives an empty batch")
            order[number] = batch
        return order


def _check_within(numbers: Numbers, samples: int, source: str) -> Numbers:
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
