"""Some rows of some samples of one field, from the frames they lie in and no others.

Crops, regions and subsets of points all come down to this: for each of n samples, k rows, and of each row a stretch
that begins at a byte of the sample's own. Uncompressed, that is one gather for the whole batch; compressed,
one decode for every frame touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace
from numpy.typing import NDArray

from packer.codecs.frames import FrameCodec
from packer.codecs.stages import Buffer
from packer.errors import UsageError
from packer.format.column import BEFORE, SHAPE, START, STORED
from packer.format.schema import Field, FrameRule
from readers.arrays import TORCH_DTYPES, Allocate, Numbers
from readers.fields import damaged
from readers.gather import Records, fresh
from readers.shard_map import Places


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
    """Return the field of parts of one shape, (...), of the samples of another field.

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
        places: where its samples lie.
    """

    def __init__(self, places: Places) -> None:
        self.field = places.field
        self._places = places
        self._memory = places.memory
        self._codec = FrameCodec(self.field.codec, self.field.np_dtype, self.field.channels)
        self._windows: dict[tuple[torch.dtype, int], Records] = {}

    def locate(self, numbers: Numbers) -> Numbers:
        """Return the places of samples (n,), (n, SHAPE + axes)."""
        return self._places.locate(numbers)

    def spans(self, located: Numbers, first: Numbers, last: Numbers) -> Numbers:
        """Return address and size of the bytes that hold the rows `first` (n,) to `last` (n,), the last too, (n, 2)."""
        rows = self.field.frame.rows
        if not self.field.codec:
            row = self._row_bytes(located)
            return np.stack([located[:, START] + first * row, (last - first + 1) * row], axis=1)
        if rows is None:
            return located[:, [START, STORED]]
        item = np.arange(len(located))
        start = self._places.some_frames(located, item, first // rows).spans[:, 0]
        end = self._places.some_frames(located, item, last // rows).spans[:, 1]
        return np.stack([start, end - start], axis=1)

    def read(self, located: Numbers, wanted: Wanted, allocate: Allocate | None = None) -> torch.Tensor:
        """Return the parts of rows, (n, k, length) uint8, in new memory or in what `allocate` gives.

        Raises:
            DamagedError: a frame cannot be decoded.
        """
        n, k = wanted.rows.shape
        if not n * k * wanted.length:
            return fresh(0).view(n, k, wanted.length)
        if not self.field.codec:
            return self._gathered(located, wanted, allocate).view(n, k, wanted.length)
        out = (allocate or fresh)(n * k * wanted.length)
        try:
            self._decode(located, wanted, out.numpy().reshape(n * k, wanted.length))
        except ValueError as error:
            raise damaged(self.field.name, error) from None
        return out.view(n, k, wanted.length)

    def _gathered(self, located: Numbers, wanted: Wanted, allocate: Allocate | None) -> torch.Tensor:
        """One gather over the memory of all shards."""
        starts = located[:, START] + wanted.starts
        records = (wanted.rows * self._row_bytes(located)[:, None] + starts[:, None]).reshape(-1)
        unit = _unit(records, wanted.length)
        records //= unit.itemsize
        return self._window(unit, wanted.length).tensor(records, allocate)

    def _window(self, unit: torch.dtype, length: int) -> Records:
        key = (unit, length)
        window = self._windows.get(key)
        if window is None:
            window = self._memory.records(unit, np.uint8, (length,))
            self._windows = {key: window}  # the last one: regions of all sizes may be asked for
        return window

    def _decode(self, located: Numbers, wanted: Wanted, out: NDArray[np.uint8]) -> None:
        touched = Touched.of(wanted.rows, self.field.frame.rows)
        starts = wanted.starts[touched.item].tolist()
        frames = self._frames(located, touched)
        if self._codec.filter is None:
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
        self._undo_filter(cut.view(self.field.np_dtype), located[touched.item, SHAPE + 2])
        np.take(cut.reshape(-1, wanted.length), touched.frame * depth + touched.row, axis=0, out=out, mode="clip")

    def _undo_filter(self, rows: NDArray[Any], channels: Numbers) -> None:
        """Undo the filter of rows (n, depth, values) of images that have so many channels, (n,), in place."""
        if self.field.channels:
            self._codec.undo_filter(rows.reshape(*rows.shape[:2], -1, self.field.channels))
            return
        for count in np.unique(channels).tolist():
            alike = rows[channels == count]
            self._codec.undo_filter(alike.reshape(*alike.shape[:2], -1, count))
            rows[channels == count] = alike

    def _frames(self, located: Numbers, touched: Touched) -> Iterator[tuple[int, NDArray[np.uint8]]]:
        """Yield number and rows of each touched frame of a sample, (rows, bytes of a row), in the order of the file.

        A frame that several samples share gives the rows of one sample at a time, and is decoded once. Differences of
        rows are not undone.

        Raises:
            ValueError: a frame is damaged.
            DamagedError: an index is.
        """
        frames = self._places.some_frames(located, touched.item, touched.band)
        of = located[touched.item]
        widths = self._row_bytes(of)
        counts = of[:, SHAPE] if self.field.frame.rows is None else frames.sizes // np.maximum(widths, 1)
        parts = np.stack([frames.sizes, of[:, BEFORE], counts, widths], axis=1).tolist()
        decoded: Buffer = b""
        held = -1
        for number in frames.spans[:, 0].argsort(kind="stable").tolist():
            start, end = frames.spans[number].tolist()
            size, before, rows, width = parts[number]
            if start != held:
                decoded, held = self._codec.decode(self._memory.bytes[start:end], size), start
            yield number, np.frombuffer(decoded, np.uint8, rows * width, before).reshape(rows, width)

    def _row_bytes(self, located: Numbers) -> Numbers:
        """Bytes of a row of each sample, (n,)."""
        size: Numbers = located[:, SHAPE + 1 :].prod(axis=1) * self.field.itemsize
        return size


@dataclass(frozen=True)
class Touched:
    """The frames that rows lie in.

    Attributes:
        item: which sample of the batch each frame is of, (f,).
        band: which of that sample's bands it is, (f,); 0 if samples are not stored in bands.
        frame: number of the frame of each row asked for, (n * k,).
        row: number of that row within its frame, or within its sample if there are no bands, (n * k,).
    """

    item: Numbers
    band: Numbers
    frame: Numbers
    row: Numbers

    @classmethod
    def of(cls, rows: Numbers, band_rows: int | None) -> Touched:
        """Return the frames of rows (n, k) of n samples."""
        n, k = rows.shape
        item = np.arange(n)
        if band_rows is None:
            return cls(item, np.zeros(n, np.int64), item.repeat(k), rows.reshape(-1))
        band, row = np.divmod(rows, band_rows)
        bands = int(band.max()) + 1
        found, frame = np.unique(item[:, None] * bands + band, return_inverse=True)
        return cls(found // bands, found % bands, frame.reshape(-1), row.reshape(-1))

    def places(self) -> Iterator[Numbers]:
        """For each frame, which of the rows asked for lie in it."""
        order = self.frame.argsort(kind="stable")
        ends = np.bincount(self.frame, minlength=len(self.item)).cumsum()
        start = 0
        for end in ends.tolist():
            yield order[start:end]
            start = end


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


def read_region(
    source: SampleRows,
    number: int,
    rows: slice | None,
    columns: slice | None,
    check: Callable[[Numbers, Numbers], None] | None = None,
) -> torch.Tensor:
    """Return rows `rows` (first axis) and columns `columns` (second axis) of sample `number`, in the order of its axes.

    Only the frames that hold these rows are read. Slices are those of Python, cut off at the sample's edges; they may
    step; of columns, what lies between the steps is read too.

    Args:
        check: called with the number (1,) and the address and size of what is read (1, 2) before it is.

    Raises:
        UsageError: the field is text or has no such axes, or a slice is none that a tensor takes.
        DamagedError: what is stored cannot be decoded.
    """
    field, numbers = source.field, np.array([number], np.int64)
    _check_region(field, rows, columns)
    located = source.locate(numbers)
    shape = located[0, SHAPE:].tolist()
    wanted_rows = np.arange(shape[0])[rows or slice(None)]
    first, stop, step = (columns or slice(None)).indices(shape[1] if len(shape) > 1 else 1)
    stop = max(first, stop)
    cell = field.itemsize * int(np.prod(shape[2:], dtype=np.int64))
    if check and len(wanted_rows):
        check(numbers, source.spans(located, wanted_rows[:1], wanted_rows[-1:]))
    wanted = Wanted(wanted_rows[None], np.array([first * cell]), (stop - first) * cell)
    flat = source.read(located, wanted).view(-1).view(TORCH_DTYPES[field.dtype])
    if len(shape) == 1:
        return flat
    region = flat.view(len(wanted_rows), stop - first, *shape[2:])
    return region if step == 1 else region[:, ::step].contiguous()


def _check_region(field: Field, rows: slice | None, columns: slice | None) -> None:
    if field.kind == "text":
        raise UsageError(f"field {field.name!r} is text, which has no rows; ds[i] reads it")
    for axis, (name, wanted) in enumerate((("rows", rows), ("columns", columns))):
        if wanted is None:
            continue
        if not isinstance(wanted, slice):
            raise UsageError(f"{name} {wanted!r}: a slice is expected, such as slice(0, 64)")
        if len(field.shape) <= axis:
            raise UsageError(f"field {field.name!r} has {len(field.shape)} axes and so no {name}; leave {name} out")
        if wanted.step is not None and wanted.step < 1:
            raise UsageError(f"{name} {wanted!r}: steps from 1 on are expected; tensors have no others")
