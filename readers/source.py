"""What is read of a packed dataset, and what is open of it. `PackedDataset` is its face, `Loader` reads from it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import xxhash

from packer.errors import MissingNameError, UsageError
from packer.format import MANIFEST, Field, Manifest, Names, Numbers, ShardEntry, starts_of
from readers.cast import cast_reader
from readers.draws import Visits, visits_of
from readers.fields import NAME, FieldReader, KnownReader, gather_samples
from readers.gather import Allocate, Pool
from readers.indexing import Chosen, Items, Listed
from readers.joined import parts_of
from readers.opened import CheckedReader, Opened, describe, in_words, open_names
from readers.parts import Parts
from readers.shards import not_replaced
from readers.share import ItemShards
from readers.transforms import Transforms

if TYPE_CHECKING:
    from packer.remote import Cache, Mirror
    from readers.by_shard import ShardByShard

#: What `extras` may ask for, besides names.
NUMBER, STEP = "number", "step"


@dataclass
class _Session:
    """Everything that one process has open of a dataset, each part opened when it is first needed.

    It survives neither fork nor pickle: a lock may be held by a parent thread that does not exist in the child.
    """

    process: int = field(default_factory=os.getpid)
    opened: Opened | None = None
    readers: Mapping[str, FieldReader] | None = None
    by_shard: ShardByShard | None = None
    names: Names | None = None
    pool: Pool = field(default_factory=Pool)


class Source:
    """What is read of one packed dataset: which samples, which parts of them, and the readers of its fields.

    Args:
        mirror: fetches a dataset at a URL; None for a folder.
        path: the folder that is read.
        fields: that are read, by name.
        parts: of the samples that are read.
        transforms: what changes samples and batches.
        split: name of the split that is read; None for all samples.
        listed: numbers of the chosen samples, of the split if there is one; None for all.
        extras, verify: see `PackedDataset`.
        cast: by field, the dtype in which it is read; fields that are not there are read as they are stored.

    Attributes:
        samples: those that are read, each of which may have many windows.
        is_at_url: whether it is at a URL.
        exceeds_cache: whether the dataset is at a URL, and larger than its cache may be.
    """

    def __init__(  # all that a PackedDataset was given
        self,
        mirror: Mirror | None,
        path: Path,
        manifest: Manifest,
        fields: dict[str, Field],
        parts: Parts,
        transforms: Transforms,
        *,
        split: str | None,
        listed: Numbers | None,
        extras: Sequence[str],
        verify: bool,
        cast: Mapping[str, str],
    ) -> None:
        self.mirror, self.path, self.manifest, self.fields = mirror, path, manifest, fields
        self.windows, self.transforms, self.split = parts.windows, transforms, split
        self.extras, self.verify, self._cast = extras, verify, cast
        self._parts, self._is_listed = parts, listed is not None
        self.samples = Items(manifest.samples, None if split is None else Chosen(manifest.split_ranges(split)))
        if listed is not None:
            self.samples = Items(manifest.samples, Listed(self.samples.in_whole(listed)))
        self._items = self.samples if parts.windows is None else None
        self._last_session: _Session | None = None
        limit = None if mirror is None else mirror.cache.limit
        self.is_at_url = mirror is not None
        self.exceeds_cache = limit is not None and self.bytes_fetched > limit

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_last_session": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if self.mirror is not None:
            self.manifest = self.mirror.manifest()  # into the cache that is used here

    def __len__(self) -> int:
        """Return how many items there are."""
        return len(self.items)

    @property
    def members(self) -> Sequence[Source]:
        """Return the datasets that are read: this one alone."""
        return [self]

    @property
    def entries(self) -> list[ShardEntry]:
        """Return the shards that hold samples."""
        return [entry for entry in self.manifest.shards if entry.samples]

    @property
    def item_shards(self) -> ItemShards:
        """Return in which of `entries` each item lies."""
        items, starts = self.items, starts_of([entry.samples for entry in self.entries])
        edges = items.before(starts) if items.is_ascending else None
        return ItemShards(edges, lambda numbers: parts_of(items.samples_of(numbers), starts))

    @property
    def bytes_fetched(self) -> int:
        """Return the bytes of a dataset at a URL in its cache: the manifest, the shards that hold samples, tables."""
        size = (self.path / MANIFEST).stat().st_size if (self.path / MANIFEST).exists() else 0
        return size + sum(entry.bytes for entry in (*self.entries, *self.manifest.tables))

    @property
    def items(self) -> Items:
        """Return which sample each number means; the windows are counted when they are first asked for.

        Raises:
            UsageError: with `one=True`, a sample has no window.
            DamagedError: to count windows, a shard is read that is missing or damaged.
        """
        if self._items is None:
            assert self.windows is not None
            offsets = self.windows._offsets(self.fields)
            numbers = self.samples.in_whole(np.arange(len(self.samples)))
            lengths = {name: np.empty(len(numbers), np.int64) for name in offsets}
            for opened, positions in self.opened_parts(numbers):
                for name in offsets:
                    lengths[name][positions] = opened.places[name].lengths(numbers[positions])
            anchors = self.windows._anchors(offsets, lengths)
            no_windows = np.flatnonzero(anchors.counts == 0)
            if anchors.one and len(no_windows):
                sample = describe(self.path, self.manifest, int(numbers[no_windows[0]]))
                note = f" (one of {len(no_windows):,} such samples)" if len(no_windows) > 1 else ""
                raise UsageError(
                    f"{sample}: no window lies within its steps{note}, but one=True draws one of every sample; give "
                    "pad=, or leave the sample out: PackedDataset(..., samples=numbers)"
                )
            self._items = self.samples.in_windows(anchors)
        return self._items

    def __repr__(self) -> str:
        place = str(self.path) if self.mirror is None else self.mirror.url
        windows = "" if self.windows is None else "windows of "
        return f"PackedDataset({place!r}: {windows}{len(self.samples):,} samples of {', '.join(self.fields)})"

    @property
    def digest(self) -> str:
        """Return a short text that differs for other items: another schema, other samples, names or windows."""
        manifest = self.manifest
        names = [table.digest for table in (manifest.names, *manifest.more_names) if table is not None]
        described = [[field.spec.in_words for field in manifest.fields], names, self.items.digest]
        return xxhash.xxh3_64_hexdigest(repr(described).encode())

    @property
    def draws(self) -> bool:
        """Return whether two visits of a sample may differ: random parts are read, or a transform gets a generator."""
        return self._parts.draws or self.transforms.draw

    @property
    def asks(self) -> bool:
        """Return whether a function of the caller's says which part of each sample is read."""
        return self._parts.asks

    def gather(
        self,
        numbers: Numbers,
        visits: Visits | None = None,
        allocate: Allocate | Pool | None = None,
        by_shard: bool = False,
    ) -> dict[str, Any]:
        """Return the batch of the items `numbers` (n,), untransformed: field name to values.

        Args:
            numbers: within 0 to len(self) - 1.
            visits: of the items, (n,); needed if random parts are read.
            allocate: allocates the memory of each field; a `Pool` is used only where reuse pays. New memory by default.
            by_shard: one shard at a time is open, also if all have room in the cache: others share it.

        Raises:
            DamagedError: a stored frame cannot be decoded.
            RemoteError: a shard at a URL cannot be fetched.
        """
        asked = self.items.resolve(numbers, visits)
        if self.exceeds_cache or by_shard:
            return self.by_shard.gather(asked, self.make_readers, None, allocate)
        return gather_samples(self.readers, asked, allocate)

    def column(self, field: str) -> Any:
        """Return the values of one field of all items; see `PackedDataset.column`."""
        numbers = np.arange(len(self.items))
        visits = visits_of(0, 0, numbers) if self.draws else None
        asked = self.items.resolve(numbers, visits)
        if self.exceeds_cache:
            return self.by_shard.gather(asked, self.make_readers, [field])[field]
        reader = self.make_readers(self.opened, 0)[field]  # which may keep what it read of other fields, and goes
        return gather_samples({field: reader}, asked)[field]

    @property
    def session(self) -> _Session:
        """Return what this process has open."""
        session = self._last_session
        if session is None or session.process != os.getpid():
            session = self._last_session = _Session()
        return session

    @property
    def opened(self) -> Opened:
        """Return the shards and their readers; the first call in each process maps those that are here."""
        session = self.session
        if session.opened is None:
            session.opened = Opened(self.path, self.manifest, list(self.fields), self.mirror, self.extras)
        return session.opened

    @property
    def readers(self) -> Mapping[str, FieldReader]:
        """Return the reader of each field, of whole samples or of parts of them."""
        session = self.session
        if session.readers is None:
            opened = self.opened
            # What is not here is not fetched to be compared, but for the first shard, if points of several fields are.
            session.readers = self.make_readers(opened, None if opened.shards.are_mapped else 0)
        return session.readers

    @property
    def unread(self) -> Mapping[str, FieldReader]:
        """Return readers to ask for what they would read; of a dataset at a URL nothing is opened for them."""
        return self._make_readers(self.open_alone(), np.zeros(0, np.int64)) if self.is_at_url else self.readers

    def make_readers(self, opened: Opened, shard: int | None = None) -> Mapping[str, FieldReader]:
        """Return a reader of each field, of whole samples or of parts of them.

        Args:
            shard: the only one whose samples are compared before they are read; by default all are.

        Raises:
            As `Parts.readers`.
        """
        compared = None if shard is None else np.arange(*starts_of(opened.shards.samples)[shard : shard + 2])
        return self._make_readers(opened, compared)

    def _make_readers(self, opened: Opened, compared: Numbers | None) -> Mapping[str, FieldReader]:
        # Not a bound method: dataset and readers would refer to each other, and files stay open for a while.
        describe_sample = partial(describe, self.path, self.manifest)
        parts = self._parts.readers(self.fields, opened.places, self.samples, describe_sample, compared)
        readers = {name: self.as_asked(reader, opened) for name, reader in {**opened.readers, **parts}.items()}
        return {**readers, **self._number_readers()}

    def join(self, readers: Sequence[Mapping[str, FieldReader]]) -> Mapping[str, FieldReader]:
        """Return the reader of each field from those of `members`."""
        return readers[0]

    @property
    def by_shard(self) -> ShardByShard:
        """Return what reads samples by number where the dataset is larger than its cache."""
        from readers.by_shard import ShardByShard  # here: it is loaded where there is something to fetch

        session = self.session
        if session.by_shard is None:
            assert self.mirror is not None, "a folder has no cache"
            session.by_shard = ShardByShard(self.mirror, self.open_alone())
        return session.by_shard

    def opened_parts(self, samples: Numbers) -> Iterator[tuple[Opened, Numbers]]:
        """Yield what is open, and the positions (m,) of the samples that can be read: of all, or shard after shard.

        Args:
            samples: numbers in the whole dataset, (n,).
        """
        if not self.exceeds_cache:
            yield self.opened, np.arange(len(samples))
            return
        for _, positions in self.by_shard.parts(samples):
            yield self.by_shard.opened, positions

    @property
    def is_open(self) -> bool:
        """Return whether all shards are mapped."""
        opened = self.session.opened
        return opened is not None and opened.shards.are_mapped

    def open_alone(self) -> Opened:
        """Return what opens shards one by one, and closes them again; their files are in the folder meanwhile."""
        return Opened(self.path, self.manifest, list(self.fields), extras=self.extras, closes=True)

    def _number_readers(self) -> dict[str, FieldReader]:
        """Return the readers of the extras `number` and `step`."""
        samples = self.samples
        values: dict[str, Callable[..., Any]] = {
            NUMBER: lambda asked: samples.in_split(asked.samples),
            STEP: lambda asked: asked.anchors,
        }
        functions = {extra: values[extra] for extra in self.extras if extra != NAME}
        return {extra: KnownReader(Field(name=extra, dtype="int64"), function) for extra, function in functions.items()}

    def as_asked(self, reader: FieldReader, opened: Opened) -> FieldReader:
        """Return a reader that converts values, and compares frames with their checksums first, if `verify` says so."""
        name = reader.field.name
        if name in self._cast:
            reader = cast_reader(reader, self._cast[name])
        if self.verify and name in self.fields:
            reader = CheckedReader(reader, opened.places[name], partial(in_words, self.path, self.manifest))
        return reader

    def sample_numbers(self, names: Sequence[str]) -> Numbers:
        """Return the numbers of the samples of some names, (n,), in the split if one is read.

        Raises:
            MissingNameError: no sample has one of the names.
        """
        try:
            numbers = self.samples.in_split(self.name_table.numbers(names))
        except MissingNameError as error:
            raise MissingNameError(f"{self.path}: {error.args[0]}{self._name_shown()}") from None
        if len(numbers) and numbers.min() < 0:
            place = "among the chosen samples" if self._is_listed else f"in the split {self.split!r}"
            missing = names[int(numbers.argmin())]
            raise MissingNameError(f"{self.path}: {missing!r} is not {place}{self._name_shown()}")
        return numbers

    def name_of(self, number: int) -> str:
        """Return the name of a sample of the whole dataset."""
        return self.name_table.name(number)

    def _name_shown(self) -> str:
        """Return a name that is there in words, for a message about one that is not."""
        if self.manifest.names is None or not len(self.samples):
            return ""
        return f"; the first name is {self.name_table.name(int(self.samples.in_whole(np.array([0]))[0]))!r}"

    @property
    def name_table(self) -> Names:
        """Return the table of names; opened when it is first needed.

        Raises:
            DatasetError: the samples have no names.
        """
        session = self.session
        if session.names is None:
            lease = self.fetch_tables()
            with not_replaced(self.path, self.manifest, lease):
                names = open_names(self.path, self.manifest)
            session.names = names
            del lease  # only now: a table that is mapped stays, whatever becomes of its file
        return session.names

    def fetch_tables(self) -> object:
        """Fetch the files next to the shards if they are at a URL; the object returned keeps them in the cache."""
        from packer.remote import fetch_tables  # here: it is loaded where there is something to fetch

        return None if self.mirror is None else fetch_tables(self.mirror, self.manifest)


def by_cache(members: Sequence[Source]) -> dict[Cache, list[Source]]:
    """Return the datasets at URLs by their cache."""
    cached: dict[Cache, list[Source]] = {}
    for member in members:
        if member.mirror is not None:
            cached.setdefault(member.mirror.cache, []).append(member)
    return cached


Read = TypeVar("Read", covariant=True)


class HasSource(Protocol[Read]):
    """A dataset that keeps what is read of it."""

    @property
    def _source(self) -> Read: ...


def source_of(dataset: HasSource[Read]) -> Read:
    """Return what is read of a dataset."""
    return dataset._source
