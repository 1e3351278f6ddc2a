"""The exact size of an LMDB file before it is written, by replaying how its pages are allocated.

A commit writes the right edge of the tree to other pages and retires the old ones; LMDB keeps the retired
pages in a second tree, the free list, and reuses them two commits later. Which allocation finds a
reusable run of pages depends on their numbers, so those are followed here; the bytes are not.

It holds for one main database without a name, filled in ascending order by a single writer, with no reader on
the file meanwhile.
"""

from __future__ import annotations

from bisect import insort
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
    """Follows the pages of a file through its puts and commits; about a second for a million puts."""

    def __init__(self) -> None:
        self._pages = _Pages()
        self._tree = AppendTree(self._pages.take)
        self._open = False

    def put(self, key_bytes: int, value_bytes: int) -> None:
        """Appends a key of `key_bytes` with a value of `value_bytes`."""
        if not self._open:
            self._copy_edge()
            self._open = True
        self._tree.append(key_bytes, value_bytes)

    def commit(self) -> None:
        """Ends the transaction; without a put since the last one LMDB writes nothing."""
        if self._open:
            self._pages.commit()
            self._open = False

    @property
    def file_bytes(self) -> int:
        """Size of the file in bytes once what has been put is committed; right only after `commit`."""
        return self._pages.end * PAGE_SIZE

    def _copy_edge(self) -> None:
        """The first put of a transaction copies the pages it changes: the whole right edge, root first."""
        for page in reversed(self._tree.edge):
            page.number = self._pages.copy(page.number)


class _Pages:
    """The pages of the file: which are free, and the tree in which LMDB writes that down.

    The free list is taken to fit on one page, its root, with every record beside its key. It does: a commit
    retires at most r pages, the depth of the tree and two more, and takes a fresh page only when no reusable
    one is left, so that no more pages are ever listed than the last three commits retired, 3 r. A tree of the
    greatest depth that LMDB knows, 32, would list 102 pages; the most seen in a tree 6 deep took 164 bytes.
    """

    def __init__(self) -> None:
        #: Number of the first page behind the file.
        self.end = META_PAGES
        self._transaction = 1
        #: Transaction -> pages it retired, or left over: the records of the free list.
        self._records: dict[int, list[int]] = {}
        self._root: int | None = None
        self._root_is_copied = False
        self._reset()

    def _reset(self) -> None:
        #: Pages retired by the open transaction.
        self._retired: list[int] = []
        #: Reusable pages in ascending order; None until a record has been fetched.
        self._reusable: list[int] | None = None
        #: Last record whose pages were fetched.
        self._fetched = 0

    def take(self, count: int) -> int:
        """Number of the first of `count` contiguous pages: the lowest reusable run, or the end of the file."""
        while True:
            start = self._take_run(count)
            if start is not None:
                return start
            if not self._fetch():
                break
        start = self.end
        self.end += count
        return start

    def _take_run(self, count: int) -> int | None:
        # A linear search does: a pool that is never more than a few dozen pages.
        pool = self._reusable or []
        for i in range(len(pool) - count + 1):
            if pool[i + count - 1] == pool[i] + count - 1:
                start = pool[i]
                del pool[i : i + count]
                return start
        return None

    def _fetch(self) -> bool:
        """Adds the next record to the reusable pages; False where there is none that is old enough.

        What the last transaction retired is what a reader may see while this one is written, so that stays.
        """
        usable = [key for key in self._records if self._fetched < key < self._transaction - 1]
        if not usable:
            return False
        self._fetched = min(usable)
        if self._reusable is None:
            self._reusable = []
        for page in self._records[self._fetched]:
            insort(self._reusable, page)
        return True

    def copy(self, page: int) -> int:
        """Number of the page to which a page of an earlier transaction is copied before it is changed."""
        number = self.take(1)
        self._retired.append(page)
        return number

    def commit(self) -> None:
        """Writes the free list, as LMDB does it: writing changes what is to be written, so it goes in rounds."""
        if self._reusable is not None:
            self._change_root()
        deleted = written = kept = 0
        # A record that turns out too long, since its own writing took pages, is rewritten once.
        rewrites = 1
        while True:
            while deleted < self._fetched:
                deleted = self._delete_first()
                kept = 0
            if written < len(self._retired):
                written = self._write_retired(written)
                continue
            left = len(self._reusable or [])
            if kept == left:
                break
            if kept > left:
                rewrites -= 1
                if rewrites < 0:
                    break
            self._write(deleted)
            kept = left
        self._fill(deleted)

    def _write_retired(self, written: int) -> int:
        """Writes the record of this transaction until writing it retires no more; returns its length."""
        self._change_root()
        while written < len(self._retired):
            written = len(self._retired)
            self._write(self._transaction)
        return written

    def _write(self, key: int) -> None:
        """Reserves a record; its pages follow in `_fill`, when they are known."""
        if self._root is None:
            self._root = self.take(1)
            self._root_is_copied = True
        else:
            self._change_root()
        self._records[key] = []

    def _delete_first(self) -> int:
        """Deletes the lowest record; a tree without records has no root page either."""
        self._change_root()
        key = min(self._records)
        del self._records[key]
        if not self._records and self._root is not None:
            self._retired.append(self._root)
            self._root = None
            self._root_is_copied = False
        return key

    def _change_root(self) -> None:
        if self._root is not None and not self._root_is_copied:
            root = self._root
            self._root = self.copy(root)
            self._root_is_copied = True

    def _fill(self, kept_key: int) -> None:
        if self._retired:
            self._records[self._transaction] = sorted(self._retired)
        if self._reusable:
            self._records[kept_key] = self._reusable
        self._transaction += 1
        self._root_is_copied = False
        self._reset()
