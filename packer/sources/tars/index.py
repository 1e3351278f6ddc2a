"""The index of a tar: which members it has, and where their bytes lie."""

from __future__ import annotations

import os
import tarfile
from typing import TYPE_CHECKING, NamedTuple

from packer.errors import SourceError
from packer.sources.files import unreadable

if TYPE_CHECKING:
    from typing_extensions import Self  # which typing has from Python 3.11 on

ADVICE = "pack the tar again"
_BLOCK = tarfile.BLOCKSIZE
#: Further headers that are longer are none that matter here.
_LONGEST_MORE = 2**16
#: What a further header may say of a member besides its name: nothing that concerns its bytes.
_TIMES = {b"mtime", b"atime", b"ctime"}


class Member(NamedTuple):
    """One file of a sample.

    Attributes:
        suffix: behind the first dot of its name, in small letters.
        at: where its bytes begin.
    """

    suffix: str
    at: int
    size: int

    @property
    def last(self) -> str:
        """Return what says how it is read."""
        return self.suffix.rpartition(".")[2]


class Entry(NamedTuple):
    """What a tar holds, but for folders.

    Attributes:
        at: where its bytes begin.
        is_plain: whether it is a file, and its bytes lie as one.
    """

    name: str
    at: int
    size: int
    is_plain: bool = True


class OpenTar:
    """A tar whose bytes are read; a block."""

    __slots__ = "_descriptor", "path"

    def __init__(self, path: str) -> None:
        self.path = path

    def __enter__(self) -> Self:
        try:
            self._descriptor = os.open(self.path, os.O_RDONLY)
        except OSError as error:
            raise unreadable(error, self.path) from error
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def some(self, at: int, size: int) -> bytes:
        """Return up to so many bytes."""
        try:
            return os.pread(self._descriptor, size, at)
        except OSError as error:
            raise unreadable(error, self.path) from error

    def read(self, at: int, size: int) -> bytes:
        """Return some bytes of a member; raises SourceError if there are fewer."""
        data = self.some(at, size)
        while len(data) < size and (more := self.some(at + len(data), size - len(data))):
            data += more  # a call gives 2 GiB at most
        if len(data) < size:
            raise SourceError("ends before its last byte: the tar is cut; download it again")
        return data


def index_of(tar: OpenTar) -> tuple[list[Entry], int]:
    """Return what a tar holds, and where its last member ends.

    Raises:
        SourceError: it is no tar, or has no end.
    """
    entries, end = _usual(tar) or _any(tar)
    if tar.some(end, _BLOCK) != bytes(_BLOCK):
        raise SourceError("has no end: it is cut; download it again", tar.path)
    return entries, end


def _any(tar: OpenTar) -> tuple[list[Entry], int]:
    try:
        with tarfile.open(tar.path, "r:", errorlevel=2) as file:
            entries = [
                Entry(member.name, member.offset_data, member.size, member.isreg() and not member.issparse())
                for member in file
                if not member.isdir()
            ]
            return entries, file.offset
    except OSError as error:
        raise unreadable(error, tar.path) from error
    except tarfile.TarError as error:
        raise SourceError(f"cannot be read as a tar ({error}); download it again, or gunzip it", tar.path) from error


def _usual(tar: OpenTar) -> tuple[list[Entry], int] | None:
    """Return the same four times as fast, where all members are files and folders of the usual forms; else None."""
    entries, at, name = list[Entry](), 0, b""
    while (head := tar.some(at, _BLOCK)).count(0) < len(head):
        kind, magic, prefix = head[156:157], head[257:265], head[345:500].partition(b"\0")[0]
        try:
            size, check = (int(field.strip(b" \0") or b"0", 8) for field in (head[124:136], head[148:156]))
            if check != sum(head) - sum(head[148:156]) + 256:
                return None
            if kind in (b"x", b"L") and 0 < size <= _LONGEST_MORE:  # of PAX and GNU: more on the next member
                more = tar.read(at + _BLOCK, size)
                name = more.rstrip(b"\0") if kind == b"L" else _path_of(more) or name
            elif kind in (b"0", b"5") and (magic == b"ustar\x0000" or (magic == b"ustar  \0" and not prefix)):
                name = name or prefix + b"/" * bool(prefix) + head[:100].partition(b"\0")[0]
                if kind == b"0":
                    entries.append(Entry(os.fsdecode(name), at + _BLOCK, size))
                elif size:
                    return None
                name = b""
            else:
                return None
        except (ValueError, SourceError):
            return None
        at += _BLOCK + -(-size // _BLOCK) * _BLOCK
    return entries, at


def _path_of(records: bytes) -> bytes:
    """Return the path among the records of a header of PAX; raises ValueError if there is more than paths and times."""
    path = b""
    while records:
        length = int(records[: records.index(b" ")])
        key, equals, value = records[records.index(b" ") + 1 : length].partition(b"=")
        if not (length > 0 and equals and value.endswith(b"\n") and (key == b"path" or key in _TIMES)):
            raise ValueError(key)
        path, records = value[:-1] if key == b"path" else path, records[length:]
    return path


def bytes_after(tar: OpenTar, end: int) -> int:
    """Return how many bytes follow the end of a tar, such as another tar; none if all of them are 0, as of padding."""
    begin = at = end + 2 * _BLOCK
    while data := tar.some(at, tarfile.RECORDSIZE):
        if data.count(0) < len(data):
            return os.path.getsize(tar.path) - begin  # noqa: PTH202 - no Path is needed
        at += len(data)
    return 0
