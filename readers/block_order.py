"""Shuffling by blocks: every compressed frame is read in one stretch of the epoch, so it is decoded about once.

The blocks are put in random order, joined into windows of whole blocks, and the samples of each window are shuffled.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError
from readers.order import check_seed, order_by_group, random_bits, random_order

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
