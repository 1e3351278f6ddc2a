"""The plan: which sample goes to which shard, and how large each file gets. Pure arithmetic on sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError, UsageError
from packer.format import pages
from packer.format.schema import Field, FieldSpec
from packer.format.sizes import shard_bytes
from packer.packing.framing import Extent
from packer.sources.base import Source

GIB = 2**30
#: Without --shard-size there are up to 16 shards, so that workers have something to share out; a shard has
#: at least 64 MiB and at most 1 GiB. The size of the data alone decides, so that output is reproducible.
AUTO_SHARDS = 16
AUTO_SMALLEST = 64 * 2**20
#: Ragged fields whose sizes are not known before reading (text, samples in memory) are planned with about this many
#: bytes a sample, and with one row at least. Where that is too little maps grow while shards are written.
UNKNOWN_BYTES = 256


@dataclass(frozen=True)
class ShardPlan:
    """One shard: the samples start..stop, its raw bytes, and its file's size (exact, or an upper bound)."""

    number: int
    start: int
    stop: int
    raw_bytes: int
    file_bytes: int

    @property
    def map_size(self) -> int:
        return pages.map_size(self.file_bytes)

    @property
    def file(self) -> str:
        return f"{self.number:05d}.lmdb"


@dataclass(frozen=True)
class Plan:
    """What will be made.

    Attributes:
        raw_bytes: bytes of every field as arrays.
        exact: whether `file_bytes` of the shards are exact rather than upper bounds.
    """

    fields: tuple[Field, ...]
    shards: tuple[ShardPlan, ...]
    samples: int
    raw_bytes: dict[str, int]
    exact: bool

    @property
    def file_bytes(self) -> int:
        """Bytes of all shards: exact, or an upper bound."""
        return sum(shard.file_bytes for shard in self.shards)


@dataclass(frozen=True)
class FieldSizes:
    """Sizes of all samples of one field: shapes (n, axes) where ragged, bytes (n,), and whether they are known."""

    shapes: NDArray[np.int64] | None
    bytes: NDArray[np.int64]
    known: bool

    def extent(self, spec: FieldSpec) -> Extent:
        mean = float(self.bytes.mean()) if len(self.bytes) else 0.0
        largest = int(self.bytes.max()) if len(self.bytes) else 0
        if self.shapes is None or not len(self.shapes) or not spec.shape:
            row = float(math.prod(n or 1 for n in spec.shape[1:]) * spec.itemsize)
        else:
            # Of large samples rather than of many: it is those that are cut by rows.
            rows = self.shapes[:, 1:].prod(axis=1) * spec.itemsize
            row = float(np.average(rows, weights=self.bytes)) if self.bytes.any() else 0.0
        return Extent(mean, largest, row)


def field_sizes(source: Source) -> dict[str, FieldSizes]:
    """Sizes of all samples of every field, from headers alone."""
    sizes = {}
    for spec in source.fields:
        shapes = source.shapes(spec.name) if spec.is_ragged else None
        if spec.is_ragged and shapes is None:
            nbytes = math.prod(unknown_shape(spec)) * spec.itemsize
            sizes[spec.name] = FieldSizes(None, np.full(len(source), nbytes, np.int64), False)
        elif shapes is not None:
            sizes[spec.name] = FieldSizes(shapes, shapes.prod(axis=1, dtype=np.int64) * spec.itemsize, True)
        else:
            sizes[spec.name] = FieldSizes(None, _same(spec.fixed_bytes, len(source)), True)
    return sizes


def unknown_shape(spec: FieldSpec) -> tuple[int, ...]:
    """The shape that samples of unknown size are planned with: the first ragged axis takes what the others leave."""
    first = spec.ragged_axes[0]
    length = max(1, -(-UNKNOWN_BYTES // max(spec.fixed_bytes, 1)))
    return tuple(length if axis == first else 1 if n is None else n for axis, n in enumerate(spec.shape))


def make_plan(
    source: Source,
    fields: Sequence[Field],
    sizes: Mapping[str, FieldSizes],
    shard_size: int | None,
    origin: Mapping[str, Any],
) -> Plan:
    """The plan for packing `source` with the schema `fields`.

    Args:
        sizes: what `field_sizes` gives.
        shard_size: raw bytes of a shard, about; None to choose by the size of the data.

    Raises:
        SourceError: there are no samples.
        UsageError: the shard size is too small.
    """
    if not len(source):
        raise SourceError("there is no sample to pack")
    shards = plan_shards(source, fields, sizes, cut(_total(sizes), shard_size), origin)
    exact = all(s.known for s in sizes.values()) and not any(field.codec for field in fields)
    raw = {name: int(s.bytes.sum()) for name, s in sizes.items()}
    return Plan(tuple(fields), tuple(shards), len(source), raw, exact)


def plan_shards(
    source: Source,
    fields: Sequence[Field],
    sizes: Mapping[str, FieldSizes],
    starts: Sequence[int],
    origin: Mapping[str, Any],
) -> list[ShardPlan]:
    """The shards that begin with the samples `starts`, and the size of each file."""
    stops = [*starts[1:], len(source)]
    total = _total(sizes)
    name_ends = _name_ends(source)
    shards = []
    for number, (start, stop) in enumerate(zip(starts, stops, strict=True)):
        shapes = {f.name: _shapes(f, sizes[f.name], start, stop) for f in fields if f.is_ragged}
        name_bytes = None if name_ends is None else int(name_ends[stop] - name_ends[start])
        size = shard_bytes(number, fields, stop - start, shapes, name_bytes, origin)
        shards.append(ShardPlan(number, start, stop, int(total[start:stop].sum()), size))
    return shards


def _total(sizes: Mapping[str, FieldSizes]) -> NDArray[np.int64]:
    """Bytes of every sample, all fields together, (n,)."""
    each = [s.bytes for s in sizes.values()]
    fixed = sum(int(nbytes[0]) for nbytes in each if _is_same(nbytes))
    ragged = [nbytes for nbytes in each if not _is_same(nbytes)]
    return np.asarray(sum(ragged[1:], ragged[0] + fixed)) if ragged else _same(fixed, len(each[0]))


def _same(value: int, count: int) -> NDArray[np.int64]:
    """One value `count` times, in the memory of one: a hundred million rows take none here."""
    return np.broadcast_to(np.int64(value), (count,))


def _is_same(values: NDArray[np.int64]) -> bool:
    return values.strides == (0,)


def cut(sizes: NDArray[np.int64], shard_size: int | None) -> list[int]:
    """First sample of each shard, so that all shards have about the same number of bytes."""
    total = int(sizes.sum())
    if shard_size is None:
        shard_size = min(GIB, max(AUTO_SMALLEST, -(-total // AUTO_SHARDS)))
    if shard_size < 4096:
        raise UsageError(f"--shard-size {shard_size} is too small; 4 KiB is the least, 1GiB is usual")
    count = min(max(1, -(-total // shard_size)), len(sizes))
    wanted = [total * k // count for k in range(1, count)]
    if _is_same(sizes):
        starts = [0, *(-(-nbytes // int(sizes[0])) for nbytes in wanted)]
    else:
        starts = [0, *(np.searchsorted(np.cumsum(sizes), wanted, side="left") + 1).tolist()]
    return sorted({start for start in starts if start < len(sizes)})


def _shapes(field: Field, sizes: FieldSizes, start: int, stop: int) -> NDArray[np.int64]:
    if sizes.shapes is not None:
        return sizes.shapes[start:stop]
    return np.broadcast_to(np.array(unknown_shape(field), np.int64), (stop - start, len(field.shape)))


def _name_ends(source: Source) -> NDArray[np.int64] | None:
    if source.names is None:
        return None
    ends = np.zeros(len(source) + 1, np.int64)
    np.cumsum([len(name.encode()) for name in source.names], out=ends[1:])
    return ends
