"""Pictures of one field that are copies of one another, found by the bytes of their files.

Of pictures that are equally long the last bytes are compared, where PNG has a checksum of its pixels; what is equal
there is read whole. Where all lengths differ that takes 4 us a file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import NamedTuple

import xxhash

from packer.errors import SourceError
from packer.sources.files import open_raw

#: Copies that a sentence names in a group, and groups that it names; the rest is counted.
NAMED = 3
#: Bytes at the end that are compared first.
TAIL_BYTES = 64
_PIECE_BYTES = 2**20


class Stored(NamedTuple):
    """How long the pictures of a field are in bytes, and `read(number, offset, size)`, bytes of one of them."""

    sizes: Sequence[int]
    read: Callable[[int, int, int], bytes]


def copies(names: Sequence[str], field: str, stored: Stored) -> list[str]:
    """A sentence on the samples whose pictures of `field` have the same bytes; none where all differ.

    Raises:
        SourceError: a file has gone or cannot be read.
    """

    def tail(number: int) -> bytes:
        size = stored.sizes[number]
        return stored.read(number, max(size - TAIL_BYTES, 0), TAIL_BYTES)

    groups: list[list[int]] = [list(range(len(names)))]
    for key in (stored.sizes.__getitem__, tail, lambda number: _digest(stored, number)):
        groups = _alike(groups, key)
    if not groups:
        return []
    some = "; ".join(_listed(names, group) for group in groups[:NAMED])
    more = f" and {len(groups) - NAMED} more groups" if len(groups) > NAMED else ""
    count = sum(map(len, groups))
    return [f"field {field}: {count:,} files are copies of one another: {some}{more}; check these"]


def _listed(names: Sequence[str], group: Sequence[int]) -> str:
    more = f" and {len(group) - NAMED} more" if len(group) > NAMED else ""
    return " = ".join(names[i] for i in group[:NAMED]) + more


def _alike(groups: Iterable[list[int]], key: Callable[[int], Hashable]) -> list[list[int]]:
    """The members of each group that share their key with another one, in groups, in order."""
    found: list[list[int]] = []
    for group in groups:
        by_key: dict[Hashable, list[int]] = {}
        for number in group:
            by_key.setdefault(key(number), []).append(number)
        found += [some for some in by_key.values() if len(some) > 1]
    return found


def _digest(stored: Stored, number: int) -> bytes:
    digest = xxhash.xxh3_128()
    for start in range(0, stored.sizes[number], _PIECE_BYTES):
        digest.update(stored.read(number, start, _PIECE_BYTES))
    return digest.digest()


def files_stored(paths: Sequence[str]) -> Stored:
    """Files as `copies` takes them.

    Raises:
        SourceError: a file has gone.
    """

    def read(number: int, offset: int, size: int) -> bytes:
        try:
            with open_raw(paths[number]) as file:
                file.seek(offset)
                return file.read(size)
        except OSError as error:
            raise _unreadable(paths[number], error) from error

    return Stored([_size(path) for path in paths], read)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size  # noqa: PTH116  # through Path it takes 7 us a file more
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: str, error: OSError) -> SourceError:
    return SourceError(f"cannot be read: {error.strerror or error}", path)
