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
from readers.joined import group_by_part, join_parts, parts_of
from readers.opened import Opened

#: Opens one shard, by number, with a lease on its file; see `PackedDataset.shard_readers`.
OpenOneShard = Callable[[int, object], tuple[Opened, Mapping[str, FieldReader]]]
#: Where the samples of one shard stand among those asked for, (m,); their numbers in the shard, (m,); the open shard.
ShardPart = tuple[Numbers, Numbers, Opened, Mapping[str, FieldReader]]


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

    def parts(self, samples: Numbers, open_shard: OpenOneShard) -> Iterator[ShardPart]:
        """Yield the samples (n,) of one shard after another, numbers in the whole dataset.

        Raises:
            DatasetError: other processes have open what the cache holds.
            DamagedError, RemoteError: as `Mirror.fetch_shards`.
        """
        last = self._last
        shards = group_by_part(parts_of(samples, self._starts))
        if last is not None:
            opened = last[0]
            shards.sort(key=lambda part: part[0] != opened)
        missing = [self._entries[shard] for shard, _ in shards if last is None or shard != last[0]]
        with Ahead(self._mirror, missing) as ahead:
            for shard, positions in shards:
                if last is None or last[0] != shard:
                    if last is not None:
                        last[1].close()  # the next one may need its room
                    last = self._last = None
                    lease = ahead.take(self._entries[shard])
                    last = self._last = shard, lease, *open_shard(shard, lease)
                yield positions, samples[positions] - self._starts[shard], *last[2:]

    def gather(
        self,
        samples: Numbers,
        open_shard: OpenOneShard,
        fields: Sequence[str] | None,
        allocate: Allocate | Pool | None = None,
        visits: Visits | None = None,
        anchors: Numbers | None = None,
    ) -> dict[str, Any]:
        """Return samples (n,), numbers in the whole dataset: field name to values.

        Args:
            fields: to read; all by default. The others are those of `gather_samples`.
        """
        parts = []
        for positions, shard_numbers, opened, readers in self.parts(samples, open_shard):
            part_visits = None if visits is None else visits[positions]
            part_anchors = None if anchors is None else anchors[positions]
            field_readers = readers if fields is None else {name: readers[name] for name in fields}
            # Values of several shards are copied once more, into the batch.
            memory = allocate if len(positions) == len(samples) else None
            parts.append((positions, gather_samples(field_readers, shard_numbers, memory, part_visits, part_anchors)))
            del opened, readers, field_readers  # so that the shard is closed when the next one is fetched
        first = parts[0][1]
        if len(parts) == 1:
            return first
        return {
            name: join_parts([(positions, values[name]) for positions, values in parts], len(samples), fresh)
            for name in first
        }
