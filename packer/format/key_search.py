"""Looks single keys up in an LMDB file, without the C library: that one believes every number in the file's pages.

Branch pages are few, and are read once; leaf pages are searched where they lie. As in `btree.py`, every number is
checked before it is used. 1,000,000 names: 7 us a look-up, where the C library takes 1.3.
"""

from __future__ import annotations

import struct
from bisect import bisect_right

from packer.format import btree

_SLOT = struct.Struct("<H")


class KeySearch:
    """Finds the values of keys.

    Args:
        buffer: the whole file, mapped or read.
        path: names the file in messages.

    Raises:
        DamagedError: it is no LMDB file, or smaller than it was.
    """

    def __init__(self, buffer: memoryview, path: str) -> None:
        meta = btree.newest_meta(buffer[: btree.HEAD_BYTES], len(buffer), path)
        self._file = btree.TreeFile(buffer, meta.page_size, meta.pages, path)
        self._root = meta.root
        self._depth = meta.depth
        self._branches: dict[int, tuple[list[bytes], list[int]]] = {}

    def get(self, key: bytes) -> bytes | None:
        """The value of a key; None where the file does not hold it.

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
        """Lets go of the buffer."""
        self._file.buffer.release()

    def _read_branch(self, number: int) -> tuple[list[bytes], list[int]]:
        page, slots = btree.read_page(self._file, number, btree.BRANCH)
        keys, children = [], []
        for slot in slots:
            low, high, size = btree.NODE.unpack_from(page, slot)
            keys.append(page[slot + btree.NODE.size : slot + btree.NODE.size + size])
            children.append(low | high << 32)
        found = self._branches[number] = (keys, children)
        return found

    def _find(self, number: int, key: bytes) -> bytes | None:
        """The value of a key on the leaf page `number`, by halving."""
        file, header = self._file, btree.HEADER.size
        if not btree.META_PAGES <= number < file.pages:
            raise file.damaged(number, "is not a page of the file")
        # A slice ends with its page: nothing beyond it can be reached.
        page = file.buffer[number * file.page_size : (number + 1) * file.page_size]
        said, _, flags, slots_end, _ = btree.HEADER.unpack_from(page)
        if said != number or flags != btree.LEAF or slots_end > file.page_size:
            raise file.damaged(number, "has a header that belongs elsewhere")
        low, high = 0, (slots_end - header) // 2
        while low < high:
            middle = (low + high) // 2
            (slot,) = _SLOT.unpack_from(page, header + 2 * middle)
            size, kind, key_size = btree.NODE.unpack_from(page, slot)
            key_end = slot + btree.NODE.size + key_size
            held = page[slot + btree.NODE.size : key_end].tobytes()
            if held == key:
                return self._value(number, page[key_end : key_end + size], size, kind)
            low, high = (middle + 1, high) if held < key else (low, middle)
        return None

    def _value(self, number: int, value: memoryview, size: int, kind: int) -> bytes:
        if kind or len(value) != size:
            raise self._file.damaged(number, "has an entry that is no plain value within it")
        return value.tobytes()
