"""Tables of names: name -> sample number and number -> name, written once, looked up a batch at a time.

All names are in memory while a table is written. It is read without the LMDB library. A dataset has one table, or
several where samples were appended: each for the samples after those of the one before.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from packer.errors import DamagedError, MissingNameError, SourceError
from packer.format.btree import BTree
from packer.format.lmdb_appender import LmdbAppender
from packer.format.manifest import FileEntry, Manifest
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
#: To read a name of a table in order takes this share of the time in which one is looked up.
_IN_ORDER = 1 / 4


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
    all_names: list[bytes] = []
    for number, text in enumerate(names):
        name = text.encode() if isinstance(text, str) else text
        yield KEY.pack(BY_NUMBER, number), name
        all_names.append(name)
    before, before_name = -1, b""
    for number in sorted(range(len(all_names)), key=all_names.__getitem__):
        name = all_names[number]
        if name == before_name:
            raise SourceError(f"samples {before} and {number} have the same name, {name.decode()!r}; names must differ")
        before, before_name = number, name
        yield BY_NAME + name, VALUE.pack(number)


class Names:
    """The names of all samples of a dataset, which has some; its tables may be used across a fork.

    Attributes:
        tables: one or several.

    Raises:
        DamagedError: a file is missing, has another size, or is no LMDB file.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.tables: list[NameTable] = []
        first = 0
        for entry in manifest.name_tables:
            self.tables.append(NameTable(folder / entry.file, entry, entry.samples, first))
            first += entry.samples
        self._firsts = [table.first for table in self.tables]

    def numbers(self, names: Sequence[str]) -> NDArray[np.int64]:
        """Return the number of each sample named, (n,).

        Raises:
            MissingNameError: no sample has one of the names.
            DamagedError: a table is damaged.
        """
        return np.array([self._number(name) for name in names], np.int64)

    def _number(self, name: str) -> int:
        for table in self.tables:
            number = table.number(name)
            if number is not None:
                return number
        raise MissingNameError(f"no sample is named {name!r}")

    def name(self, number: int) -> str:
        """Return the name of a sample; raises DamagedError as `NameTable.name`."""
        return self.table_of(number).name(number)

    def taken(self, names: Sequence[str]) -> list[str]:
        """Return those of some names that a sample has."""
        return [name for table in self.tables for name in table.taken(names)]

    def difference(self, first: int, names: Iterable[bytes]) -> str | None:
        """Return in words how the tables differ from the names of the samples from number `first` on; None if not."""
        differences = (self.table_of(number).difference(number, name) for number, name in enumerate(names, first))
        return next(filter(None, differences), None)

    def table_of(self, number: int) -> NameTable:
        """Return the table that names a sample."""
        return self.tables[max(bisect_right(self._firsts, number) - 1, 0)]

    def close(self) -> None:
        """Close the maps; nothing can be looked up any more."""
        for table in self.tables:
            table.close()


class NameTable:
    """Looks names up in a map of the file of one table.

    Args:
        path: of the table.
        entry: its size as the manifest says it.
        samples: how many samples it names; None if numbers need not be checked against it.
        first: number of the first of these samples in the dataset.

    Raises:
        DamagedError: the file is missing, has another size, or is no LMDB file.
    """

    def __init__(self, path: Path, entry: FileEntry, samples: int | None = None, first: int = 0) -> None:
        self.path, self.first = path, first
        self._samples = samples
        self._map = open_map(path, entry.bytes)
        self._tree = BTree(memoryview(self._map), str(path))

    def number(self, name: str) -> int | None:
        """Return the number of the sample of a name; None if none has it.

        Raises:
            DamagedError: the file is damaged.
        """
        # Text that is not Unicode, as file names can be, is the name of no sample rather than an error.
        value = self._tree.get(BY_NAME + name.encode(errors="surrogatepass"))
        if value is None:
            return None
        if len(value) != VALUE.size:
            raise DamagedError(f"{self.path}: a number is not 8 bytes; run `packer repair`")
        (local,) = VALUE.unpack(value)
        if self._samples is not None and local >= self._samples:
            raise DamagedError(f"{self.path}: sample {local} of {self._samples} is named; run `packer repair`")
        return self.first + int(local)

    def taken(self, names: Sequence[str]) -> list[str]:
        """Return those of some names that a sample has."""
        if self.entries / 2 * _IN_ORDER < len(names):
            name_set = set(names)
            return [name for name in self.in_order() if name in name_set]
        return [name for name in names if self.number(name) is not None]

    def name(self, number: int) -> str:
        """Return the name of a sample.

        Raises:
            DamagedError: it has none, or its name has a NUL.
        """
        value = self._tree.get(KEY.pack(BY_NUMBER, number - self.first))
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

    def difference(self, number: int, name: bytes) -> str | None:
        """Return in words how the table differs from the name of a sample; None if not.

        Raises:
            DamagedError: the file is damaged.
        """
        readable, local = name.decode(errors="replace"), number - self.first
        if b"\0" in name:
            return f"the name of sample {number}, {readable!r}, has a NUL in it"
        if self._tree.get(KEY.pack(BY_NUMBER, local)) != name:
            return f"sample {number} has another name than in its shard, {readable!r}"
        if self._tree.get(BY_NAME + name) != VALUE.pack(local):
            return f"the name {readable!r} does not lead to sample {number}, which has it"
        return None

    def close(self) -> None:
        """Close the map; nothing can be looked up any more."""
        self._tree.close()
        self._map.close()
