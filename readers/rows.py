"""Some rows of some samples of one field, from the frames they lie in and no others.

Crops, windows, subsets of points and regions all come down to this: for each of n samples, k rows, and of each row a
stretch that begins at a byte of the sample's own. Uncompressed, that is one gather for the whole batch; compressed,
one decode for every frame touched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace
from numpy.typing import NDArray

from packer.codecs import Frames
from packer.errors import UsageError
from packer.format import BEFORE, BYTES, DECODED, SHAPE, START, STORED, Field, FrameRule, Numbers, items_of
from readers.draws import Visits
from readers.fields import Places, StoredReader, distinct
from readers.gather import Allocate, Records, fresh

#: How many bytes of frames are decoded at a time: what is copied from them is still in the processor's cache.
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
        raise UsageError(f"what is read of each sample is too large: {error}") from None


class PartReader(StoredReader):
    """Reads rows of the samples of one field. A subclass says which, by `_wanted`.

    Args:
        field: what is read, see `part_of`.
        places: where the whole samples lie.
        axis: the axis whose indexes are rows; with axes before it, rows are counted through all of these: of an array
            (T, H, W) with axis 1, row `t * H + y` is row `y` of step `t`.
    """

    def __init__(self, field: Field, places: Places, axis: int = 0) -> None:
        super().__init__(field, places)
        self._whole = places.field
        self._axis = axis
        self._records: dict[torch.dtype, Records] = {}
        #: The first column of a place that is the subclass's own.
        self._own = SHAPE + len(self._whole.shape)

    def _wanted(self, located: Numbers) -> Wanted:
        """Return which parts of which rows of the samples are wanted."""
        raise NotImplementedError

    def _finished(self, flat: torch.Tensor, located: Numbers) -> torch.Tensor:
        """Return what is handed out, from the bytes of all parts, one after another."""
        return self._shaped(flat, len(located))

    def locate(self, numbers: Numbers, visits: Visits | None = None, anchors: Numbers | None = None) -> Numbers:
        """Return the places of samples; a subclass adds columns of its own, (n, SHAPE + axes + own)."""
        return self._places.locate(numbers)

    def spans(self, located: Numbers) -> Numbers:
        """Return the address and size of the rows of each sample and of what lies between them, (n, 2)."""
        rows = self._wanted(located).rows
        if not rows.size:
            return np.zeros((len(located), 2), np.int64)
        first, last = rows.min(axis=1), rows.max(axis=1)
        if not self._whole.codec:
            row = self._row_bytes(located)
            return np.stack([located[:, START] + first * row, (last - first + 1) * row], axis=1)
        band_rows = self._band_rows(located)
        if band_rows is None:
            return located[:, [START, STORED]]
        item = np.arange(len(located))
        start = self._places.some_frames(located, item, first // band_rows).spans[:, 0]
        end = self._places.some_frames(located, item, last // band_rows).spans[:, 1]
        return np.stack([start, end - start], axis=1)

    def read(self, located: Numbers, allocate: Allocate | None = None) -> torch.Tensor:
        """Return the parts of the samples, (n, *shape), in new memory or in what `allocate` gives.

        Raises:
            DamagedError: a frame cannot be decoded.
        """
        wanted = self._wanted(located)
        nbytes = wanted.rows.size * wanted.length
        are_raw = self._codec.filter is None and (located[:, STORED] == located[:, DECODED]).all()
        if not nbytes:
            flat = fresh(0)
        elif not self._whole.codec or are_raw:
            flat = self._gathered(located, wanted, allocate)
        else:
            flat = (allocate or fresh)(nbytes)
            try:
                self._decode(located, wanted, flat.numpy())
            except ValueError as error:
                raise self._damaged(error) from None
        return self._finished(flat, located)

    def _gathered(self, located: Numbers, wanted: Wanted, allocate: Allocate | None) -> torch.Tensor:
        """Return the bytes of the parts, by one gather over the memory of all shards."""
        starts = located[:, START] + located[:, BEFORE] + wanted.starts
        at = (wanted.rows * self._row_bytes(located)[:, None] + starts[:, None]).reshape(-1)
        # The longest elements that records at these addresses, of this length, are made of.
        odd = int(np.bitwise_or.reduce(at)) | wanted.length
        units = torch.int64, torch.int32, torch.int16, torch.uint8
        unit = next(unit for unit in units if not odd % unit.itemsize)
        if unit not in self._records:  # of one length: that of a reader is always the same
            self._records[unit] = self._memory.records(unit, np.uint8, (wanted.length,))
        return self._records[unit].tensor(at // unit.itemsize, allocate)

    def _decode(self, located: Numbers, wanted: Wanted, out: NDArray[np.uint8]) -> None:
        """Decode each frame that is touched once, some at a time, and copy the rows that lie in them."""
        n, k = wanted.rows.shape
        item, row, band_rows = np.arange(n).repeat(k), wanted.rows.reshape(-1), self._band_rows(located)
        if band_rows is None:
            frames = self._places.some_frames(located, np.arange(n), np.zeros(n, np.int64))
        else:
            band, row = np.divmod(row, band_rows[item])
            frames = self._places.some_frames(located, item, band)
        _, each, inverse = distinct(frames.spans[:, 0])
        spans, sizes = frames.spans[each], frames.sizes[each]
        frame = inverse[item] if band_rows is None else inverse  # of each row
        into = out.view(np.dtype((np.void, wanted.length)))
        if band_rows is not None and self._codec.filter is None and (sizes == wanted.length).all():
            # Each frame is one row that is wanted whole, such as a step of a clip: it is decoded to where it goes.
            self._codec.decode_frames(self._memory.array.data, Frames(spans, sizes, each * wanted.length), out)
            again = np.flatnonzero(each[frame] != np.arange(len(frame)))
            into[again] = into[each[frame[again]]]
            return
        starts, widths = located[:, BEFORE] + wanted.starts, self._row_bytes(located)
        groups = _groups(sizes, frame)
        room = np.empty(max(int(sizes[start:stop].sum()) for start, stop, _ in groups), np.uint8)
        before = np.zeros(len(sizes), np.int64)
        for start, stop, some in groups:
            decoded = room[: sizes[start:stop].sum()]
            self._codec.decode_frames(self._memory.array.data, Frames(spans[start:stop], sizes[start:stop]), decoded)
            before[start + 1 : stop] = sizes[start : stop - 1].cumsum()
            own, of = item[some], frame[some]
            at = before[of] + starts[own]
            if self._codec.filter is None:
                into[some] = items_of(decoded, wanted.length)[at + row[some] * widths[own]]
                continue
            # Undone for the columns that are wanted alone, once for each sample and frame.
            _, one, local = distinct(own * len(sizes) + of)
            owner, depth = own[one], np.arange(int(row[some].max()) + 1)
            held = (located[owner, BYTES] if band_rows is None else sizes[of[one]]) // widths[owner]
            rows = at[one, None] + np.minimum(depth, held[:, None] - 1) * widths[owner, None]
            cut = items_of(decoded, wanted.length)[rows.reshape(-1)]
            values = cut.view(self.field.np_dtype).reshape(*rows.shape, -1)
            self._undo_filter(values, located[owner, SHAPE + 2])
            into[some] = cut[local * len(depth) + row[some]]

    def _undo_filter(self, rows: NDArray[Any], channels: Numbers) -> None:
        """Undo the filter of rows (n, depth, values) of images that have these numbers of channels, (n,), in place."""
        for count in np.unique(channels).tolist():
            alike = rows[channels == count]
            self._codec.undo_filter(alike.reshape(*alike.shape[:2], -1, count))
            rows[channels == count] = alike

    def _band_rows(self, located: Numbers) -> Numbers | None:
        """Return the rows of a band of each sample, (n,); None if frames hold whole samples."""
        rows = self._whole.frame.rows
        return None if rows is None else rows * located[:, SHAPE + 1 : SHAPE + 1 + self._axis].prod(axis=1)

    def _row_bytes(self, located: Numbers) -> Numbers:
        """Return the bytes of a row of each sample, (n,)."""
        size: Numbers = located[:, SHAPE + 1 + self._axis : self._own].prod(axis=1) * self.field.itemsize
        return size


def _groups(sizes: Numbers, frame: Numbers) -> list[tuple[int, int, Any]]:
    """Return start and stop of the frames (m,) that are decoded at once, a few bytes or one, and which rows they hold.

    Args:
        frame: that of each row, (r,).
    """
    edges = [0, *(np.flatnonzero(np.diff(sizes.cumsum() // DECODED_BYTES)) + 1).tolist(), len(sizes)]
    if len(edges) == 2:
        return [(0, len(sizes), slice(None))]
    order = frame.argsort(kind="stable")
    rows = np.split(order, frame[order].searchsorted(edges[1:-1]))
    return list(zip(edges[:-1], edges[1:], rows, strict=True))


class RegionReader(PartReader):
    """A region of one sample: some rows (first axis) and columns (second axis), in the order of its axes.

    Only the frames that these rows lie in are read. Slices are those of Python, cut off at the sample's edges; they may
    step; of columns, what lies between the steps is read too.

    Raises:
        UsageError: the field is text or has no such axes, or a slice is none that a tensor takes.
    """

    def __init__(self, places: Places, rows: slice | None, columns: slice | None) -> None:
        super().__init__(places.field, places)
        if self.field.kind == "text":
            raise UsageError(f"field {self.field.name!r} is text, which has no rows; read it with ds[i]")
        for axis, (name, wanted) in enumerate((("rows", rows), ("columns", columns))):
            if wanted is None:
                continue
            if not isinstance(wanted, slice):
                raise UsageError(f"{name} {wanted!r}: a slice is expected, such as slice(0, 64)")
            axes = len(self.field.shape)
            if axes <= axis:
                raise UsageError(f"field {self.field.name!r} has {axes} axes, so no {name}; leave {name} out")
            if wanted.step is not None and wanted.step < 1:
                raise UsageError(f"{name} {wanted!r}: a step of 1 or more is expected")
        self._rows, self._columns = rows or slice(None), columns or slice(None)

    def _wanted(self, located: Numbers) -> Wanted:
        """Return the rows of the one sample (1,)."""
        shape = located[0, SHAPE : self._own].tolist()
        start, stop, _ = self._columns.indices(shape[1] if len(shape) > 1 else 1)
        cell = self.field.itemsize * int(np.prod(shape[2:], dtype=np.int64))
        rows = np.arange(shape[0])[None, self._rows]
        return Wanted(rows, np.array([start * cell]), max(stop - start, 0) * cell)

    def _finished(self, flat: torch.Tensor, located: Numbers) -> torch.Tensor:
        """Return the region, (1, rows, columns, ...)."""
        shape = located[0, SHAPE : self._own].tolist()
        count = len(range(shape[0])[self._rows])
        if len(shape) == 1:
            return flat.view(self._dtype).view(1, count)
        start, stop, step = self._columns.indices(shape[1])
        region = flat.view(self._dtype).view(1, count, max(stop - start, 0), *shape[2:])
        return region if step == 1 else region[:, :, ::step].contiguous()
