"""Reading a dataset at a URL shard by shard: those to come are fetched ahead, and those gone by are let go of.

In every other order a shard that was opened stays. Here each is opened when the first batch needs it, and closed behind
the last one that does, so that the cache needs room for a few.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from dataclasses import replace
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.format import Numbers, ShardEntry, starts_of
from packer.machine import usual_memory
from packer.remote import STREAMS, Ahead, Claim, GiveWay, Mirror
from readers.dataset import PackedDataset
from readers.fields import FieldReader
from readers.joined import parts_of
from readers.mix import Mix
from readers.order import Order, Sequential, Shuffled
from readers.shard_order import ShardShuffled
from readers.shards import OpenShard
from readers.share import Share
from readers.valid import remark

#: Bytes of stored samples that are located at once: all shards of these are open together.
GROUP_BYTES = 8 * 2**20


class ShardStream:
    """Opens the shards of an epoch one after another; a context manager.

    Args:
        dataset: at a URL.
        needs: the shards that are needed, and the first and the last position at which, (m, 3), in order.
        later: the shards that the next epoch needs, (k,), in order.
        share: of the rank.
        window: how many shards are read side by side.
        claim: what it holds at once.
        epoch: its number.

    Attributes:
        readers: of each field, by name; none before the first shard is open.
        group_samples: how many to locate at once.
    """

    def __init__(
        self,
        dataset: PackedDataset,
        mirror: Mirror,
        needs: Numbers,
        later: Numbers,
        share: Share,
        window: int,
        claim: Claim,
        epoch: int,
    ) -> None:
        self._epoch = epoch
        self._dataset = dataset
        self._opened = dataset.open_alone()
        self.readers: Mapping[str, FieldReader] = {}
        self._entries = self._opened.shards.entries
        self._starts = starts_of(self._opened.shards.samples)
        entries, later_entries = (
            [dataset.manifest.shards[shard] for shard in shards.tolist()] for shards in (needs[:, 0], later)
        )
        self._last: dict[ShardEntry, int] = {}
        for entry, last in zip(entries, needs[:, 2].tolist(), strict=True):
            self._last[entry] = max(last, self._last.get(entry, 0))
        self._by_last = sorted(self._last, key=self._last.__getitem__, reverse=True)
        self._open: dict[int, OpenShard] = {}
        self._finalizers: list[weakref.finalize[..., OpenShard]] = []
        self._ahead = Ahead(
            mirror, entries, later_entries, _depth({*entries, *later_entries}, mirror.cache.limit, window), claim
        )
        sample_bytes = max(1, sum(entry.bytes for entry in self._entries) // int(self._starts[-1]))
        # Samples to locate at once: of all ranks together no more than a shard has, or a group needs more shards.
        batches = max(1, int(self._starts[-1]) // len(self._entries) // share.global_batch_size)
        self.group_samples = max(1, min(GROUP_BYTES // sample_bytes, batches * share.batch_size))

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

    def open(self, samples: Numbers, positions: Numbers) -> list[OpenShard]:
        """Wait for the shards of some samples, and close those that no later position needs.

        Args:
            samples: numbers in the whole dataset, (n,).
            positions: of these in the epoch, (n,), each above those of all earlier calls.

        Returns:
            The shards, which must be kept until the samples are read.
        """
        first = positions.min()
        self._open = {
            shard: opened for shard, opened in self._open.items() if self._last.get(self._entries[shard], -1) >= first
        }
        passed = []
        while self._by_last and self._last[self._by_last[-1]] < first:
            passed.append(self._by_last.pop())
        self._ahead.pass_by(passed)
        shards = np.unique(parts_of(samples, self._starts)).tolist()
        while missing := [shard for shard in shards if shard not in self._open]:
            try:
                self._open[missing[0]] = self._open_shard(missing[0], int(first))
            except GiveWay:
                self._open.clear()  # another one goes first, and needs the room
        self.readers = self.readers or self._dataset.make_readers(self._opened, shards[0])
        return [self._open[shard] for shard in shards]

    def _open_shard(self, shard: int, position: int) -> OpenShard:
        """Return an open shard, which is let go of when nobody reads from it any more."""
        entry = self._entries[shard]
        lease = self._ahead.take(entry, self._epoch, position)
        opened = self._opened.open_shard(shard)
        self._finalizers = [finalizer for finalizer in self._finalizers if finalizer.alive]
        self._finalizers.append(weakref.finalize(opened, self._ahead.let_go, entry, lease))
        return opened


def item_edges(dataset: PackedDataset) -> Numbers:
    """Return the first item of each shard, and the end of the last, (shards + 1,).

    Raises:
        UsageError: the samples that are read do not ascend.
    """
    if not dataset.items.is_ascending:
        raise UsageError("shuffle='shards' needs samples in ascending order: sort the numbers of the chosen samples")
    return dataset.items.before(starts_of([shard.samples for shard in dataset.manifest.shards]))


def open_stream(dataset: PackedDataset | Mix, order: Order, epoch: int, share: Share, done: int) -> ShardStream | None:
    """Return what opens the shards of an epoch one by one; None if they are all there, or needed all at once.

    Args:
        done: positions of the epoch that were read before.
    """
    if not isinstance(dataset, PackedDataset) or dataset.mirror is None:
        return None
    if dataset.is_open or (dataset.mirror.is_fetched(dataset.manifest) and not exceeds_cache(dataset)):
        return None
    if not _reads_by_shard(dataset, order):
        if isinstance(order, Shuffled):
            nbytes = sum(shard.bytes for shard in dataset.manifest.shards)
            remark(
                f"{dataset.mirror.url}: its {nbytes:,} bytes are fetched before the first batches, which lie anywhere "
                "in them; shuffle='shards' begins with the first few shards"
            )
        return None
    if isinstance(order, ShardShuffled):
        needs, later = order.needs(epoch, share), order.needs(epoch + 1, share)
    else:
        needs = _needs_in_order(item_edges(dataset))
        needs, later = (needs[_are_read(needs, len(order), share, start)] for start in (done, 0))
    shards = _most_shards(dataset, order, share)
    stream = ShardStream(
        dataset,
        dataset.mirror,
        needs[needs[:, 2] >= done],
        later[:, 0],
        share,
        shards // 2,
        _claim(dataset, dataset.mirror, order, share),
        epoch,
    )
    if isinstance(order, ShardShuffled):
        stream.keep_frames(shards, share.batch_size)
    return stream


def exceeds_cache(dataset: PackedDataset | Mix) -> bool:
    """Return whether a dataset at a URL is larger than its cache may be."""
    return any(map(exceeds_cache, dataset.datasets)) if isinstance(dataset, Mix) else dataset.exceeds_cache


def check_fits(dataset: PackedDataset | Mix, order: Order, share: Share) -> None:
    """Raise UsageError if a dataset is larger than its cache, and this order cannot be read with so little room."""
    if not exceeds_cache(dataset):
        return
    if isinstance(dataset, Mix) or not _reads_by_shard(dataset, order):
        raise UsageError(
            "the dataset is larger than cache_bytes: then only shuffle='shards' or no shuffling reads it, of samples "
            "in ascending order, without windows, sampler, repeat, Subset or Mix; or raise cache_bytes"
        )
    assert dataset.mirror is not None
    claim = _claim(dataset, dataset.mirror, order, share)
    limit = dataset.mirror.cache.limit
    if limit is not None and claim.bytes > limit:
        raise UsageError(
            f"cache_bytes is {limit:,}, and {_most_shards(dataset, order, share)} shards, {claim.bytes:,} bytes, must "
            "have room: raise it, or give a smaller shuffle_window"
        )
    dataset.mirror.cache.check_room(claim)


def _claim(dataset: PackedDataset, mirror: Mirror, order: Order, share: Share) -> Claim:
    """Return what a loop holds at once: the largest shards, as many as `_most_shards`, or all if they fit."""
    sizes = sorted((entry.bytes for entry in dataset.manifest.shards if entry.samples), reverse=True)
    nbytes, group = sum(sizes[: _most_shards(dataset, order, share)]), ""
    if share.world_size > share.nodes:  # ranks of one job on this machine
        job = [os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")]
        job.append("" if any(job) else str(os.getppid()))
        group = " ".join([mirror.folder.name, order.words, str(replace(share, rank=0)), *job])
    return Claim(mirror.url, nbytes, group, share.rank)


def _most_shards(dataset: PackedDataset, order: Order, share: Share) -> int:
    """Return how many shards a node may need at once: those of a window or of a batch, and the next."""
    if isinstance(order, ShardShuffled):
        return order.most_shards(share.nodes)
    shards = sum(entry.samples > 0 for entry in dataset.manifest.shards)
    return 1 + -(-share.global_batch_size * shards // max(dataset.manifest.samples, 1))


def _depth(entries: set[ShardEntry], limit: int | None, window: int) -> int | None:
    """Return how many shards to fetch ahead: a window, or one for each stream if a quarter of the cache holds them.

    What is fetched sooner takes the room of shards that the next epoch would find in the cache. None if all fit.
    """
    nbytes = sum(entry.bytes for entry in entries)
    if limit is None or nbytes <= limit:
        return None
    return max(1, window, min(STREAMS, limit * len(entries) // nbytes // 4))


def shards_needed(dataset: PackedDataset | Mix, order: Order, share: Share) -> tuple[list[int], int]:
    """Return the shards that the first batch of an epoch needs, and how many a node may need at once; see `Loader`."""
    if isinstance(dataset, Mix) or not _reads_by_shard(dataset, order):
        raise UsageError("shards_needed: only with shuffle='shards' or no shuffling few shards are needed at a time")
    needs = order.needs(0, share) if isinstance(order, ShardShuffled) else _needs_in_order(item_edges(dataset))
    first = needs[needs[:, 1] < share.global_batch_size, 0]
    return np.unique(first).tolist(), _most_shards(dataset, order, share)


def _reads_by_shard(dataset: PackedDataset, order: Order) -> bool:
    """Return whether an order reads few shards at a time."""
    by_shard = isinstance(order, ShardShuffled | Sequential)
    return by_shard and dataset.windows is None and dataset.items.is_ascending


def _needs_in_order(edges: Numbers) -> Numbers:
    """Return what is needed of the shards if samples are read in order, as `ShardShuffled.needs`."""
    needs: Numbers = np.stack([np.arange(len(edges) - 1), edges[:-1], edges[1:] - 1], 1)
    present: Numbers = needs[np.diff(edges) > 0]
    return present


def _are_read(needs: Numbers, n: int, share: Share, done: int) -> NDArray[np.bool_]:
    """Return of which shards one rank reads a sample, (m,), if `done` of `n` samples were read before, in order."""
    full = (n - done) // share.global_batch_size
    begins, ends = np.maximum(needs[:, 1] - done, 0), np.minimum(needs[:, 2] + 1 - done, full * share.global_batch_size)
    # The next position from the beginning of a shard on that is in a batch of this rank.
    beyond = (begins - share.rank * share.batch_size) % share.global_batch_size
    begins += np.where(beyond < share.batch_size, 0, share.global_batch_size - beyond)
    last, _ = share.positions(n, done, full, share.count_batches(n, done))
    return (begins < ends) | np.isin(needs[:, 0], needs[needs[:, 2].searchsorted(last), 0])
