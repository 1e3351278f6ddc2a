"""How large a shard gets, from the sizes of its samples alone.

For raw columns the answer is exact to the byte; for encoded ones it is an upper bound, since a frame
that does not shrink is kept raw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from packer.format.layout import (
    CHUNK_BYTES,
    HEADER,
    NAME_BYTES,
    NAME_OFFSETS,
    ShardHeader,
    chunk_bytes,
    chunk_key,
    column_key,
    index_arrays,
)
from packer.format.lmdb_appender import COMMIT_BYTES
from packer.format.pages import PAGE_SIZE, PageReplay
from packer.format.schema import Field

_AT_FINISH = 2**62


@dataclass(frozen=True)
class ColumnSizes:
    """Sizes of one column: its chunks, when each is stored, and its counts.

    Attributes:
        chunks: bytes of each chunk.
        after: number of the sample whose arrival stores each chunk; the last ones are stored at the end.
    """

    chunks: list[int]
    after: list[int]
    frames: int
    sample_frames: int


def sample_bytes(field: Field, samples: int, shapes: NDArray[np.int64] | None) -> NDArray[np.int64]:
    """Return the bytes of every sample (samples,), given the full shapes (samples, axes) of a ragged field."""
    if not field.is_ragged:
        return np.full(samples, field.fixed_bytes, np.int64)
    assert shapes is not None
    return np.asarray(shapes.prod(axis=1, dtype=np.int64) * field.itemsize)


def column_sizes(field: Field, samples: int, shapes: NDArray[np.int64] | None, limit: int = CHUNK_BYTES) -> ColumnSizes:
    """Return the chunks of the column of `field` with its frames raw; mirrors `ColumnWriter`."""
    rule = field.frame
    if rule.samples is not None:
        step = rule.samples
        groups = _frames(field, samples, shapes, step)
        frames = len(groups)
    else:
        step = 1
        rows = shapes[:, 0] if shapes is not None else np.full(samples, field.shape[0] or 0)
        groups = sample_bytes(field, samples, shapes)
        frames = int((-(-rows // (rule.rows or 1))).sum())
    chunks, firsts = _fill(groups, limit, frames)
    after = [min(first * step, samples) for first in firsts[1:]] + [_AT_FINISH]
    return ColumnSizes(chunks, after[: len(chunks)], frames, samples + 1)


def _frames(field: Field, samples: int, shapes: NDArray[np.int64] | None, step: int) -> NDArray[np.int64]:
    """Return the bytes of every frame of `step` samples; if all samples are alike, without an array of all of them."""
    if field.is_ragged:
        sizes = sample_bytes(field, samples, shapes)
        return np.add.reduceat(sizes, np.arange(0, samples, step)) if samples else sizes
    frames = np.full(-(-samples // step), step * field.fixed_bytes, np.int64)
    if samples % step:
        frames[-1] = samples % step * field.fixed_bytes
    return frames


def _fill(groups: NDArray[np.int64], limit: int, frames: int) -> tuple[list[int], list[int]]:
    """Return the bytes of each chunk, and the number of its first group, when groups are filled in greedily."""
    if not frames:
        return [], []
    ends = np.cumsum(groups)
    chunks: list[int] = []
    firsts: list[int] = []
    at, done = 0, 0
    while at < len(groups):
        stop = max(int(np.searchsorted(ends, done + limit, side="right")), at + 1)
        if int(ends[stop - 1]) == done and stop < len(groups):
            stop += 1  # nothing but empty groups so far: even one that is too large joins them
        firsts.append(at)
        chunks.append(int(ends[stop - 1]) - done)
        at, done = stop, int(ends[stop - 1])
    return chunks, firsts


def shard_bytes(
    number: int,
    fields: Sequence[Field],
    samples: int,
    shapes: Mapping[str, NDArray[np.int64]],
    name_bytes: int | None,
    origin: Mapping[str, Any],
) -> int:
    """Return the bytes of the shard's file.

    Args:
        shapes: full shapes (samples, axes) of every ragged field.
        name_bytes: bytes of all names together; None where samples have no names.
    """
    limit = chunk_bytes(len(fields))
    columns = [column_sizes(field, samples, shapes.get(field.name), limit) for field in fields]
    stored = sorted(
        (when, number, size)
        for number, column in enumerate(columns)
        for size, when in zip(column.chunks, column.after, strict=True)
    )
    values = [(len(chunk_key(0)), size) for _, _, size in stored]
    for column_number, (field, column) in enumerate(zip(fields, columns, strict=True)):
        values += _index_sizes(column_number, field, column, samples)
    header = ShardHeader(
        shard=number, samples=samples, named=name_bytes is not None, fields=tuple(fields), origin=dict(origin)
    )
    values.append((len(HEADER), len(msgspec.json.encode(header))))
    if name_bytes is not None:
        values += [(len(NAME_BYTES), name_bytes), (len(NAME_OFFSETS), 8 * (samples + 1))]
    encoded = sum(len(column.chunks) for field, column in zip(fields, columns, strict=True) if field.codec)
    return _replayed(values) + slack_pages(encoded) * PAGE_SIZE


def slack_pages(encoded_chunks: int) -> int:
    """Return the pages that encoding can cost more than it saves, at worst.

    A chunk that shrinks may waste the rest of its last page, or move next to its key and split a leaf: one page
    each. More leaves take more branch pages, of at least 64 each, and perhaps one more level: a page of the tree, and
    two copies of it that the last two commits retired.
    """
    return encoded_chunks + encoded_chunks // 64 + 3 if encoded_chunks else 0


def _index_sizes(number: int, field: Field, column: ColumnSizes, samples: int) -> list[tuple[int, int]]:
    lengths = {
        "checksums": column.frames,
        "chunks": 3 * len(column.chunks),
        "frame_offsets": column.frames + 1,
        "sample_frames": column.sample_frames,
        "sample_offsets": samples + 1,
        "shapes": samples * len(field.ragged_axes),
    }
    return [(len(column_key(number, name)), 8 * lengths[name]) for name in index_arrays(field)]


def _replayed(values: list[tuple[int, int]]) -> int:
    """Return the bytes of an LMDB file that takes these values with the commits of `LmdbAppender`."""
    replay = PageReplay()
    open_bytes = 0
    for key, value in values:
        replay.put(key, value)
        open_bytes += value
        if open_bytes >= COMMIT_BYTES:
            replay.commit()
            open_bytes = 0
    replay.commit()
    return replay.file_bytes
