"""Writes one column: samples become frames, frames fill chunks, and index arrays say where each lies."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from packer.codecs import Buffer, EncodedImage, FrameCodec, bands_of
from packer.errors import UsageError
from packer.format.layout import CHUNK_BYTES, MAX_CHUNK_BYTES, index_arrays
from packer.format.schema import Field

#: Stores a chunk, which never changes after that, and returns the number under which it is found.
PutChunk = Callable[[memoryview], int]


class Bands(NamedTuple):
    """A large sample whose rows were read and encoded, before anything of it is added."""

    shape: tuple[int, ...]
    nbytes: int
    frames: list[Buffer]


class ColumnWriter:
    """One column of one shard while it is written.

    Args:
        field: schema of the column.
        put_chunk: called with each chunk when it is full.
        chunk_bytes: a chunk takes frames up to this size; a larger group that must lie in one chunk gets its own.
    """

    def __init__(self, field: Field, put_chunk: PutChunk, chunk_bytes: int = CHUNK_BYTES) -> None:
        self.field = field
        self.samples = 0
        self.raw_bytes = 0
        self._dtype = field.np_dtype
        self._ragged_axes = field.ragged_axes
        self._codec = FrameCodec(field.codec, self._dtype, field.channels, field.image_axes)
        self._waiting: list[NDArray[Any]] = []  # runs of samples of the frame that is not yet full
        self._n_waiting = 0
        self._put_chunk = put_chunk
        self._chunk_bytes = chunk_bytes
        self._chunk = memoryview(b"")  # its memory; the first `_used` bytes are filled
        self._used = 0
        self._table: list[tuple[int, int, int]] = []  # chunk number, frames up to its end, stored bytes likewise
        # array("Q") takes a fifth of the memory of a list; a shard may hold ten million samples.
        self._checksums = array("Q")
        self._offsets = array("Q", [0])  # ends of the frames in the column's stored bytes
        self._shapes = array("Q")
        self._sizes = array("Q")
        self._frames_of = array("Q")

    @property
    def stored_bytes(self) -> int:
        return self._offsets[-1]

    def encoded(self, sample: Any) -> Bands | NDArray[Any]:
        """Return one sample as `add` takes it: its encoded bands if frames hold rows, else a contiguous array.

        Args:
            sample: an array; or one that is too large to be read at once, whose `pieces(rows)` yields its rows, some
                at a time. All pieces but the last have a multiple of `rows`.

        Raises:
            UsageError: it has another dtype or shape than the field, or is too large.
        """
        self._check(sample.dtype, sample.shape)
        rows = self.field.frame.rows
        if rows is None:
            return _contiguous(sample)
        frames: list[Buffer] = []
        stored = sample.nbytes if self._codec.is_raw else 0
        for piece in sample.pieces(rows) if hasattr(sample, "pieces") else [_contiguous(sample)]:
            _check_size(stored)
            bands = bands_of(piece, rows)
            if self._codec.is_photo:
                bands = (self._codec.filtered(band[None]) for band in bands)
            band_frames = list(map(self._codec.encode, bands))
            stored += 0 if self._codec.is_raw else sum(map(len, band_frames))
            frames += band_frames
        return Bands(sample.shape, sample.nbytes, frames)

    def add(self, values: NDArray[Any] | Sequence[NDArray[Any] | Bands]) -> None:
        """Add samples: one array (m, *shape) for fixed fields, a sequence of arrays for ragged ones.

        A large sample, of either kind of field, is a sequence of one item: the result of `encoded`. With the codec
        `jpeg` samples are a sequence, too: of each `EncodedImage` the files are stored.

        Raises:
            UsageError: an array has another dtype or shape than the field, or is too large.
        """
        if not (self.field.is_ragged or self.field.frame.samples is None or self._codec.is_jpeg):
            values = np.ascontiguousarray(values)
            self._check(values.dtype, values.shape[1:])
            self.samples += len(values)
            self.raw_bytes += values.nbytes
            self._add_runs(values)
            return
        for value in values:
            sample = value if isinstance(value, Bands) else self.encoded(value)
            self.samples += 1
            self.raw_bytes += sample.nbytes
            self._shapes.extend(sample.shape[axis] for axis in self._ragged_axes)
            self._sizes.append(sample.nbytes)
            if isinstance(sample, Bands):
                self._frames_of.append(len(sample.frames))
                self._append(sample.frames)  # all in one chunk
            elif self._codec.is_jpeg:
                self._append([self._codec.encode(sample)])
            else:
                self._add_runs(sample[None])

    def finish(self) -> dict[str, NDArray[np.uint64]]:
        """Write the samples that are still waiting; return the index arrays by name, in the order of their keys."""
        self.flush()
        arrays = {
            "checksums": np.array(self._checksums, "<u8"),
            "chunks": np.array(self._table, "<u8"),
            "frame_offsets": np.array(self._offsets, "<u8"),
            "sample_frames": _offsets(self._frames_of),
            "sample_offsets": _offsets(self._sizes),
            "shapes": np.array(self._shapes, "<u8"),
        }
        return {name: arrays[name] for name in index_arrays(self.field)}

    def flush(self) -> None:
        """Write the samples that are still waiting; nothing can be added afterwards."""
        self._close_frame()
        self._close_chunk()

    def _check(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        """Raise UsageError if values do not fit: bytes of another dtype would be read back as other numbers."""
        expected = self.field.shape
        fits = len(shape) == len(expected) and all(w in (None, n) for n, w in zip(shape, expected, strict=True))
        if dtype != self._dtype or not fits:
            raise UsageError(
                f"field {self.field.name!r}: {dtype} {list(shape)} does not fit {self.field.dtype} {list(expected)}"
            )

    def _add_runs(self, samples: NDArray[Any]) -> None:
        """Add samples of one shape (m, *shape) to frames of this many samples."""
        samples, together = self._codec.filtered(samples), self.field.frame.samples or 1
        while len(samples):
            room = together - self._n_waiting
            run, samples = samples[:room], samples[room:]
            self._n_waiting += len(run)
            is_full = self._n_waiting == together
            # A copy of what waits: the caller may fill the same memory with the next sample.
            self._waiting.append(run if is_full else run.copy())
            if is_full:
                self._close_frame()

    def _close_frame(self) -> None:
        """Make a frame of the waiting samples."""
        if self._n_waiting:
            runs = [run.reshape(-1) for run in self._waiting]
            if self.field.is_ragged:
                _check_size(sum(run.nbytes for run in runs))
            self._waiting, self._n_waiting = [], 0
            self._append([self._codec.encode(runs[0] if len(runs) == 1 else np.concatenate(runs))])

    def _append(self, frames: list[Buffer]) -> None:
        """Add frames that must lie in one chunk."""
        size = sum(map(len, frames))
        _check_size(size)
        if self._used and self._used + size > self._chunk_bytes:
            self._close_chunk()
        if not self._used:
            self._chunk = np.empty(max(size, self._chunk_bytes), np.uint8).data
        for frame in frames:
            start, self._used = self._used, self._used + len(frame)
            self._chunk[start : self._used] = frame
            self._checksums.append(xxhash.xxh3_64_intdigest(frame))
            self._offsets.append(self._offsets[-1] + len(frame))

    def _close_chunk(self) -> None:
        """Store the chunk that is being filled if it has a frame, even one of no bytes."""
        if len(self._checksums) > (self._table[-1][1] if self._table else 0):
            number = self._put_chunk(self._chunk[: self._used])
            self._table.append((number, len(self._checksums), self._offsets[-1]))
            self._chunk, self._used = memoryview(b""), 0


def _contiguous(sample: Any) -> NDArray[Any]:
    """Return a sample as a contiguous array; what knows its files stays what it is."""
    return sample if isinstance(sample, EncodedImage) else np.ascontiguousarray(sample)


def _check_size(nbytes: int) -> None:
    """Raise UsageError if a sample of this many bytes is too large: stored, or raw if it is ragged."""
    if nbytes > MAX_CHUNK_BYTES:
        raise UsageError(f"a sample takes {nbytes:,} bytes, but {MAX_CHUNK_BYTES:,} is the most; split it into several")


def _offsets(sizes: array[int]) -> NDArray[np.uint64]:
    out = np.zeros(len(sizes) + 1, "<u8")
    np.cumsum(np.array(sizes, "<u8"), out=out[1:])
    return out
