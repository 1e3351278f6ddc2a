"""A packed dataset as a source: in its own order or in another, to be packed again or exported.

    source = open_packed("div2k.packed", seed=7)

Every frame's checksum is compared before its samples are handed out, so that damage is never packed anew.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import DamagedError, UsageError
from packer.format import manifest as manifests
from packer.format.column import SHAPE, START, Column, Frames
from packer.format.constants import kept_constants
from packer.format.manifest import Manifest, ShardEntry, kept_splits
from packer.format.schema import Field, FieldSpec
from packer.format.shard import Shard
from packer.sources.base import Block, Source

#: Raw bytes that a block holds at most, unless one sample is larger.
BLOCK_BYTES = 8 * 2**20
#: Shards open at a time; each takes two of the 1,024 files that a process may usually have open.
MOST_OPEN = 128
#: Items of numpy's own types are smaller.
MOST_ITEM_BYTES = 2**31


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
    numbers: range | NDArray[np.int64] = range(manifest.samples)
    origin = manifest.origin
    splits = {name: manifest.split(name) for name in kept_splits(manifest)}
    if seed is not None:
        numbers = shuffled_order(manifest.samples, seed)
        place = np.argsort(numbers)
        splits = {name: np.sort(place[held]) for name, held in splits.items()}
        names = None if names is None else [names[number] for number in numbers.tolist()]
        origin = {"kind": origin.get("kind", "packed"), "shuffled": seed, "origin": origin}
    source = PackedSource(str(folder), manifest.shards, _chosen(manifest, fields), numbers, names, origin)
    source.splits = splits
    source.constants = kept_constants(folder, manifest)
    return source


def shuffled_order(samples: int, seed: int) -> NDArray[np.int64]:
    """Return numbers of the samples in the order that `seed` gives, (samples,).

    Sorted by raw 64-bit numbers: numpy keeps those the same for ever, which it does not promise of `permutation`.
    """
    return np.argsort(np.random.PCG64(seed).random_raw(samples), kind="stable")


def read_names(folder: Path, manifest: Manifest) -> list[str] | None:
    """Return the name of every sample, as the shards have them; None if samples have none.

    Raises:
        DamagedError: a shard cannot be read.
    """
    if manifest.names is None:
        return None
    names: list[str] = []
    for entry in manifest.shards:
        with Shard(folder / entry.file, entry.bytes) as shard:
            names += [name.decode() for name in shard.names(entry.samples)]
    return names


class PackedSource(Source):
    """Some samples of a packed dataset; made by `open_packed`.

    Args:
        folder: the dataset.
        shards: all its shards.
        columns: position in the dataset's schema, and the field, of every field to read.
        numbers: numbers of the samples in the dataset.
        names: their names.
        origin: where the dataset came from.
    """

    kind = "packed"

    def __init__(
        self,
        folder: str,
        shards: Sequence[ShardEntry],
        columns: Sequence[tuple[int, Field]],
        numbers: range | NDArray[np.int64],
        names: Sequence[str] | None,
        origin: dict[str, Any],
    ) -> None:
        self.folder = folder
        self.shards = tuple(shards)
        self.columns = tuple(columns)
        self.fields: tuple[FieldSpec, ...] = tuple(field.spec for _, field in columns)
        self.numbers = numbers
        self.names = names
        self.origin = origin

    def __len__(self) -> int:
        return len(self.numbers)

    def shapes(self, field: str) -> NDArray[np.int64] | None:
        position, stored = next((p, f) for p, f in self.columns if f.name == field)
        with _Shards(self.folder, self.shards) as shards:
            return shards.shapes(position, stored, self._numbers(0, len(self)))

    def part(self, start: int, stop: int) -> PackedSource:
        names = None if self.names is None else self.names[start:stop]
        return PackedSource(self.folder, self.shards, self.columns, self.numbers[start:stop], names, {})

    def read(self) -> Iterator[Block]:
        """See `Source.read`.

        Raises:
            DamagedError: a frame is not what it was when it was written.
        """
        with _Shards(self.folder, self.shards) as shards:
            for start, stop in self._runs(shards):
                numbers = self._numbers(start, stop)
                yield {f.name: _values(f, shards.take(position, f, numbers)) for position, f in self.columns}

    def files(self) -> list[str]:
        return [str(Path(self.folder) / entry.file) for entry in self.shards]

    def provenance(self) -> dict[str, Any]:
        return self.origin

    def _numbers(self, start: int, stop: int) -> NDArray[np.int64]:
        some = self.numbers[start:stop]
        return np.arange(some.start, some.stop) if isinstance(some, range) else some

    def _runs(self, shards: _Shards) -> Iterator[tuple[int, int]]:
        """Yield samples start..stop of every block."""
        numbers = self._numbers(0, len(self))
        sizes = np.zeros(len(self), np.int64)
        for position, field in self.columns:
            sizes += shards.shapes(position, field, numbers).prod(axis=1, dtype=np.int64) * field.itemsize
        ends = np.cumsum(sizes)
        start = 0
        while start < len(self):
            before = int(ends[start - 1]) if start else 0
            stop = max(start + 1, int(ends.searchsorted(before + BLOCK_BYTES, side="right")))
            yield start, stop
            start = stop


def _values(field: Field, values: NDArray[Any] | list[NDArray[Any]]) -> Any:
    """Return what a block holds: text as str, all else as it is."""
    return [value.tobytes().decode() for value in values] if field.kind == "text" else values


def _chosen(manifest: Manifest, fields: Sequence[str] | None) -> list[tuple[int, Field]]:
    held = {field.name: (position, field) for position, field in enumerate(manifest.fields)}
    unknown = [name for name in fields or () if name not in held]
    if unknown:
        raise UsageError(f"the dataset has no field {unknown[0]!r}; it has {', '.join(held)}")
    return list(held.values()) if fields is None else [held[name] for name in fields]


class _Shards:
    """Shards while samples are taken out of them: opened when they are asked for, closed by the context manager."""

    def __init__(self, folder: str, shards: Sequence[ShardEntry]) -> None:
        self._folder = Path(folder)
        self._entries = shards
        self._ends = np.cumsum([entry.samples for entry in shards], dtype=np.int64)
        self._open: OrderedDict[int, tuple[Shard, dict[int, _CheckedColumn]]] = OrderedDict()

    def take(self, position: int, field: Field, numbers: NDArray[np.int64]) -> NDArray[Any] | list[NDArray[Any]]:
        """Return samples of one field as a block holds them: one array (m, *shape), or a list if the field is ragged.

        Args:
            position: number of the field in the dataset's schema.

        Raises:
            DamagedError: a shard cannot be read, or a frame's checksum is wrong.
        """
        if field.is_ragged:
            ragged: list[NDArray[Any]] = [np.empty(0)] * len(numbers)
            for places, column, local in self._columns(position, field, numbers):
                for place, value in zip(places.tolist(), column.take(local), strict=True):
                    ragged[place] = value
            return ragged
        shape: Any = field.shape
        fixed: NDArray[Any] = np.empty((len(numbers), *shape), str(field.dtype))
        for places, column, local in self._columns(position, field, numbers):
            fixed[places] = column.take_fixed(local)
        return fixed

    def shapes(self, position: int, field: Field, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the shape of each of the samples, (m, axes)."""
        if not field.is_ragged:
            return np.broadcast_to(np.array(field.shape, np.int64), (len(numbers), len(field.shape)))
        shapes = np.empty((len(numbers), len(field.shape)), np.int64)
        for places, column, local in self._columns(position, field, numbers):
            shapes[places] = column.shapes(local)
        return shapes

    def _columns(
        self, position: int, field: Field, numbers: NDArray[np.int64]
    ) -> Iterator[tuple[NDArray[np.int64], _CheckedColumn, NDArray[np.int64]]]:
        """Yield for each shard concerned places within `numbers`, the column, and numbers within the shard."""
        shard_of = self._ends.searchsorted(numbers, side="right")
        order = np.argsort(shard_of, kind="stable")
        cuts = np.flatnonzero(np.diff(shard_of[order])) + 1
        for places in np.split(order, cuts) if len(numbers) else []:
            shard = int(shard_of[places[0]])
            first = int(self._ends[shard]) - self._entries[shard].samples
            yield places, self._column(shard, position, field), numbers[places] - first

    def _column(self, number: int, position: int, field: Field) -> _CheckedColumn:
        entry = self._entries[number]
        if number not in self._open:
            self._open[number] = Shard(self._folder / entry.file, entry.bytes), {}
            if len(self._open) > MOST_OPEN:
                _close(*self._open.popitem(last=False)[1])
        self._open.move_to_end(number)
        shard, columns = self._open[number]
        if position not in columns:
            columns[position] = _CheckedColumn(shard, shard.column(position, field, entry.samples))
        return columns[position]

    def __enter__(self) -> _Shards:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for shard, columns in self._open.values():
            _close(shard, columns)


def _close(shard: Shard, columns: dict[int, _CheckedColumn]) -> None:
    columns.clear()  # they hold views of the shard's memory
    shard.close()


class _CheckedColumn:
    """A column that compares the checksum of every frame before it is used, once."""

    def __init__(self, shard: Shard, column: Column) -> None:
        column.index.check_samples(shard.path)
        self.index = column.index
        self._shard = shard
        self._column = column
        self._field = column.field
        self._good = np.zeros(column.index.frames, bool)

    def take(self, local: NDArray[np.int64]) -> list[NDArray[Any]]:
        """Return the samples of these numbers within the shard, each of its own shape."""
        order = np.argsort(local, kind="stable")
        sorted_ = local[order]
        # Neighbours, and samples of one frame with those between them, are decoded together.
        frame = sorted_ // (self._field.frame.samples or 1)
        cuts = np.flatnonzero((np.diff(sorted_) > 1) & (np.diff(frame) > 0)) + 1
        out: list[NDArray[Any]] = [np.empty(0)] * len(local)
        for places in np.split(order, cuts):
            start, stop = int(local[places[0]]), int(local[places[-1]]) + 1
            self._check(start, stop)
            found = self._column.read(start, stop)
            for place in places.tolist():
                value = found[int(local[place]) - start]
                out[place] = value.astype(value.dtype.newbyteorder("="), copy=False)
        return out

    def take_fixed(self, local: NDArray[np.int64]) -> NDArray[Any]:
        """Return the samples as one array, (m, *shape)."""
        if self._field.codec or not self._field.fixed_bytes:
            return np.stack(self.take(local))
        for start, stop in self._frame_runs(local):
            self._check(start, stop)
        return self._raw_rows(local)

    def _frame_runs(self, local: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
        """Yield runs of samples that lie in the same frames as those of `local`."""
        together = self._field.frame.samples or 1
        frames = np.unique(local // together)
        for run in np.split(frames, np.flatnonzero(np.diff(frames) > 1) + 1):
            yield int(run[0]) * together, min((int(run[-1]) + 1) * together, self.index.samples)

    def shapes(self, local: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the shape of each of the samples, (m, axes)."""
        return self._column.locate(local)[:, SHAPE:]

    def _raw_rows(self, local: NDArray[np.int64]) -> NDArray[Any]:
        """Return raw samples of one shape, straight out of the map."""
        size, file = self._field.fixed_bytes, np.frombuffer(self._shard.bytes, np.uint8)
        at = self._column.locate(local)[:, START]
        if size < MOST_ITEM_BYTES:
            # To numpy each sample is one opaque item, and so a gather one copy of memory a sample.
            item = np.dtype((np.void, size))
            out: NDArray[Any] = np.ndarray((len(file) - size + 1,), item, file.data, 0, (1,))[at]
        else:
            out = np.stack([file[start : start + size] for start in at.tolist()])
        shape: Any = self._field.shape
        return out.view(self._field.np_dtype).reshape(len(local), *shape)

    def _check(self, start: int, stop: int) -> None:
        """Compare the checksums of the frames that hold the samples start..stop.

        Raises:
            DamagedError: one is wrong.
        """
        frames = self._column.frames(start, stop)
        todo = Frames(*(part[~self._good[frames.number]] for part in frames))
        wrong = todo.number[self._column.is_wrong(todo)]
        if len(wrong):
            a, b = self.index.sample_range(int(wrong[0]))
            raise DamagedError(
                f"{self._shard.path}: field {self._field.name!r}, samples {a} to {b - 1} of the shard: "
                "the checksum is wrong; run `packer verify`, then `packer repair`"
            )
        self._good[todo.number] = True
