"""Samples of a dataset at a URL that is larger than its cache, read by number.

One shard after another is open, and those of the same batch are fetched ahead. The last one stays open, since the next
sample is often in the same shard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from packer.format import Manifest, Numbers, starts_of
from packer.remote import Ahead, Lease, Mirror
from readers.draws import Visits
from readers.fields import FieldReader, gather_samples
from readers.gather import Allocate, Pool, fresh
from readers.joined import by_part, joined, parts_of
from readers.opened import Opened

#: Opens one shard, by number, with a lease on its file; see `PackedDataset.shard_readers`.
OpenShard = Callable[[int, object], tuple[Opened, Mapping[str, FieldReader]]]
#: Where the samples of one shard stand among those asked for, (m,); their numbers in the shard, (m,); the open shard.
Part = tuple[Numbers, Numbers, Opened, Mapping[str, FieldReader]]


class ShardByShard:
    """Reads samples of any shards, with one shard open at a time.

    Args:
        mirror: fetches the shards.
        manifest: of the dataset.
    """

    def __init__(self, mirror: Mirror, manifest: Manifest) -> None:
        self._mirror = mirror
        self._entries = manifest.shards
        self._starts = starts_of([entry.samples for entry in manifest.shards])
        self._last: tuple[int, Lease, Opened, Mapping[str, FieldReader]] | None = None

    def parts(self, samples: Numbers, open_shard: OpenShard) -> Iterator[Part]:
        """Yield the samples (n,) of one shard after another, numbers in the whole dataset.

        Raises:
            DatasetError: other processes have open what the cache holds.
            DamagedError, RemoteError: as `Mirror.fetch_shards`.
        """
        last = self._last
        shards = by_part(parts_of(samples, self._starts))
        if last is not None:
            opened = last[0]
            shards.sort(key=lambda part: part[0] != opened)
        wanted = [self._entries[shard] for shard, _ in shards if last is None or shard != last[0]]
        with Ahead(self._mirror, wanted) as ahead:
            for shard, at in shards:
                if last is None or last[0] != shard:
                    if last is not None:
                        last[1].close()  # the next one may need its room
                    last = self._last = None
                    lease = ahead.take(self._entries[shard])
                    last = self._last = shard, lease, *open_shard(shard, lease)
                yield at, samples[at] - self._starts[shard], *last[2:]

    def gather(
        self,
        samples: Numbers,
        open_shard: OpenShard,
        fields: Sequence[str] | None,
        allocate: Allocate | Pool | None = None,
        visits: Visits | None = None,
        anchors: Numbers | None = None,
    ) -> dict[str, Any]:
        """Return samples (n,), numbers in the whole dataset: field name to values.

        Args:
            fields: to read; all by default. The others are those of `gather_samples`.
        """
        read = []
        for at, own, opened, readers in self.parts(samples, open_shard):
            drawn, steps = None if visits is None else visits[at], None if anchors is None else anchors[at]
            chosen = readers if fields is None else {name: readers[name] for name in fields}
            # Values of several shards are copied once more, into the batch.
            memory = allocate if len(at) == len(samples) else None
            read.append((at, gather_samples(chosen, own, memory, drawn, steps)))
            del opened, readers, chosen  # so that the shard is closed when the next one is fetched
        first = read[0][1]
        if len(read) == 1:
            return first
        return {name: joined([(at, values[name]) for at, values in read], len(samples), fresh) for name in first}
