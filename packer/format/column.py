"""Reads one column of one shard: where each sample lies, and what it holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from packer.errors import DamagedError
from packer.format import rowdelta
from packer.format.codecs import FrameCodec
from packer.format.layout import index_arrays
from packer.format.schema import Field

Index = NDArray[np.uint64]

#: What wrong numbers in an index lead to, wherever they are first used.
_DAMAGE = (ValueError, IndexError, OverflowError, MemoryError)


@dataclass(frozen=True)
class ColumnIndex:
    """The checked index arrays of a column, zero-copy views of the shard's map.

    Attributes:
        arrays: index arrays by name (see `layout.index_arrays`), uint64.
        chunk_at: file offset of each chunk's first byte, (chunks,) int64.
        samples: number of samples in the shard.
    """

    field: Field
    arrays: Mapping[str, Index]
    chunk_at: NDArray[np.int64]
    samples: int

    @property
    def frames(self) -> int:
        return len(self.arrays["checksums"])

    def frame_range(self, start: int, stop: int) -> tuple[int, int]:
        """Numbers of the frames that hold the samples start..stop."""
        rule = self.field.frame
        if rule.samples is not None:
            return start // rule.samples, -(-stop // rule.samples)
        if self.field.is_ragged:
            ends = self.arrays["sample_frames"]
            return int(ends[start]), int(ends[stop])
        per_sample = -(-(self.field.shape[0] or 0) // (rule.rows or 1))
        return start * per_sample, stop * per_sample

    def sample_range(self, frame: int) -> tuple[int, int]:
        """Numbers of the samples that a frame holds or is a part of."""
        rule = self.field.frame
        if rule.samples is not None:
            return frame * rule.samples, min((frame + 1) * rule.samples, self.samples)
        if self.field.is_ragged:
            sample = int(np.searchsorted(self.arrays["sample_frames"], frame, side="right")) - 1
        else:
            sample = frame // -(-(self.field.shape[0] or 0) // (rule.rows or 1))
        return sample, sample + 1

    def shape_of(self, sample: int) -> tuple[int, ...]:
        """Shape of a sample."""
        if not self.field.is_ragged:
            return self.field.shape  # type: ignore[return-value]  # no axis is None
        ragged = iter(self.arrays["shapes"][sample])
        return tuple(int(next(ragged)) if n is None else n for n in self.field.shape)

    def frame_bytes(self, frame: int) -> int:
        """Raw bytes of a frame."""
        first, last = self.sample_range(frame)
        if self.field.frame.rows is None:
            if self.field.is_ragged:
                ends = self.arrays["sample_offsets"]
                return int(ends[last]) - int(ends[first])
            return (last - first) * self.field.fixed_bytes
        shape = self.shape_of(first)
        row = (frame - self.frame_range(first, last)[0]) * self.field.frame.rows
        rows = min(self.field.frame.rows, shape[0] - row)
        return rows * self.field.itemsize * math.prod(shape[1:])

    def check_samples(self, path: str) -> None:
        """Checks for every sample that its shape, its bytes and its frames agree.

        Raises:
            DamagedError: they do not; the message names the first sample of the shard where they differ.
        """
        wrong = np.zeros(self.samples, bool)
        if self.field.is_ragged:
            sizes = np.diff(self.arrays["sample_offsets"].astype(np.int64))
            shapes = self.arrays["shapes"].astype(np.float64)
            wrong |= (sizes < 0) | (shapes.prod(axis=1) * self.field.fixed_bytes != sizes)
        if "sample_frames" in self.arrays and self.field.frame.rows is not None:
            rows = self.arrays["shapes"][:, 0] if self.field.shape[0] is None else np.uint64(self.field.shape[0])
            bands = -(-np.broadcast_to(rows, self.samples).astype(np.int64) // self.field.frame.rows)
            wrong |= np.diff(self.arrays["sample_frames"].astype(np.int64)) != bands
        if wrong.any():
            raise DamagedError(
                f"{path}: field {self.field.name!r}: shape and size of sample {int(wrong.argmax())} of the shard "
                "do not agree; run `packer repair`"
            )
        if "frame_offsets" in self.arrays and (np.diff(self.arrays["frame_offsets"].astype(np.int64)) < 0).any():
            raise DamagedError(f"{path}: field {self.field.name!r}: its frames do not ascend; run `packer repair`")

    def frame_span(self, frame: int) -> tuple[int, int]:
        """Start and end of a frame in the file."""
        start, end = self.frame_spans(frame, frame + 1)[0].tolist()
        return start, end

    def frame_spans(self, first: int, last: int) -> NDArray[np.int64]:
        """Start and end in the file of the frames first..last, (frames, 2)."""
        frames = np.arange(first, last, dtype=np.int64)
        table = self.arrays["chunks"].astype(np.int64)
        chunk = table[:, 1].searchsorted(frames, side="right")
        before = np.concatenate([[0], table[:-1, 2]])[: len(table)]
        if self.field.codec:
            stored = self.arrays["frame_offsets"][first : last + 1].astype(np.int64)
            spans = np.stack([stored[:-1], stored[1:]], axis=1)
        elif self.field.frame.samples is not None:
            edges = np.minimum(np.arange(first, last + 1) * self.field.frame.samples, self.samples)
            offsets = self._raw_offsets(edges)
            spans = np.stack([offsets[:-1], offsets[1:]], axis=1)
        else:
            spans = self._raw_bands(frames)
        if len(frames):
            spans += (self.chunk_at - before)[chunk][:, None]
        return spans

    def _raw_offsets(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where samples begin in the column's raw bytes."""
        if self.field.is_ragged:
            return self.arrays["sample_offsets"][samples].astype(np.int64)
        return samples * self.field.fixed_bytes

    def _raw_bands(self, frames: NDArray[np.int64]) -> NDArray[np.int64]:
        """Start and end of frames of rows in the column's raw bytes, (frames, 2)."""
        rows = self.field.frame.rows or 1
        if self.field.is_ragged:
            first_frame = self.arrays["sample_frames"].astype(np.int64)
            sample = first_frame.searchsorted(frames, side="right") - 1
            row = (frames - first_frame[sample]) * rows
        else:
            per_sample = -(-(self.field.shape[0] or 0) // rows)
            sample = frames // per_sample
            row = frames % per_sample * rows
        start, end = self._raw_offsets(sample), self._raw_offsets(sample + 1)
        held = self.arrays["shapes"][sample, 0].astype(np.int64) if self.field.shape[0] is None else self.field.shape[0]
        row_bytes = (end - start) // np.maximum(held, 1)
        return np.stack([start + row * row_bytes, np.minimum(start + (row + rows) * row_bytes, end)], axis=1)


class Column:
    """Samples of one column, decoded one by one or in runs; for verifying, exporting and packing again.

    Training reads through `readers`, which gathers whole batches over all shards.
    """

    def __init__(self, index: ColumnIndex, file: memoryview, path: str) -> None:
        self.index = index
        self.field = index.field
        self._file = file
        self._path = path
        self._codec = FrameCodec(self.field.codec, self.field.np_dtype)

    def check_frame(self, frame: int, span: tuple[int, int] | None = None) -> bool:
        """Whether the checksum of a frame is right; `span` is where it lies, if the caller knows.

        Raises:
            DamagedError: the index does not lead to the frame.
        """
        try:
            start, end = span or self.index.frame_span(frame)
        except _DAMAGE as error:
            raise self._damaged(f"frame {frame}", error) from None
        return bool(xxhash.xxh3_64_intdigest(self._file[start:end]) == int(self.index.arrays["checksums"][frame]))

    def read(self, start: int, stop: int) -> list[NDArray[Any]]:
        """The samples start..stop, each of its own shape, as arrays that own their memory.

        Raises:
            DamagedError: a frame cannot be decoded; the message names the samples it holds.
        """
        try:
            return self._read(start, stop)
        except _DAMAGE as error:
            raise self._damaged(f"samples {start} to {stop - 1}", error) from None

    def _read(self, start: int, stop: int) -> list[NDArray[Any]]:
        first, last = self.index.frame_range(start, stop)
        if not 0 <= first <= last <= self.index.frames:
            raise ValueError(f"frames {first} to {last} are not all there")
        raw = b"".join(self._decode(frame) for frame in range(first, last))
        together = self.field.frame.samples or 1
        out = []
        at = 0
        for sample in range(start // together * together, stop):
            shape = self.index.shape_of(sample)
            array = np.frombuffer(raw, self.field.np_dtype, math.prod(shape), at).reshape(shape)
            at += array.nbytes
            if sample >= start:
                out.append(self._undo_delta(array))
        return out

    def _decode(self, frame: int) -> bytes | bytearray | memoryview:
        start, end = self.index.frame_span(frame)
        try:
            return self._codec.decode(self._file[start:end], self.index.frame_bytes(frame))
        except ValueError as error:
            first, last = self.index.sample_range(frame)
            raise self._damaged(f"samples {first} to {last - 1}", error) from None

    def _damaged(self, where: str, error: Exception) -> DamagedError:
        return DamagedError(
            f"{self._path}: field {self.field.name!r}, {where} of the shard: {error}; "
            "run `packer verify`, then `packer repair`"
        )

    def _undo_delta(self, array: NDArray[Any]) -> NDArray[Any]:
        array = array.copy()
        if self._codec.rowdelta:
            step = self.field.frame.rows or max(len(array), 1)
            for row in range(0, len(array), step):
                rowdelta.accumulate(array[None, row : row + step])
        return array


def check_index(
    field: Field,
    samples: int,
    find: Callable[[str], memoryview],
    find_chunk: Callable[[int], tuple[int, int]],
    path: str,
) -> ColumnIndex:
    """The index of a column, with the lengths of its arrays and its chunks checked.

    Shapes and offsets of samples and frames are checked where they are used: there may be millions of them.

    Args:
        find: gives the bytes of the index array of a name.
        find_chunk: gives file offset and size of the chunk of a number.

    Raises:
        DamagedError: an array has the wrong length, or places lie outside their chunk.
    """

    def fail(what: str) -> DamagedError:
        return DamagedError(f"{path}: field {field.name!r}: {what}; run `packer verify`, then `packer repair`")

    arrays: dict[str, Index] = {}
    for name in index_arrays(field):
        data = find(name)
        if len(data) % 8:
            raise fail(f"index array {name} has {len(data)} bytes, not a multiple of 8")
        arrays[name] = np.frombuffer(data, "<u8")
    _reshape(field, samples, arrays, fail)
    _check_chunks(field, samples, arrays, find_chunk, fail)
    table = arrays["chunks"]
    at = np.array([find_chunk(int(number))[0] for number in table[:, 0]], np.int64)
    return ColumnIndex(field, arrays, at, samples)


def _reshape(field: Field, samples: int, arrays: dict[str, Index], fail: Callable[[str], DamagedError]) -> None:
    """Checks the lengths of the arrays against each other, and gives tables their two axes."""
    frames = len(arrays["checksums"])
    axes = len(field.ragged_axes)
    expected = {"frame_offsets": frames + 1, "sample_frames": samples + 1, "sample_offsets": samples + 1}
    expected["shapes"] = samples * axes
    for name, length in expected.items():
        if name in arrays and len(arrays[name]) != length:
            raise fail(f"index array {name} holds {len(arrays[name])} numbers, {length} expected")
    if len(arrays["chunks"]) % 3:
        raise fail(f"index array chunks holds {len(arrays['chunks'])} numbers, a multiple of 3 expected")
    arrays["chunks"] = arrays["chunks"].reshape(-1, 3)
    if "shapes" in arrays:
        arrays["shapes"] = arrays["shapes"].reshape(samples, axes)
    if field.frame.samples is not None:
        count = -(-samples // field.frame.samples)
    elif field.is_ragged:
        count = int(arrays["sample_frames"][-1])
    else:
        count = samples * -(-(field.shape[0] or 0) // (field.frame.rows or 1))
    if count != frames:
        raise fail(f"{frames} checksums for {count} frames")


def _check_chunks(
    field: Field,
    samples: int,
    arrays: dict[str, Index],
    find_chunk: Callable[[int], tuple[int, int]],
    fail: Callable[[str], DamagedError],
) -> None:
    """Checks that the chunks of the table exist, have the sizes it says, and hold all frames."""
    frames_before = bytes_before = 0
    for number, frames_end, bytes_end in arrays["chunks"].tolist():
        if frames_end < frames_before or bytes_end < bytes_before:
            raise fail("the table of chunks does not ascend")
        if find_chunk(number)[1] != bytes_end - bytes_before:
            raise fail(f"chunk {number} has {find_chunk(number)[1]} bytes, {bytes_end - bytes_before} expected")
        frames_before, bytes_before = frames_end, bytes_end
    if frames_before != len(arrays["checksums"]):
        raise fail(f"the chunks hold {frames_before} frames of {len(arrays['checksums'])}")
    if field.codec:
        raw_bytes = int(arrays["frame_offsets"][-1])
    elif field.is_ragged:
        raw_bytes = int(arrays["sample_offsets"][-1])
    else:
        raw_bytes = samples * field.fixed_bytes
        _check_rows(field, samples, arrays["chunks"], fail)
    if raw_bytes != bytes_before:
        raise fail(f"the chunks hold {bytes_before} bytes, {raw_bytes} expected")


def _check_rows(field: Field, samples: int, table: Index, fail: Callable[[str], DamagedError]) -> None:
    """Checks that each chunk of raw samples of one shape has the bytes of its samples: addresses rely on it."""
    per_frame = field.frame.samples
    if per_frame is None:
        ends = table[:, 1] * field.fixed_bytes // max(-(-(field.shape[0] or 0) // (field.frame.rows or 1)), 1)
    else:
        ends = np.minimum(table[:, 1] * per_frame, samples) * field.fixed_bytes
    if (ends != table[:, 2]).any():
        raise fail("a chunk has not the size of its samples")
