"""The index arrays of one column of one shard, checked against each other and the chunks before anyone uses them.

`locator.py` finds samples by them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from packer.errors import DamagedError
from packer.format.layout import index_lengths
from packer.format.manifest import ColumnTotals
from packer.format.schema import Field

Index = NDArray[np.uint64]


def shard_totals(indexes: Sequence[ColumnIndex]) -> dict[str, ColumnTotals]:
    """Return the totals of the columns of a shard, by field, with the scales of their shapes."""
    totals: dict[str, ColumnTotals] = {}
    firsts: list[ColumnIndex] = []  # ragged fields that follow no other
    for index in indexes:
        scale = None
        if index.field.is_ragged and index.field.kind != "text":
            scales = ((first.field.name, _scale(index, first)) for first in firsts)
            scale = next(((name, *fraction) for name, fraction in scales if fraction), None)
            firsts += [index] if scale is None else []
        totals[index.field.name] = msgspec.structs.replace(index.totals, scale=scale)
    return totals


def _scale(index: ColumnIndex, first: ColumnIndex) -> tuple[int, int] | None:
    """Return how many times as long the ragged axes of all samples are as those of another field, as a fraction."""
    lengths, others = index.arrays["shapes"], first.arrays["shapes"]
    if lengths.shape != others.shape or not others.any():
        return None
    place = int((others > 0).argmax())
    length, other = int(lengths.flat[place]), int(others.flat[place])
    divisor = math.gcd(length, other)
    times, per = length // divisor, other // divisor
    return (times, per) if times and (lengths * np.uint64(per) == others * np.uint64(times)).all() else None


class ColumnIndex:
    """The index arrays of a column. Their lengths and the chunks are checked when it is made.

    Shapes and offsets of samples and frames are checked when they are used: there may be millions of them.

    Args:
        data: bytes of the index arrays, by name (see `layout.index_arrays`).
        find_chunks: gives file offset and size, (n, 2), of the chunks of some numbers, (n,).
        path: names the shard in messages; an attribute, too.

    Attributes:
        arrays: the index arrays by name, views of `data`, uint64; `chunks` and `shapes` have two axes.
        chunk_at: file offset of each chunk's first byte, (chunks,) int64.
        samples: number of samples in the shard.
        frames: number of frames of the column.
        totals: bytes of the column, as arrays and as frames.

    Raises:
        DamagedError: an array has the wrong length, or places lie outside their chunk.
    """

    def __init__(
        self,
        field: Field,
        samples: int,
        data: Mapping[str, memoryview],
        find_chunks: Callable[[NDArray[np.int64]], NDArray[np.int64]],
        path: str,
    ) -> None:
        self.field = field
        self.samples = samples
        self.path = path
        self.frames = len(data["checksums"]) // 8
        self.arrays: dict[str, Index] = {}
        for name, length in index_lengths(field, samples, self.frames, len(data["chunks"]) // 24).items():
            if len(data[name]) != 8 * length:
                raise self._damaged(f"index array {name} has {len(data[name])} bytes, {8 * length} expected")
            self.arrays[name] = np.frombuffer(data[name], "<u8")
        self.arrays["chunks"] = self.arrays["chunks"].reshape(-1, 3)
        if field.is_ragged:
            self.arrays["shapes"] = self.arrays["shapes"].reshape(samples, len(field.ragged_axes))
        self._check_count()
        self.chunk_at = self._check_chunks(find_chunks)

    def samples_of(self, frames: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the samples that each frame (m,) holds, or is a part of: start and stop, (m, 2)."""
        together = self.field.frame.samples or 1
        if self.field.frame.samples is not None:
            first = frames * together
        elif self.field.is_ragged:
            first = np.searchsorted(self.arrays["sample_frames"], frames.astype(np.uint64), side="right") - 1
        else:
            first = frames // self.field.bands
        return np.stack([first, np.minimum(first + together, self.samples)], axis=1)

    def _check_count(self) -> None:
        """Check that there are as many frames as the samples have."""
        field = self.field
        if field.frame.samples is not None:
            count = -(-self.samples // field.frame.samples)
        elif field.is_ragged:
            count = int(self.arrays["sample_frames"][-1])
        else:
            count = self.samples * field.bands
        if count != self.frames:
            raise self._damaged(f"{self.frames} checksums for {count} frames")

    def _check_chunks(self, find_chunks: Callable[[NDArray[np.int64]], NDArray[np.int64]]) -> NDArray[np.int64]:
        """Return the file offset of each chunk of the table, (chunks,), after a check of sizes and counts."""
        field, table = self.field, self.arrays["chunks"].astype(np.int64)
        lengths = np.diff(table[:, 1:], axis=0, prepend=0)
        if (lengths[:, 0] <= 0).any() or (lengths[:, 1] < 0).any():
            raise self._damaged("the table of chunks does not ascend")
        offsets, sizes = find_chunks(table[:, 0]).T
        wrong = sizes != lengths[:, 1]
        if wrong.any():
            first = int(wrong.argmax())
            raise self._damaged(f"chunk {table[first, 0]} has {sizes[first]} bytes, {lengths[first, 1]} expected")
        frames, nbytes = table[-1, 1:].tolist() if len(table) else (0, 0)
        if frames != self.frames:
            raise self._damaged(f"the chunks hold {frames} frames of {self.frames}")
        # Addresses of raw samples of one shape assume that each chunk has exactly the bytes of its samples.
        end_bytes = self.samples_of(table[:, 1] - 1)[:, 1] * field.fixed_bytes
        if not field.codec and not field.is_ragged and (end_bytes != table[:, 2]).any():
            raise self._damaged("a chunk has not the size of its samples")
        raw = int(self.arrays["sample_offsets"][-1]) if field.is_ragged else self.samples * field.fixed_bytes
        stored = int(self.arrays["frame_offsets"][-1]) if field.codec else raw
        if stored != nbytes:
            raise self._damaged(f"the chunks hold {nbytes} bytes, {stored} expected")
        self.totals = ColumnTotals(raw=raw, stored=stored)
        return np.ascontiguousarray(offsets)

    def _damaged(self, problem: str) -> DamagedError:
        return DamagedError(
            f"{self.path}: field {self.field.name!r}: {problem}; run `packer verify`, then `packer repair`"
        )
