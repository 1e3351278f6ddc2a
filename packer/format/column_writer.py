"""Writes one column: samples become frames, frames fill chunks, and index arrays say where each lies."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import xxhash
from numpy.typing import NDArray

from packer.codecs.frames import FrameCodec
from packer.codecs.stages import Buffer
from packer.errors import UsageError
from packer.format.layout import CHUNK_BYTES, MAX_CHUNK_BYTES, index_arrays
from packer.format.schema import Field

#: Stores a chunk and returns the number under which it is found. The chunk does not change until the next commit.
PutChunk = Callable[[memoryview], int]


@runtime_checkable
class Large(Protocol):
    """An array that is too large to be read at once; its slices along the first axis are arrays."""

    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def nbytes(self) -> int: ...
    def __len__(self) -> int: ...
    def pieces(self, rows: int, /) -> Iterator[NDArray[Any]]: ...


class Bands(NamedTuple):
    """A large sample whose rows were read and encoded, before anything of it is added."""

    shape: tuple[int, ...]
    nbytes: int
    frames: list[Buffer]


class Chunks:
    """The chunks of one column, and the arrays that tell where each frame went.

    Args:
        put: stores a chunk.
        limit: bytes of a chunk; what must lie in one chunk and is larger gets a chunk of its own.
    """

    def __init__(self, put: PutChunk, limit: int) -> None:
        self.checksums = array("Q")
        self.offsets = array("Q", [0])  # ends of the frames in the column's stored bytes
        self.table: list[tuple[int, int, int]] = []  # chunk number, frames up to its end, stored bytes likewise
        self._put = put
        self._limit = limit
        self._buffer = np.empty(0, np.uint8)
        self._used = 0

    def append(self, frames: list[Buffer]) -> None:
        """Add frames that must lie in one chunk."""
        self._make_room(sum(map(len, frames)))
        for frame in frames:
            self._note(frame)
            self._copy(np.frombuffer(frame, np.uint8))

    def append_rows(self, frames: NDArray[np.uint8]) -> None:
        """Add frames of one size (m, bytes), as many at a time as the chunk has room for."""
        size = frames.shape[1]
        at = 0
        while at < len(frames):
            self._make_room(size)
            fit = max(1, (self._limit - self._used) // size) if size else len(frames)
            some = frames[at : at + fit]
            for frame in some:
                self._note(frame.data)
            self._copy(some.reshape(-1))
            at += len(some)

    def flush(self) -> None:
        """Store the chunk that is being filled."""
        if len(self.checksums) == (self.table[-1][1] if self.table else 0):
            return
        number = self._put(self._buffer[: self._used].data)
        self.table.append((number, len(self.checksums), self.offsets[-1]))
        self._buffer = np.empty(0, np.uint8)
        self._used = 0

    def _make_room(self, size: int) -> None:
        """See to it that `size` more bytes fit into the buffer."""
        _check_size(size)
        if self._used and self._used + size > self._limit:
            self.flush()
        if self._used + size > len(self._buffer):
            # Nothing has been written to it yet: a buffer has the size of a chunk, unless one sample is larger.
            self._buffer = np.empty(max(size, self._limit), np.uint8)

    def _copy(self, data: NDArray[np.uint8]) -> None:
        self._buffer[self._used : self._used + len(data)] = data
        self._used += len(data)

    def _note(self, frame: Buffer) -> None:
        self.checksums.append(xxhash.xxh3_64_intdigest(frame))
        self.offsets.append(self.offsets[-1] + len(frame))


class ColumnWriter:
    """One column of one shard while it is written.

    Args:
        field: schema of the column.
        put_chunk: called with each chunk when it is full.
        chunk_bytes: a chunk takes frames up to this size; a larger sample gets its own.
    """

    def __init__(
        self,
        field: Field,
        put_chunk: PutChunk,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self.field = field
        self.samples = 0
        self.raw_bytes = 0
        self._dtype = field.np_dtype
        self._codec = FrameCodec(field.codec, self._dtype, field.channels)
        self._chunks = Chunks(put_chunk, chunk_bytes)
        self._waiting: list[NDArray[Any]] = []  # samples, or runs of fixed samples, of the frame not yet full
        self._n_waiting = 0
        # array("Q"): 8 bytes a number where a list takes 40; a shard may hold ten million samples.
        self._shapes = array("Q")
        self._sizes = array("Q")
        self._frames_of = array("Q")

    @property
    def stored_bytes(self) -> int:
        return self._chunks.offsets[-1]

    def encoded(self, sample: Large) -> Bands | NDArray[Any]:
        """Return what `add` takes for a large sample: its bands, encoded piece by piece where frames hold rows.

        Raises:
            UsageError: it has another dtype or shape than the field.
        """
        self._check(sample.dtype, sample.shape)
        rows = self.field.frame.rows
        if rows is None:
            return np.ascontiguousarray(sample)
        frames: list[Buffer] = []
        stored = sample.nbytes if self._codec.is_raw else 0
        for piece in sample.pieces(rows):
            _check_size(stored)
            some = self._bands(piece, rows)
            stored += 0 if self._codec.is_raw else sum(map(len, some))
            frames += some
        return Bands(sample.shape, sample.nbytes, frames)

    def add(self, values: NDArray[Any] | Sequence[NDArray[Any] | Bands]) -> None:
        """Add samples: one array (m, *shape) for fixed fields, a sequence of arrays for ragged ones.

        A large one, of either, is a sequence of the one thing that `encoded` gives.

        Raises:
            UsageError: an array has another dtype or shape than the field.
        """
        if len(values) == 1 and isinstance(values[0], Bands):
            self._add_encoded(values[0])
            return
        if not self.field.is_ragged:
            rows = np.ascontiguousarray(values)
            self._check(rows.dtype, rows.shape[1:])
            self._add_fixed(rows)
            return
        for value in values:
            assert not isinstance(value, Bands)
            self._check(value.dtype, value.shape)
            self._add_ragged(np.ascontiguousarray(value))

    def finish(self) -> dict[str, NDArray[np.uint64]]:
        """Write what is still waiting; return the index arrays by name, in the order of their keys."""
        self.flush()
        arrays = {
            "checksums": np.array(self._chunks.checksums, "<u8"),
            "chunks": np.array(self._chunks.table, "<u8"),
            "frame_offsets": np.array(self._chunks.offsets, "<u8"),
            "sample_frames": _offsets(self._frames_of),
            "sample_offsets": _offsets(self._sizes),
            "shapes": np.array(self._shapes, "<u8"),
        }
        return {name: arrays[name] for name in index_arrays(self.field)}

    def flush(self) -> None:
        """Write what is still waiting; nothing can be added after it."""
        self._close_frame()
        self._chunks.flush()

    def _check(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        """Raise UsageError if values do not fit: bytes of another dtype would be read back as other numbers."""
        wanted = self.field.shape
        fits = len(shape) == len(wanted) and all(w in (None, n) for n, w in zip(shape, wanted, strict=True))
        if dtype != self._dtype or not fits:
            raise UsageError(
                f"field {self.field.name!r}: {dtype} {list(shape)} does not fit {self.field.dtype} {list(wanted)}"
            )

    def _add_fixed(self, rows: NDArray[Any]) -> None:
        self.samples += len(rows)
        self.raw_bytes += rows.nbytes
        if self.field.frame.rows is not None:
            for sample in rows:
                self._add_bands(sample)
            return
        per_frame = self._samples_per_frame
        if self._n_waiting:
            head = rows[: per_frame - self._n_waiting]
            self._wait(head, len(head))
            rows = rows[len(head) :]
        whole = len(rows) // per_frame * per_frame
        if whole:
            self._add_frames(rows[:whole].reshape(whole // per_frame, per_frame, *self.field.shape))
        if len(rows) > whole:
            self._wait(rows[whole:], len(rows) - whole)

    def _add_encoded(self, sample: Bands) -> None:
        self._note_sample(sample.shape, sample.nbytes)
        self._frames_of.append(len(sample.frames))
        self._chunks.append(sample.frames)

    def _note_sample(self, shape: tuple[int, ...], nbytes: int) -> None:
        self.samples += 1
        self.raw_bytes += nbytes
        self._shapes.extend(shape[axis] for axis in self.field.ragged_axes)
        self._sizes.append(nbytes)

    def _add_ragged(self, sample: NDArray[Any]) -> None:
        self._note_sample(sample.shape, sample.nbytes)
        if self.field.frame.rows is not None:
            self._add_bands(sample)
        else:
            self._wait(self._filtered(sample[None]), 1)

    def _wait(self, values: NDArray[Any], count: int) -> None:
        self._n_waiting += count
        if self._n_waiting >= self._samples_per_frame:
            self._waiting.append(values)
            self._close_frame()
        else:
            # A copy: the caller may fill the same memory with the next sample.
            self._waiting.append(values.copy())

    @property
    def _samples_per_frame(self) -> int:
        assert self.field.frame.samples is not None
        return self.field.frame.samples

    def _close_frame(self) -> None:
        """Make a frame of the waiting samples."""
        if not self._n_waiting:
            return
        waiting, self._waiting, self._n_waiting = self._waiting, [], 0
        if self.field.is_ragged:
            frame = waiting[0] if len(waiting) == 1 else np.concatenate([w.reshape(-1) for w in waiting])
            self._chunks.append([self._codec.encode(frame)])
        else:
            self._add_frames(np.concatenate(waiting)[None])

    def _add_frames(self, frames: NDArray[Any]) -> None:
        """Add frames (m, samples a frame, *shape) of a fixed field."""
        if self._codec.filter:
            samples = frames.reshape(frames.shape[0] * frames.shape[1], *self.field.shape)
            frames = self._codec.filter.apply(samples).reshape(frames.shape)
        if self._codec.is_raw:
            self._chunks.append_rows(frames.reshape(len(frames), -1).view(np.uint8))
            return
        for frame in frames:
            self._chunks.append([self._codec.encode(frame)])

    def _add_bands(self, sample: NDArray[Any]) -> None:
        """Add one sample as frames of some rows each, all in one chunk."""
        rows = self.field.frame.rows
        assert rows is not None
        bands = self._bands(sample, rows)
        self._frames_of.append(len(bands))
        self._chunks.append(bands)

    def _bands(self, sample: NDArray[Any], rows: int) -> list[Buffer]:
        """Return the frames of some rows each of a sample, or of a part of it that begins with a frame."""
        bands = (sample[at : at + rows] for at in range(0, len(sample), rows))
        return [self._codec.encode(self._filtered(band[None])) for band in bands]

    def _filtered(self, samples: NDArray[Any]) -> NDArray[Any]:
        return self._codec.filter.apply(samples) if self._codec.filter else samples


def _check_size(nbytes: int) -> None:
    """Raise UsageError if a sample of so many stored bytes cannot lie in one chunk."""
    if nbytes > MAX_CHUNK_BYTES:
        raise UsageError(f"a sample takes {nbytes:,} bytes; {MAX_CHUNK_BYTES:,} is the most, split it into several")


def _offsets(sizes: array[int]) -> NDArray[np.uint64]:
    out = np.zeros(len(sizes) + 1, "<u8")
    np.cumsum(np.array(sizes, "<u8"), out=out[1:])
    return out
