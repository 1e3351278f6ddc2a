"""Samples of a dataset at a URL that is larger than its cache, read by number.

One shard after another is open, and those of the same batch are fetched ahead. The last one stays open, since the next
sample is often in the same shard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from packer.format import Numbers, starts_of
from packer.remote import Ahead, Lease, Mirror
from readers.draws import Asked
from readers.fields import FieldReader, gather_samples
from readers.gather import Allocate, Pool, fresh
from readers.joined import group_by_part, join_parts, parts_of
from readers.opened import Opened
from readers.shards import OpenShard
from readers.valid import remark

#: A remark is made once more shards than this were opened, for fewer samples each than that.
FEW_SHARDS, SAMPLES_A_SHARD = 4, 4

#: Makes a reader of each field, once a shard is open; see `PackedDataset.make_readers`.
MakeReaders = Callable[[Opened, int], Mapping[str, FieldReader]]


class ShardByShard:
    """Reads samples of any shards, with one shard open at a time.

    Args:
        mirror: fetches the shards.
        opened: opens them; an attribute, too.
    """

    def __init__(self, mirror: Mirror, opened: Opened) -> None:
        self.opened = opened
        self._mirror = mirror
        self._starts = starts_of(opened.shards.samples)
        self._readers: Mapping[str, FieldReader] = {}
        self._last: tuple[int, Lease, OpenShard] | None = None
        self._samples_read = self._shards_taken = 0

    def parts(self, samples: Numbers) -> Iterator[tuple[int, Numbers]]:
        """Yield one shard after another while it is open: its number, and where its samples stand in `samples`, (m,).

        Args:
            samples: numbers in the whole dataset, (n,).

        Raises:
            DatasetError: other processes have open what the cache holds.
            DamagedError, RemoteError: as `Mirror.fetch_shards`.
        """
        last, entries = self._last, self.opened.shards.entries
        shards = group_by_part(parts_of(samples, self._starts))
        if last is not None:
            opened = last[0]
            shards.sort(key=lambda part: part[0] != opened)
        missing = [(self._mirror, entries[shard]) for shard, _ in shards if last is None or shard != last[0]]
        self._samples_read += len(samples)
        self._shards_taken += len(missing)
        if self._shards_taken > FEW_SHARDS and self._samples_read < SAMPLES_A_SHARD * self._shards_taken:
            remark(
                f"{self._mirror.url}: it is larger than cache_bytes, and nearly each sample asked for by number lies "
                "in another shard, which may be fetched for it anew: Loader(..., shuffle='shards') reads whole shards; "
                "or raise cache_bytes"
            )
        with Ahead(self._mirror.cache, missing) as ahead:
            taken = 0
            for shard, positions in shards:
                if last is None or last[0] != shard:
                    if last is not None:
                        last[1].close()  # the next one may need its room
                    last = self._last = None
                    lease, taken = ahead.take(taken), taken + 1
                    last = self._last = shard, lease, self.opened.open_shard(shard)
                yield shard, positions

    def gather(
        self,
        asked: Asked,
        make_readers: MakeReaders,
        fields: Sequence[str] | None,
        allocate: Allocate | Pool | None = None,
    ) -> dict[str, Any]:
        """Return the samples that are asked for: field name to values.

        Args:
            fields: to read; all by default. The others are those of `gather_samples`.
        """
        parts = []
        for shard, positions in self.parts(asked.samples):
            readers = self._readers = self._readers or make_readers(self.opened, shard)
            field_readers = readers if fields is None else {name: readers[name] for name in fields}
            # Values of several shards are copied once more, into the batch.
            memory = allocate if len(positions) == len(asked) else None
            values = gather_samples(field_readers, asked[positions], memory)
            parts.append((positions, values))
        first = parts[0][1]
        if len(parts) == 1:
            return first
        return {
            name: join_parts([(positions, values[name]) for positions, values in parts], len(asked), fresh)
            for name in first
        }
