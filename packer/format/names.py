"""The table of names: name -> sample number and number -> name, written once, looked up a batch at a time.

All names are in memory while the table is written. It is read without the LMDB library.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from packer.errors import DamagedError, MissingNameError, SourceError
from packer.format.btree import Tree
from packer.format.lmdb_appender import LmdbAppender
from packer.format.manifest import FileEntry
from packer.format.schema import no_text
from packer.format.shard import open_map
from packer.format.sizes import file_bytes, map_size
from packer.format.sync import clear_errors

#: Keys of the two directions: `#` and the number, 8 bytes big-endian; `=` and the name, UTF-8.
BY_NUMBER = b"#"
BY_NAME = b"="
KEY = struct.Struct(">cQ")
VALUE = struct.Struct("<Q")
MAX_NAME = 510
#: How many characters of a name an error shows.
_SHOWN = 40

#: Spare room in the map of a table. LMDB keeps the size of the map in the file.
_SPARE_BYTES = 2**18


def name_bytes(name: str, number: int) -> bytes:
    """Return the name of sample `number` as it is stored.

    Names are checked before anything is packed: the table is written when all else is done.

    Raises:
        SourceError: it is empty, too long, no text, or has a NUL, which no file name and no HDF5 name can have.
    """
    try:
        encoded = name.encode()
        if 0 < len(encoded) <= MAX_NAME and b"\0" not in encoded:
            return encoded
        problem = "has a NUL in it"
        if not 0 < len(encoded) <= MAX_NAME:
            problem = f"has {len(encoded)} bytes; 1 to {MAX_NAME} are allowed"
        raise SourceError(f"{_shown(name, number)} {problem}; give it another name")
    except UnicodeEncodeError as error:
        raise no_text(_shown(name, number), error) from None


def _shown(name: str, number: int) -> str:
    return f"sample {number}: its name " + (repr(name) if len(name) <= _SHOWN else f"{name[:_SHOWN]!r}...")


def write_names(path: Path, names: Iterable[str | bytes]) -> None:
    """Write the table of names for samples named `names`, in the order of their numbers; they are iterated over twice.

    Raises:
        SourceError: two samples have one name.
        WriteError: the file cannot be written.
    """
    with clear_errors(path), LmdbAppender(path, map_size(names_bytes(names)) + _SPARE_BYTES) as appender:
        for key, value in _entries(names):
            appender.put(key, value)


def names_bytes(names: Iterable[str | bytes]) -> int:
    """Return the bytes of the table of names.

    Raises:
        SourceError: two samples have one name.
    """
    return file_bytes((len(key), len(value)) for key, value in _entries(names))


def _entries(names: Iterable[str | bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of the table in the order of the keys."""
    held: list[bytes] = []
    for number, text in enumerate(names):
        name = text.encode() if isinstance(text, str) else text
        yield KEY.pack(BY_NUMBER, number), name
        held.append(name)
    before, before_name = -1, b""
    for number in sorted(range(len(held)), key=held.__getitem__):
        name = held[number]
        if name == before_name:
            raise SourceError(f"samples {before} and {number} have the same name, {name.decode()!r}; names must differ")
        before, before_name = number, name
        yield BY_NAME + name, VALUE.pack(number)


class Names:
    """Looks names up in a map of the file, opened once a file and process; it may be used across a fork.

    Args:
        path: of the table.
        entry: its size as the manifest says it.
        samples: how many samples the dataset holds; None if numbers need not be checked against it.

    Raises:
        DamagedError: the file is missing, has another size, or is no LMDB file.
    """

    def __init__(self, path: Path, entry: FileEntry, samples: int | None = None) -> None:
        self.path = path
        self._samples = samples
        self._map = open_map(path, entry.bytes)
        self._tree = Tree(memoryview(self._map), str(path))

    def numbers(self, names: Sequence[str]) -> NDArray[np.int64]:
        """Return the number of each sample named.

        Raises:
            MissingNameError: no sample has one of the names.
            DamagedError: the file is damaged.
        """
        # Text that is not Unicode, as file names can be, is the name of no sample rather than an error.
        found = [self._tree.get(BY_NAME + name.encode(errors="surrogatepass")) for name in names]
        if None in found:
            raise MissingNameError(f"no sample is named {names[found.index(None)]!r}")
        joined = b"".join(value for value in found if value is not None)
        if len(joined) != VALUE.size * len(found):
            raise DamagedError(f"{self.path}: a number is not 8 bytes; run `packer repair`")
        numbers = np.frombuffer(joined, "<u8")
        if self._samples is not None and len(numbers) and int(numbers.max()) >= self._samples:
            raise DamagedError(f"{self.path}: sample {numbers.max()} of {self._samples} is named; run `packer repair`")
        return numbers.astype(np.int64)

    def name(self, number: int) -> str:
        """Return the name of a sample.

        Raises:
            DamagedError: it has none, or its name has a NUL.
        """
        value = self._tree.get(KEY.pack(BY_NUMBER, number))
        if value is None:
            raise DamagedError(f"{self.path}: sample {number} has no name; run `packer repair`")
        return self._text(value)

    def in_order(self) -> Iterator[str]:
        """Yield the names of all samples in the order of their numbers."""
        for value in self._tree.values():
            if not value.key.startswith(BY_NUMBER):
                return
            yield self._text(self._map[value.offset : value.offset + value.size])

    def _text(self, name: bytes) -> str:
        """Return a name; raise DamagedError if it has a NUL, which is the end of a path to the system."""
        if b"\0" in name:
            raise DamagedError(f"{self.path}: the name {name.decode('utf-8', 'replace')!r} has a NUL in it")
        return name.decode("utf-8", "replace")

    @property
    def entries(self) -> int:
        """Return the number of entries: two for each sample."""
        return self._tree.meta.entries

    def difference(self, first: int, names: Iterable[bytes]) -> str | None:
        """Return in words how the table differs from the names of the samples from number `first` on; None if not.

        Raises:
            DamagedError: the file is damaged.
        """
        for number, name in enumerate(names, first):
            shown = name.decode(errors="replace")
            if b"\0" in name:
                return f"the name of sample {number}, {shown!r}, has a NUL in it"
            if self._tree.get(KEY.pack(BY_NUMBER, number)) != name:
                return f"sample {number} has another name than in its shard, {shown!r}"
            if self._tree.get(BY_NAME + name) != VALUE.pack(number):
                return f"the name {shown!r} does not lead to sample {number}, which has it"
        return None

    def close(self) -> None:
        """Close the map; nothing can be looked up any more."""
        self._tree.close()
        self._map.close()
