"""Which shards the batches of an epoch need, in which order, and how many at once.

    batch       0   1   2   3   4   5   6   7
    shard 4    ─────────                            is needed once
    shard 0        ─────────────
    shard 7                ─────────        ─────   twice, or from batch 3 to 7 where there is room

By this a stream opens shards, `Loader` refuses what cannot fit into a cache, and other loops are told what is held.
Which batch touches which shard is looked up in the batches themselves: `Batches.needs` of `readers/share.py`. Two
numbers are chosen here: how long a shard is kept that no batch touches, and how many batches are located at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from packer.format import Numbers


@dataclass(frozen=True)
class Needs:
    """The shards that some batches need.

    Attributes:
        touched: shard, and the first and the last batch that needs it, of each stretch of batches, (m, 3).
        shard_bytes: size of every shard of the dataset, (shards,).
        batches: how many there are.
        most_group: how many may be located at once, for their samples.
        gap: a shard is kept that so many batches, one after another, do not touch; see `fit`.
        group: how many batches are located at once, after the first; see `fit`.
    """

    touched: Numbers
    shard_bytes: Numbers
    batches: int
    most_group: int = 1
    gap: int = 0
    group: int = 1

    @cached_property
    def stretches(self) -> Numbers:
        """Return shard, first and last batch of each stretch for which a shard is kept, (m, 3), by first batch."""
        merged = _merge(self.touched, self.gap)
        return merged[merged[:, 1].argsort(kind="stable")]

    @property
    def shards(self) -> Numbers:
        """Return the shard of each stretch, (m,)."""
        shards: Numbers = self.stretches[:, 0]
        return shards

    @cached_property
    def at_once(self) -> int:
        """Return how many shards are open at one time at most."""
        groups = self.stretches.copy()
        # Batch 0 is a group of its own, so that it comes soon.
        groups[:, 1:] = np.where(groups[:, 1:] < 1, 0, 1 + (groups[:, 1:] - 1) // self.group)
        _, firsts, lasts = _merge(groups, 0).T
        times, places = np.unique(np.concatenate([firsts, lasts + 1]), return_inverse=True)
        changes = np.zeros(len(times), np.int64)
        np.add.at(changes, places, np.repeat([1, -1], len(firsts)))
        return int(changes.cumsum().max(initial=0))

    @cached_property
    def bytes_at_once(self) -> int:
        """Return the most bytes that so many of these shards may take: each epoch draws others."""
        sizes = np.sort(self.shard_bytes[np.unique(self.shards)])
        return int(sizes[len(sizes) - self.at_once :].sum())

    @property
    def fetches(self) -> float:
        """Return how often a shard is fetched, on average, if none stays in the cache between two stretches."""
        once = self.shard_bytes[np.unique(self.shards)].sum()
        return float(self.shard_bytes[self.shards].sum() / max(1, once))

    def fit(self, limit: int | None) -> Needs:
        """Return the same needs, with shards kept between two batches and batches grouped, as far as there is room.

        The longest gaps are given up first: no shard is kept for later where another one is needed now. A group of
        batches needs one shard more than single batches at most.

        Args:
            limit: of the cache, in bytes; if single batches need more, nothing is kept.
        """
        single = replace(self, gap=self.batches)
        while single.gap and limit is not None and single.bytes_at_once > limit:
            single = replace(self, gap=single.gap // 4)
        fitting = single
        while 2 * fitting.group <= self.most_group:
            grouped = replace(single, group=2 * fitting.group)
            if grouped.at_once > single.at_once + 1 or (limit is not None and grouped.bytes_at_once > limit):
                break
            fitting = grouped
        return fitting

    def where(self, is_kept: NDArray[np.bool_]) -> Needs:
        """Return the needs of some shards alone, by a mask of all, (shards,)."""
        return replace(self, touched=self.touched[is_kept[self.touched[:, 0]]])


def _merge(stretches: Numbers, gap: int) -> Numbers:
    """Return the stretches (m, 3) by shard, those of one shard joined that have `gap` batches between them at most."""
    if not len(stretches):
        return stretches
    shards, firsts, lasts = stretches[np.lexsort((stretches[:, 1], stretches[:, 0]))].T
    # The last batch so far of the same shard: those of earlier shards are smaller, as each shard is lifted above them.
    lift = shards * (int(lasts.max()) + 1)
    reached = np.maximum.accumulate(lasts + lift) - lift
    is_new = np.append(True, (shards[1:] != shards[:-1]) | (firsts[1:] > reached[:-1] + 1 + gap))
    begins = np.flatnonzero(is_new)
    ends = np.append(begins[1:], len(shards)) - 1
    return np.stack([shards[begins], firsts[begins], reached[ends]], 1)
