"""Some rows of some samples of one field, from the frames they lie in and no others.

Crops, regions and subsets of points all come down to this: for each of n samples, k rows, and of each row a stretch
that begins at a byte of the sample's own. Uncompressed, that is one gather for the whole batch; compressed,
one decode for every frame touched.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from msgspec.structs import replace
from numpy.typing import NDArray

from packer.codecs import rowdelta
from packer.codecs.configs import FrameCodec
from packer.errors import UsageError
from packer.format.schema import Field, FrameRule
from readers.fixed import Allocate, FixedCoded, FixedRaw, damaged
from readers.fresh import fresh
from readers.memory import Memory
from readers.places import Numbers
from readers.touched import Decoder, Touched
from readers.varied import Varied
from readers.window import Window


@dataclass(frozen=True)
class Wanted:
    """Parts of rows of n samples.

    Attributes:
        rows: numbers of the rows, (n, k), in any order.
        starts: first byte of a row that is wanted, (n,).
        length: bytes of a row that are wanted, the same of all.
    """

    rows: Numbers
    starts: Numbers
    length: int


def part_of(field: Field, shape: tuple[int | None, ...]) -> Field:
    """The field of parts of one shape, (...), of the samples of another field.

    Raises:
        UsageError: such a part would be larger than a sample may be.
    """
    try:
        # Parts lie in no frames; what a frame of the whole field may hold says nothing of them.
        return replace(field, shape=shape, frame=FrameRule(samples=1))
    except ValueError as error:
        raise UsageError(f"what is to be read of each sample is too large: {error}") from None


class SampleRows:
    """Reads rows of the samples of one field.

    Args:
        reader: of the whole samples.
        memory: the mapped shards.
    """

    def __init__(self, reader: FixedRaw | FixedCoded | Varied, memory: Memory) -> None:
        self.field = reader.field
        self._reader = reader
        self._memory = memory
        self._codec = FrameCodec(self.field.codec, self.field.np_dtype)
        self._windows: dict[tuple[torch.dtype, int], Window] = {}

    def locate(self, numbers: Numbers) -> Numbers:
        """Places of samples (n,), (n, m)."""
        located = self._reader.locate(numbers)
        return located if located.ndim > 1 else located[:, None]

    def shapes(self, located: Numbers) -> Numbers:
        """Shape of each sample, (n, axes)."""
        return self._reader.shapes(self._whole(located))

    def spans(self, located: Numbers, first: Numbers, last: Numbers) -> Numbers:
        """Address and size of the bytes that hold the rows `first` (n,) to `last` (n,), the last included, (n, 2)."""
        place = self._whole(located)
        spans = self._reader.spans(place)
        if not self.field.codec:
            row = self._row_bytes(located)
            return np.stack([spans[:, 0] + first * row, (last - first + 1) * row], axis=1)
        rows = self.field.frame.rows
        if rows is None or isinstance(self._reader, FixedRaw):
            return spans
        item = np.arange(len(located))
        start = self._reader.some_frames(place, item, first // rows).spans[:, 0]
        end = self._reader.some_frames(place, item, last // rows).spans[:, 1]
        return np.stack([start, end - start], axis=1)

    def read(self, located: Numbers, wanted: Wanted, allocate: Allocate | None = None) -> torch.Tensor:
        """The parts of rows, (n, k, length) uint8, in new memory or in what `allocate` gives.

        Raises:
            DamagedError: a frame cannot be decoded.
        """
        n, k = wanted.rows.shape
        if not n * k * wanted.length:
            return fresh(0).view(n, k, wanted.length)
        if isinstance(self._reader, FixedRaw) or not self.field.codec:
            return self._gathered(located, wanted, allocate).view(n, k, wanted.length)
        out = (allocate or fresh)(n * k * wanted.length)
        try:
            self._decode(self._reader, located, wanted, out.numpy().reshape(n * k, wanted.length))
        except ValueError as error:
            raise damaged(self.field.name, error) from None
        return out.view(n, k, wanted.length)

    def _gathered(self, located: Numbers, wanted: Wanted, allocate: Allocate | None) -> torch.Tensor:
        """One gather over the memory of all shards."""
        starts = self._reader.spans(self._whole(located))[:, 0] + wanted.starts
        records = (wanted.rows * self._row_bytes(located)[:, None] + starts[:, None]).reshape(-1)
        unit = _unit(records, wanted.length)
        records //= unit.itemsize
        out = allocate and allocate(len(records) * wanted.length)
        return self._window(unit, wanted.length).tensor(records, out)

    def _window(self, unit: torch.dtype, length: int) -> Window:
        key = (unit, length)
        window = self._windows.get(key)
        if window is None:
            window = self._memory.window(unit, np.uint8, (length,))
            self._windows = {key: window}  # the last one: regions of all sizes may be asked for
        return window

    def _decode(self, reader: FixedCoded | Varied, located: Numbers, wanted: Wanted, out: NDArray[np.uint8]) -> None:
        touched = Touched.of(wanted.rows, self.field.frame.rows)
        starts = wanted.starts[touched.item].tolist()
        frames = Decoder(reader, self._memory, self._codec).frames(located, touched)
        if not self._codec.rowdelta:
            places = list(touched.places())
            records = _records(out)
            for number, frame in frames:
                place = places[number]
                part = _columns(frame, starts[number], wanted.length)
                records[place] = _records(part.take(touched.row[place], axis=0))
            return
        # Undone for all frames at once, and for the columns that are wanted: 64 of 2040 pixels are a thirtieth.
        depth = int(touched.row.max()) + 1
        cut = np.empty((len(starts), depth, wanted.length), np.uint8)
        for number, frame in frames:
            rows = frame[:depth, starts[number] : starts[number] + wanted.length]
            cut[number, : len(rows)] = rows
        rowdelta.accumulate(cut.view(self.field.np_dtype))
        np.take(cut.reshape(-1, wanted.length), touched.frame * depth + touched.row, axis=0, out=out, mode="clip")

    def _row_bytes(self, located: Numbers) -> Numbers:
        """Bytes of a row of each sample, (n,)."""
        size: Numbers = self.shapes(located)[:, 1:].prod(axis=1) * self.field.itemsize
        return size

    def _whole(self, located: Numbers) -> Numbers:
        """Places as the reader of whole samples has them."""
        return located.reshape(-1) if isinstance(self._reader, FixedRaw) else located


def _columns(frame: NDArray[np.uint8], start: int, length: int) -> NDArray[np.uint8]:
    """Columns `start` to `start + length` of the rows of a frame, without gaps."""
    return frame if length == frame.shape[1] else np.ascontiguousarray(frame[:, start : start + length])


def _records(rows: NDArray[np.uint8]) -> NDArray[np.void]:
    """Rows (n, length) as n items, which numpy puts in other places twice as fast."""
    flat: NDArray[np.void] = rows.view(f"V{rows.shape[1]}").reshape(-1)
    return flat


def _unit(records: Numbers, length: int) -> torch.dtype:
    """The longest elements that records at these addresses, of `length` bytes, are made of."""
    odd = int(np.bitwise_or.reduce(records)) | length
    return next(unit for unit in (torch.int64, torch.int32, torch.int16, torch.uint8) if not odd % unit.itemsize)
