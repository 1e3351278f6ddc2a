"""How large the LMDB files of a dataset get, before they are written.

The arithmetic of LMDB 0.9 (data format version 1, 64-bit), in bytes unless a name says pages. It rests on four rules:

- A page has 16 bytes of header; what is left, `ROOM`, holds the entries and a 2-byte slot for each.
- A value that would fill half a page with its key goes to overflow pages of its own, contiguous in the file, with one
  header for the whole run.
- A leaf that has no room for an appended key is left as it is, and the key starts a new leaf.
- A full branch page gives its last entry to its new sibling. The first entry of a branch page has no key.

For a shard of raw columns the answer is exact to the byte. For encoded columns it is an upper bound, since a frame that
does not shrink is kept raw.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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
#: Bytes of keys and values between two commits: two full chunks. Until then they lie in memory twice, as LMDB's dirty
#: pages and, in case the map is too small, as what was put. What is written at once decides how large the pieces of
#: memory are in which Linux keeps the file for its readers (docs/benchmark.md).
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
    """Return the bytes of a file to which `LmdbAppender` appends keys and values of these sizes."""
    replay = PageReplay()
    uncommitted = 0
    for key_bytes, value_bytes in entries:
        replay.put(key_bytes, value_bytes)
        uncommitted += key_bytes + value_bytes
        if uncommitted >= COMMIT_BYTES:
            replay.commit()
            uncommitted = 0
    replay.commit()
    return replay.file_bytes


@dataclass(slots=True)
class _EdgePage:
    """The last page of a level: the room taken, and the size of the last key of a branch."""

    used: int
    last_key_bytes: int = 0


class PageReplay:
    """Follows the size of a file through its puts and commits.

    No page of the tree but those on its right edge changes again. A commit changes the right edge, one page a level,
    and writes it to other pages; the old ones are retired, for a reader may still see them. LMDB lists them in a second
    tree, the free list, which takes one page, itself copied by every commit that finds it there. What commit t retired,
    commit t + 2 reuses, all of it: the edge is never lower than it was, so the copies of commit t + 2, made one page at
    a time, are as many pages as commit t retired, or more. So at any time the file holds

        2 meta pages + the tree + the free list's page + what the last two commits retired

    and no page beyond that. This holds for one main database without a name, filled in ascending order by a single
    writer, with no reader on the file meanwhile. How many commits there were does not matter.

    Attributes:
        tree_pages: leaves, branches and overflow pages of the tree.
    """

    def __init__(self) -> None:
        self.tree_pages = 0
        self._edge: list[_EdgePage] = []  # from the leaf up to the root
        self._open = False
        self._free_list_pages = 0
        #: Pages retired by the open transaction, the last commit and the one before it.
        self._retired, self._last, self._last_but_one = 0, 0, 0

    def put(self, key_bytes: int, value_bytes: int) -> None:
        """Append a key of `key_bytes` with a value of `value_bytes`."""
        if not self._open:
            # The free list's page is copied too, if there is one.
            self._retired = len(self._edge) + self._free_list_pages
            self._open = True
        held = value_bytes
        if _NODE_HEADER + key_bytes + value_bytes > _MAX_INLINE_ENTRY:
            self.tree_pages += (_PAGE_HEADER - 1 + value_bytes) // PAGE_SIZE + 1
            held = _PAGE_NUMBER
        need = _entry_bytes(key_bytes, held)
        if self._edge and ROOM - self._edge[0].used >= need:
            self._edge[0].used += need
            return
        is_first = not self._edge
        self._edge[:1] = [self._new_page(need)]
        if not is_first:
            self._enter(key_bytes)

    def commit(self) -> None:
        """End the transaction; without a put since the last one LMDB writes nothing."""
        if not self._open:
            return
        self._open = False
        self._last_but_one, self._last = self._last, self._retired
        # The first commit retires nothing; from the second on there is something to list.
        if self._retired:
            self._free_list_pages = 1

    @property
    def file_bytes(self) -> int:
        """Return the size of the file in bytes as of the last commit; puts after it make the figure meaningless."""
        pages = META_PAGES + self.tree_pages + self._free_list_pages + self._last + self._last_but_one
        return pages * PAGE_SIZE

    def _new_page(self, used: int, last_key_bytes: int = 0) -> _EdgePage:
        self.tree_pages += 1
        return _EdgePage(used, last_key_bytes)

    def _enter(self, key_bytes: int) -> None:
        """Enter a new leaf, whose first key has this size, in the branch pages above it."""
        level = 1
        while True:
            if level == len(self._edge):
                self._edge.append(self._new_page(_entry_bytes(0)))
            branch = self._edge[level]
            # LMDB tests with the size before it is rounded up.
            if ROOM - branch.used >= _NODE_HEADER + key_bytes + _SLOT:
                branch.used += _entry_bytes(key_bytes)
                branch.last_key_bytes = key_bytes
                return
            # The entry that moves to the sibling comes first there and needs no key; its key goes up a level.
            self._edge[level] = self._new_page(_entry_bytes(0) + _entry_bytes(key_bytes), key_bytes)
            key_bytes = branch.last_key_bytes
            level += 1


def _entry_bytes(key_bytes: int, held: int = 0) -> int:
    """Return the room that an entry takes on a branch page, or on a leaf with what it holds there."""
    return (_NODE_HEADER + key_bytes + held + 1 & ~1) + _SLOT


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
        shapes: full shapes (samples, axes) of a ragged field.
        limit: bytes of a chunk.
    """
    # What must lie in one chunk: a frame of `step` samples, or all bands of one.
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
    at, done = 0, 0
    while frames and at < len(groups):
        stop = max(int(np.searchsorted(ends, done + limit, side="right")), at + 1)
        if int(ends[stop - 1]) == done and stop < len(groups):
            stop += 1  # nothing but empty groups so far: even one that is too large joins them
        chunks.append(int(ends[stop - 1]) - done)
        at, done = stop, int(ends[stop - 1])
        after.append(min(at * step, samples) if at < len(groups) else np.inf)
    return ColumnSizes(chunks, after, frames)


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
    return file_bytes(values) + slack_pages(encoded) * PAGE_SIZE


def slack_pages(encoded_chunks: int) -> int:
    """Return the pages that encoding can cost more than it saves, at worst.

    A chunk that shrinks may waste the rest of its last page, or move next to its key and split a leaf: one page
    each. More leaves take more branch pages, of at least 64 each, and perhaps one more level: a page of the tree, and
    two copies of it that the last two commits retired.
    """
    return encoded_chunks + encoded_chunks // 64 + 3 if encoded_chunks else 0
