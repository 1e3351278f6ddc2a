"""Where the values of an LMDB file lie, found without the C library.

A reader that knows the offset and size of every value maps the file itself: nothing to pickle, no lock, no
reader table, no page touched before it is wanted. Only the few pages of the B-tree are read here, and every
number in them is checked before it is used, so that a damaged file gives `DamagedError` and nothing else.
The bytes of the values are not looked at: that is the work of the frames' checksums.

The layout is that of LMDB 0.9, data format version 1, little-endian, with one database that has no name.
All offsets and sizes are in bytes from the start of the file.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.errors import DamagedError

MIN_PAGE_SIZE = 512
MAX_PAGE_SIZE = 65536

# Page header: page number, padding, flags, end of the slots, start of the nodes.
HEADER = struct.Struct("<QHHHH")
# Node header of a leaf: size of the value, flags, size of the key; the key and the value follow. A branch
# page has the same 8 bytes, but the first 6 of them are the number of the child page.
NODE = struct.Struct("<IHH")
_NODE_DTYPE = np.dtype([("size", "<u4"), ("flags", "<u2"), ("key_size", "<u2")])
_PAGE_NUMBER = struct.Struct("<Q")
# Meta page: header; magic, version, address, map size; the tree of free pages and the main tree, each with
# padding (the page size, in the first), flags, depth, branch, leaf and overflow pages, entries and root;
# last page number, transaction.
_META = struct.Struct("<QHHHH IIQQ IHHQQQQQ IHHQQQQQ QQ".replace(" ", ""))

#: Bytes of the file's start that hold both meta pages, whatever the page size is.
HEAD_BYTES = MAX_PAGE_SIZE + _META.size

_MAGIC = 0xBEEFC0DE
_VERSION = 1
NO_PAGE = 2**64 - 1
META_PAGES = 2
# LMDB's own cursors hold no more levels than this.
_MAX_DEPTH = 32

BRANCH = 1
LEAF = 2
_META_FLAG = 8
_ON_OVERFLOW_PAGES = 1


class Value(NamedTuple):
    """A value of the file: its key, the offset of its first byte in the file, and its size in bytes."""

    key: bytes
    offset: int
    size: int


class Meta(NamedTuple):
    """What one meta page says of the file and of its main tree."""

    page_size: int
    pages: int
    transaction: int
    depth: int
    branch_pages: int
    leaf_pages: int
    entries: int
    root: int


class TreeFile(NamedTuple):
    """A mapped file whose size has been found right."""

    buffer: memoryview
    page_size: int
    pages: int
    path: str

    def damaged(self, page: int, what: str) -> DamagedError:
        return _damaged(self.path, f"page {page} of its B-tree {what}")


def _damaged(path: str, what: str) -> DamagedError:
    return DamagedError(f"{path}: {what}; the file is damaged: fetch or pack it again")


def check_size(head: bytes, file_size: int, path: str) -> int:
    """Checks, before the file is mapped, that it is an LMDB file with all of its pages; returns the page size.

    Reading past the end of a mapped file kills the process, so a file that was cut short must be found here.

    Args:
        head: the first `HEAD_BYTES` of the file, or all of it where it is shorter.
        file_size: size of the file in bytes.
        path: names the file in messages.

    Raises:
        DamagedError: not an LMDB file, or smaller than its newest meta page says.
    """
    return newest_meta(memoryview(head), file_size, path).page_size


def walk(buffer: memoryview, page_size: int, path: str) -> list[Value]:
    """Return all values of the main database in ascending order of their keys.

    Args:
        buffer: the whole file, mapped or read.
        page_size: what `check_size` returned for it.
        path: names the file in messages.

    Raises:
        DamagedError: the tree is not a sound one.
    """
    return walk_numbered(buffer, page_size, path, b"")[1]


def walk_numbered(
    buffer: memoryview, page_size: int, path: str, prefix: bytes
) -> tuple[NDArray[np.int64], list[Value]]:
    """Return the values under the first keys apart if these are `prefix` and 0, 1, 2, ... in eight digits.

    There may be a million of them: as an array they take a twentieth of the memory, and a seventh of the time.

    Returns:
        offset and size of the numbered values, (n, 2), and the other ones.
    """
    meta = newest_meta(buffer[: page_size + _META.size], len(buffer), path)
    if meta.page_size != page_size:
        raise _damaged(path, f"its page size is {meta.page_size}, {page_size} was expected")
    if meta.root == NO_PAGE and meta.depth == meta.entries == 0:
        return np.empty((0, 2), np.int64), []
    file = TreeFile(buffer, page_size, meta.pages, path)
    runs = [np.empty((0, 2), np.int64)]
    values: list[Value] = []
    numbered = 0
    for number in _leaves(file, meta):
        run = _read_numbered(file, number, prefix, numbered) if prefix and not values else None
        if run is None:
            _read_leaf(file, number, values, _numbered_key(prefix, numbered - 1) if numbered else b"")
        else:
            runs.append(run)
            numbered += len(run)
    if numbered + len(values) != meta.entries:
        raise _damaged(path, f"its B-tree does not hold the {meta.entries} keys that its meta page counts")
    # The last numbered ones share a page with others.
    rest = 0
    while prefix and rest < len(values) and values[rest].key == _numbered_key(prefix, numbered + rest):
        rest += 1
    runs.append(np.array([value[1:] for value in values[:rest]], np.int64).reshape(rest, 2))
    return np.concatenate(runs), values[rest:]


def newest_meta(head: memoryview, file_size: int, path: str) -> Meta:
    """Return the meta page of the last transaction; both are checked, as LMDB does."""
    first = _read_meta(head, 0, 0, path)
    second = _read_meta(head, first.page_size, 1, path)
    if first.page_size != second.page_size:
        raise _damaged(path, "its two meta pages differ in the page size")
    meta = second if second.transaction > first.transaction else first
    if file_size < meta.pages * meta.page_size:
        needed = meta.pages * meta.page_size
        raise _damaged(path, f"it has {file_size} bytes, but LMDB wrote at least {needed}")
    return meta


def _read_meta(head: memoryview, offset: int, number: int, path: str) -> Meta:
    if len(head) < offset + _META.size:
        raise _damaged(path, f"it ends within meta page {number}")
    page, _, flags, _, _, magic, version, _, _, *rest = _META.unpack_from(head, offset)
    if magic != _MAGIC or version != _VERSION or page != number or not flags & _META_FLAG:
        raise _damaged(path, f"meta page {number} is not one of LMDB's data format {_VERSION}")
    page_size = rest[0]
    _, main_flags, depth, branch_pages, leaf_pages, _, entries, root, last_page, transaction = rest[8:]
    if not MIN_PAGE_SIZE <= page_size <= MAX_PAGE_SIZE or page_size & (page_size - 1):
        raise _damaged(path, f"meta page {number} gives a page size of {page_size} bytes")
    if main_flags or depth > _MAX_DEPTH or (depth == 0) != (root == NO_PAGE):
        raise _damaged(path, f"meta page {number} describes no plain database")
    return Meta(page_size, last_page + 1, transaction, depth, branch_pages, leaf_pages, entries, root)


def _leaves(file: TreeFile, meta: Meta) -> list[int]:
    """Return the numbers of the leaf pages from left to right.

    The tree is descended level by level, not page by page: no recursion, and pages come out in key order.
    The counts on the meta page end a descent that goes in circles.
    """
    if meta.branch_pages + meta.leaf_pages > file.pages - META_PAGES:
        raise _damaged(file.path, "its B-tree has more pages than the file")
    level, branches = [meta.root], 0
    for _ in range(meta.depth - 1):
        children: list[int] = []
        branches += len(level)
        for number in level:
            children += _read_branch(file, number)
            if branches + len(children) > meta.branch_pages + meta.leaf_pages:
                raise file.damaged(number, "has more children than there are pages")
        level = children
    if (branches, len(level)) != (meta.branch_pages, meta.leaf_pages):
        raise _damaged(file.path, "its B-tree does not have the pages that its meta page counts")
    return level


def read_page(file: TreeFile, number: int, kind: int) -> tuple[bytes, tuple[int, ...]]:
    """Return a copy of a page, and the offsets in it where its nodes start, found to have a whole node header each.

    The copy is what is checked and then used: nothing that happens to the file meanwhile can come between.
    """
    if not META_PAGES <= number < file.pages:
        raise file.damaged(number, "is not a page of the file")
    start = number * file.page_size
    page = bytes(file.buffer[start : start + file.page_size])
    said, _, flags, slots_end, nodes_start = HEADER.unpack_from(page)
    if said != number or flags != kind:
        raise file.damaged(number, "has a header that belongs elsewhere")
    if not HEADER.size < slots_end <= nodes_start <= file.page_size or slots_end & 1:
        raise file.damaged(number, "has no room for its entries")
    slots = struct.unpack_from(f"<{(slots_end - HEADER.size) // 2}H", page, HEADER.size)
    if min(slots) < nodes_start or max(slots) > file.page_size - NODE.size:
        raise file.damaged(number, "has an entry outside itself")
    return page, slots


def _read_branch(file: TreeFile, number: int) -> list[int]:
    """Return the numbers of the children; the keys between them are not needed where all leaves are read."""
    page, slots = read_page(file, number, BRANCH)
    nodes = (NODE.unpack_from(page, slot) for slot in slots)
    return [low | high << 32 for low, high, _ in nodes]


def _numbered_key(prefix: bytes, number: int) -> bytes:
    return b"%b%08d" % (prefix, number)


def _read_numbered(file: TreeFile, number: int, prefix: bytes, first: int) -> NDArray[np.int64] | None:
    """Return offset and size of the values of a leaf page, (n, 2), or None unless its keys are numbered from `first`.

    Those that it does not read are left to `_read_leaf`, and so is what is wrong with them.
    """
    page, slots = read_page(file, number, LEAF)
    key_size = len(prefix) + 8
    nodes = NODE.size + key_size + _PAGE_NUMBER.size
    at = np.array(slots, np.int64)
    if int(at.max()) + nodes > file.page_size:
        return None
    found = np.frombuffer(page, np.uint8)[at[:, None] + np.arange(nodes)]
    heads = np.ascontiguousarray(found[:, : NODE.size]).view(_NODE_DTYPE)[:, 0]
    keys = b"".join(_numbered_key(prefix, first + n) for n in range(len(at)))
    if (
        (heads["flags"] != _ON_OVERFLOW_PAGES).any()
        or (heads["key_size"] != key_size).any()
        or found[:, NODE.size : NODE.size + key_size].tobytes() != keys
    ):
        return None
    pages = np.ascontiguousarray(found[:, NODE.size + key_size :]).view("<u8")[:, 0]
    size = heads["size"].astype(np.int64)
    # Compared as page numbers, which do not overflow.
    last = file.pages - (size + (HEADER.size + file.page_size - 1)) // file.page_size
    if (pages < META_PAGES).any() or (pages > last.clip(0).astype(np.uint64)).any():
        return None
    offset = pages.astype(np.int64) * file.page_size + HEADER.size
    return np.stack([offset, size], axis=1)


def _read_leaf(file: TreeFile, number: int, values: list[Value], last: bytes) -> None:
    """Add the values of a leaf page to `values`, after those of the pages to its left; `last` is a key before them.

    No key of LMDB is empty, so every first key is above that.
    """
    page, slots = read_page(file, number, LEAF)
    start = number * file.page_size
    last = values[-1].key if values else last
    # Bound once: this loop is what opening a hundred shards spends its time on.
    unpack, node_size, page_size = NODE.unpack_from, NODE.size, file.page_size
    for slot in slots:
        size, flags, key_size = unpack(page, slot)
        key_start = slot + node_size
        key_end = key_start + key_size
        key = page[key_start:key_end]
        if key <= last:
            raise file.damaged(number, "has a key that is not above the one before it")
        last = key
        if flags == _ON_OVERFLOW_PAGES:
            offset = _overflow_offset(file, number, page, key_end, size)
        elif flags:
            raise file.damaged(number, "has an entry that is no plain value")
        elif key_end + size > page_size:
            raise file.damaged(number, "has an entry that leaves it")
        else:
            offset = start + key_end
        values.append(Value(key, offset, size))


def _overflow_offset(file: TreeFile, number: int, page: bytes, at: int, size: int) -> int:
    """Return the offset of a value that has pages of its own: one header, then all of its bytes in one piece."""
    if at + _PAGE_NUMBER.size > len(page):
        raise file.damaged(number, "has an entry that leaves it")
    (first,) = _PAGE_NUMBER.unpack_from(page, at)
    offset: int = first * file.page_size + HEADER.size
    if first < META_PAGES or offset + size > file.pages * file.page_size:
        raise file.damaged(number, "has a value outside the file")
    return offset


_SLOT = struct.Struct("<H")


class KeySearch:
    """Finds the values of keys, without the C library: that one believes every number in the file's pages.

    Branch pages are few, and are read once; leaf pages are searched where they lie. Every number is checked before it
    is used.

    Args:
        buffer: the whole file, mapped or read.
        path: names the file in messages.

    Raises:
        DamagedError: it is no LMDB file, or smaller than it was.
    """

    def __init__(self, buffer: memoryview, path: str) -> None:
        meta = newest_meta(buffer[:HEAD_BYTES], len(buffer), path)
        self._file = TreeFile(buffer, meta.page_size, meta.pages, path)
        self._root = meta.root
        self._depth = meta.depth
        self._branches: dict[int, tuple[list[bytes], list[int]]] = {}

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, or None if the file does not hold it.

        Raises:
            DamagedError: a page on the way is not sound.
        """
        if not self._depth:
            return None
        number = self._root
        for _ in range(self._depth - 1):
            keys, children = self._branches.get(number) or self._read_branch(number)
            # The first key of a branch page is empty: its child holds all that is below the second.
            number = children[bisect_right(keys, key, 1) - 1]
        try:
            return self._find(number, key)
        except struct.error:
            raise self._file.damaged(number, "has an entry outside itself") from None

    def close(self) -> None:
        """Let go of the buffer."""
        self._file.buffer.release()

    def _read_branch(self, number: int) -> tuple[list[bytes], list[int]]:
        page, slots = read_page(self._file, number, BRANCH)
        keys, children = [], []
        for slot in slots:
            low, high, size = NODE.unpack_from(page, slot)
            keys.append(page[slot + NODE.size : slot + NODE.size + size])
            children.append(low | high << 32)
        found = self._branches[number] = (keys, children)
        return found

    def _find(self, number: int, key: bytes) -> bytes | None:
        """Return the value of a key on the leaf page `number`, by halving."""
        file, header = self._file, HEADER.size
        if not META_PAGES <= number < file.pages:
            raise file.damaged(number, "is not a page of the file")
        # A slice ends with its page: nothing beyond it can be reached.
        page = file.buffer[number * file.page_size : (number + 1) * file.page_size]
        said, _, flags, slots_end, _ = HEADER.unpack_from(page)
        if said != number or flags != LEAF or slots_end > file.page_size:
            raise file.damaged(number, "has a header that belongs elsewhere")
        low, high = 0, (slots_end - header) // 2
        while low < high:
            middle = (low + high) // 2
            (slot,) = _SLOT.unpack_from(page, header + 2 * middle)
            size, kind, key_size = NODE.unpack_from(page, slot)
            key_end = slot + NODE.size + key_size
            held = page[slot + NODE.size : key_end].tobytes()
            if held == key:
                return self._value(number, page[key_end : key_end + size], size, kind)
            low, high = (middle + 1, high) if held < key else (low, middle)
        return None

    def _value(self, number: int, value: memoryview, size: int, kind: int) -> bytes:
        if kind or len(value) != size:
            raise self._file.damaged(number, "has an entry that is no plain value within it")
        return value.tobytes()
