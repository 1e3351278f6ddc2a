"""The order of an epoch: index arithmetic alone, no files.

An `Order` gives the numbers of all samples of an epoch, in the order in which all ranks together read
them. It depends on the seed and the epoch alone, so that any number of ranks, threads and restarts sees the same
one. `readers.share` cuts it into batches for one rank.

Random numbers are the raw 64-bit words of numpy's PCG64, seeded with SeedSequence([seed, epoch]), and a random
order is what sorts them. numpy promises the same words on every platform and in every version; it
promises no such thing for `Generator.permutation`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
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
