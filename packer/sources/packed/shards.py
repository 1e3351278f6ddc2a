"""The shards of a packed dataset while samples are taken out of them, by their numbers in the dataset."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import DamagedError
from packer.format.column import SHAPE, START, Column, Frames
from packer.format.manifest import ShardEntry
from packer.format.schema import Field
from packer.format.shard import Shard

#: Shards open at a time; each takes two of the 1,024 files that a process may usually have open.
MOST_OPEN = 128
#: Items of numpy's own types are smaller.
MOST_ITEM_BYTES = 2**31


class PackedShards:
    """Opens shards when they are asked for; a context manager that closes them."""

    def __init__(self, folder: str, shards: Sequence[ShardEntry]) -> None:
        self._folder = Path(folder)
        self._entries = shards
        self._ends = np.cumsum([entry.samples for entry in shards], dtype=np.int64)
        self._open: OrderedDict[int, _OpenShard] = OrderedDict()

    def take(self, position: int, field: Field, numbers: NDArray[np.int64]) -> NDArray[Any] | list[NDArray[Any]]:
        """Samples of one field, as a block holds them: one array (m, *shape), or a list where the field is ragged.

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
        """Shape of each of the samples, (m, axes)."""
        if not field.is_ragged:
            return np.broadcast_to(np.array(field.shape, np.int64), (len(numbers), len(field.shape)))
        shapes = np.empty((len(numbers), len(field.shape)), np.int64)
        for places, column, local in self._columns(position, field, numbers):
            shapes[places] = column.shapes(local)
        return shapes

    def _columns(
        self, position: int, field: Field, numbers: NDArray[np.int64]
    ) -> Iterator[tuple[NDArray[np.int64], _CheckedColumn, NDArray[np.int64]]]:
        """For each shard concerned: places within `numbers`, the column, and numbers within the shard."""
        shard_of = self._ends.searchsorted(numbers, side="right")
        order = np.argsort(shard_of, kind="stable")
        cuts = np.flatnonzero(np.diff(shard_of[order])) + 1
        for places in np.split(order, cuts) if len(numbers) else []:
            shard = int(shard_of[places[0]])
            first = int(self._ends[shard]) - self._entries[shard].samples
            yield places, self._shard(shard).column(position, field), numbers[places] - first

    def _shard(self, number: int) -> _OpenShard:
        if number not in self._open:
            entry = self._entries[number]
            self._open[number] = _OpenShard(Shard(self._folder / entry.file, entry.bytes), entry.samples)
            if len(self._open) > MOST_OPEN:
                self._open.popitem(last=False)[1].close()
        self._open.move_to_end(number)
        return self._open[number]

    def __enter__(self) -> PackedShards:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for shard in self._open.values():
            shard.close()


class _OpenShard:
    """A shard with the columns of it that were asked for."""

    def __init__(self, shard: Shard, samples: int) -> None:
        self._shard = shard
        self._samples = samples
        self._columns: dict[int, _CheckedColumn] = {}

    def column(self, position: int, field: Field) -> _CheckedColumn:
        if position not in self._columns:
            self._columns[position] = _CheckedColumn(self._shard, self._shard.column(position, field, self._samples))
        return self._columns[position]

    def close(self) -> None:
        self._columns = {}
        self._shard.close()


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
        """The samples of these numbers within the shard, each of its own shape."""
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
        """The samples as one array, (m, *shape)."""
        if self._field.codec or not self._field.fixed_bytes:
            return np.stack(self.take(local))
        for start, stop in self._frame_runs(local):
            self._check(start, stop)
        return self._raw_rows(local)

    def _frame_runs(self, local: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
        """Runs of samples that lie in the same frames as those of `local`."""
        together = self._field.frame.samples or 1
        frames = np.unique(local // together)
        for run in np.split(frames, np.flatnonzero(np.diff(frames) > 1) + 1):
            yield int(run[0]) * together, min((int(run[-1]) + 1) * together, self.index.samples)

    def shapes(self, local: NDArray[np.int64]) -> NDArray[np.int64]:
        """Shape of each of the samples, (m, axes)."""
        return self._column.locate(local)[:, SHAPE:]

    def _raw_rows(self, local: NDArray[np.int64]) -> NDArray[Any]:
        """Raw samples of one shape, straight out of the map."""
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
        """Compares the checksums of the frames that hold the samples start..stop.

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
