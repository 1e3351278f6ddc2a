"""Finds the samples of a field, and decodes those of one shard. Nothing else knows which frames hold a sample.

`Locator` works for one shard or for all of a dataset, for both frame rules, ragged or not, and for a whole batch at
once. `Column` reads one shard with it: for verifying, exporting and packing again. Training reads through `readers`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.codecs import FrameCodec, frame_hashes
from packer.errors import DamagedError
from packer.format.column_index import ColumnIndex
from packer.format.layout import MAX_CHUNK_BYTES
from packer.format.schema import MAX_AXIS, Field

Numbers = NDArray[np.int64]

#: The columns of what `Locator.locate` returns:
#:
#:     SHARD        the shard of the sample
#:     FRAME        number in that shard of its first frame
#:     FRAMES       how many frames it has
#:     START        address of the stored bytes of these frames
#:     STORED       how many stored bytes these are
#:     BEFORE       where the sample starts in what they decode to
#:     DECODED      how many bytes they decode to
#:     BYTES        bytes of the sample itself
#:     SHAPE, ...   length of each of its axes
#:
#: If the field is not compressed, START to DECODED are of the sample itself, whatever else its frames hold.
SHARD, FRAME, FRAMES, START, STORED, BEFORE, DECODED, BYTES, SHAPE = range(9)

#: What wrong numbers in an index lead to, wherever they are first used.
_DAMAGE = (ValueError, IndexError, OverflowError, MemoryError)
#: Frames checked at a time: enough that the array of their checksums costs nothing, few enough for a progress bar.
_CHECKED = 4096


class LocatedFrames(NamedTuple):
    """Some frames, as an index tells of them; what a codec takes are the `Frames` of `packer.codecs.frames`.

    Attributes:
        item: which of the located samples each is of, (m,).
        number: its number in the shard, (m,).
        spans: start and end in memory of its stored bytes, (m, 2).
        sizes: bytes that it decodes to, (m,).
    """

    item: Numbers
    number: Numbers
    spans: Numbers
    sizes: Numbers


class Locator:
    """Finds the samples of one field in some shards. It holds a few numbers a chunk and a shard, none a sample.

    Args:
        indexes: of the field's column in each shard; the arrays are views into `memory`.
        memory: bytes in which all these shards lie, (n,) uint8.
        starts: where each shard starts in it, (shards,).
        path: the shard, if there is but one, for messages.

    Attributes:
        first: number of the first sample of each shard and the number after the last, (shards + 1,).
        ends: number of the sample after each chunk, over all shards, (chunks,).
        span_at: address of byte 0 of the column's stored bytes, as seen from each chunk, (chunks,).
    """

    def __init__(
        self, field: Field, indexes: Sequence[ColumnIndex], memory: NDArray[np.uint8], starts: Numbers, path: str = ""
    ) -> None:
        self.field = field
        self.indexes = indexes
        self._bytes = memory
        self._path = path
        self.first: Numbers = np.cumsum([0, *(index.samples for index in indexes)], dtype=np.int64)
        tables = [_chunk_table(self.first[s], starts[s], index) for s, index in enumerate(indexes)]
        joined = np.concatenate([np.zeros((0, 4), np.int64), *tables])
        self.span_at, self._low, self._high, self.ends = np.ascontiguousarray(joined.T)
        # The last chunk takes every number after it too: samples of no bytes may have no chunk at all.
        self._edges = self.ends[:-1]
        self._total = np.array([index.frames for index in indexes], np.int64)
        self._axes = field.ragged_axes
        self._size, self._band_count = field.fixed_bytes, field.bands if field.frame.rows is not None else 1
        #: What samples have in common, so far as they do.
        self._alike: Numbers = np.array([0] * SHAPE + [n or 0 for n in field.shape], np.int64)
        self._alike[[BYTES, DECODED]] = self._size
        self._alike[FRAMES] = self._band_count
        self._records: dict[int, NDArray[Any]] = {}
        names = indexes[0].arrays if indexes else ()
        base = _position(memory)
        #: Where each index array of each shard starts in memory.
        self._arrays = {name: np.array([_position(i.arrays[name]) - base for i in indexes], np.int64) for name in names}

    def shard_of(self, numbers: Numbers) -> Numbers:
        """Return the shard of each sample, (n,)."""
        return self.first[1:-1].searchsorted(numbers, side="right")

    def chunk_of(self, numbers: Numbers) -> Numbers:
        """Return the chunk of each sample, counted over all shards, (n,)."""
        found: Numbers = self._edges.searchsorted(numbers, side="right")
        return found

    def lengths(self) -> Numbers:
        """Return the length of the first axis of every sample, (samples,).

        Raises:
            DamagedError: an index array is damaged.
        """
        if 0 not in self._axes:
            return np.full(self.first[-1], self.field.shape[0], np.int64)
        shapes = [index.arrays["shapes"][:, 0] for index in self.indexes]
        lengths = np.concatenate([np.zeros(0, np.uint64), *shapes])
        if (lengths > MAX_AXIS).any():
            raise self.damaged()
        return lengths.astype(np.int64)

    def locate(self, numbers: Numbers) -> Numbers:
        """Return where the samples (n,) lie, (n, SHAPE + axes); see SHARD and what follows it for the columns.

        Raises:
            DamagedError: an index array is damaged.
        """
        rule, size = self.field.frame, self._size
        shard = self.shard_of(numbers)
        local = numbers - self.first[shard]
        out = np.empty((len(numbers), len(self._alike)), np.int64)
        out[:] = self._alike
        out[:, SHARD] = shard
        own = None
        if self._axes:
            own = self._words("sample_offsets", shard, local, 2)
            self._put_shapes(numbers, local, own, out)
        frame = self._put_bands(numbers, local, out) if rule.samples is None else local // rule.samples
        out[:, FRAME] = frame
        if self.field.codec:
            if rule.samples is not None and rule.samples > 1:
                self._put_shared(numbers, local, own, out)
            ends = [self._words("frame_offsets", shard, at) for at in (frame, frame + out[:, FRAMES])]
            offsets = np.concatenate(ends, axis=1)
        else:
            offsets = np.stack([local * size, (local + 1) * size], axis=1) if own is None else own
        stored = self._addresses(numbers, offsets)
        out[:, START] = stored[:, 0]
        out[:, STORED] = stored[:, 1] - stored[:, 0]
        return out

    def frames(self, located: Numbers) -> LocatedFrames:
        """Return all frames of located samples, one sample after another; a frame that several share comes as often.

        Raises:
            DamagedError: an index array is damaged.
        """
        counts = located[:, FRAMES]
        item = np.arange(len(located)).repeat(counts)
        return self.some_frames(located, item, np.arange(len(item)) - (counts.cumsum() - counts)[item])

    def some_frames(self, located: Numbers, item: Numbers, band: Numbers) -> LocatedFrames:
        """Return the frames with number `band` (m,) among those of the samples `item` (m,) of `located`.

        Raises:
            DamagedError: an index array is damaged.
        """
        of = located[item]
        start, end = of[:, START], of[:, START] + of[:, STORED]
        if self.field.frame.rows is None:
            together, shard, frame = self.field.frame.samples or 1, of[:, SHARD], of[:, FRAME]
            if self.field.codec or together == 1:
                return LocatedFrames(item, frame, np.stack([start, end], axis=1), of[:, DECODED])
            # Uncompressed, a frame begins with its first sample and ends with its last.
            first = self.first[shard] + frame * together
            last = self.locate(np.minimum(first + together, self.first[shard + 1]) - 1)
            spans = np.stack([self.locate(first)[:, START], last[:, START] + last[:, STORED]], axis=1)
            if not ((spans[:, 0] <= start) & (end <= spans[:, 1])).all():
                raise self.damaged()
            return LocatedFrames(item, frame, spans, spans[:, 1] - spans[:, 0])
        rows, band_rows = of[:, SHAPE], self.field.frame.rows
        row_bytes = of[:, BYTES] // np.maximum(rows, 1)
        sizes = np.minimum(rows - band * band_rows, band_rows) * row_bytes
        if not self.field.codec:
            start = start + band * band_rows * row_bytes
            return LocatedFrames(item, of[:, FRAME] + band, np.stack([start, start + sizes], axis=1), sizes)
        edges = self._words("frame_offsets", of[:, SHARD], of[:, FRAME] + band, 2)
        spans = edges + (start - self._words("frame_offsets", of[:, SHARD], of[:, FRAME])[:, 0])[:, None]
        if not ((spans[:, 0] >= start) & (spans[:, 0] <= spans[:, 1]) & (spans[:, 1] <= end)).all():
            raise self.damaged()
        return LocatedFrames(item, of[:, FRAME] + band, spans, sizes)

    def checksums(self, located: Numbers, frames: LocatedFrames) -> NDArray[np.uint64]:
        """Return the checksum that each frame of located samples should have, (m,)."""
        return self._words("checksums", located[frames.item, SHARD], frames.number)[:, 0].view(np.uint64)

    def _addresses(self, numbers: Numbers, offsets: Numbers) -> Numbers:
        """Return the addresses of the offsets (n, 2) at which samples (n,) start and end in the stored bytes.

        Raises:
            DamagedError: they lie outside the chunk that holds the sample; reading there could crash.
        """
        if not len(self.span_at):
            self._check((offsets[:, 0] == 0) & (offsets[:, 1] == 0), numbers)
            return offsets
        chunk = self.chunk_of(numbers)
        addresses: Numbers = offsets + self.span_at.take(chunk)[:, None]
        start, end = addresses.T
        inside = (start >= self._low.take(chunk)) & (end <= self._high.take(chunk))
        # Samples of no bytes lie nowhere.
        self._check((start == end) | (start < end) & inside, numbers)
        return addresses

    def _check(self, sound: NDArray[np.bool_], numbers: Numbers) -> None:
        """Raise DamagedError, which names the first, if what indexes say of some of the samples (n,) is not sound."""
        if not sound.all():
            raise self.damaged(int(numbers[sound.argmin()]))

    def damaged(self, number: int | None = None) -> DamagedError:
        """Return the error of a damaged index; it names the sample `number`, if that is known."""
        where, of = (f"{self._path}: ", " of the shard") if self._path else ("", "")
        sample = "" if number is None else f", sample {number}{of}"
        return DamagedError(
            f"{where}field {self.field.name!r}{sample}: an index of its column is damaged; "
            "run `packer verify`, then `packer repair`"
        )

    def _put_shapes(self, numbers: Numbers, local: Numbers, own: Numbers, out: Numbers) -> None:
        """Fill in sizes and shapes, and check that they agree before anything is allocated by them."""
        axes = self._words("shapes", out[:, SHARD], local * len(self._axes), len(self._axes))
        out[:, BYTES] = out[:, DECODED] = own[:, 1] - own[:, 0]
        out[:, [SHAPE + axis for axis in self._axes]] = axes
        size = self._size * axes.astype(np.float64).prod(axis=1)
        sound = ((axes >= 0) & (axes <= MAX_AXIS)).all(axis=1)
        self._check(sound & (size == out[:, BYTES]) & (size <= MAX_CHUNK_BYTES), numbers)

    def _put_bands(self, numbers: Numbers, local: Numbers, out: Numbers) -> Numbers:
        """Fill in how many frames samples have, if frames hold rows; return the number of the first, (n,)."""
        if not self._axes:
            first: Numbers = local * self._band_count
            return first
        shard = out[:, SHARD]
        first, last = self._words("sample_frames", shard, local, 2).T
        out[:, FRAMES] = -(-out[:, SHAPE] // (self.field.frame.rows or 1))
        self._check((first >= 0) & (last - first == out[:, FRAMES]) & (last <= self._total[shard]), numbers)
        return first

    def _put_shared(self, numbers: Numbers, local: Numbers, own: Numbers | None, out: Numbers) -> None:
        """Fill in where samples begin in what their frames decode to, and its size."""
        shard, together = out[:, SHARD], self.field.frame.samples or 1
        first = out[:, FRAME] * together
        stop = np.minimum(first + together, self.first[shard + 1] - self.first[shard])
        if own is None:
            out[:, BEFORE] = (local - first) * self._size
            out[:, DECODED] = (stop - first) * self._size
            return
        begin, end = (self._words("sample_offsets", shard, at)[:, 0] for at in (first, stop))
        out[:, BEFORE] = own[:, 0] - begin
        out[:, DECODED] = end - begin
        self._check((begin <= own[:, 0]) & (own[:, 1] <= end) & (end - begin <= MAX_CHUNK_BYTES), numbers)

    def _words(self, array: str, shard: Numbers, at: Numbers, count: int = 1) -> Numbers:
        """Return `count` numbers of an index array from number `at` (n,) on, (n, count); 2**63 and more wrap."""
        if not len(at):
            return np.empty((0, count), np.int64)
        if count not in self._records:
            self._records[count] = items_of(self._bytes, 8 * count)  # a small array lies at any byte
        found: NDArray[Any] = self._records[count][self._arrays[array][shard] + 8 * at]
        return found.view("<i8").reshape(-1, count)


class Column:
    """Reads one column of one shard: decodes its samples, and checks its frames."""

    def __init__(self, index: ColumnIndex, file: memoryview, path: str) -> None:
        self.index = index
        self.field = index.field
        self._together = self.field.frame.samples or 1
        self._file = file
        self._path = path
        self._codec = FrameCodec(self.field.codec, self.field.np_dtype, self.field.channels)
        self._locator = Locator(self.field, [index], np.frombuffer(file, np.uint8), np.zeros(1, np.int64), path)

    def locate(self, numbers: Numbers) -> Numbers:
        """Return where samples of the shard (n,) lie in its file, (n, SHAPE + axes).

        Raises:
            DamagedError: an index array is damaged.
        """
        return self._locator.locate(numbers)

    def frames(self, numbers: Numbers) -> LocatedFrames:
        """Return the frames that hold some samples (n,), each once.

        Raises:
            DamagedError: an index array is damaged.
        """
        return self._locator.frames(self.locate(np.unique(numbers // self._together) * self._together))

    def is_wrong(self, frames: LocatedFrames) -> NDArray[np.bool_]:
        """Return whether the bytes of each frame do not have their checksum, (m,)."""
        wrong: NDArray[np.bool_] = (
            frame_hashes(self._file, frames.spans) != self.index.arrays["checksums"][frames.number]
        )
        return wrong

    def check_samples(self) -> None:
        """Check that shape, size and frames of every sample agree, if samples differ in them.

        Raises:
            DamagedError: they do not; the message names the first sample of the shard that is wrong.
        """
        if self.field.is_ragged:
            for start in range(0, self.index.samples, _CHECKED):
                self.locate(np.arange(start, min(start + _CHECKED, self.index.samples)))

    def check_frames(self) -> Iterator[tuple[int, Numbers]]:
        """Check all frames, some at a time.

        Yields:
            how many bytes were checked, and the numbers of the frames that are wrong, (m,).

        Raises:
            DamagedError: an index array is damaged.
        """
        for start in range(0, self.index.samples, _CHECKED * self._together):
            stop = min(start + _CHECKED * self._together, self.index.samples)
            frames = self.frames(np.arange(start, stop, self._together))
            yield int(np.diff(frames.spans).sum()), frames.number[self.is_wrong(frames)]

    def read(self, start: int, stop: int) -> Any:
        """Return the samples start..stop: one array (m, *shape), not to be written to; of a ragged field a list.

        The arrays of a list own their memory, each as much as it holds.

        Raises:
            DamagedError: a frame cannot be decoded; the message names the samples it holds.
        """
        raw, dtype, band = self._raw(start, stop), self.field.np_dtype, self.field.frame.rows
        before = start % self._together  # samples that the first frame holds before these
        if not self.field.is_ragged:
            shape = tuple(n or 0 for n in self.field.shape)
            first, last = before * math.prod(shape), (before + stop - start) * math.prod(shape)
            samples = np.frombuffer(raw, dtype)[first:last].reshape(stop - start, *shape)
            if self._codec.filter:
                samples = samples.copy()
                self._codec.undo_filter(samples, band)
            return samples
        located = self.locate(np.arange(start - before, stop))
        begins = located[:, BYTES].cumsum() - located[:, BYTES]
        out = []
        for begin, shape in zip(begins[before:].tolist(), located[before:, SHAPE:].tolist(), strict=True):
            array = np.frombuffer(raw, dtype, math.prod(shape), begin).reshape(shape).copy()
            if self._codec.filter:
                self._codec.undo_filter(array[None], band)
            out.append(array)
        return out

    def bands(self, number: int) -> Iterator[NDArray[Any]]:
        """Yield the bands of one sample in order, if frames hold rows; each owns its memory.

        Raises:
            DamagedError: as `read`.
        """
        rest = self.locate(np.array([number], np.int64))[0, SHAPE + 1 :].tolist()
        frames = self.frames(np.array([number]))
        for frame, span, size in zip(*(part.tolist() for part in frames[1:]), strict=True):
            band = np.frombuffer(self._decode(frame, span, size), self.field.np_dtype).reshape(-1, *rest).copy()
            self._codec.undo_filter(band[None])
            yield band

    def _raw(self, start: int, stop: int) -> bytes:
        """Return what the frames that hold the samples start..stop decode to, one after another."""
        frames = self.frames(np.arange(start - start % self._together, stop, self._together))
        return b"".join(map(self._decode, frames.number.tolist(), frames.spans.tolist(), frames.sizes.tolist()))

    def _decode(self, frame: int, span: tuple[int, int], size: int) -> bytes | bytearray | memoryview:
        try:
            return self._codec.decode(self._file[span[0] : span[1]], size)
        except _DAMAGE as error:
            first, stop = self.index.samples_of(np.array([frame]))[0].tolist()
            raise DamagedError(
                f"{self._path}: field {self.field.name!r}, samples {first} to {stop - 1} of the shard: {error}; "
                "run `packer verify`, then `packer repair`"
            ) from None


def items_of(memory: NDArray[np.uint8], nbytes: int) -> NDArray[np.void]:
    """Return what begins at each byte of some memory, as items of `nbytes` bytes, which overlap.

    To numpy each is one opaque item, and so a gather one copy of memory an item.
    """
    count = max(len(memory) - nbytes + 1, 0)
    return np.ndarray((count,), np.dtype((np.void, nbytes)), memory.data, 0, (1,))


def _chunk_table(first: int, start: int, index: ColumnIndex) -> Numbers:
    """Return for each chunk of a shard: `span_at`, addresses of its start and end, the sample after it; (chunks, 4)."""
    table = index.arrays["chunks"].astype(np.int64)
    before = np.concatenate([[0], table[:-1, 2]])[: len(table)]
    low = start + index.chunk_at
    ends = first + index.samples_of(table[:, 1] - 1)[:, 1]
    return np.stack([low - before, low, low + table[:, 2] - before, ends], axis=1)


def _position(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])
