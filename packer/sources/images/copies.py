"""Pictures of one field that are copies of one another, found by the bytes of their files.

Copies have one mark: a hash of their length and first bytes, taken when the header was read. Of pictures with one mark
the last bytes are compared, where PNG has a checksum of its pixels; what is equal there is read whole.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import BinaryIO

import xxhash

from packer.errors import first_few

#: Copies that a sentence names in a group, and groups that it names; the rest is counted.
NAMED = 3
#: Bytes at the end that are compared first.
TAIL_BYTES = 64
_PIECE_BYTES = 2**20

#: Opens the file of a picture by its number.
Opened = Callable[[int], AbstractContextManager[BinaryIO]]


def mark_of(nbytes: int, head: bytes) -> int:
    """Return the mark of a picture of `nbytes` that begins with `head`; the same within one process alone."""
    return hash((nbytes, head))


def copies(names: Sequence[str], field: str, marks: Sequence[int], opened: Opened) -> list[str]:
    """Return a sentence on the samples whose pictures of `field` have the same bytes; none if all differ.

    Raises:
        SourceError: what `opened` raises.
    """

    def tail(number: int) -> bytes:
        with opened(number) as file:
            file.seek(max(file.seek(0, os.SEEK_END) - TAIL_BYTES, 0))
            return file.read()

    def digest(number: int) -> bytes:
        hashed = xxhash.xxh3_128()
        with opened(number) as file:
            while piece := file.read(_PIECE_BYTES):
                hashed.update(piece)
        return hashed.digest()

    groups: list[list[int]] = [list(range(len(names)))]
    for key in (marks.__getitem__, tail, digest):
        groups = _alike(groups, key)
    if not groups:
        return []
    shown = "; ".join(_listed(names, group) for group in groups[:NAMED])
    more = f" and {len(groups) - NAMED} more groups" if len(groups) > NAMED else ""
    count = sum(map(len, groups))
    return [f"field {field}: {count:,} files are copies of one another: {shown}{more}; check these"]


def _listed(names: Sequence[str], group: Sequence[int]) -> str:
    return first_few([names[i] for i in group], NAMED, " = ")


def _alike(groups: Iterable[list[int]], key: Callable[[int], Hashable]) -> list[list[int]]:
    """Return the members of each group that share their key with another one, in groups, in order."""
    found: list[list[int]] = []
    for group in groups:
        by_key: dict[Hashable, list[int]] = {}
        for number in group:
            by_key.setdefault(key(number), []).append(number)
        found += [some for some in by_key.values() if len(some) > 1]
    return found
