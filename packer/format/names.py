"""names.lmdb: name -> sample number and number -> name, looked up a batch at a time; without the LMDB library."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import DamagedError, MissingNameError
from packer.format.key_search import KeySearch
from packer.format.manifest import FileEntry
from packer.format.name_keys import BY_NAME, BY_NUMBER, KEY


def _name_key(name: str) -> bytes:
    # Text that is not Unicode, as file names can be, is the name of no sample rather than an error.
    return BY_NAME + name.encode(errors="surrogatepass")


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
        value = self._search.get(KEY.pack(BY_NUMBER, number))
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
