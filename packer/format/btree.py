"""Where the values of an LMDB file lie, found without the C library.

A reader that knows the offset and size of every value maps the file itself: nothing to pickle, no lock, no reader
table, no page touched before it is wanted. Only pages of the B-tree are read here, and every number in them is checked
before it is used, so that a damaged file gives `DamagedError` and nothing else; LMDB itself does not check them. The
values are not checked here: frames have checksums for that.

The layout is that of LMDB 0.9, data format version 1, little-endian, with one database that has no name.
All offsets and sizes are in bytes from the start of the file.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from packer.errors import DamagedError

MIN_PAGE_SIZE = 512
MAX_PAGE_SIZE = 65536

# Page header: page number, padding, flags, end of the slots, start of the nodes.
_HEADER = struct.Struct("<QHHHH")
# Node header of a leaf: size of the value, flags, size of the key; the key and the value follow. A branch
# page has the same 8 bytes, but the first 6 of them are the number of the child page.
_NODE = struct.Struct("<IHH")
_PAGE_NUMBER = struct.Struct("<Q")
# Meta page: header; magic, version, address, map size; the tree of free pages and the main tree, each with
# padding (the page size, in the first), flags, depth, branch, leaf and overflow pages, entries and root;
# last page number, transaction.
_META = struct.Struct("<QHHHH IIQQ IHHQQQQQ IHHQQQQQ QQ".replace(" ", ""))

#: Bytes of the file's start that hold both meta pages, whatever the page size is.
HEAD_BYTES = MAX_PAGE_SIZE + _META.size

_MAGIC = 0xBEEFC0DE
_VERSION = 1
_NO_PAGE = 2**64 - 1
_META_PAGES = 2
# LMDB's own cursors hold no more levels than this.
_MAX_DEPTH = 32

_BRANCH = 1
_LEAF = 2
_META_FLAG = 8
_ON_OVERFLOW_PAGES = 1


class Value(NamedTuple):
    """A value of the file: its key, the offset of its first byte in the file, and its size in bytes."""

    key: bytes
    offset: int
    size: int


class Meta(NamedTuple):
    """The numbers of one meta page, about the file and its main tree."""

    page_size: int
    pages: int
    transaction: int
    depth: int
    branch_pages: int
    leaf_pages: int
    entries: int
    root: int


class Page(NamedTuple):
    """A copy of a page of the tree, which cannot change with the file between check and use.

    Attributes:
        number: of the page.
        start: of its first node, in bytes from its own start.
        slots: where each node starts, in the order of their keys.
    """

    number: int
    data: bytes
    start: int
    slots: Sequence[int]


class BTree:
    """The main B-tree of an LMDB file.

    Args:
        buffer: the whole file, mapped or read; its first `HEAD_BYTES` are enough to look at `meta`.
        path: names the file in messages.
        file_size: its size in bytes, if `buffer` is only the start of it. To read past the end of a mapped file kills
            the process, so a file that was cut short must be found before it is mapped.

    Attributes:
        meta: the meta page of the last transaction; both are checked, as LMDB does.

    Raises:
        DamagedError: not an LMDB file, or smaller than its meta page says.
    """

    def __init__(self, buffer: memoryview, path: str, file_size: int | None = None) -> None:
        self._buffer = buffer
        self._path = path
        self._branches: dict[int, tuple[list[bytes], list[int]]] = {}
        first = self._read_meta(0, 0)
        second = self._read_meta(first.page_size, 1)
        if first.page_size != second.page_size:
            raise self._damaged("its two meta pages differ in the page size")
        self.meta = second if second.transaction > first.transaction else first
        nbytes, needed = len(buffer) if file_size is None else file_size, self.meta.pages * self.meta.page_size
        if nbytes < needed:
            raise self._damaged(f"it has {nbytes} bytes, but LMDB wrote at least {needed}")

    def values(self) -> Iterator[Value]:
        """Yield all values in ascending order of their keys.

        Raises:
            DamagedError: the tree is not a sound one.
        """
        last, count = b"", 0  # no key of LMDB is empty, so every first key is above that
        for number in self._leaves():
            page = self._page(number, _LEAF)
            for slot in page.slots:
                value = self._value(page, slot)
                if value.key <= last:
                    raise self._damaged_page(number, "has a key that is not above the one before it")
                last = value.key
                yield value
            count += len(page.slots)
        if count != self.meta.entries:
            raise self._damaged(f"its B-tree does not hold the {self.meta.entries} keys that its meta page counts")

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, or None if the file does not hold it.

        Raises:
            DamagedError: a page on the way is not sound.
        """
        if not self.meta.depth:
            return None
        number = self.meta.root
        for _ in range(self.meta.depth - 1):
            # Branch pages are few, and are read once.
            keys, children = self._branches.get(number) or self._branches.setdefault(number, self._branch(number))
            # The first key of a branch page is empty: its child holds all that is below the second.
            number = children[bisect_right(keys, key, 1) - 1]
        page = self._page(number, _LEAF)
        try:
            entry = bisect_left(page.slots, key, key=partial(_key, page.data))
        except struct.error:
            raise self._damaged_page(number, "has an entry outside itself") from None
        if entry == len(page.slots):
            return None
        key_there, offset, size = self._value(page, page.slots[entry])
        return bytes(self._buffer[offset : offset + size]) if key_there == key else None

    def close(self) -> None:
        """Let go of the buffer."""
        self._buffer.release()

    def _read_meta(self, offset: int, number: int) -> Meta:
        if len(self._buffer) < offset + _META.size:
            raise self._damaged(f"it ends within meta page {number}")
        page, _, flags, _, _, magic, version, _, _, *rest = _META.unpack_from(self._buffer, offset)
        if magic != _MAGIC or version != _VERSION or page != number or not flags & _META_FLAG:
            raise self._damaged(f"meta page {number} is not one of LMDB's data format {_VERSION}")
        page_size = rest[0]
        _, main_flags, depth, branch_pages, leaf_pages, _, entries, root, last_page, transaction = rest[8:]
        if not MIN_PAGE_SIZE <= page_size <= MAX_PAGE_SIZE or page_size & (page_size - 1):
            raise self._damaged(f"meta page {number} gives a page size of {page_size} bytes")
        if main_flags or depth > _MAX_DEPTH or (depth == 0) != (root == _NO_PAGE):
            raise self._damaged(f"meta page {number} describes no plain database")
        return Meta(page_size, last_page + 1, transaction, depth, branch_pages, leaf_pages, entries, root)

    def _leaves(self) -> list[int]:
        """Return the numbers of the leaf pages from left to right.

        The tree is descended level by level, not page by page: no recursion, and pages come out in key order.
        The counts on the meta page end a descent that goes in circles.
        """
        meta = self.meta
        if meta.branch_pages + meta.leaf_pages > meta.pages - _META_PAGES:
            raise self._damaged("its B-tree has more pages than the file")
        level, branches = [meta.root] if meta.depth else [], 0
        for _ in range(meta.depth - 1):
            children: list[int] = []
            branches += len(level)
            for number in level:
                children += self._branch(number)[1]
                if branches + len(children) > meta.branch_pages + meta.leaf_pages:
                    raise self._damaged_page(number, "has more children than there are pages")
            level = children
        if (branches, len(level)) != (meta.branch_pages, meta.leaf_pages):
            raise self._damaged("its B-tree does not have the pages that its meta page counts")
        return level

    def _page(self, number: int, kind: int) -> Page:
        size = self.meta.page_size
        if not _META_PAGES <= number < self.meta.pages:
            raise self._damaged_page(number, "is not a page of the file")
        data = bytes(self._buffer[number * size : (number + 1) * size])
        number_there, _, flags, end, start = _HEADER.unpack_from(data)
        if number_there != number or flags != kind:
            raise self._damaged_page(number, "has a header that belongs elsewhere")
        if not _HEADER.size < end <= start <= size or end & 1:
            raise self._damaged_page(number, "has no room for its entries")
        # A view, not a tuple: a search looks at few of them.
        return Page(number, data, start, memoryview(data)[_HEADER.size : end].cast("H"))

    def _branch(self, number: int) -> tuple[list[bytes], list[int]]:
        """Return the keys and the numbers of the children of a branch page."""
        page = self._page(number, _BRANCH)
        for slot in page.slots:
            self._check_slot(page, slot)
        children = [int.from_bytes(page.data[slot : slot + 6], "little") for slot in page.slots]
        return [_key(page.data, slot) for slot in page.slots], children

    def _value(self, page: Page, slot: int) -> Value:
        """Return the value of an entry of a leaf page."""
        self._check_slot(page, slot)
        size, flags, key_size = _NODE.unpack_from(page.data, slot)
        start = slot + _NODE.size
        end = start + key_size
        if end + (_PAGE_NUMBER.size if flags == _ON_OVERFLOW_PAGES else size) > len(page.data):
            raise self._damaged_page(page.number, "has an entry that leaves it")
        if not flags:
            return Value(page.data[start:end], page.number * self.meta.page_size + end, size)
        if flags != _ON_OVERFLOW_PAGES:
            raise self._damaged_page(page.number, "has an entry that is no plain value")
        # A value that has pages of its own: one header, then all of its bytes in one piece.
        (first,) = _PAGE_NUMBER.unpack_from(page.data, end)
        offset = first * self.meta.page_size + _HEADER.size
        if first < _META_PAGES or offset + size > self.meta.pages * self.meta.page_size:
            raise self._damaged_page(page.number, "has a value outside the file")
        return Value(page.data[start:end], offset, size)

    def _check_slot(self, page: Page, slot: int) -> None:
        """Raise DamagedError if no whole node header can start there."""
        if not page.start <= slot <= len(page.data) - _NODE.size:
            raise self._damaged_page(page.number, "has an entry outside itself")

    def _damaged(self, problem: str) -> DamagedError:
        return DamagedError(f"{self._path}: {problem}; the file is damaged: fetch or pack it again")

    def _damaged_page(self, page: int, problem: str) -> DamagedError:
        return self._damaged(f"page {page} of its B-tree {problem}")


def _key(page: bytes, slot: int) -> bytes:
    """Return the key of an entry; raises struct.error if it starts outside of the page."""
    start = slot + _NODE.size
    return page[start : start + _NODE.unpack_from(page, slot)[2]]
