"""Reading datasets at URLs shard by shard: those to come are fetched ahead, and those gone by are let go of.

In other cases a shard that was opened stays. Here each is opened when the first batch needs it, and closed behind the
last one that does (`readers/needs.py`), so that the cache needs room for a few.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType

import numpy as np

from packer.errors import UsageError
from packer.format import Numbers, ShardEntry, starts_of
from packer.machine import usual_memory
from packer.remote import STREAMS, Ahead, Cache, Claim, GiveWay, Mirror
from readers.dataset import PackedDataset
from readers.fields import FieldReader
from readers.joined import group_by_part, parts_of
from readers.mix import Mix, join_readers
from readers.needs import Needs
from readers.order import Order, Repeated, SamplerOrder, Sequential, Shuffled
from readers.shard_order import ShardShuffled
from readers.shards import OpenShard
from readers.share import Batches, ItemShards, Share
from readers.valid import remark

#: Bytes of stored samples that are located at once: all shards of these are open together.
GROUP_BYTES = 8 * 2**20
#: A pass that fetches its shards more often than this gives a remark.
MOST_FETCHES = 1.5


class ShardStream:
    """Opens the shards of one dataset in an epoch, one after another; a context manager.

    Args:
        dataset: at a URL.
        needs: of the batches.
        later: the shards that the next epoch needs, (k,), in order.
        claim: what the cache must hold at once.
        epoch: its number.

    Attributes:
        readers: of each field, by name; none before the first shard is open.
    """

    def __init__(
        self, dataset: PackedDataset, mirror: Mirror, needs: Needs, later: Numbers, claim: Claim, epoch: int
    ) -> None:
        self._dataset = dataset
        self._epoch = epoch
        self._opened = dataset.open_alone()
        self.readers: Mapping[str, FieldReader] = {}
        self._starts = starts_of(self._opened.shards.samples)
        self._stretches = needs.stretches
        self._stretch_of: dict[int, int] = {}  # of each shard, the one that is under way, or was last
        self._begun = 0
        self._by_last = needs.stretches[:, 2].argsort(kind="stable")[::-1].tolist()
        self._open: dict[int, OpenShard] = {}
        self._finalizers: list[weakref.finalize[..., OpenShard]] = []
        entries = self._opened.shards.entries
        wanted, later_wanted = ([entries[shard] for shard in shards.tolist()] for shards in (needs.shards, later))
        depth = _depth({*wanted, *later_wanted}, mirror.cache.limit, needs.at_once // 2)
        self._ahead = Ahead(mirror, wanted, later_wanted, depth, claim)

    def __enter__(self) -> ShardStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._open.clear()
        # An error that somebody keeps may refer to what is open.
        for release in self._finalizers:
            release()
        self._ahead.close()

    def keep_frames(self, shards: int, batch_size: int) -> None:
        """Make room for the decoded frames of so many shards, whose samples come in random order, as memory allows."""
        readers = self._opened.readers.values()
        most = int(usual_memory() / max(1, 3 * sum(reader.sample_bytes for reader in readers)))
        for reader in readers:
            reader.keep(min(most, shards * max(self._opened.shards.samples)), batch_size)

    def open(self, samples: Numbers, first: int, stop: int) -> list[OpenShard]:
        """Wait for the shards of some batches, and close those that no later one needs.

        Args:
            samples: of the batches, numbers in the whole dataset, (n,).
            first, stop: the batches, which begin where those of the last call ended.

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
        shards = np.unique(parts_of(samples, self._starts)).tolist()
        if not shards and not self.readers:
            shards = self._stretches[:1, 0].tolist()  # readers are made with a shard, in a mix before it is needed
            self._stretch_of[shards[0]] = 0
        while missing := [shard for shard in shards if shard not in self._open]:
            try:
                self._open[missing[0]] = self._open_shard(missing[0], first)
            except GiveWay:
                self._open.clear()  # another one goes first, and needs the room
        self.readers = self.readers or self._dataset.make_readers(self._opened, shards[0])
        return [self._open[shard] for shard in shards]

    def _open_shard(self, shard: int, batch: int) -> OpenShard:
        """Return an open shard, which is let go of when nobody reads from it any more."""
        stretch = self._stretch_of[shard]
        lease = self._ahead.take(stretch, self._epoch, batch)
        opened = self._opened.open_shard(shard)
        self._finalizers = [finalizer for finalizer in self._finalizers if finalizer.alive]
        self._finalizers.append(weakref.finalize(opened, self._ahead.let_go, stretch, lease))
        return opened


class Stream:
    """Opens the shards that batches need, of one dataset or of those of a mix; a context manager.

    Args:
        streams: of each dataset; None for one that is open as a whole.
        group: how many batches are to be located at once, after the first one.
        stack: closes the streams.
    """

    def __init__(
        self, dataset: PackedDataset | Mix, streams: Sequence[ShardStream | None], group: int, stack: ExitStack
    ) -> None:
        self._dataset = dataset
        self._streams = streams
        self._stack = stack
        self._starts = starts_of([member.items.total for member in _members(dataset)])
        self._readers: Mapping[str, FieldReader] = {}
        self.group = group

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def readers(self) -> Mapping[str, FieldReader]:
        """Return the reader of each field, by name; none before the first shards are open."""
        if not self._readers:
            members = _members(self._dataset)
            readers = [
                member.readers if stream is None else stream.readers
                for member, stream in zip(members, self._streams, strict=True)
            ]
            if not all(readers):
                return {}
            mix = self._dataset if isinstance(self._dataset, Mix) else None
            self._readers = readers[0] if mix is None else join_readers(readers, self._starts, bool(mix.extras))
        return self._readers

    def open(self, samples: Numbers, first: int, stop: int) -> list[OpenShard]:
        """Return the shards of batches, as `ShardStream.open`; samples are counted over all datasets."""
        opened = []
        part = parts_of(samples, self._starts)
        for number, stream in enumerate(self._streams):
            if stream is not None:
                opened += stream.open(samples[part == number] - self._starts[number], first, stop)
        return opened


def item_edges(dataset: PackedDataset) -> Numbers:
    """Return the first item of each shard that holds samples, and the end of the last, (shards + 1,).

    Raises:
        UsageError: the samples that are read do not ascend.
    """
    if not dataset.items.is_ascending:
        raise UsageError("shuffle='shards' needs samples in ascending order: sort the numbers of the chosen samples")
    return dataset.items.before(starts_of([entry.samples for entry in _entries(dataset)]))


def exceeds_cache(dataset: PackedDataset | Mix) -> bool:
    """Return whether datasets at URLs are larger than their caches may be, those of a mix that share one together."""
    return any(member.exceeds_cache for member in _members(dataset)) or any(
        cache.limit is not None
        and sum(file.bytes for member in members for file in member.manifest.files) > cache.limit
        for cache, members in _by_cache(dataset).items()
        if len(members) > 1
    )


def check_fits(dataset: PackedDataset | Mix, order: Order, share: Share) -> None:
    """Raise UsageError if a cache has too little room for the batches of an order, beside the loops that go on.

    The numbers of a sampler are asked for when a loop begins: then this is checked, too.
    """
    if exceeds_cache(dataset) and not isinstance(order, SamplerOrder):
        needs = _needs_of(dataset, order.batches(0, _node_share(share), 0))
        for cache, cache_needs in _fit(dataset, needs, order, share).items():
            cache.check_room(_claim(dataset, cache_needs, order, share))


def open_stream(
    dataset: PackedDataset | Mix, order: Order, batches: Batches, epoch: int, share: Share, done: int
) -> Stream | None:
    """Return what opens the shards of an epoch one by one; None if they are all there, or needed all at once.

    Args:
        batches: of this rank.
        done: positions of the epoch that were read before.

    Raises:
        UsageError: a cache has too little room for them.
    """
    exceeds = exceeds_cache(dataset)
    if not exceeds and not _is_awaited(dataset, order):
        return None
    has_neighbours = share.world_size > share.nodes  # ranks of the same node

    def fit(looks: bool) -> tuple[Needs, dict[Cache, Needs]]:
        """Return the needs of this rank, and what each cache must hold for all ranks of the node."""
        needs = needs_of_node = _needs_of(dataset, batches, looks)
        if has_neighbours:
            needs_of_node = _needs_of(dataset, order.batches(epoch, _node_share(share), done), looks)
        return needs, _fit(dataset, needs_of_node, order, share)

    try:
        needs, fitting = fit(looks=False)
    except UsageError:
        if not isinstance(order, ShardShuffled):
            raise
        # Shards of unlike sizes may need more room in this epoch than in the first: then no window is kept as a whole.
        needs, fitting = fit(looks=True)
    later = np.zeros(0, np.int64)
    if isinstance(order, ShardShuffled | Sequential):  # others would have to look at every batch
        later = _needs_of(dataset, order.batches(epoch + 1, share, 0)).shards
    group = min(cache_needs.group for cache_needs in fitting.values())
    claims = {cache: _claim(dataset, cache_needs, order, share) for cache, cache_needs in fitting.items()}
    starts = starts_of([len(_entries(member)) for member in _members(dataset)]).tolist()
    with ExitStack() as stack:
        streams: list[ShardStream | None] = []
        for member, first, stop in zip(_members(dataset), starts, starts[1:], strict=False):
            member_needs = replace(needs, group=group).of_shards(first, stop)
            if member.mirror is None or not len(member_needs.touched) or (member.is_open and not exceeds):
                streams.append(None)
                continue
            cache = member.mirror.cache
            member_needs = replace(member_needs, gap=fitting[cache].gap)
            claim = claims.pop(cache, Claim(member.mirror.url, 0))  # one for all datasets in a cache
            member_later = later[(later >= first) & (later < stop)] - first
            stream = ShardStream(member, member.mirror, member_needs, member_later, claim, epoch)
            streams.append(stack.enter_context(stream))
            if not isinstance(order, Sequential):
                stream.keep_frames(member_needs.at_once, share.batch_size)
        return Stream(dataset, streams, group, stack.pop_all())


def _is_awaited(dataset: PackedDataset | Mix, order: Order) -> bool:
    """Return whether a dataset that fits into its cache is still to be fetched, and this order needs few shards first.

    A full shuffle needs most of them: a remark says so.
    """
    if not isinstance(dataset, PackedDataset) or dataset.mirror is None or dataset.is_open:
        return False
    if dataset.mirror.is_fetched(dataset.manifest):
        return False
    if isinstance(order, Shuffled):
        nbytes = sum(shard.bytes for shard in dataset.manifest.shards)
        remark(
            f"{dataset.mirror.url}: its {nbytes:,} bytes are fetched before the first batches, which lie anywhere "
            "in them; shuffle='shards' begins with the first few shards"
        )
    by_shard = isinstance(order, ShardShuffled | Sequential)
    return by_shard and dataset.windows is None and dataset.items.is_ascending


# ---------------------------------------------------------------- what is needed


def _members(dataset: PackedDataset | Mix) -> Sequence[PackedDataset]:
    return dataset.datasets if isinstance(dataset, Mix) else [dataset]


def _entries(dataset: PackedDataset) -> list[ShardEntry]:
    """Return the shards that hold samples, by whose numbers needs are given."""
    return [entry for entry in dataset.manifest.shards if entry.samples]


def _by_cache(dataset: PackedDataset | Mix) -> dict[Cache, list[PackedDataset]]:
    """Return the datasets at URLs by their cache."""
    members: dict[Cache, list[PackedDataset]] = {}
    for member in _members(dataset):
        if member.mirror is not None:
            members.setdefault(member.mirror.cache, []).append(member)
    return members


def _node_share(share: Share) -> Share:
    """Return the share of all ranks of a node, as if they were one."""
    return replace(
        share, batch_size=share.batch_size * share.world_size // share.nodes, rank=share.node, world_size=share.nodes
    )


def _needs_of(dataset: PackedDataset | Mix, batches: Batches, looks: bool = False) -> Needs:
    """Return the shards that batches need; those of a mix are numbered one dataset after another.

    Args:
        looks: whether to look at every batch where the order knows by itself.
    """
    members = _members(dataset)
    entries = [_entries(member) for member in members]
    shards = [_shards_of(member) for member in members]
    item_starts, shard_starts = starts_of(list(map(len, members))), starts_of(list(map(len, entries)))

    def of(items: Numbers) -> Numbers:
        numbers = np.empty_like(items)
        for part, positions in group_by_part(parts_of(items, item_starts)):
            numbers[positions] = shards[part].of(items[positions] - item_starts[part]) + shard_starts[part]
        return numbers

    edges = [part.edges for part in shards if part.edges is not None]
    joined = [part[:-1] + start for part, start in zip(edges, item_starts.tolist(), strict=False)]
    whole = ItemShards(np.append(np.concatenate(joined), item_starts[-1]) if len(edges) == len(members) else None, of)
    shard_bytes = np.array([entry.bytes for part in entries for entry in part], np.int64)
    samples = sum(entry.samples for part in entries for entry in part)
    most_group = batches.group_end(0, int(GROUP_BYTES * samples // max(1, shard_bytes.sum())) + 1)
    touched = batches.touched(whole) if looks else batches.needs(whole)
    return Needs(touched, shard_bytes, len(batches), most_group)


def _shards_of(dataset: PackedDataset) -> ItemShards:
    items, starts = dataset.items, starts_of([entry.samples for entry in _entries(dataset)])
    edges = items.before(starts) if items.is_ascending else None
    return ItemShards(edges, lambda numbers: parts_of(items.samples_of(numbers), starts))


def _fit(dataset: PackedDataset | Mix, needs: Needs, order: Order, share: Share) -> dict[Cache, Needs]:
    """Return what each cache must hold, as it fits into it.

    Raises:
        UsageError: it does not.
    """
    starts = starts_of([len(_entries(member)) for member in _members(dataset)])
    fitting = {}
    for cache in _by_cache(dataset):
        is_here = [member.mirror is not None and member.mirror.cache == cache for member in _members(dataset)]
        cache_needs = needs.where(np.repeat(is_here, np.diff(starts))).fit(cache.limit)
        fitting[cache] = cache_needs
        nbytes, shards = cache_needs.bytes_at_once, cache_needs.at_once
        if cache.limit is not None and nbytes > cache.limit:
            subject, remedy = "batch", "take smaller batches"
            if shards == 1:
                remedy = "pack smaller shards with --shard-size"
            elif isinstance(order, ShardShuffled) and share.global_batch_size <= order.window:
                subject, remedy = "window", "give a smaller shuffle_window"
            raise UsageError(
                f"its cache may hold {cache.limit:,} bytes; this {subject} needs {shards} shard{'s' * (shards > 1)} at "
                f"once, {nbytes:,} bytes: raise cache_bytes to that, or {remedy}"
            )
        if cache_needs.fetches > MOST_FETCHES * (order.times if isinstance(order, Repeated) else 1):
            remark(
                f"{dataset!r}: its cache is too small for this order: shards are fetched {cache_needs.fetches:.1f} "
                "times an epoch; raise cache_bytes, or read with shuffle='shards', or in order"
            )
    return fitting


def _claim(dataset: PackedDataset | Mix, needs: Needs, order: Order, share: Share) -> Claim:
    """Return what other loops in a cache are told; the ranks of a job on this node count once."""
    group, url = "", next(member.mirror.url for member in _members(dataset) if member.mirror is not None)
    if share.world_size > share.nodes:
        job = [os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")]
        job.append("" if any(job) else str(os.getppid()))
        group = " ".join([repr(dataset), order.words, str(replace(share, rank=0)), *job])
    return Claim(url, needs.bytes_at_once, group, share.rank)


def _depth(entries: set[ShardEntry], limit: int | None, window: int) -> int | None:
    """Return how many shards to fetch ahead: a window, or one for each stream if a quarter of the cache holds them.

    What is fetched sooner takes the room of shards that the next epoch would find in the cache. None if all fit.
    """
    nbytes = sum(entry.bytes for entry in entries)
    if limit is None or nbytes <= limit:
        return None
    return max(1, window, min(STREAMS, limit * len(entries) // nbytes // 4))
