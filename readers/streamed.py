"""Reading datasets at URLs shard by shard: whether an order can be read so, and with how much room in the cache.

In other cases a shard that was opened stays. Here each is closed behind the last batch that needs it
(`readers/shard_stream.py`), so that the cache needs room for a few.
"""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np

from packer.errors import UsageError
from packer.format import starts_of
from packer.remote import Cache, Claim
from readers.composed import Mixed
from readers.joined import parts_of
from readers.mix_source import AnySource
from readers.needs import Needs
from readers.order import Order, Sequential, Shuffled
from readers.samplers import SamplerOrder
from readers.shard_order import ShardShuffled
from readers.shard_stream import Stream
from readers.share import Batches, Share
from readers.source import Source, by_cache
from readers.valid import remark

#: Bytes of stored samples that are located at once: all shards of these are open together.
GROUP_BYTES = 8 * 2**20
#: A pass that fetches its shards more often than this gives a remark.
MOST_FETCHES = 1.5


def check_fits(dataset: AnySource, order: Order, share: Share) -> None:
    """Raise UsageError if a cache has too little room for the batches of an order, beside the loops that go on.

    The numbers of a sampler are asked for when a loop begins: then this is checked, too.
    """
    if dataset.exceeds_cache and isinstance(order, Mixed) and share.world_size > share.nodes:
        # Each would hold what another waits for, since their batches take unlike shares of the datasets.
        nbytes = sum(entry.bytes for entry in dataset.entries)
        raise UsageError(
            f"{dataset!r}: several ranks of a node read a Mix only if its cache holds all of it: raise cache_bytes to "
            f"{nbytes:,}, or make one dataset of them by packer merge"
        )
    if dataset.exceeds_cache and not isinstance(order, SamplerOrder):
        needs = _needs_of(dataset, order.batches(0, _node_share(share), 0))
        for cache, cache_needs in _fit(dataset, needs, order, share, refuses=True).items():
            cache.check_room(_claim(dataset, cache_needs, order, share))


def open_stream(
    dataset: AnySource, order: Order, batches: Batches, epoch: int, share: Share, done: int
) -> Stream | None:
    """Return what opens the shards of an epoch one by one; None if they are all there, or needed all at once.

    Args:
        batches: of this rank.
        done: positions of the epoch that were read before.

    Raises:
        UsageError: a cache has too little room for them.
    """
    if not dataset.exceeds_cache and not _is_awaited(dataset, order):
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
    claims = {cache: (part, _claim(dataset, part, order, share)) for cache, part in fitting.items()}
    stream = Stream(dataset, needs, later, claims, epoch)
    if not isinstance(order, Sequential):
        stream.keep_frames(max(part.at_once for part in fitting.values()), share.batch_size)
    return stream


def _is_awaited(dataset: AnySource, order: Order) -> bool:
    """Return whether a dataset that fits into its cache is still to be fetched, and this order needs few shards first.

    A full shuffle needs most of them: a remark says so.
    """
    if not isinstance(dataset, Source) or dataset.mirror is None or dataset.is_open:
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


def _node_share(share: Share) -> Share:
    """Return the share of all ranks of a node, as if they were one."""
    return replace(
        share, batch_size=share.batch_size * share.world_size // share.nodes, rank=share.node, world_size=share.nodes
    )


def _needs_of(dataset: AnySource, batches: Batches, looks: bool = False) -> Needs:
    """Return the shards that batches need; those of a mix are numbered one dataset after another.

    Args:
        looks: whether to look at every batch where the order knows by itself.
    """
    shard_bytes = np.array([entry.bytes for entry in dataset.entries], np.int64)
    samples = sum(entry.samples for entry in dataset.entries)
    most_group = batches.group_end(0, int(GROUP_BYTES * samples // max(1, shard_bytes.sum())) + 1)
    touched = batches.touched(dataset.item_shards) if looks else batches.needs(dataset.item_shards)
    if len(dataset.members) > 1 and len(touched):  # readers are made with the first batch, by a shard of each dataset
        ordered = touched[touched[:, 1].argsort(kind="stable")]
        firsts = starts_of([len(member.entries) for member in dataset.members])
        first_shards = ordered[np.unique(parts_of(ordered[:, 0], firsts), return_index=True)[1], 0]
        touched = np.concatenate([np.stack([first_shards, *np.zeros((2, len(first_shards)), np.int64)], 1), touched])
    return Needs(touched, shard_bytes, len(batches), most_group)


def _fit(dataset: AnySource, needs: Needs, order: Order, share: Share, refuses: bool = False) -> dict[Cache, Needs]:
    """Return what each cache must hold, as it fits into it.

    Args:
        refuses: an order of ours that would fetch shards again and again; else that is a remark.

    Raises:
        UsageError: it does not.
    """
    starts = starts_of([len(member.entries) for member in dataset.members])
    fitting = {}
    for cache in by_cache(dataset.members):
        is_here = [member.mirror is not None and member.mirror.cache == cache for member in dataset.members]
        cache_needs = needs.where(np.repeat(is_here, np.diff(starts))).fit(cache.limit)
        fitting[cache] = cache_needs
        nbytes, shards = cache_needs.bytes_at_once, cache_needs.at_once
        if cache.limit is not None and nbytes > cache.limit:
            subject, remedy = "batch", "take smaller batches"
            if order.window is not None and share.global_batch_size <= order.window:
                subject, remedy = "window", "give a smaller shuffle_window"
            # A window of one shard and the next one need three, where batches are located together.
            if shards == 1 or (subject == "window" and shards <= 3 * len(dataset.members)):
                remedy = "pack smaller shards with --shard-size"
            raise UsageError(
                f"its cache may hold {cache.limit:,} bytes; this {subject} needs {shards} shard{'s' * (shards > 1)} at "
                f"once, {nbytes:,} bytes: raise cache_bytes to that, or {remedy}"
            )
        if cache_needs.fetches > MOST_FETCHES * max(1, len(order) / len(dataset)):
            sentence = (
                f"its cache may hold {cache.limit:,} bytes, too little for this order: shards would be fetched "
                f"{cache_needs.fetches:.1f} times an epoch; raise cache_bytes to "
                f"{replace(cache_needs, gap=cache_needs.batches).bytes_at_once:,}, "
                "or read with shuffle='shards' and a small shuffle_window, or in order"
            )
            if order.is_drawn and refuses:
                raise UsageError(sentence)
            remark(f"{dataset!r}: {sentence}")
    return fitting


def _claim(dataset: AnySource, needs: Needs, order: Order, share: Share) -> Claim:
    """Return what other loops in a cache are told; the ranks of a job on this node count once."""
    group, url = "", next(member.mirror.url for member in dataset.members if member.mirror is not None)
    if share.world_size > share.nodes:
        job = [os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")]
        job.append("" if any(job) else str(os.getppid()))
        group = " ".join([repr(dataset), order.words, str(replace(share, rank=0)), *job])
    return Claim(url, needs.bytes_at_once, group, share.rank)
