"""A packed dataset as a source: in its own order or in another, to be packed again or exported.

    source = open_packed("div2k.packed", seed=7)

Every frame's checksum is compared before its samples are handed out, so that damage is never packed again.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.codecs import H264, JPEG
from packer.errors import DamagedError
from packer.format import (
    Column,
    Constants,
    Field,
    FieldSpec,
    Manifest,
    NamesEntry,
    NameTable,
    Shard,
    ShardEntry,
    check_file,
)
from packer.format import manifest as manifests
from packer.sources.base import BLOCK_BYTES, Block, Source, runs

#: Shards open at a time in a process. A shuffled order needs nearly all of them for each block that is read.
MOST_OPEN = 1024


def open_packed(
    dataset: str | os.PathLike[str], fields: Sequence[str] | None = None, seed: int | None = None
) -> PackedSource:
    """Open the samples of a packed dataset.

    Args:
        fields: names of the fields to read, in order; None for all.
        seed: shuffles the samples; None keeps their order.

    Raises:
        DatasetError: there is no packed dataset, or it is damaged.
        UsageError: it has no such field.
    """
    folder = Path(dataset)
    manifest = manifests.read(folder)
    names = read_names(folder, manifest)
    numbers: NDArray[np.int64] = np.arange(manifest.samples)
    origin = manifest.origin
    splits = {name: manifest.split(name) for name in manifest.splits}
    if seed is not None:
        numbers = shuffled_order(manifest.samples, seed)
        place = np.argsort(numbers)
        splits = {name: np.sort(place[members]) for name, members in splits.items()}
        names = None if names is None else [names[number] for number in numbers.tolist()]
        origin = {"kind": origin.get("kind", "packed"), "shuffled": seed, "origin": origin}
    elif "parts" in origin:  # packed as one, the parts need not end with shards
        origin = {"kind": origin.get("kind", "packed"), "origin": origin}
    chosen = manifest.fields if fields is None else [manifest.field(name) for name in fields]
    columns = [(manifest.fields.index(field), field) for field in chosen]
    source = PackedSource(str(folder), manifest.shards, columns, numbers, names, origin)
    source.splits, source.base = splits, manifest
    source.constants = Constants(folder, manifest.constants)
    return source


def shuffled_order(samples: int, seed: int) -> NDArray[np.int64]:
    """Return numbers of the samples in the order that `seed` gives, (samples,).

    Sorted by raw 64-bit numbers: numpy promises to keep these the same for ever, but not `permutation`.
    """
    return np.argsort(np.random.PCG64(seed).random_raw(samples), kind="stable")


def read_names(folder: Path, manifest: Manifest) -> list[str] | None:
    """Return the name of every sample, from the tables, since names in shards have no checksum; None if there are none.

    Raises:
        DamagedError: a table of names is missing, or has changed since it was written.
    """
    return None if manifest.names is None else names_of(folder, manifest.name_tables)


def names_of(folder: Path, tables: Sequence[NamesEntry]) -> list[str]:
    """Return the names of the samples of some tables, in order; raises as `read_names`."""
    names: list[str] = []
    for entry in tables:
        path, before = folder / entry.file, len(names)
        check_file(path, entry, whole=True)
        with closing(NameTable(path, entry)) as table:
            names += table.in_order()
        if len(names) - before != entry.samples:
            raise DamagedError(
                f"{path}: it has {len(names) - before:,} names of {entry.samples:,} samples; run `packer repair`"
            )
    return names


@dataclass(eq=False)
class PackedSource(Source):
    """Some samples of a packed dataset; made by `open_packed`.

    Attributes:
        folder: the dataset.
        shards: all its shards.
        columns: position in the dataset's schema, and the field, of every field to read.
        numbers: numbers of the samples in the dataset, int64 (n,).
        names: their names.
        origin: where the dataset came from.
        base: the manifest of the dataset when it was opened; slices have none.
    """

    folder: str
    shards: Sequence[ShardEntry]
    columns: Sequence[tuple[int, Field]]
    numbers: NDArray[np.int64]
    names: Sequence[str] | None
    origin: dict[str, Any] = dataclasses.field(default_factory=dict)

    base: Manifest | None = dataclasses.field(init=False, default=None)
    fields: tuple[FieldSpec, ...] = dataclasses.field(init=False)
    kind = "packed"
    has_files_of_slices = False

    def __post_init__(self) -> None:
        self.fields = tuple(field.spec for _, field in self.columns)
        self._shards = _Shards(Path(self.folder), self.shards)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_shards": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._shards = _Shards(Path(self.folder), self.shards)

    def __len__(self) -> int:
        return len(self.numbers)

    def shapes(self, field: str) -> NDArray[np.int64]:
        position, stored = next((p, f) for p, f in self.columns if f.name == field)
        return self._shards.shapes(position, stored, self.numbers)

    def take(self, numbers: NDArray[np.int64]) -> PackedSource:
        """Return these samples of the source, numbers ascending, (n,): with what all share, without splits."""
        names = None if self.names is None else [self.names[number] for number in numbers.tolist()]
        source = self._with(numbers=self.numbers[numbers], names=names)
        source.constants, source.base = self.constants, self.base
        return source

    def slice(self, start: int, stop: int) -> PackedSource:
        names = None if self.names is None else self.names[start:stop]
        return self._with(numbers=self.numbers[start:stop], names=names, origin={})

    def _with(self, **changes: Any) -> PackedSource:
        """Return other samples of the same dataset, which share its open shards."""
        source = replace(self, **changes)
        source._shards = self._shards
        return source

    def read(self) -> Iterator[Block]:
        """See `Source.read`.

        Raises:
            DamagedError: a frame has changed since it was written.
        """
        sizes = np.zeros(len(self), np.int64)
        for position, field in self.columns:
            shapes = self._shards.shapes(position, field, self.numbers)
            sizes += shapes.prod(axis=1, dtype=np.int64) * field.itemsize
        for start, stop in runs(sizes, BLOCK_BYTES):
            yield {f.name: self._shards.take(position, f, self.numbers[start:stop]) for position, f in self.columns}

    def files(self) -> list[str]:
        return [str(Path(self.folder) / entry.file) for entry in self.shards]


class _Shards:
    """Shards from which samples are taken; beyond MOST_OPEN, the one that is unused for longest is closed.

    All slices of a source share them: they stay open as long as one of these is there.
    """

    def __init__(self, folder: Path, entries: Sequence[ShardEntry]) -> None:
        self._folder, self._entries = folder, entries
        self._ends = np.cumsum([entry.samples for entry in entries], dtype=np.int64)
        self._open: dict[int, tuple[Shard, dict[int, _CheckedColumn]]] = {}

    def take(self, position: int, field: Field, numbers: NDArray[np.int64]) -> Any:
        """Return samples of one field as a block holds them: one array (m, *shape), or a list, see `Column.take`.

        Args:
            position: number of the field in the dataset's schema.

        Raises:
            DamagedError: a shard cannot be read, or a frame's checksum is wrong.
        """
        if field.is_ragged or any(config["id"] in (H264, JPEG) for config in field.codec):
            ragged: list[Any] = [None] * len(numbers)
            for places, column, local in self._columns(position, field, numbers):
                for place, value in zip(places.tolist(), column.take(local), strict=True):
                    native = value.astype(value.dtype.newbyteorder("="), copy=False)
                    ragged[place] = value.tobytes().decode() if field.kind == "text" else native
            return ragged
        fixed: NDArray[Any] = np.empty((len(numbers), *(n or 0 for n in field.shape)), str(field.dtype))
        for places, column, local in self._columns(position, field, numbers):
            fixed[places] = column.take(local)
        return fixed

    def shapes(self, position: int, field: Field, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the shape of each of the samples, (m, axes)."""
        shapes = np.empty((len(numbers), len(field.shape)), np.int64)
        if not field.is_ragged:
            shapes[:] = [n or 0 for n in field.shape]
            return shapes
        for places, column, local in self._columns(position, field, numbers):
            shapes[places] = column.column.locate(local).shape
        return shapes

    def _columns(
        self, position: int, field: Field, numbers: NDArray[np.int64]
    ) -> Iterator[tuple[NDArray[np.int64], _CheckedColumn, NDArray[np.int64]]]:
        """Yield for each shard concerned places within `numbers`, the column, and numbers within the shard."""
        shard_of = self._ends.searchsorted(numbers, side="right")
        order = np.argsort(shard_of, kind="stable")
        groups = np.split(order, np.flatnonzero(np.diff(shard_of[order])) + 1) if len(numbers) else []
        # Open shards first: opening another one may close them.
        for places in sorted(groups, key=lambda places: int(shard_of[places[0]]) not in self._open):
            shard = int(shard_of[places[0]])
            first = int(self._ends[shard]) - self._entries[shard].samples
            yield places, self._column(shard, position, field), numbers[places] - first

    def _column(self, number: int, position: int, field: Field) -> _CheckedColumn:
        entry = self._entries[number]
        if number in self._open:
            self._open[number] = self._open.pop(number)  # now the last one to be closed
        else:
            if len(self._open) == MOST_OPEN:
                self._close(next(iter(self._open)))
            self._open[number] = Shard(self._folder / entry.file, entry.bytes, entry.index), {}
        shard, columns = self._open[number]
        if position not in columns:
            columns[position] = _CheckedColumn(shard, shard.column(position, field, entry.samples))
        return columns[position]

    def _close(self, number: int) -> None:
        shard, columns = self._open.pop(number)
        columns.clear()  # they hold views of the shard's memory
        shard.close()


class _CheckedColumn:
    """A column that compares the checksum of every frame before it is used, once."""

    def __init__(self, shard: Shard, column: Column) -> None:
        self.column = column
        self._shard = shard
        self._good = np.zeros(column.index.frames, bool)

    def take(self, local: NDArray[np.int64]) -> Any:
        """Return the samples of these numbers within the shard, each of its own shape, or as one array (m, *shape).

        Raises:
            DamagedError: the checksum of a frame is wrong, or it cannot be decoded.
        """
        self._check(local)
        return self.column.take(local)

    def _check(self, local: NDArray[np.int64]) -> None:
        frames = self.column.frames_of(local)
        todo = frames[~self._good[frames.frame]]
        wrong = todo.frame[self.column.are_wrong(todo)]
        if len(wrong):
            a, b = self.column.index.samples_of(wrong)[0].tolist()
            samples = f"sample {a}" if b == a + 1 else f"samples {a} to {b - 1}"
            raise DamagedError(
                f"{self._shard.path}: field {self.column.field.name!r}, {samples} of the shard: "
                "the checksum is wrong; run `packer verify`, then `packer repair`"
            )
        self._good[todo.frame] = True
