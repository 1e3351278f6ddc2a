"""Some rows of some samples of one field, from the frames they lie in and no others.

Crops, windows, subsets of points and regions all come down to this: k rows of each of n samples, and of each row a
stretch of one length, which begins at the same byte in all rows of a sample. For an uncompressed field that is one
gather for the whole batch; for a compressed one, one decode for every frame touched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.format import Field, FrameRule, Located, Numbers, distinct, items_of, starts_of
from readers.draws import Asked
from readers.fields import FieldReader, Places
from readers.gather import MEMORY, Allocate, fresh

#: How many bytes of frames are decoded at a time: few enough to be still in the processor's cache when rows are copied.
DECODED_BYTES = 2**20
#: Rows that follow one another are copied together if there are so many: each copy is a call.
LONG_STRETCH = 16


@dataclass(frozen=True)
class RowRanges:
    """Parts of rows of n samples.

    Attributes:
        rows: numbers of the rows, (n, k), in any order.
        starts: first byte of a row that is wanted, (n,).
        length: bytes of a row that are wanted, the same of all.
        together: how many rows are wanted from each of `rows` on; more than one only of rows that are wanted whole.
    """

    rows: Numbers
    starts: Numbers
    length: int
    together: int = 1

    @property
    def each(self) -> Numbers:
        """Return every row that is wanted, (n, k * together)."""
        if self.together == 1:
            return self.rows
        rows: Numbers = self.rows[:, :, None] + np.arange(self.together)
        return rows.reshape(len(rows), -1)


def part_field(field: Field, shape: tuple[int | None, ...]) -> Field:
    """Return the field of parts of one shape, (...), of the samples of another field.

    Raises:
        UsageError: such a part would be larger than a sample may be.
    """
    try:
        # Parts lie in no frames; codec and frame rule of the whole field do not apply to them.
        return replace(field, shape=shape, codec=(), frame=FrameRule(samples=1))
    except ValueError as error:
        raise UsageError(f"the part that is read of each sample is too large: {error}") from None


class PartReader(FieldReader):
    """Reads rows of the samples of one field. A subclass says which, by `_row_ranges`.

    Args:
        field: what is read, see `part_field`.
        places: where the whole samples lie.
        axis: the axis whose indexes are rows. Rows are counted through all axes before it: in an array (T, H, W) with
            axis 1, row `t * H + y` is row `y` of step `t`.
    """

    def __init__(self, field: Field, places: Places, axis: int = 0) -> None:
        super().__init__(field)
        self._places = places
        self._whole = places.field
        self._axis = axis

    def _row_ranges(self, located: Located) -> RowRanges:
        """Return which parts of which rows of the samples are wanted."""
        raise NotImplementedError

    def _finish(self, flat: torch.Tensor, located: Located) -> torch.Tensor:
        """Return the batch from the bytes of all parts, which lie one after another."""
        return self._shaped(flat, len(located))

    def locate(self, asked: Asked) -> Located:
        """Return where samples lie; a subclass adds arrays of its own."""
        return self._places.locate(asked.samples)

    def spans(self, located: Located) -> Numbers:
        """Return the first address of the rows of each sample, or of their frames, and the one after these, (n, 2)."""
        ranges = self._row_ranges(located)
        rows = ranges.rows
        if not rows.size:
            return np.zeros((len(located), 2), np.int64)
        first, last = rows.min(axis=1), rows.max(axis=1) + ranges.together - 1
        if not self._whole.codec:
            edges: Numbers = np.stack([first, last + 1], axis=1) * self._row_bytes(located)[:, None]
            return located.start[:, None] + edges
        if self._whole.frame.rows is None:
            return located.spans
        samples, band_rows = np.arange(len(located)), self._band_rows(located)
        ends = [self._places.frames(located, samples, row // band_rows).spans for row in (first, last)]
        return np.stack([ends[0][:, 0], ends[1][:, 1]], axis=1)

    def read(self, located: Located, allocate: Allocate | None = None) -> torch.Tensor:
        """Return the parts of the samples, (n, *shape), in new memory or in what `allocate` gives.

        Raises:
            DamagedError: a frame cannot be decoded.
        """
        ranges = self._row_ranges(located)
        length = ranges.length * ranges.together
        nbytes = ranges.rows.size * length
        if not nbytes:
            flat = fresh(0)
        elif self._is_raw(located):
            addresses = self._addresses(located, ranges).reshape(-1)
            alignment = int(np.bitwise_or.reduce(addresses, initial=0))
            flat = MEMORY.gather(addresses, length, alignment, torch.uint8, (length,), allocate).view(-1)
        else:
            flat = (allocate or fresh)(nbytes)
            self._decode(located, ranges, flat.numpy())
        return self._finish(flat, located)

    def _is_raw(self, located: Located) -> bool:
        """Return whether the samples lie in the shards as they are."""
        if not self._whole.codec:
            return True
        # Frames that their codec hardly shrank were kept raw.
        return not self._places.codec.is_photo and bool((located.stored == located.decoded).all())

    def _addresses(self, located: Located, ranges: RowRanges) -> Numbers:
        """Return the address of each of the rows of raw samples, (n, k)."""
        starts = located.start + located.before + ranges.starts
        addresses: Numbers = ranges.rows * self._row_bytes(located)[:, None] + starts[:, None]
        return addresses

    def _decode(self, located: Located, ranges: RowRanges, out: NDArray[np.uint8]) -> None:
        """Decode the pieces that are touched, each once, some at a time, and copy the rows that lie in them.

        Pieces are bands, or whole samples if frames hold these. What is copied at once are rows, or many that follow
        one another in a piece; `row` is the first of these.
        """
        sample_of_row, row, counts = self._stretches(located, ranges)
        if self._whole.frame.rows is None:
            _, first_of_piece, piece_of_row = distinct(located.number)
            pieces, piece_of_row = located[first_of_piece], piece_of_row[sample_of_row]
            sizes = pieces.nbytes
        else:
            band, row = np.divmod(row, self._band_rows(located)[sample_of_row])
            _, first_use, use_of_row = distinct(sample_of_row * (int(band.max()) + 1) + band)
            frames = self._places.frames(located, sample_of_row[first_use], band[first_use])
            _, first_of_piece, piece_of_row = distinct(frames.start)
            pieces, piece_of_row = frames[first_of_piece], piece_of_row[use_of_row]
            first_of_piece = first_use[first_of_piece]
            sizes = pieces.decoded
            if not self._places.codec.is_photo and (sizes == ranges.length).all():
                # Each band is one row that is wanted whole, such as a step of a clip: it is decoded to where it goes.
                target = out.view(np.dtype((np.void, ranges.length)))
                self._places.decode_frames(pieces, out, first_of_piece * ranges.length)
                repeated = np.flatnonzero(first_of_piece[piece_of_row] != np.arange(len(piece_of_row)))
                target[repeated] = target[first_of_piece[piece_of_row[repeated]]]
                return
        row_offsets = (row * self._row_bytes(located)[sample_of_row]) + ranges.starts[sample_of_row]
        lengths = np.zeros(0, np.int64) if counts is None else counts * ranges.length
        ends = lengths.cumsum()
        groups = _group_pieces(sizes, piece_of_row)
        buffer = np.empty(max(int(sizes[first:stop].sum()) for first, stop, _ in groups), np.uint8)
        target, piece_starts = out.view(np.dtype((np.void, ranges.length))), starts_of(sizes)
        for first, stop, group_rows in groups:
            decoded = buffer[: piece_starts[stop] - piece_starts[first]]
            if self._whole.frame.rows is None:
                self._places.decode(pieces[first:stop], decoded)
            else:
                self._places.decode_frames(pieces[first:stop], decoded)
            starts = row_offsets[group_rows] + piece_starts[piece_of_row[group_rows]] - piece_starts[first]
            if counts is None:
                target[group_rows] = items_of(decoded, ranges.length)[starts]
                continue
            of_group = zip(starts.tolist(), ends[group_rows].tolist(), lengths[group_rows].tolist(), strict=True)
            for start, end, length in of_group:
                out[end - length : end] = decoded[start : start + length]

    def _stretches(self, located: Located, ranges: RowRanges) -> tuple[Numbers, Numbers, Numbers | None]:
        """Return rows that follow one another in one piece, in order: of each the sample, the first, and how many.

        None for how many: each is one row.
        """
        if ranges.together < LONG_STRETCH or self._whole.frame.rows == 1:
            rows = ranges.each
            return np.arange(len(located)).repeat(rows.shape[1]), rows.reshape(-1), None
        sample, first = np.arange(len(located)).repeat(ranges.rows.shape[1]), ranges.rows.reshape(-1)
        if self._whole.frame.rows is None:
            return sample, first, np.full_like(first, ranges.together)
        band_rows, stop = self._band_rows(located)[sample], first + ranges.together
        band = first // band_rows
        pieces = (stop - 1) // band_rows - band + 1
        of = np.arange(len(first)).repeat(pieces)
        band = band[of] + np.arange(len(of)) - starts_of(pieces)[of]
        begins = np.maximum(first[of], band * band_rows[of])
        return sample[of], begins, np.minimum(stop[of], (band + 1) * band_rows[of]) - begins

    def _band_rows(self, located: Located) -> Numbers:
        """Return the rows of a band of each sample, (n,), if frames hold bands."""
        rows: Numbers = (self._whole.frame.rows or 1) * located.shape[:, 1 : 1 + self._axis].prod(axis=1)
        return rows

    def _row_bytes(self, located: Located) -> Numbers:
        """Return the bytes of a row of each sample, (n,)."""
        size: Numbers = located.shape[:, 1 + self._axis :].prod(axis=1) * self._whole.itemsize
        return size


def _group_pieces(sizes: Numbers, piece_of_row: Numbers) -> list[tuple[int, int, Any]]:
    """Return groups of the pieces (m,) that are decoded at once: start, stop, and the rows that lie in them.

    A group has about `DECODED_BYTES`, or is one larger piece.

    Args:
        piece_of_row: the piece in which each row lies, (r,).
    """
    edges = [0, *(np.flatnonzero(np.diff(sizes.cumsum() // DECODED_BYTES)) + 1).tolist(), len(sizes)]
    if len(edges) == 2:
        return [(0, len(sizes), slice(None))]
    order = piece_of_row.argsort(kind="stable")
    rows = np.split(order, piece_of_row[order].searchsorted(edges[1:-1]))
    return list(zip(edges[:-1], edges[1:], rows, strict=True))


class RegionReader(PartReader):
    """A region of one sample: some rows (first axis) and columns (second axis), in the order of its axes.

    Only the frames that these rows lie in are read. Slices are cut off at the sample's edges, as Python's are, and may
    have steps; the columns between the steps are read, but not returned.

    Raises:
        UsageError: the field is text or has no such axes, or an argument is no slice with a step of 1 or more.
    """

    def __init__(self, places: Places, rows: slice | None, columns: slice | None) -> None:
        super().__init__(places.field, places)
        self.run_bytes = 0  # what it reads has a size of its own
        if self.field.kind == "text":
            raise UsageError(f"field {self.field.name!r} is text, which has no rows; read it with ds[i]")
        for axis, (part_name, part) in enumerate((("rows", rows), ("columns", columns))):
            if part is None:
                continue
            if not isinstance(part, slice):
                raise UsageError(f"{part_name} {part!r}: a slice is expected, such as slice(0, 64)")
            axes = len(self.field.shape)
            if axes <= axis:
                raise UsageError(f"field {self.field.name!r} has {axes} axes, so no {part_name}; leave {part_name} out")
            if part.step is not None and part.step < 1:
                raise UsageError(f"{part_name} {part!r}: a step of 1 or more is expected")
        self._rows, self._columns = rows or slice(None), columns or slice(None)

    def _row_ranges(self, located: Located) -> RowRanges:
        """Return the rows of the one sample (1,)."""
        shape = located.shape[0].tolist()
        start, stop, _ = self._columns.indices(shape[1] if len(shape) > 1 else 1)
        cell = self.field.itemsize * int(np.prod(shape[2:], dtype=np.int64))
        rows = np.arange(shape[0])[None, self._rows]
        return RowRanges(rows, np.array([start * cell]), max(stop - start, 0) * cell)

    def _finish(self, flat: torch.Tensor, located: Located) -> torch.Tensor:
        """Return the region, (1, rows, columns, ...)."""
        shape = located.shape[0].tolist()
        count = len(range(shape[0])[self._rows])
        if len(shape) == 1:
            return flat.view(self._dtype).view(1, count)
        start, stop, step = self._columns.indices(shape[1])
        region = flat.view(self._dtype).view(1, count, max(stop - start, 0), *shape[2:])
        return region if step == 1 else region[:, :, ::step].contiguous()
