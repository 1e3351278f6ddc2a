"""Shards that come and go: each is opened when the first batch needs it, and closed behind the last one that does.

Stream          all datasets that an epoch reads, such as those of a mix
CacheStream     what of them is in one cache: fetched ahead, opened, and let go of
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from packer.format import Numbers, ShardEntry, starts_of
from packer.machine import usual_memory
from packer.remote import STREAMS, Ahead, Cache, Claim, GiveWay, Mirror
from readers.fields import FieldReader
from readers.joined import parts_of
from readers.mix_source import AnySource
from readers.needs import Needs
from readers.shards import OpenShard
from readers.source import Source


class CacheStream:
    """Opens the shards in one cache, one after another, until it is closed.

    Args:
        cache: which it is.
        needs: of the batches.
        later: the shards that the next epoch needs, (k,), in order.
        shards: gives what fetches a shard, and its entry, by its number.
        open_shard: opens one that is here.
        claim: what the cache must hold at once.
        epoch: its number.
    """

    def __init__(
        self,
        cache: Cache,
        needs: Needs,
        later: Numbers,
        shards: Sequence[tuple[Mirror | None, ShardEntry]],
        open_shard: Callable[[int], OpenShard],
        claim: Claim,
        epoch: int,
    ) -> None:
        self._epoch = epoch
        self._open_shard = open_shard
        self._stretches = needs.stretches
        # Of each shard the stretch that is under way, or was last, or is to come.
        self._stretch_of = {shard: place for place, shard in reversed([*enumerate(needs.shards.tolist())])}
        self._begun = 0
        self._by_last = needs.stretches[:, 2].argsort(kind="stable")[::-1].tolist()
        self._open: dict[int, OpenShard] = {}
        self._finalizers: list[weakref.finalize[..., OpenShard]] = []
        wanted, later_wanted = (
            [(mirror, entry) for mirror, entry in map(shards.__getitem__, numbers.tolist()) if mirror is not None]
            for numbers in (needs.shards, later)
        )
        depth = _depth({*wanted, *later_wanted}, cache.limit, needs.at_once // 2)
        self._ahead = Ahead(cache, wanted, later_wanted, depth, claim)

    def close(self) -> None:
        """Let go of all shards, and fetch no more."""
        self._open.clear()
        # An error that somebody keeps may refer to what is open.
        for release in self._finalizers:
            release()
        self._ahead.close()

    def open(self, shards: Sequence[int], first: int, stop: int) -> list[OpenShard]:
        """Wait for the shards of some batches, and close those that no later one needs.

        Args:
            shards: of the batches `first` to `stop`, which begin where those of the last call ended.

        Returns:
            The shards, which must be kept until the samples are read.
        """
        while self._begun < len(self._stretches) and self._stretches[self._begun, 1] < stop:
            self._stretch_of[int(self._stretches[self._begun, 0])] = self._begun
            self._begun += 1
        lasts = self._stretches[:, 2]
        self._open = {shard: opened for shard, opened in self._open.items() if lasts[self._stretch_of[shard]] >= first}
        passed = []
        while self._by_last and lasts[self._by_last[-1]] < first:
            passed.append(self._by_last.pop())
        self._ahead.pass_by(passed)
        while missing := [shard for shard in shards if shard not in self._open]:
            try:
                self._open[missing[0]] = self._fetch(missing[0], first)
            except GiveWay:
                self._open.clear()  # another one goes first, and needs the room
        return [self._open[shard] for shard in shards]

    def _fetch(self, shard: int, batch: int) -> OpenShard:
        """Return an open shard, which is let go of when nobody reads from it any more."""
        stretch = self._stretch_of[shard]
        lease = self._ahead.take(stretch, self._epoch, batch)
        opened = self._open_shard(shard)
        self._finalizers = [finalizer for finalizer in self._finalizers if finalizer.alive]
        self._finalizers.append(weakref.finalize(opened, self._ahead.let_go, stretch, lease))
        return opened


class _Member:
    """A dataset of a stream.

    Args:
        first: number of its first shard.
        is_streamed: whether its shards are opened one by one; else what is open of it as a whole is read.
    """

    def __init__(self, dataset: Source, first: int, is_streamed: bool) -> None:
        self.dataset, self.first = dataset, first
        self.opened = dataset.open_alone() if is_streamed else None
        self._readers: Mapping[str, FieldReader] = {}

    def open_shard(self, shard: int) -> OpenShard:
        """Return an open shard; its readers are made with the first one."""
        assert self.opened is not None
        opened = self.opened.open_shard(shard - self.first)
        self._readers = self._readers or self.dataset.make_readers(self.opened, shard - self.first)
        return opened

    @property
    def readers(self) -> Mapping[str, FieldReader]:
        """Return the reader of each field, by name; none before the first shard is open."""
        return self.dataset.readers if self.opened is None else self._readers


class Stream:
    """Opens the shards that batches need, of one dataset or of those of a mix; a context manager.

    Shards, and samples, are numbered one dataset after another.

    Args:
        needs: of the batches.
        later: the shards that the next epoch needs, (k,), in order.
        fitting: how the shards in each cache are kept, and what they claim of it.
        epoch: its number.

    Attributes:
        group: how many batches are to be located at once, after the first one.
    """

    def __init__(
        self,
        dataset: AnySource,
        needs: Needs,
        later: Numbers,
        fitting: Mapping[Cache, tuple[Needs, Claim]],
        epoch: int,
    ) -> None:
        self._dataset = dataset
        self.group = min(cache_needs.group for cache_needs, _ in fitting.values())
        entries = [member.entries for member in dataset.members]
        firsts = starts_of(list(map(len, entries)))
        self._starts = starts_of([entry.samples for part in entries for entry in part])
        member_of_need = parts_of(needs.shards, firsts)
        self._first_members, first_needs = np.unique(member_of_need, return_index=True)
        self._first_shards = needs.shards[first_needs]
        self._members = [
            _Member(member, first, member.mirror is not None and number in self._first_members)
            for number, (member, first) in enumerate(zip(dataset.members, firsts.tolist(), strict=False))
        ]
        self._member_of = parts_of(np.arange(len(self._starts) - 1), firsts)
        mirrors = [member.dataset.mirror for member in self._members]
        wanted = [(mirrors[number], entry) for number, part in enumerate(entries) for entry in part]
        # Not a method: nothing that is open is to wait for the collection of garbage.
        open_shard = partial(_open_shard, self._members, self._member_of.tolist())
        self._readers: Mapping[str, FieldReader] = {}
        self._streams: list[tuple[NDArray[np.bool_], CacheStream]] = []
        with ExitStack() as stack:
            for cache, (cache_needs, claim) in fitting.items():
                is_here = np.array([mirror is not None and mirror.cache == cache for mirror in mirrors])[
                    self._member_of
                ]
                here = replace(needs.where(is_here), gap=cache_needs.gap, group=self.group)
                stream = CacheStream(cache, here, later[is_here[later]], wanted, open_shard, claim, epoch)
                stack.callback(stream.close)
                self._streams.append((is_here, stream))
            self._stack = stack.pop_all()

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def keep_frames(self, shards: int, batch_size: int) -> None:
        """Make room for the decoded frames of so many shards, whose samples come in random order, as memory allows."""
        for opened in (member.opened for member in self._members if member.opened is not None):
            readers = opened.readers.values()
            most = int(usual_memory() / max(1, 3 * sum(reader.sample_bytes for reader in readers)))
            for reader in readers:
                reader.keep(min(most, shards * max(opened.shards.samples)), batch_size)

    @property
    def readers(self) -> Mapping[str, FieldReader]:
        """Return the reader of each field, by name; none before the first shards are open."""
        if not self._readers and all(readers := [member.readers for member in self._members]):
            self._readers = self._dataset.join(readers)
        return self._readers

    def open(self, samples: Numbers, first: int, stop: int) -> list[OpenShard]:
        """Wait for the shards of some batches, and close those that no later one needs.

        Args:
            samples: of the batches `first` to `stop`, which begin where those of the last call ended, (n,).

        Returns:
            The shards, which must be kept until the samples are read.
        """
        shards = np.unique(parts_of(samples, self._starts))
        if not self.readers:  # they are made with a shard of each dataset: see `_needs_of`
            is_unread = ~np.isin(self._first_members, self._member_of[shards])
            shards = np.append(shards, self._first_shards[is_unread])
        return [
            opened
            for is_here, stream in self._streams
            for opened in stream.open(shards[is_here[shards]].tolist(), first, stop)
        ]


def _open_shard(members: Sequence[_Member], member_of: Sequence[int], shard: int) -> OpenShard:
    return members[member_of[shard]].open_shard(shard)


def _depth(shards: set[tuple[Mirror, ShardEntry]], limit: int | None, window: int) -> int | None:
    """Return how many shards to fetch ahead: a window, or one for each stream if a quarter of the cache holds them.

    What is fetched sooner takes the room of shards that the next epoch would find in the cache. None if all fit.
    """
    nbytes = sum(entry.bytes for _, entry in shards)
    if limit is None or nbytes <= limit:
        return None
    return max(1, window, min(STREAMS, limit * len(shards) // nbytes // 4))
