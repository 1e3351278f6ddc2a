"""The exact size of an LMDB file before it is written.

A commit changes the right edge of the tree, one page a level, and writes it to other pages; the old ones are
retired, for a reader may still see them. LMDB lists them in a second tree, the free list, which takes one
page, itself copied by every commit that finds it there. What commit t retired, commit t + 2 reuses, all of
it: the edge is never lower than it was, so the copies of commit t + 2, made one page at a time, are as many
pages as commit t retired, or more. So at any time the file holds

    2 meta pages + the tree + the free list's page + what the last two commits retired

and no page beyond that. This holds for one main database without a name, filled in ascending order by a
single writer, with no reader on the file meanwhile. How many commits there were does not matter.
"""

from __future__ import annotations

from collections.abc import Iterable

from packer.format.pages import META_PAGES, PAGE_SIZE, AppendTree


def file_bytes(transactions: Iterable[Iterable[tuple[int, int]]]) -> int:
    """Size of the file that these transactions make, each given as the (key size, value size) of its puts."""
    replay = PageReplay()
    for transaction in transactions:
        for key_bytes, value_bytes in transaction:
            replay.put(key_bytes, value_bytes)
        replay.commit()
    return replay.file_bytes


class PageReplay:
    """Follows the size of a file through its puts and commits; less than a second for a million puts."""

    def __init__(self) -> None:
        self._tree = AppendTree()
        self._open = False
        self._free_list_pages = 0
        #: Pages retired by the open transaction, the last commit and the one before it.
        self._retired, self._last, self._last_but_one = 0, 0, 0

    def put(self, key_bytes: int, value_bytes: int) -> None:
        """Appends a key of `key_bytes` with a value of `value_bytes`."""
        if not self._open:
            # The free list's page is copied too, where there is one.
            self._retired = self._tree.depth + self._free_list_pages
            self._open = True
        self._tree.append(key_bytes, value_bytes)

    def commit(self) -> None:
        """Ends the transaction; without a put since the last one LMDB writes nothing."""
        if not self._open:
            return
        self._open = False
        self._last_but_one, self._last = self._last, self._retired
        # The first commit retires nothing; from the second on there is something to list.
        if self._retired:
            self._free_list_pages = 1

    @property
    def file_bytes(self) -> int:
        """Size of the file in bytes as of the last commit; puts behind it make the figure meaningless."""
        pages = META_PAGES + self._tree.pages + self._free_list_pages + self._last + self._last_but_one
        return pages * PAGE_SIZE
