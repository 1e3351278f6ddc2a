"""Random numbers of visits. A visit is one occurrence of a sample in an epoch's order, or in a batch.

Each visit has one random word, from which all its random choices follow: crops, flips, turns, points. Fields that are
read together get the same words, and so draw the same.

- `Loader` makes the words with `visits_of`, from seed, epoch and position in the epoch's order. Threads, batch size,
  ranks and resuming change nothing.
- Plain indexing and torch's `DataLoader` make them with `draw_visits`, from torch's generator. Two visits differ, and
  `torch.manual_seed` repeats them.

The generator is splitmix64, whose words are fetched by place instead of in turn. Its streams begin at words that
numpy's SeedSequence makes, which are the same on every platform and in every version.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from msgspec import Struct
from numpy.typing import NDArray

from packer.format import Numbers
from readers.gather import CPU
from readers.order import check_epoch
from readers.valid import check_seed

Words = NDArray[np.uint64]
#: One random word a visit, (n,).
Visits = NDArray[np.uint64]


class Asked(Struct, frozen=True):
    """Samples that are asked for, one for each visit, in a batch or in several.

    Attributes:
        samples: their numbers in the whole dataset, (n,).
        visits: (n,), if random parts of samples are read.
        anchors: the anchor steps of windows, (n,), if windows are read, see `windows.py`.
    """

    samples: Numbers
    visits: Visits | None = None
    anchors: Numbers | None = None

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def visit_numbers(self) -> Numbers:
        """Return the visits as int64, (n,), as located samples hold them; 0 where nothing is drawn."""
        return np.zeros_like(self.samples) if self.visits is None else self.visits.view(np.int64)

    def __getitem__(self, positions: Numbers) -> Asked:
        """Return some of them, by their positions (m,)."""
        return Asked(
            self.samples[positions],
            None if self.visits is None else self.visits[positions],
            None if self.anchors is None else self.anchors[positions],
        )


#: The constants of splitmix64 (Steele, Lea and Flood 2014).
STEP, MIX, MIX_AGAIN = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
#: Uses of random words. Each has a number of its own, so that the words of one use do not follow from another's.
CROPS, POINTS, VISITS, VOXELS, PLACES, RESIZED, SAMPLES, BATCHES, ANCHORS = range(1, 10)
#: Rounds of a random permutation; each mixes high bits into low ones and low into high.
ROUNDS = 4


def visits_of(seed: int, epoch: int, positions: Numbers) -> Visits:
    """Return the visits at positions (n,) of an epoch's order.

    Raises:
        UsageError: the seed or the epoch is negative.
    """
    check_epoch(epoch)
    return words_at(_start(seed, epoch, VISITS), positions.astype(np.uint64))


def draw_visits(count: int) -> Visits:
    """Return new visits, (count,), which follow from one number drawn from torch's default generator."""
    word = torch.empty((), dtype=torch.int64, device=CPU).random_().item()
    return words_at(np.uint64(word), np.arange(count, dtype=np.uint64))


def draw_words(visits: Visits, seed: int, purpose: int, count: int) -> Words:
    """Return the random words of one use for visits (n,), (n, count).

    Args:
        seed: the user's own.
        purpose: one of the numbers above.
        count: words a visit.
    """
    # Mixed once more, so that one seed's words do not appear among another's.
    starts = _mix(visits + _start(seed, 0, purpose))
    return words_at(starts[:, None], np.arange(count, dtype=np.uint64))


@lru_cache(maxsize=64)
def _start(seed: int, epoch: int, purpose: int) -> np.uint64:
    """Return the word at which a stream begins."""
    check_seed(seed)
    return np.uint64(np.random.SeedSequence([seed, epoch, purpose]).generate_state(1, np.uint64)[0])


def words_at(start: np.uint64 | Words, places: Words) -> Words:
    """Return the words at `places` of the streams of splitmix64 that begin at `start`."""
    # Sums and products wrap at 64 bits, as they have to.
    return _mix(start + (places + np.uint64(1)) * STEP)


def _mix(z: Words) -> Words:
    z = (z ^ (z >> np.uint64(30))) * MIX
    z = (z ^ (z >> np.uint64(27))) * MIX_AGAIN
    return z ^ (z >> np.uint64(31))


def draw_below(words: Words, ends: Numbers) -> Numbers:
    """Return random numbers from 0 to `ends` - 1, as many as words; `ends` are from 1 to 2**32, of the same shape."""
    # Multiplied and shifted, not divided: no number is more likely than another by more than ends / 2**32.
    return (((words >> np.uint64(32)) * ends.astype(np.uint64)) >> np.uint64(32)).astype(np.int64)


def draw_permutations(words: Words, ends: Numbers, first: int) -> Numbers:
    """Return the first `first` numbers of a random permutation of 0 to `ends` - 1, one for each sample, (n, first).

    The cost does not depend on `ends`, since no list of that length is made or sorted. A number is taken as row and
    column of a table of about `ends` places. Columns and rows are shifted in turn, each by a random amount (a Feistel
    network). Results past the end are permuted again until they fall inside (cycle walking). If `first` is larger than
    an end, the permutation begins again: every number then comes equally often, or once more than others.

    Args:
        words: (n, 2 * ROUNDS + 1).
        ends: (n,), each from 1 to 2**32.
    """
    tables = _Tables(ends.astype(np.uint64), words)
    out = np.arange(first, dtype=np.uint64)[None, :] % tables.ends
    # Rotated at random first, so that the numbers of a short table are equally likely whatever the rounds do.
    out = (out + draw_below(words[:, -1:], ends[:, None]).view(np.uint64)) % tables.ends
    out = tables.permute(out)
    beyond = out >= tables.ends
    while beyond.any():
        sample, place = beyond.nonzero()
        moved = tables.select(sample).permute(out[sample, place][:, None])
        out[sample, place] = moved[:, 0]
        beyond[sample, place] = moved[:, 0] >= ends[sample].view(np.uint64)
    return out.view(np.int64)


class _Tables:
    """A permutation of 0 to `rows * columns` - 1 for each sample; the product is `ends` or little more."""

    def __init__(self, ends: Words, words: Words) -> None:
        self.ends = ends[:, None]
        self._words = words
        self._columns = np.ceil(np.sqrt(self.ends)).astype(np.uint64)
        self._rows = (self.ends + self._columns - np.uint64(1)) // self._columns

    def select(self, samples: Numbers) -> _Tables:
        """Return the tables of some samples."""
        return _Tables(self.ends[samples, 0], self._words[samples])

    def permute(self, numbers: Words) -> Words:
        """Return numbers (n, k), each row through the permutation of its sample."""
        row, column = numbers // self._columns, numbers % self._columns
        for number in range(ROUNDS):
            row = _shift(row, column, self._rows, self._words[:, 2 * number, None])
            column = _shift(column, row, self._columns, self._words[:, 2 * number + 1, None])
        return row * self._columns + column


def _shift(values: Words, other: Words, ends: Words, key: Words) -> Words:
    """Return `values` shifted modulo `ends`, by an amount that is random for each value of `other`."""
    z = (other + key) * MIX
    z ^= z >> np.uint64(32)
    z *= MIX_AGAIN
    z >>= np.uint64(32)
    z *= ends
    z >>= np.uint64(32)
    z += values
    z -= ends * (z >= ends)
    return z
