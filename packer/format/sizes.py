"""How large the LMDB files of a dataset get, before they are written.

The arithmetic of LMDB 0.9 (data format version 1, 64-bit), in bytes unless a name says pages. It rests on four rules:

- A page has 16 bytes of header; the rest, `ROOM`, holds the entries and a 2-byte slot for each.
- A value that would fill half a page with its key goes to overflow pages of its own, contiguous in the file, with one
  header for the whole run.
- A leaf that has no room for an appended key is left as it is, and the key starts a new leaf.
- A full branch page gives its last entry to its new sibling. The first entry of a branch page has no key.

For a shard of raw columns the answer is exact to the byte. For encoded columns it is an upper bound, since a frame that
does not shrink is kept raw.
"""

from __future__ import annotations

import itertools
import mmap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

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
    index_lengths,
)
from packer.format.schema import Field

#: LMDB takes the system's page size, and at most 32 KiB.
PAGE_SIZE = min(mmap.PAGESIZE, 32768)
#: Pages 0 and 1, written in turn by the commits.
META_PAGES = 2
#: Bytes of keys and values between two commits: two full chunks. Until a commit they lie in memory, and during it once
#: more, as LMDB's dirty pages. The size of a write decides how large the pieces of memory are in which Linux caches the
#: file for its readers (docs/how/choices.md).
COMMIT_BYTES = 4 * 10**6

_PAGE_HEADER = 16
_NODE_HEADER = 8
_SLOT = 2
_PAGE_NUMBER = 8
ROOM = PAGE_SIZE - _PAGE_HEADER
#: An entry of more bytes than this, slot not counted, puts its value on overflow pages: two entries must always fit on
#: a page, or the tree could not branch.
_MAX_INLINE_ENTRY = (ROOM // 2 & ~1) - _SLOT


def map_size(nbytes: int) -> int:
    """Return the smallest map in which a file of this many bytes can be written.

    LMDB refuses an allocation that would end on the last page of the map, hence the one page more.
    """
    return nbytes + PAGE_SIZE


def file_bytes(entries: Iterable[tuple[int, int]]) -> int:
    """Return the bytes of a file to which `LmdbAppender` appends keys and values of these sizes.

    Only pages on the right edge of the tree change again. A commit copies the right edge, one page a level, to other
    pages, and retires the old ones, since a reader may still see them. LMDB lists retired pages in a second tree, the
    free list. It takes one page, which every commit that finds it copies, too. Commit t + 2 reuses every page that
    commit t retired: the right edge never shrinks, so commit t + 2 copies at least that many pages, one at a time. So
    at any time the file holds

        2 meta pages + the tree + the free list's page + the pages that the last two commits retired

    and no other page. This holds for one main database without a name, filled in ascending order by a single writer,
    with no reader on the file meanwhile. How many commits there were does not matter.
    """
    # The last page of each level, from the leaf up to the root: the room taken, and the bytes of its last key.
    edge: list[tuple[int, int]] = []
    tree_pages = commits = uncommitted = 0
    retired_before = retired = 0  # pages, by the last commit but one and by the last one
    for key_bytes, value_bytes in entries:
        if not uncommitted:
            # This commit copies the edge, and the free list's page if there is one: commit 2 makes it.
            commits += 1
            retired_before, retired = retired, len(edge) + (commits > 2)
        uncommitted += key_bytes + value_bytes
        if uncommitted >= COMMIT_BYTES:
            uncommitted = 0
        entered, inline_bytes = key_bytes, value_bytes
        if _NODE_HEADER + key_bytes + value_bytes > _MAX_INLINE_ENTRY:
            tree_pages += (_PAGE_HEADER - 1 + value_bytes) // PAGE_SIZE + 1
            inline_bytes = _PAGE_NUMBER
        # If a page has no room for the entry, a new one begins with it, which is entered in the level above.
        for level in itertools.count():
            first = _entry_bytes(0) if level else 0  # the entry without a key, of a branch page
            if level == len(edge):
                edge.append((first, 0))
                tree_pages += 1
            used, last_key = edge[level]
            room = _entry_bytes(entered, inline_bytes)
            if ROOM - used >= room:
                edge[level] = used + room, entered
                break
            edge[level] = first + room, entered
            tree_pages += 1
            # The last entry of a full branch page moves to its sibling, and comes first there.
            entered, inline_bytes = last_key if level else entered, 0
    return (META_PAGES + tree_pages + (commits > 1) + retired_before + retired) * PAGE_SIZE


def _entry_bytes(key_bytes: int, value_bytes: int = 0) -> int:
    """Return the room that an entry takes on a page: a branch page, or a leaf, with `value_bytes` bytes of value."""
    return (_NODE_HEADER + key_bytes + value_bytes + 1 & ~1) + _SLOT


class ColumnSizes(NamedTuple):
    """Sizes of one column with its frames raw.

    Attributes:
        chunks: bytes of each chunk.
        after: number of the sample whose arrival stores each chunk; infinity for the last one, stored at the end.
        frames: how many there are.
    """

    chunks: list[int]
    after: list[float]
    frames: int


def column_sizes(field: Field, samples: int, shapes: NDArray[np.int64] | None, limit: int = CHUNK_BYTES) -> ColumnSizes:
    """Return the chunks of the column of `field`; mirrors `ColumnWriter`.

    Args:
        samples: how many there are.
        shapes: full shapes (samples, axes) of a ragged field; None of any other.
        limit: bytes of a chunk.
    """
    # Groups that must lie in one chunk: a frame of `step` samples, or all bands of one sample.
    step = field.frame.samples or 1
    if shapes is not None and samples:
        sizes = shapes.prod(axis=1, dtype=np.int64) * field.itemsize
        groups = np.add.reduceat(sizes, np.arange(0, samples, step))
    else:
        groups = np.full(-(-samples // step), step * field.fixed_bytes, np.int64)
        groups[samples // step :] = samples % step * field.fixed_bytes
    frames = len(groups)
    if field.frame.rows is not None:
        rows = np.full(samples, field.shape[0] or 0) if shapes is None else shapes[:, 0]
        frames = int((-(-rows // field.frame.rows)).sum())
    ends = np.cumsum(groups)
    chunks: list[int] = []
    after: list[float] = []
    first_group, first_byte = 0, 0  # of the next chunk
    while frames and first_group < len(groups):
        stop = max(int(np.searchsorted(ends, first_byte + limit, side="right")), first_group + 1)
        if int(ends[stop - 1]) == first_byte and stop < len(groups):
            stop += 1  # nothing but empty groups so far: even one that is too large joins them
        chunks.append(int(ends[stop - 1]) - first_byte)
        first_group, first_byte = stop, int(ends[stop - 1])
        after.append(min(first_group * step, samples) if first_group < len(groups) else np.inf)
    return ColumnSizes(chunks, after, frames)


def shard_bytes(
    number: int,
    fields: Sequence[Field],
    samples: int,
    shapes: Mapping[str, NDArray[np.int64]],
    name_bytes: int | None,
    origin: Mapping[str, Any] = {},
) -> tuple[int, int]:
    """Return the most bytes that the shard's file can have, and how many of these allow for waste by encoding.

    Args:
        number: of the shard.
        samples: how many it holds.
        shapes: full shapes (samples, axes) of every ragged field.
        name_bytes: bytes of all names together; None if samples have no names.
    """
    limit = chunk_bytes(len(fields))
    columns = [column_sizes(field, samples, shapes.get(field.name), limit) for field in fields]
    stored = sorted(
        (when, column, size)
        for column, sizes in enumerate(columns)
        for size, when in zip(sizes.chunks, sizes.after, strict=True)
    )
    values = [(len(chunk_key(0)), size) for _, _, size in stored]
    for column, (field, sizes) in enumerate(zip(fields, columns, strict=True)):
        lengths = index_lengths(field, samples, sizes.frames, len(sizes.chunks))
        values += [(len(column_key(column, name)), 8 * length) for name, length in lengths.items()]
    header = ShardHeader(
        shard=number, samples=samples, named=name_bytes is not None, fields=tuple(fields), origin=dict(origin)
    )
    values.append((len(HEADER), len(msgspec.json.encode(header))))
    if name_bytes is not None:
        values += [(len(NAME_BYTES), name_bytes), (len(NAME_OFFSETS), 8 * (samples + 1))]
    encoded = sum(len(sizes.chunks) for field, sizes in zip(fields, columns, strict=True) if field.codec)
    slack = _slack_pages(encoded) * PAGE_SIZE
    return file_bytes(values) + slack, slack


def _slack_pages(encoded_chunks: int) -> int:
    """Return how many more pages encoding can cost than it saves, at worst.

    A chunk that shrinks may waste the rest of its last page, or move next to its key and split a leaf: one page
    each. More leaves take more branch pages, of at least 64 each, and perhaps one more level: a page of the tree, and
    two copies of it that the last two commits retired.
    """
    return encoded_chunks + encoded_chunks // 64 + 3 if encoded_chunks else 0
