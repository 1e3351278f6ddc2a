"""An LMDB folder as BasicSR makes it: `data.mdb` with one encoded picture a key, `meta_info.txt` with its size.

The values are found by `packer.format.btree`, so that a damaged file is an error and never a crash, and nothing
needs a lock.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

from packer.errors import DamagedError, SourceError
from packer.format import btree
from packer.sources.files import LMDB_DATA, LMDB_LIST

#: `baboon.png (480,492,3) 1`: name, height, width and channels, level of compression.
_LINE = re.compile(r"(?P<key>.+)\.\w+ \((?P<height>\d+),(?P<width>\d+),\d+\) \d+")


class Place(NamedTuple):
    """Where the bytes of a picture lie in the file."""

    offset: int
    size: int


def listed_sizes(folder: str) -> dict[str, tuple[int, int]]:
    """Height and width of every picture that `meta_info.txt` lists, by key.

    Raises:
        SourceError: the list cannot be read, or a line is not of the form that BasicSR writes.
    """
    path = f"{folder}/{LMDB_LIST}"
    sizes = {}
    for number, line in enumerate(_text(path).splitlines(), 1):
        found = _LINE.fullmatch(line.strip())
        if found:
            sizes[found["key"]] = int(found["height"]), int(found["width"])
        elif line.strip():
            reason = f"line {number} is {line.strip()[:80]!r}; a line such as 'name.png (480,492,3) 1' is expected"
            raise SourceError(f"{reason}; mend the line", path)
    return sizes


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SourceError("is no text (UTF-8); get it again, or make the folder again with BasicSR", path) from error
    except OSError as error:
        raise _unreadable(path, error) from error


def places(folder: str) -> dict[str, Place]:
    """The place of every value, by key.

    Raises:
        SourceError: not a sound LMDB file, or a key that is no text.
    """
    path = f"{folder}/{LMDB_DATA}"
    with opened(folder) as file:
        try:
            page_size = btree.check_size(file.read(btree.HEAD_BYTES), Path(path).stat().st_size, path)
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as buffer:
                values = btree.walk(buffer, page_size, path)
        except DamagedError as error:
            raise SourceError(str(error).removeprefix(f"{path}: "), path) from error
    return {_key(value.key, path): Place(value.offset, value.size) for value in values}


def _key(key: bytes, path: str) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError as error:
        raise SourceError(
            f"has a key {key!r} that is no text (UTF-8), so its sample would have no name", path
        ) from error


@contextmanager
def opened(folder: str) -> Iterator[BinaryIO]:
    """The data file; what goes wrong within the block with the operating system is a SourceError."""
    path = f"{folder}/{LMDB_DATA}"
    try:
        with Path(path).open("rb") as file:
            yield file
    except OSError as error:
        raise _unreadable(path, error) from error


def value(file: BinaryIO, place: Place, path: str, most: int | None = None) -> bytes:
    """The bytes of a value, or the first `most` of them.

    Raises:
        SourceError: the file has become shorter.
    """
    wanted = place.size if most is None else min(most, place.size)
    file.seek(place.offset)
    data = file.read(wanted)
    if len(data) < wanted:
        raise SourceError("was cut short while it was read; start again when nothing writes to it", path)
    return data


def _unreadable(path: str, error: OSError) -> SourceError:
    return SourceError(f"cannot be read: {error.strerror or error}; check that it is there and may be read", path)
