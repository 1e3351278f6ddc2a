"""Where the samples and frames of one column of one shard lie: arithmetic on its index arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packer.errors import DamagedError
from packer.format.schema import Field

Index = NDArray[np.uint64]


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
        return start * self.field.bands, stop * self.field.bands

    def sample_range(self, frame: int) -> tuple[int, int]:
        """Numbers of the samples that a frame holds or is a part of."""
        rule = self.field.frame
        if rule.samples is not None:
            return frame * rule.samples, min((frame + 1) * rule.samples, self.samples)
        if self.field.is_ragged:
            sample = int(np.searchsorted(self.arrays["sample_frames"], frame, side="right")) - 1
        else:
            sample = frame // self.field.bands
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
        """Start and end in the file of the frames first..last, (frames, 2).

        Raises:
            ValueError: the index is damaged: a frame does not lie within its chunk.
        """
        return self.spans_of(np.arange(first, last, dtype=np.int64))

    def spans_of(self, frames: NDArray[np.int64]) -> NDArray[np.int64]:
        """Start and end in the file of frames by number, (frames, 2).

        Raises:
            ValueError: the index is damaged: a frame does not lie within its chunk.
        """
        table = self.arrays["chunks"].astype(np.int64)
        chunk = table[:, 1].searchsorted(frames, side="right")
        before = np.concatenate([[0], table[:-1, 2]])[: len(table)]
        if self.field.codec:
            stored = self.arrays["frame_offsets"]
            spans = np.stack([stored[frames], stored[frames + 1]], axis=1).astype(np.int64)
        elif self.field.frame.samples is not None:
            held = np.stack([frames, frames + 1], axis=1) * self.field.frame.samples
            spans = self._raw_offsets(np.minimum(held, self.samples))
        else:
            spans = self._raw_bands(frames)
        if len(frames):
            spans += (self.chunk_at - before)[chunk][:, None]
            low = self.chunk_at[chunk]
            high = low + (table[:, 2] - before)[chunk]
            if ((spans[:, 0] < low) | (spans[:, 1] > high) | (spans[:, 1] < spans[:, 0])).any():
                raise ValueError("the places of its frames lie outside of their chunks")
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
            first_frame = self.arrays["sample_frames"]
            sample = first_frame.searchsorted(frames.astype(np.uint64), side="right") - 1
            row = (frames - first_frame[sample].astype(np.int64)) * rows
        else:
            sample = frames // self.field.bands
            row = frames % self.field.bands * rows
        start, end = self._raw_offsets(sample), self._raw_offsets(sample + 1)
        held = self.arrays["shapes"][sample, 0].astype(np.int64) if self.field.shape[0] is None else self.field.shape[0]
        row_bytes = (end - start) // np.maximum(held, 1)
        return np.stack([start + row * row_bytes, np.minimum(start + (row + rows) * row_bytes, end)], axis=1)
