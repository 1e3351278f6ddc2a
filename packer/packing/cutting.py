"""Which sample goes to which shard, and how large each file gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.format import Field, map_size, shard_bytes
from packer.packing.sizes import FieldSizes, is_repeated, sample_bytes, sum_of
from packer.sources import Source

GIB = 2**30
#: Without --shard-size there are up to 16 shards, so that workers have something to share out; a shard has
#: at least 16 MiB and at most 1 GiB, or more where that would make more than 4,096 shards: each takes a map of the
#: process that reads it. The size of the data alone decides, so that output is reproducible.
AUTO_SHARDS, AUTO_MOST = 16, 4096
AUTO_SMALLEST = 16 * 2**20
#: Samples that are read as one, such as a group of rows, stay in one shard up to so many bytes; without --shard-size.
WHOLE_BYTES = 2**28


@dataclass(frozen=True)
class ShardPlan:
    """One shard: the samples start..stop, its raw bytes, and its file's size (exact, or an upper bound).

    Attributes:
        number: of the shard, from 0.
        start, stop: of its samples, in the source.
        slack_bytes: part of `file_bytes` that encoded frames may need, but mostly do not.
    """

    number: int
    start: int
    stop: int
    raw_bytes: int
    file_bytes: int
    slack_bytes: int

    @property
    def samples(self) -> int:
        return self.stop - self.start

    @property
    def map_size(self) -> int:
        return map_size(self.file_bytes)


def plan_shards(
    source: Source,
    fields: Sequence[Field],
    sizes: Mapping[str, FieldSizes],
    starts: Sequence[int],
) -> list[ShardPlan]:
    """Return the shards that begin with the samples `starts`, and the size of each file.

    Args:
        fields: how every field is stored.
        sizes: of all samples, by field.
        starts: number of the first sample of each shard, ascending from 0.
    """
    stops = [*starts[1:], len(source)]
    bytes_of_samples = sample_bytes(sizes)
    names = source.names
    shards = []
    for number, (start, stop) in enumerate(zip(starts, stops, strict=True)):
        shapes = {name: size.shapes[start:stop] for name, size in sizes.items() if size.shapes is not None}
        bytes_of_names = None if names is None else sum(len(name.encode()) for name in names[start:stop])
        file_bytes, slack_bytes = shard_bytes(number, fields, stop - start, shapes, bytes_of_names)
        shards.append(ShardPlan(number, start, stop, sum_of(bytes_of_samples[start:stop]), file_bytes, slack_bytes))
    return shards


def cut_shards(sizes: NDArray[np.int64], shard_size: int | None, cuts: NDArray[np.int64] | None = None) -> list[int]:
    """Return the first sample of each shard, so that all shards have about the same number of bytes.

    Args:
        sizes: raw bytes of every sample, (n,).
        shard_size: raw bytes that a shard holds, about; None chooses them by the size of the data.
        cuts: as in `Source`; a shard begins with the nearest one, if that is less than half a shard away.

    Raises:
        UsageError: the shard size is too small.
    """
    total = sum_of(sizes)
    if shard_size is None:
        shard_size = max(min(GIB, max(AUTO_SMALLEST, -(-total // AUTO_SHARDS))), -(-total // AUTO_MOST))
        if cuts is not None and len(cuts) > 1:
            most_samples = int(np.diff(cuts, append=len(sizes)).max())
            stretch = total * most_samples // len(sizes)
            shard_size = max(shard_size, stretch) if stretch <= WHOLE_BYTES else shard_size
    if shard_size < 4096:
        raise UsageError(f"--shard-size {shard_size} is too small; 4 KiB is the least, 1GiB is usual")
    count = min(max(1, -(-total // shard_size)), len(sizes))
    targets = [total * index // count for index in range(1, count)]
    if is_repeated(sizes):
        starts = [0, *(-(-nbytes // int(sizes[0])) for nbytes in targets)]
    else:
        starts = [0, *(np.searchsorted(np.cumsum(sizes), targets, side="left") + 1).tolist()]
    if cuts is not None:
        starts = [_nearest(start, cuts, len(sizes) // count // 2) for start in starts]
    return sorted({start for start in starts if start < len(sizes)})


def _nearest(start: int, cuts: NDArray[np.int64], most: int) -> int:
    """Return the cut that is nearest to a sample; the sample itself if that is further away than `most`."""
    after = int(cuts.searchsorted(start))
    nearest = min(cuts[max(0, after - 1) : after + 1].tolist(), key=lambda cut: abs(cut - start))
    return int(nearest) if abs(nearest - start) <= most else start
