"""names.lmdb: name -> sample number and number -> name, looked up a batch at a time."""

from __future__ import annotations

import itertools
import mmap
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import DamagedError, MissingNameError, SourceError
from packer.format import pages
from packer.format.key_search import KeySearch
from packer.format.manifest import FileEntry
from packer.format.page_replay import PageReplay
from packer.format.shard_writer import LmdbAppender
from packer.format.write_errors import clear_errors

#: Keys of the two directions: `#` and the number, 8 bytes big-endian; `=` and the name, UTF-8.
_BY_NUMBER = b"#"
_BY_NAME = b"="
_KEY = struct.Struct(">cQ")
_VALUE = struct.Struct("<Q")
MAX_NAME = 510


def write_names(path: Path, names: Sequence[bytes]) -> None:
    """Writes names.lmdb for samples named `names`, in the order of their numbers.

    Raises:
        SourceError: two samples have one name, or a name is too long.
        WriteError: the file cannot be written.
    """
    ordered = sorted(range(len(names)), key=names.__getitem__)
    _check(names, ordered)
    with clear_errors(path):
        # The appender commits now and then, which costs a few pages more than the one commit replayed for this.
        appender = LmdbAppender(path, pages.map_size(names_bytes(names)) + 64 * 4096)
        try:
            for number, name in enumerate(names):
                appender.put(_KEY.pack(_BY_NUMBER, number), name)
            for number in ordered:
                appender.put(_BY_NAME + names[number], _VALUE.pack(number))
            appender.finish()
        except BaseException:
            appender.abort()
            raise


def names_bytes(names: Sequence[bytes]) -> int:
    """Bytes of names.lmdb for these names: exact up to about a million of them, then a few pages less than it takes."""
    replay = PageReplay()
    for name in names:
        replay.put(9, len(name))
    for name in sorted(names):
        replay.put(1 + len(name), 8)
    replay.commit()
    return replay.file_bytes


def _check(names: Sequence[bytes], ordered: Sequence[int]) -> None:
    for number in ordered:
        if not 0 < len(names[number]) <= MAX_NAME:
            shown = names[number][:40].decode(errors="replace")
            raise SourceError(f"the name {shown!r}... has {len(names[number])} bytes, 1 to {MAX_NAME} fit")
    for a, b in itertools.pairwise(ordered):
        if names[a] == names[b]:
            raise SourceError(f"samples {a} and {b} have one name, {names[a].decode()!r}; names must differ")


def _name_key(name: str) -> bytes:
    # Text that is not Unicode, as file names can be, is the name of no sample rather than an error.
    return _BY_NAME + name.encode(errors="surrogatepass")


class Names:
    """Looks names up in a map of the file, opened once a file and process; it may be used across a fork.

    Args:
        path: names.lmdb.
        entry: its size as the manifest says it.
        samples: how many samples the dataset holds; None where numbers need not be checked against it.

    Raises:
        DamagedError: the file is missing, has another size, or is no LMDB file.
    """

    def __init__(self, path: Path, entry: FileEntry, samples: int | None = None) -> None:
        self.path = path
        self._samples = samples
        held = path.stat().st_size if path.is_file() else -1
        if held != entry.bytes:
            problem = "missing" if held < 0 else f"{held:,} bytes, {entry.bytes:,} expected"
            raise DamagedError(f"{path}: {problem}; run `packer repair`")
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # ValueError: nothing in it
            raise DamagedError(f"{path}: it cannot be mapped: {error}; run `packer repair`") from None
        self._search = KeySearch(memoryview(self._map), str(path))

    def numbers(self, names: Sequence[str]) -> NDArray[np.int64]:
        """Number of each sample named.

        Raises:
            MissingNameError: no sample has one of the names.
            DamagedError: the file is damaged.
        """
        found = [self._search.get(_name_key(name)) for name in names]
        if None in found:
            raise MissingNameError(f"no sample is named {names[found.index(None)]!r}")
        return self._decode(found)

    def contains(self, name: str) -> bool:
        """Whether a sample has this name."""
        return self._search.get(_name_key(name)) is not None

    def name(self, number: int) -> str:
        """Name of a sample."""
        value = self._search.get(_KEY.pack(_BY_NUMBER, number))
        if value is None:
            raise DamagedError(f"{self.path}: sample {number} has no name; run `packer repair`")
        return value.decode("utf-8", "replace")

    def close(self) -> None:
        """Gives the map back; nothing can be looked up any more."""
        self._search.close()
        self._map.close()

    def _decode(self, values: list[Any]) -> NDArray[np.int64]:
        joined = b"".join(values)
        if len(joined) != 8 * len(values):
            raise DamagedError(f"{self.path}: a number is not 8 bytes; run `packer repair`")
        numbers = np.frombuffer(joined, "<u8")
        if self._samples is not None and len(numbers) and int(numbers.max()) >= self._samples:
            raise DamagedError(f"{self.path}: sample {numbers.max()} of {self._samples} is named; run `packer repair`")
        return numbers.astype(np.int64)
