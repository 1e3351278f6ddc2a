"""The shards of a dataset: mapped together, but fetched and checked when one of their samples is first asked for."""

from __future__ import annotations

import threading
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from packer.errors import DamagedError, DatasetError
from packer.format import ColumnIndex, Manifest, Numbers, Shard
from packer.format import manifest as manifests
from readers.gather import MEMORY

if TYPE_CHECKING:
    from packer.remote import Mirror


@dataclass(frozen=True, eq=False)
class OpenShard:
    """A shard whose index has been checked; it can be read as long as this is kept.

    Attributes:
        shard: its map.
        start: address of its first byte.
        indexes: of the columns that are read, by field.
        names: UTF-8 names of its samples, and where each begins, see `Shard.name_table`; empty if they are not read.
    """

    shard: Shard
    start: int
    indexes: dict[str, ColumnIndex]
    names: tuple[memoryview, NDArray[np.uint64]]


class Shards:
    """Opens the shards of a dataset that hold samples, each when it is first needed.

    Those of a folder are all mapped at once, so that they can be read whatever becomes of their files. Nothing of them
    is read before they are opened. Those at a URL are fetched and mapped when they are opened, if not all are here.

    Attributes:
        entries: of these shards; they are numbered in this order.
        samples: of each shard.

    Args:
        folder: the packed dataset.
        manifest: what it holds.
        fields: names of the fields that are read.
        mirror: fetches the shards; None if they are in the folder.
        has_names: whether names are read, too.
        closes: whether each shard is mapped when it is opened, and closed when nobody keeps what `open` returned. Its
            file must be in the folder meanwhile.

    Raises:
        DamagedError: a shard is missing, or cut short.
        DatasetError: the dataset was replaced after its manifest was read, or too many files are open.
    """

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        fields: Sequence[str],
        mirror: Mirror | None = None,
        has_names: bool = False,
        closes: bool = False,
    ) -> None:
        self._folder = folder
        self._manifest = manifest
        self._columns = {name: number for number, name in enumerate(field.name for field in manifest.fields)}
        self._fields = list(fields)
        self._mirror = mirror
        self._has_names = has_names
        self.entries = [entry for entry in manifest.shards if entry.samples]
        self.samples = [entry.samples for entry in self.entries]
        self._maps: dict[int, Shard] = {}
        self._opened: MutableMapping[int, OpenShard] = WeakValueDictionary() if closes else {}
        self._addressed: tuple[Numbers, Sequence[Shard]] = np.zeros(0, np.int64), []
        self._lock = threading.Lock()
        #: Keeps the cache from removing the files.
        self._lease: object = None
        everything = range(len(self.entries))
        if closes:
            return
        if mirror is None:
            with not_replaced(folder, manifest):
                self._map(everything)
        elif mirror.is_fetched(manifest):
            self._lease = mirror.fetch_shards(manifest)
            self._map(everything)

    @property
    def are_mapped(self) -> bool:
        """Return whether all shards are mapped."""
        return len(self._maps) == len(self.entries)

    @property
    def addressed(self) -> tuple[Numbers, Sequence[Shard]]:
        """Return the address of the first byte of each shard that is open, (shards,), and these shards, in order."""
        if len(self._addressed[1]) != len(self._opened):
            numbers = sorted(self._opened)
            starts = np.array([self._opened[number].start for number in numbers], np.int64)
            self._addressed = starts, [self._opened[number].shard for number in numbers]
        return self._addressed

    def open(self, numbers: Sequence[int]) -> list[OpenShard]:
        """Return some shards, by number; those that are not here are fetched, at once.

        Raises:
            DamagedError: a shard is missing, cut short, that of another dataset, or its index is broken.
            RemoteError: it cannot be fetched.
        """
        unmapped = [number for number in numbers if number not in self._opened and number not in self._maps]
        if unmapped and self._mirror is not None:
            # Without the lock: no thread waits for another's shards, and two that fetch one shard wait for its file.
            lease = self._mirror.fetch_shards(self._manifest, [self.entries[number] for number in unmapped])
            with self._lock:
                self._lease = self._lease or lease
                self._map(unmapped)
        opened = [shard for number in numbers if (shard := self._opened.get(number))]
        if len(opened) < len(numbers):
            with self._lock:
                opened = [self._opened.get(number) or self._open(number) for number in numbers]
        return opened

    def columns(self, field: str, numbers: Sequence[int]) -> list[tuple[ColumnIndex, int]]:
        """Return the index of a field in some shards, and the address of each shard; raises errors as `open` does."""
        return [(shard.indexes[field], shard.start) for shard in self.open(numbers)]

    def _map(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            if number not in self._maps:
                self._maps[number] = self._map_file(number)

    def _map_file(self, number: int) -> Shard:
        entry = self.entries[number]
        return Shard(f"{self._folder}/{entry.file}", entry.bytes, is_read=False)

    def _open(self, number: int) -> OpenShard:
        entry, shard = self.entries[number], self._maps.get(number) or self._map_file(number)
        shard.read_tree(entry.index)
        shard.check_header(self._manifest.fields, entry.samples)
        indexes = {}
        for name in self._fields:
            column = self._columns[name]
            indexes[name] = shard.index(column, self._manifest.fields[column], entry.samples)
        no_names = memoryview(b""), np.zeros(0, np.uint64)
        names = shard.name_table(entry.samples) if self._has_names else no_names
        shard.forget()
        self._opened[number] = opened = OpenShard(shard, MEMORY.address(shard.bytes), indexes, names)
        return opened


@contextmanager
def not_replaced(folder: Path, manifest: Manifest, lease: object = None) -> Iterator[None]:
    """Raise DatasetError if the dataset was replaced before its files were opened in this context.

    A later replacement does no harm: maps keep the old files. Files of a cache are fetched by digest, into a folder of
    their own for each manifest.
    """
    try:
        yield
    except DamagedError as error:
        # Two appends keep the shards, but remove the table of names.
        if lease is None and manifests.read_again(folder, manifest) != manifest:
            raise DatasetError(f"{folder}: the dataset was changed since it was opened; open it again") from error
        raise
    now = manifest if lease is not None else manifests.read_again(folder, manifest)
    if not set(manifest.shards) <= set(now.shards):
        raise DatasetError(f"{folder}: the dataset was replaced since it was opened; open it again")
