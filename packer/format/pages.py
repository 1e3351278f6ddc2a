"""How large an LMDB file gets whose keys are appended in ascending order, before it is written.

The arithmetic of LMDB 0.9 (data format version 1, 64-bit), in bytes unless a name says pages. It rests on
four rules:

- A page has 16 bytes of header; what is left, `ROOM`, holds the entries and a 2-byte slot for each.
- A value that would fill half a page with its key goes to overflow pages of its own, contiguous in the
  file, with one header for the whole run.
- A leaf that has no room for an appended key is left as it is, and the key starts a new leaf.
- A full branch page gives its last entry to its new sibling. The first entry of a branch page has no key.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass

#: LMDB takes the system's page size, and at most 32 KiB.
PAGE_SIZE = min(mmap.PAGESIZE, 32768)
#: Pages 0 and 1, written in turn by the commits.
META_PAGES = 2

PAGE_HEADER = 16
NODE_HEADER = 8
SLOT = 2
PAGE_NUMBER = 8
ROOM = PAGE_SIZE - PAGE_HEADER
#: An entry of more bytes than this, slot not counted, puts its value on overflow pages: two entries must
#: always fit on a page, or the tree could not branch.
MAX_INLINE_ENTRY = (ROOM // 2 & ~1) - SLOT


def map_size(file_bytes: int) -> int:
    """Return the smallest map in which a file of `file_bytes` can be written.

    LMDB refuses an allocation that would end on the last page of the map, hence the one page more.
    """
    return file_bytes + PAGE_SIZE


def is_inline(key_bytes: int, value_bytes: int) -> bool:
    """Return whether the value lies next to its key on the leaf page."""
    return NODE_HEADER + key_bytes + value_bytes <= MAX_INLINE_ENTRY


def overflow_pages(value_bytes: int) -> int:
    """Return the pages of a value that lies on no leaf page; one of `PAGE_SIZE * m - 16` bytes wastes none."""
    return (PAGE_HEADER - 1 + value_bytes) // PAGE_SIZE + 1


def _entry_bytes(key_bytes: int, held: int = 0) -> int:
    """Return the room that an entry takes on a branch page, or on a leaf with what it holds there."""
    return (NODE_HEADER + key_bytes + held + 1 & ~1) + SLOT


@dataclass(slots=True)
class _EdgePage:
    """The last page of a level: the room taken, and the size of the last key of a branch."""

    used: int
    last_key_bytes: int = 0


class PageReplay:
    """Follows the size of a file through its puts and commits.

    No page of the tree but those on its right edge changes again. A commit changes the right edge, one page a level,
    and writes it to other pages; the old ones are
    retired, for a reader may still see them. LMDB lists them in a second tree, the free list, which takes one
    page, itself copied by every commit that finds it there. What commit t retired, commit t + 2 reuses, all of
    it: the edge is never lower than it was, so the copies of commit t + 2, made one page at a time, are as many
    pages as commit t retired, or more. So at any time the file holds

        2 meta pages + the tree + the free list's page + what the last two commits retired

    and no page beyond that. This holds for one main database without a name, filled in ascending order by a
    single writer, with no reader on the file meanwhile. How many commits there were does not matter.

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
        inline = is_inline(key_bytes, value_bytes)
        need = _entry_bytes(key_bytes, value_bytes if inline else PAGE_NUMBER)
        if not self._edge:
            self._edge.append(self._new_page(need))
        elif ROOM - self._edge[0].used >= need:
            self._edge[0].used += need
        else:
            self._edge[0] = self._new_page(need)
            self._enter(key_bytes)
        if not inline:
            self.tree_pages += overflow_pages(value_bytes)

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
            if ROOM - branch.used >= NODE_HEADER + key_bytes + SLOT:
                branch.used += _entry_bytes(key_bytes)
                branch.last_key_bytes = key_bytes
                return
            # The entry that moves to the sibling comes first there and needs no key; its key goes up a level.
            self._edge[level] = self._new_page(_entry_bytes(0) + _entry_bytes(key_bytes), key_bytes)
            key_bytes = branch.last_key_bytes
            level += 1
