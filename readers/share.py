"""The share of one rank: which numbers of an epoch's order it reads, in which batches.

    order   7 2 9 4 | 0 5 1 8 | 3 6      2 ranks, batches of 2
    rank 0  7 2     | 0 5     | 3        the last batches share the rest in equal parts
    rank 1      9 4 |     1 8 |   6

With each batch all ranks together take the next contiguous piece of the order. So one number is the place in an epoch:
how many numbers of the order are done. The rest can be shared again among any number of ranks, in batches of any size.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from packer.errors import UsageError
from packer.format import Numbers, starts_of
from readers.valid import check_count, remark

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

#: Samples whose positions are worked out at once.
GROUP_SAMPLES = 16384


@dataclass(frozen=True)
class Share:
    """Cuts an order into the batches of one rank. All ranks have equally many batches, of the same sizes.

    Args:
        batch_size: samples in a batch of one rank.
        rank: this rank, from 0 on.
        world_size: number of ranks.
        drop_last: leaves out numbers that do not fill a batch on every rank. Without it, the last batches share them in
            equal parts. If they cannot be divided evenly, numbers from the order's beginning are added: fewer than
            `world_size`, none with one rank.
        nodes: machines that the ranks run on, as many on each; a shuffle of shards gives each node shards of its own.

    Raises:
        UsageError: a number is out of range.
    """

    batch_size: int
    rank: int = 0
    world_size: int = 1
    drop_last: bool = False
    nodes: int = 1

    def __post_init__(self) -> None:
        check_count("batch_size", self.batch_size)
        check_count("nodes", self.nodes)
        numbers = self.rank, self.world_size
        are_integers = all(isinstance(n, int | np.integer) and not isinstance(n, bool) for n in numbers)
        if not are_integers or not 0 <= self.rank < self.world_size:
            raise UsageError(f"rank {self.rank!r} of {self.world_size!r}: a rank from 0 to world_size - 1 is expected")
        if self.world_size % self.nodes:
            raise UsageError(f"nodes is {self.nodes}, with {self.world_size} ranks: as many on each node are expected")

    @property
    def node(self) -> int:
        """Return the number of the node that this rank runs on: ranks of one node follow one another."""
        return self.rank * self.nodes // self.world_size

    @property
    def global_batch_size(self) -> int:
        """Return the samples that all ranks together take for one batch each; at an epoch's end it may be fewer."""
        return self.batch_size * self.world_size

    def check_done(self, n: int, done: int) -> None:
        """Raise UsageError if `done` numbers cannot have been taken of an order of `n`."""
        if not 0 <= done <= n:
            raise UsageError(f"{done} of {n} samples done: the saved state is of another dataset or sampler")

    def count_batches(self, n: int, done: int = 0) -> int:
        """Return how many batches each rank still has of an order of `n` numbers, of which `done` were taken.

        Raises:
            UsageError: there are fewer numbers.
        """
        self.check_done(n, done)
        return (n - done) // self.global_batch_size if self.drop_last else -(-(n - done) // self.global_batch_size)

    def positions(self, n: int, done: int, first: int, stop: int) -> tuple[Numbers, Numbers]:
        """Return what this rank reads in its batches `first` to `stop`, of those left of an order of `n` numbers.

        Each batch has `batch_size` numbers, the last one a part of the rest.

        Args:
            done: how many numbers of the order were taken before batch 0.

        Returns:
            Their positions in the order, (m,), and where each batch begins among these and the last one ends,
            (stop - first + 1,).
        """
        size = self.batch_size
        full = min(stop, (n - done) // self.global_batch_size)
        begin = done + self.rank * size
        if self.world_size == 1:
            positions = np.arange(begin + first * size, begin + max(full, first) * size)
        else:
            batches = np.arange(first, full)[:, None]
            positions = (begin + batches * self.global_batch_size + np.arange(size)).reshape(-1)
        edges = np.arange(0, len(positions) + 1, size)
        if stop > full:  # the last one
            start = done + full * self.global_batch_size
            count = -(-(n - start) // self.world_size)
            start += self.rank * count
            # Missing numbers are taken from the beginning of the epoch.
            positions = np.concatenate([positions, np.arange(start, start + count) % n])
            edges = np.append(edges, len(positions))
        return positions, edges


@dataclass(frozen=True)
class ItemShards:
    """In which shard each item lies that an order gives.

    Attributes:
        edges: first item of each shard, and the end of the last, (shards + 1,); None if they do not ascend.
        of: gives the shards of items (n,), (n,).
    """

    edges: Numbers | None
    of: Callable[[Numbers], Numbers]


class Batches:
    """The batches that one rank reads of an epoch, worked out group by group."""

    def __len__(self) -> int:
        """Return how many there are."""
        raise NotImplementedError

    def group_end(self, first: int, samples: int) -> int:
        """Return the end of a group that begins with batch `first` and has about so many samples; one at least."""
        raise NotImplementedError

    def group(self, first: int, stop: int) -> tuple[Numbers, Numbers, Numbers]:
        """Return the samples of the batches `first` to `stop`.

        Returns:
            Their numbers, (m,), their positions in the epoch, (m,), and where each batch begins among these and the
            last one ends, (stop - first + 1,).
        """
        raise NotImplementedError

    def needs(self, shards: ItemShards) -> Numbers:
        """Return the shards that these batches need: shard, first and last batch of each stretch, (m, 3)."""
        return self.touched(shards)

    def touched(self, shards: ItemShards) -> Numbers:
        """Return the same by a look at every batch: a stretch ends with one that has no sample of the shard."""
        stride, touched, first = len(self) + 1, [np.zeros(0, np.int64)], 0
        while first < len(self):
            stop = self.group_end(first, GROUP_SAMPLES)
            numbers, _, edges = self.group(first, stop)
            touched.append(np.unique(shards.of(numbers) * stride + np.repeat(np.arange(first, stop), np.diff(edges))))
            first = stop
        shard_batches = np.unique(np.concatenate(touched))
        begins = np.flatnonzero(np.diff(shard_batches, prepend=-2) > 1)
        ends = np.append(begins[1:], len(shard_batches))[: len(begins)] - 1
        return np.stack([*np.divmod(shard_batches[begins], stride), shard_batches[ends] % stride], 1)


@dataclass(frozen=True)
class SharedBatches(Batches):
    """A rank's share of an order.

    Attributes:
        samples_at: gives the samples at positions (m,) of the order, (m,).
        n: numbers of the order.
        done: how many of these were taken before.
    """

    samples_at: Callable[[Numbers], Numbers]
    n: int
    share: Share
    done: int = 0

    def __len__(self) -> int:
        return self.share.count_batches(self.n, self.done)

    def group_end(self, first: int, samples: int) -> int:
        return min(first + -(-samples // self.share.batch_size), len(self))

    def group(self, first: int, stop: int) -> tuple[Numbers, Numbers, Numbers]:
        positions, edges = self.share.positions(self.n, self.done, first, stop)
        return self.samples_at(positions), positions, edges


@dataclass(frozen=True)
class SequentialBatches(SharedBatches):
    """A rank's share of 0 to n - 1, in order."""

    def needs(self, shards: ItemShards) -> Numbers:
        if shards.edges is None:
            return self.touched(shards)
        size, step = self.share.batch_size, self.share.global_batch_size
        full = (self.n - self.done) // step
        # Batch b has the numbers from begin + b * step on.
        begin = self.done + self.share.rank * size
        firsts = np.maximum(0, -(-(shards.edges[:-1] - begin - size + 1) // step))
        lasts = np.minimum(full - 1, (shards.edges[1:] - 1 - begin) // step)
        stretches = np.stack([np.arange(len(firsts)), firsts, lasts], 1)
        stretches = stretches[(np.diff(shards.edges) > 0) & (firsts <= lasts)]
        if full == len(self):
            return stretches
        last_shards = np.unique(shards.of(self.group(full, full + 1)[0]))
        return np.concatenate([stretches, np.stack([last_shards, *np.full((2, len(last_shards)), full)], 1)])


class GivenBatches(Batches):
    """Batches of given numbers.

    Args:
        batches: the numbers of each.
        begin: position of the first number in the epoch.
    """

    def __init__(self, batches: Sequence[Numbers], begin: int = 0) -> None:
        self._batches = batches
        self._starts = begin + starts_of(list(map(len, batches)))

    def __len__(self) -> int:
        return len(self._batches)

    def group_end(self, first: int, samples: int) -> int:
        return min(int(self._starts.searchsorted(self._starts[first] + samples)), len(self))

    def group(self, first: int, stop: int) -> tuple[Numbers, Numbers, Numbers]:
        starts = self._starts[first : stop + 1]
        return np.concatenate(self._batches[first:stop]), np.arange(starts[0], starts[-1]), starts - starts[0]


def present_rank() -> tuple[int, int]:
    """Return the number of this process among those of torch.distributed, and how many there are.

    Without a process group, the environment says so (RANK and WORLD_SIZE, as torchrun sets them); 0 and 1 without both.

    Raises:
        UsageError: the environment has both, and they do not fit.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    size, rank = os.environ.get("WORLD_SIZE", "1"), os.environ.get("RANK", "")
    if size == "1" or not rank:
        return 0, 1  # Lightning, for one, sets WORLD_SIZE alone, and makes its process group later
    if not (size.isdecimal() and rank.isdecimal() and int(rank) < int(size)):
        raise UsageError(
            f"RANK is {rank!r} and WORLD_SIZE {size!r} in the environment: a rank from 0 to WORLD_SIZE - 1 is "
            "expected; set both right, or give rank= and world_size="
        )
    remark(f"there is no process group: this is rank {rank} of {size} by RANK and WORLD_SIZE of the environment")
    return int(rank), int(size)


def rank_in_mesh(mesh: DeviceMesh) -> tuple[int, int]:
    """Return the number of this process along a mesh of one axis, and the length of that axis.

    Raises:
        UsageError: the mesh has several axes, or this process is not in it.
    """
    if mesh.ndim != 1:
        axes = ", ".join(mesh.mesh_dim_names or map(str, range(mesh.ndim)))
        raise UsageError(
            f"mesh has the axes {axes}: give the one along which batches differ, such as mesh['dp']; processes that "
            "differ in the others then read the same"
        )
    place = mesh.get_coordinate()
    if place is None:
        raise UsageError("mesh does not hold this process: give a mesh of all processes that read, or rank=")
    return place[0], mesh.size()
