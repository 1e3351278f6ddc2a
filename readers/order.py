"""The order of an epoch: index arithmetic alone, no files.

An `Order` gives the numbers of all samples of an epoch, in the order in which all ranks together read
them. It depends on the seed and the epoch alone, so that any number of ranks, threads and restarts sees the same
one. `Share` cuts it into batches for one rank:

    order   7 2 9 4 | 0 5 1 8 | 3 6      2 ranks, batches of 2
    rank 0  7 2     | 0 5     | 3        the last step shares what is left in equal parts
    rank 1      9 4 |     1 8 |   6

At each step all ranks together take the next contiguous piece of the order. So the place in an epoch is one number, how
many numbers of the order are done, and the rest can be shared anew among any number of ranks, in batches of any size.

Random numbers are the raw 64-bit words of numpy's PCG64, seeded with SeedSequence([seed, epoch]), and a random
order is what sorts them. numpy promises the same words on every platform and in every version; it
promises no such thing for `Generator.permutation`.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Protocol

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray

from packer.errors import UsageError

#: Raised whenever the same seed comes to give another order: a state that was saved before would go on with others.
ORDER_VERSION = 2
#: From so many numbers on, words of 64 bits are sorted, and fewer by two keys of 16 bits: 20,000 take 10 ns each so,
#: 100,000 take 23, and 37 and 46 by words where numpy has no vector code for them, as on some processors. Of 2,000,000,
#: words take 62 there and 20 elsewhere, keys 52.
LONG = 2**18
#: Epochs whose seeds are made together: one takes 190 us behind large copies, each further one 12.
SEEDS_AT_ONCE = 16
#: Samples a window holds where the caller does not say: their numbers, before and after, and the pattern fit a cache of
#: 1 MB (10,000,000 samples take 80 ms, with windows of 65,536 100).
WINDOW = 16_384
#: A window's shuffle is one of so many, drawn anew for each epoch: each window alone is in a truly random order, and
#: two share a pattern at most, over samples that differ. Drawing one for each window would take 90 ms of the epoch's
#: order of 10,000,000 samples; these take 1.
PATTERNS = 8
#: Windows smaller than this on average are shuffled all at once by sorting: 25 ns a sample, where a turn of the loop
#: costs 5 us a window.
SMALL_WINDOW = 128
#: Shorter orders are made when they are needed: in less than 6 ms.
LEAST_NUMBERS = 2**18


class Order(Protocol):
    """The order in which the samples of an epoch are read."""

    def __len__(self) -> int:
        """How many numbers an epoch has."""

    def epoch(self, epoch: int) -> NDArray[np.int64]:
        """The sample numbers of this epoch, (n,), a new array; the same for the same epoch, on every rank."""


@dataclass(frozen=True)
class Sequential:
    """0 to n - 1, in every epoch."""

    n: int

    def __len__(self) -> int:
        return self.n

    def epoch(self, epoch: int) -> NDArray[np.int64]:
        return np.arange(self.n, dtype=np.int64)


@dataclass(frozen=True)
class Shuffled:
    """0 to n - 1, every epoch in another order; all orders are equally likely."""

    n: int
    seed: int = 0

    def __post_init__(self) -> None:
        check_seed(self.seed)

    def __len__(self) -> int:
        return self.n

    def epoch(self, epoch: int) -> NDArray[np.int64]:
        return random_order(self.n, random_bits(self.seed, epoch))


@dataclass(frozen=True, eq=False)
class Given:
    """The numbers of a subset, in the order given, in every epoch; a number may stand in it more than once.

    Args:
        indices: integers, (m,).

    Raises:
        UsageError: these are not integers in one axis.
    """

    indices: NDArray[np.int64]

    def __init__(self, indices: Sequence[int] | NDArray[np.integer]) -> None:
        array = np.asarray(indices)
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise UsageError(
                f"sampler: one axis of sample numbers is expected, not {array.dtype} of shape {array.shape}; "
                "for a mask, pass np.flatnonzero(mask)"
            )
        object.__setattr__(self, "indices", array.astype(np.int64))

    def __len__(self) -> int:
        return len(self.indices)

    def epoch(self, epoch: int) -> NDArray[np.int64]:
        return self.indices.copy()


@dataclass(frozen=True, eq=False)
class BlockShuffled:
    """0 to n - 1, shuffled by blocks, every epoch in another order.

    An epoch of 10,000,000 samples takes 80 ms, where `Generator.permutation` takes 390.

    Args:
        edges: where each block begins, and the end of the last, (blocks + 1,), from 0 to n; empty blocks are allowed.
        window: samples that are shuffled among each other; rounded up to whole blocks.

    Raises:
        UsageError: the edges do not ascend from 0, or the window is below 1.
    """

    edges: NDArray[np.int64]
    window: int = WINDOW
    seed: int = 0

    def __post_init__(self) -> None:
        check_seed(self.seed)
        edges = np.asarray(self.edges, dtype=np.int64)
        if edges.ndim != 1 or not len(edges) or edges[0] != 0 or np.any(np.diff(edges) < 0):
            raise UsageError("edges of blocks: one axis of numbers that ascend from 0 is expected")
        if self.window < 1:
            raise UsageError(f"window of {self.window} samples: 1 or more are expected")
        object.__setattr__(self, "edges", edges)

    @classmethod
    def uniform(cls, n: int, block: int, window: int = WINDOW, seed: int = 0) -> BlockShuffled:
        """Blocks of `block` samples; the last holds what is left of `n`."""
        if block < 1:
            raise UsageError(f"blocks of {block} samples: 1 or more are expected")
        return cls(np.append(np.arange(0, n, block), n), window, seed)

    def __len__(self) -> int:
        return int(self.edges[-1])

    def epoch(self, epoch: int) -> NDArray[np.int64]:
        bits = random_bits(self.seed, epoch)
        lengths = np.diff(self.edges)
        blocks = random_order(len(lengths), bits)
        lengths = lengths[blocks]
        ends = np.cumsum(lengths)
        order = np.repeat(self.edges[blocks] - ends + lengths, lengths)
        order += np.arange(len(order))
        return _shuffle_windows(order, _window_edges(ends, self.window), bits)


@dataclass(frozen=True)
class Repeated:
    """So many epochs of another order, one after another, as one: each pass in an order of its own.

    Raises:
        UsageError: `times` is no whole number from 1 on.
    """

    order: Order
    times: int

    def __post_init__(self) -> None:
        if not isinstance(self.times, int | np.integer) or isinstance(self.times, bool) or self.times < 1:
            raise UsageError(f"repeat {self.times!r}: a whole number from 1 on is expected")

    def __len__(self) -> int:
        return len(self.order) * self.times

    def epoch(self, epoch: int) -> NDArray[np.int64]:
        first = epoch * self.times
        return np.concatenate([self.order.epoch(number) for number in range(first, first + self.times)])


@dataclass(frozen=True)
class Mixed:
    """The numbers of several datasets by weight. They stand one after another: those of the second after the first's.

    An epoch holds of each dataset a number of samples that goes by its weight, as closely as whole numbers can. What a
    dataset has too few of it gives again, in another order; what it has too many of is left out, other samples in each
    epoch.

        sizes 6 and 2, weights 1 and 1    stop at the first    0 6 4 7          one of them is through
                                          stop at all          3 6 1 7 5 6 0 7 2 6 4 7

    Args:
        sizes: samples of each dataset.
        weights: of each, above 0.
        shuffle: whether to shuffle; else each dataset is read from its beginning, evenly among the others.
        every: whether an epoch ends when every dataset was read once; else when the first one was.
        together: how many numbers, one after another, are of one dataset.

    Raises:
        UsageError: one of the datasets would give nothing.
    """

    sizes: tuple[int, ...]
    weights: tuple[float, ...]
    seed: int = 0
    shuffle: bool = True
    every: bool = False
    together: int = 1

    def __post_init__(self) -> None:
        check_seed(self.seed)
        for number, turns in enumerate(self._turns.tolist()):
            if not turns:
                what = f"batches of {self.together}" if self.together > 1 else "samples"
                raise UsageError(
                    f"mix: of dataset {number}, with {self.sizes[number]:,} samples and weight "
                    f"{self.weights[number]:g} of {sum(self.weights):g}, an epoch would have no {what}; give it more "
                    'weight, take smaller batches, or stop="all"'
                )

    @cached_property
    def _turns(self) -> NDArray[np.int64]:
        """How often it is the turn of each dataset in an epoch, (datasets,): to give `together` numbers each time."""
        sizes, weights = np.array(self.sizes), np.array(self.weights, np.float64)
        whole = -(-sizes // self.together) if self.every else sizes // self.together
        rounds = whole / weights
        turns = np.rint(weights * (rounds.max() if self.every else rounds.min())).astype(np.int64)
        limited: NDArray[np.int64] = np.maximum(turns, whole) if self.every else np.minimum(turns, whole)
        return limited

    def __len__(self) -> int:
        return int(self._turns.sum()) * self.together

    def epoch(self, epoch: int) -> NDArray[np.int64]:
        bits = random_bits(self.seed, epoch)
        turns = self._turns
        turn = np.repeat(np.arange(len(turns)), turns)
        if self.shuffle:
            turn = turn[random_order(len(turn), bits)]
        else:
            turn = turn[np.argsort(np.concatenate([(np.arange(n) + 0.5) / n for n in turns]), kind="stable")]
        turn = np.repeat(turn, self.together)
        order = np.empty(len(turn), np.int64)
        first = 0
        for number, (size, count) in enumerate(zip(self.sizes, (turns * self.together).tolist(), strict=True)):
            passes = [random_order(size, bits) if self.shuffle else np.arange(size) for _ in range(-(-count // size))]
            order[turn == number] = first + np.concatenate(passes)[:count]
            first += size
        return order


def base(order: Order) -> Order:
    """Return the order that is repeated, if it is."""
    return order.order if isinstance(order, Repeated) else order


def check_seed(seed: int) -> None:
    """Raises UsageError where `seed` cannot seed the generator."""
    if not isinstance(seed, int | np.integer) or seed < 0:
        raise UsageError(f"seed {seed!r}: a whole number from 0 on is expected")


def random_bits(seed: int, epoch: int) -> np.random.PCG64:
    """The source of the random words of one epoch."""
    if epoch < 0:
        raise UsageError(f"epoch {epoch}: a number from 0 on is expected")
    made = _seeds(seed, epoch // SEEDS_AT_ONCE)[epoch % SEEDS_AT_ONCE]
    return np.random.PCG64(made)  # type: ignore[arg-type]  # numpy's stubs do not know what its documentation names


@lru_cache(64)
def _seeds(seed: int, block: int) -> list[_Seed]:
    """Those of `SEEDS_AT_ONCE` epochs."""
    first = block * SEEDS_AT_ONCE
    return [_Seed(np.random.SeedSequence([seed, epoch])) for epoch in range(first, first + SEEDS_AT_ONCE)]


class _Seed(ISeedSequence):
    """What PCG64 takes of a SeedSequence, made beforehand."""

    def __init__(self, sequence: np.random.SeedSequence) -> None:
        self._words = sequence.generate_state(4, np.uint64).astype(np.uint64, copy=False)

    def generate_state(self, n_words: int, dtype: object = np.uint64) -> NDArray[np.uint64]:
        assert (n_words, dtype) == (len(self._words), np.uint64), "PCG64 takes four words of 64 bits"
        return self._words


def random_order(n: int, bits: np.random.PCG64) -> NDArray[np.int64]:
    """The numbers 0 to n - 1 in random order, (n,).

    They are sorted by random keys. Two whose keys are equal stay in ascending order: 7 pairs of 250,000, which have
    keys of 32 bits, and 45 of 10,000,000, which have 40.
    """
    if n >= LONG:
        return _sorted_by(_words(n, bits))
    # It holds the lock for a third of a millisecond at most; 5,000 take 40 us behind a large copy, by `_words` 160.
    words = np.asarray(bits.random_raw(-(-n // 2)), np.uint64)
    # numpy sorts numbers of 16 bits by counting.
    keys = words.astype("<u8", copy=False).view("<u2").astype(np.uint16, copy=False)[: 2 * n]
    return np.lexsort((keys[:n], keys[n:]))


def order_by_group(group: NDArray[np.int64], bits: np.random.PCG64) -> NDArray[np.int64]:
    """The numbers 0 to n - 1 by ascending group, in random order inside each, (n,).

    Args:
        group: of each number, (n,), ascending, from 0.
    """
    words = _words(len(group), bits)
    if len(group):
        high = int(group[-1]).bit_length()
        words >>= np.uint64(high)
        words |= group.view(np.uint64) << np.uint64(64 - high)
    return _sorted_by(words)


def _sorted_by(words: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The numbers 0 to n - 1 by ascending words (n,), which are lost: each rides in the low bits of its word.

    numpy has vector code for sorting words on most processors, but not for shuffling: 10,000,000 numbers take 220 ms,
    `Generator.permutation` 410; 720 and 470 on a processor for which it has none.
    """
    n = len(words)
    mask = np.uint64((1 << max(n - 1, 0).bit_length()) - 1)
    words &= ~mask
    words |= np.arange(n, dtype=np.uint64)
    words.sort()
    words &= mask
    return words.view(np.int64)


def _words(n: int, bits: np.random.PCG64) -> NDArray[np.uint64]:
    """The next words of the generator, (n,): the same as `bits.random_raw(n)`, which holds the interpreter's lock."""
    return np.random.Generator(bits).integers(0, 2**64 - 1, n, np.uint64, endpoint=True)


def _window_edges(ends: NDArray[np.int64], window: int) -> NDArray[np.int64]:
    """Where windows begin, and the end of the last, (windows + 1,): each is the end of a block."""
    if not len(ends):
        return np.zeros(1, np.int64)
    marks = np.append(np.arange(window, ends[-1], window), ends[-1])
    edges: NDArray[np.int64] = np.append(0, ends[np.searchsorted(ends, marks)])
    # Not np.unique: it takes 10 s for 10,000,000 edges, since it no longer makes use of their being sorted.
    kept: NDArray[np.int64] = edges[np.append(True, np.diff(edges) > 0)]
    return kept


def _shuffle_windows(order: NDArray[np.int64], edges: NDArray[np.int64], bits: np.random.PCG64) -> NDArray[np.int64]:
    sizes = np.diff(edges)
    if len(order) < SMALL_WINDOW * len(sizes):
        return order[order_by_group(np.repeat(np.arange(len(sizes)), sizes), bits)]
    largest = int(sizes.max(initial=0))
    patterns = [random_order(largest, bits) for _ in range(min(PATTERNS, len(sizes)))]
    # A window's samples fit the processor's cache, which is what makes this fast.
    for i in range(len(sizes)):
        piece = order[edges[i] : edges[i + 1]]
        pattern = patterns[i % PATTERNS]
        piece[:] = piece[pattern if len(piece) == largest else pattern[pattern < len(piece)]]
    return order


class NextOrder:
    """Gives the orders of epochs, and makes one ahead of time where it is told to."""

    def __init__(self) -> None:
        self._making: _Making | None = None

    def __reduce__(self) -> tuple[type[NextOrder], tuple[()]]:
        return NextOrder, ()

    def prepare(self, order: Order, epoch: int) -> None:
        """Begins to make the order of an epoch, where that takes long. It is held until the next call of `of`."""
        # Others ask a sampler, which may be anyone's and draw from torch's generator, or are no work.
        if isinstance(base(order), Shuffled | BlockShuffled | Mixed) and len(order) >= LEAST_NUMBERS:
            self._making = _Making(order, epoch)
            self._making.start()

    def of(self, order: Order, epoch: int) -> NDArray[np.int64]:
        """The sample numbers of an epoch, (n,): what was prepared, if it is this."""
        making, self._making = self._making, None
        if making is not None and making.order is order and making.epoch == epoch:
            making.join()
            if making.numbers is not None:
                return making.numbers
        return order.epoch(epoch)


class _Making(threading.Thread):
    """Makes one order. It is no daemon: it ends by itself, soon."""

    def __init__(self, order: Order, epoch: int) -> None:
        super().__init__(name="packed-order")
        self.order = order
        self.epoch = epoch
        #: None as long as there is none, which it stays in a process that was forked meanwhile.
        self.numbers: NDArray[np.int64] | None = None

    def run(self) -> None:
        try:
            self.numbers = self.order.epoch(self.epoch)
        except MemoryError:  # the caller tries again when it is needed, and says so
            return


@dataclass(frozen=True)
class Share:
    """How an order is cut into the batches of one rank. Every rank has as many batches, and its batches are as large.

    Args:
        batch_size: samples in a batch of one rank.
        rank: this rank, from 0 on.
        world_size: number of ranks.
        drop_last: what does not fill a batch on every rank is left out. Without it, the last step shares
            what is left in equal parts, and where that does not come out even, fills up with
            numbers from the order's beginning: fewer than `world_size`, none with one rank.

    In all methods `n` is the length of the order, and `done` the number of its numbers that were taken before step 0.

    Raises:
        UsageError: a number is out of range.
    """

    batch_size: int
    rank: int = 0
    world_size: int = 1
    drop_last: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.batch_size, int | np.integer) or self.batch_size < 1:
            raise UsageError(f"batch_size {self.batch_size!r}: a whole number from 1 on is expected")
        whole = isinstance(self.rank, int | np.integer) and isinstance(self.world_size, int | np.integer)
        if not whole or not 0 <= self.rank < self.world_size:
            raise UsageError(f"rank {self.rank!r} of {self.world_size!r}: a rank from 0 to world_size - 1 is expected")

    @property
    def step_size(self) -> int:
        """Samples that all ranks together take at one step; at the last of an epoch it may be fewer."""
        return self.batch_size * self.world_size

    def steps(self, n: int, done: int = 0) -> int:
        """Number of batches that each rank still has."""
        left = _left(n, done)
        return left // self.step_size if self.drop_last else -(-left // self.step_size)

    def samples(self, n: int) -> int:
        """Return how many numbers of an epoch each rank has."""
        whole = n // self.step_size
        rest = 0 if self.drop_last else -(-(n - whole * self.step_size) // self.world_size)
        return whole * self.batch_size + rest

    def numbers(self, order: NDArray[np.int64], done: int = 0) -> NDArray[np.int64]:
        """The sample numbers of all batches that this rank still has, one behind the other, (m,).

        Each batch has `batch_size` of them, the last one what is left. With one rank it is a view of `order`.
        """
        whole = _left(len(order), done) // self.step_size
        start = done + whole * self.step_size
        last = self._last(order, start) if whole < self.steps(len(order), done) else order[:0]
        if self.world_size == 1:
            return order[done : start + len(last)]
        mine = order[done:start].reshape(whole, self.world_size, self.batch_size)[:, self.rank]
        return np.concatenate([mine.reshape(-1), last])

    def _last(self, order: NDArray[np.int64], start: int) -> NDArray[np.int64]:
        """This rank's part of what is left of the order from `start` on, less than a step."""
        size = -(-(len(order) - start) // self.world_size)
        start += self.rank * size
        if start + size <= len(order):
            return order[start : start + size]
        return np.take(order, np.arange(start, start + size), mode="wrap")


def _left(n: int, done: int) -> int:
    if not 0 <= done <= n:
        raise UsageError(f"{done} of {n} samples done: the saved state is not one of this dataset and sampler")
    return n - done
