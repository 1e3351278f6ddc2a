"""Some rows of some samples of one field, from the frames they lie in and no others.

Crops, regions and subsets of points all come down to this: for each of n samples, k rows, and of each row a stretch
that begins at a byte of the sample's own. Uncompressed, that is one gather for the whole batch; compressed,
one decode for every frame touched.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace
from numpy.typing import NDArray

from packer.codecs.frames import FrameCodec, Frames
from packer.errors import UsageError
from packer.format.column import BEFORE, BYTES, DECODED, SHAPE, START, STORED
from packer.format.schema import Field, FrameRule
from readers.arrays import TORCH_DTYPES, Allocate, Numbers
from readers.fields import damaged, distinct
from readers.gather import Records, fresh
from readers.shard_map import Places

#: Frames are decoded so many bytes at a time: what is copied from them is still in the processor's cache.
DECODED_BYTES = 2**20


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
        axis: the axis whose indexes are rows; with axes before it, rows are counted through all of these: of an array
            (T, H, W) with axis 1, row `t * H + y` is row `y` of step `t`.
    """

    def __init__(self, places: Places, axis: int = 0) -> None:
        self.field = places.field
        self.axis = axis
        self._places = places
        self._memory = places.memory
        self._codec = FrameCodec(self.field.codec, self.field.np_dtype, self.field.channels)
        self._windows: dict[tuple[torch.dtype, int], Records] = {}

    def locate(self, numbers: Numbers) -> Numbers:
        """Return the places of samples (n,), (n, SHAPE + axes)."""
        return self._places.locate(numbers)

    def spans(self, located: Numbers, first: Numbers, last: Numbers) -> Numbers:
        """Return address and size of the bytes that hold the rows `first` (n,) to `last` (n,), the last too, (n, 2)."""
        if not self.field.codec:
            row = self._row_bytes(located)
            return np.stack([located[:, START] + first * row, (last - first + 1) * row], axis=1)
        rows = self._band_rows(located)
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
        kept_raw = self._codec.filter is None and (located[:, STORED] == located[:, DECODED]).all()
        if not self.field.codec or kept_raw:
            return self._gathered(located, wanted, allocate).view(n, k, wanted.length)
        out = (allocate or fresh)(n * k * wanted.length)
        try:
            self._decode(located, wanted, out.numpy())
        except ValueError as error:
            raise damaged(self.field.name, error) from None
        return out.view(n, k, wanted.length)

    def _gathered(self, located: Numbers, wanted: Wanted, allocate: Allocate | None) -> torch.Tensor:
        """One gather over the memory of all shards."""
        starts = located[:, START] + located[:, BEFORE] + wanted.starts
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
        """Decode each frame that is touched once, some at a time, and copy the rows that lie in them."""
        touched = Touched.of(wanted.rows, self._band_rows(located))
        of = located[touched.item]
        frames = self._places.some_frames(located, touched.item, touched.band)
        each = distinct(frames.spans[:, 0])
        spans, sizes = frames.spans[each.item], frames.sizes[each.item]
        by_frame = each.inverse[touched.frame]
        into = _records(out, wanted.length)
        if self._codec.filter is None and (sizes == wanted.length).all():
            # Each frame is one row that is wanted whole, such as a step of a clip: it is decoded to where it goes.
            rows = np.arange(len(by_frame))
            place = np.empty(len(sizes), np.int64)
            place[by_frame] = rows
            self._codec.decode_frames(self._memory.bytes, Frames(spans, sizes, place * wanted.length), out)
            again = np.flatnonzero(place[by_frame] != rows)
            into[again] = into[place[by_frame[again]]]
            return
        starts, widths = of[:, BEFORE] + wanted.starts[touched.item], self._row_bytes(of)
        groups = _groups(sizes, by_frame)
        room = np.empty(max(int(sizes[first:stop].sum()) for first, stop, _ in groups), np.uint8)
        for first, stop, some in groups:
            decoded = room[: sizes[first:stop].sum()]
            self._codec.decode_frames(self._memory.bytes, Frames(spans[first:stop], sizes[first:stop]), decoded)
            before = np.zeros(len(sizes), np.int64)
            before[first + 1 : stop] = sizes[first : stop - 1].cumsum()
            at, row = (before[each.inverse] + starts), touched.row[some]
            part = touched.frame[some]
            if self._codec.filter is None:
                into[some] = _items(decoded, wanted.length)[at[part] + row * widths[part]]
                continue
            # Undone for the columns that are wanted: 64 of 2040 pixels are a thirtieth.
            parts, local = np.unique(part, return_inverse=True)
            depth = np.arange(int(row.max()) + 1)
            held = (frames.sizes if self.field.frame.rows else of[:, BYTES])[parts] // widths[parts]
            rows = at[parts, None] + np.minimum(depth, held[:, None] - 1) * widths[parts, None]
            cut = _items(decoded, wanted.length)[rows.reshape(-1)]
            values = cut.view(self.field.np_dtype).reshape(len(parts), len(depth), -1)
            self._undo_filter(values, of[parts, SHAPE + 2])
            into[some] = cut[local * len(depth) + row]

    def _undo_filter(self, rows: NDArray[Any], channels: Numbers) -> None:
        """Undo the filter of rows (n, depth, values) of images that have so many channels, (n,), in place."""
        if self.field.channels:
            self._codec.undo_filter(rows.reshape(*rows.shape[:2], -1, self.field.channels))
            return
        for count in np.unique(channels).tolist():
            alike = rows[channels == count]
            self._codec.undo_filter(alike.reshape(*alike.shape[:2], -1, count))
            rows[channels == count] = alike

    def _band_rows(self, located: Numbers) -> Numbers | None:
        """Rows of a band of each sample, (n,); None if frames hold whole samples."""
        rows = self.field.frame.rows
        return None if rows is None else rows * located[:, SHAPE + 1 : SHAPE + 1 + self.axis].prod(axis=1)

    def _row_bytes(self, located: Numbers) -> Numbers:
        """Bytes of a row of each sample, (n,)."""
        size: Numbers = located[:, SHAPE + 1 + self.axis :].prod(axis=1) * self.field.itemsize
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
    def of(cls, rows: Numbers, band_rows: Numbers | None) -> Touched:
        """Return the frames of rows (n, k) of n samples, whose bands have so many rows, (n,)."""
        n, k = rows.shape
        item = np.arange(n)
        if band_rows is None:
            return cls(item, np.zeros(n, np.int64), item.repeat(k), rows.reshape(-1))
        if (band_rows == 1).all():
            return cls(item.repeat(k), rows.reshape(-1), np.arange(n * k), np.zeros(n * k, np.int64))
        band, row = np.divmod(rows, band_rows[:, None])
        bands = int(band.max()) + 1
        found, frame = np.unique(item[:, None] * bands + band, return_inverse=True)
        return cls(found // bands, found % bands, frame.reshape(-1), row.reshape(-1))


def _groups(sizes: Numbers, by_frame: Numbers) -> list[tuple[int, int, Any]]:
    """Return first and stop of the frames (m,) that are decoded at once, a few bytes or one, and which rows they hold.

    Args:
        by_frame: the frame of each row, (r,).
    """
    edges = [0, *(np.flatnonzero(np.diff(sizes.cumsum() // DECODED_BYTES)) + 1).tolist(), len(sizes)]
    if len(edges) == 2:
        return [(0, len(sizes), slice(None))]
    order = by_frame.argsort(kind="stable")
    rows = np.split(order, by_frame[order].searchsorted(edges[1:-1]))
    return list(zip(edges[:-1], edges[1:], rows, strict=True))


def _records(memory: NDArray[np.uint8], length: int) -> NDArray[np.void]:
    """Return some memory as items of `length` bytes, one after another."""
    return memory.view(np.dtype((np.void, length)))


def _items(memory: NDArray[np.uint8], length: int) -> NDArray[np.void]:
    """Return what begins at each byte of some memory as items of `length` bytes, which overlap."""
    return np.ndarray((len(memory) - length + 1,), np.dtype((np.void, length)), memory.data, 0, (1,))


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
