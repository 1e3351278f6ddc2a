"""One rank's batches of the order that all ranks have in common.

    order   7 2 9 4 | 0 5 1 8 | 3 6      2 ranks, batches of 2
    rank 0  7 2     | 0 5     | 3        the last step shares what is left in equal parts
    rank 1      9 4 |     1 8 |   6

At each step all ranks together take the next contiguous piece of the order. So the place in an epoch is one number, how
many numbers of the order are done, and the rest can be shared anew among any number of ranks, in batches of any size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError


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
