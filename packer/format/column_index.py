"""The index arrays of one column of one shard, checked against each other and the chunks before anyone uses them.

`column.py` finds samples by them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packer.errors import DamagedError
from packer.format.layout import index_lengths
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

    def sample_range(self, frame: int) -> tuple[int, int]:
        """Return the numbers of the samples that a frame holds or is a part of: start and stop."""
        rule = self.field.frame
        if rule.samples is not None:
            return frame * rule.samples, min((frame + 1) * rule.samples, self.samples)
        if self.field.is_ragged:
            sample = int(np.searchsorted(self.arrays["sample_frames"], frame, side="right")) - 1
        else:
            sample = frame // self.field.bands
        return sample, sample + 1

    def check_samples(self, path: str) -> None:
        """Check for every sample that its shape, its bytes and its frames agree.

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


def check_index(
    field: Field,
    samples: int,
    data: Mapping[str, memoryview],
    find_chunks: Callable[[NDArray[np.int64]], NDArray[np.int64]],
    path: str,
) -> ColumnIndex:
    """Return the index of a column, with the lengths of its arrays and its chunks checked.

    Shapes and offsets of samples and frames are checked where they are used: there may be millions of them.

    Args:
        data: bytes of the index arrays, by name.
        find_chunks: gives file offset and size, (n, 2), of the chunks of some numbers, (n,).

    Raises:
        DamagedError: an array has the wrong length, or places lie outside their chunk.
    """

    def fail(what: str) -> DamagedError:
        return DamagedError(f"{path}: field {field.name!r}: {what}; run `packer verify`, then `packer repair`")

    arrays: dict[str, Index] = {}
    for name, held in data.items():
        if len(held) % 8:
            raise fail(f"index array {name} has {len(held)} bytes, not a multiple of 8")
        arrays[name] = np.frombuffer(held, "<u8")
    _reshape(field, samples, arrays, fail)
    at = _check_chunks(field, samples, arrays, find_chunks, fail)
    return ColumnIndex(field, arrays, at, samples)


def _reshape(field: Field, samples: int, arrays: dict[str, Index], fail: Callable[[str], DamagedError]) -> None:
    """Checks the lengths of the arrays against each other, and gives tables their two axes."""
    frames = len(arrays["checksums"])
    lengths = index_lengths(field, samples, frames, len(arrays["chunks"]) // 3)
    for name, length in lengths.items():
        if len(arrays[name]) != length:
            raise fail(f"index array {name} holds {len(arrays[name])} numbers, {length} expected")
    arrays["chunks"] = arrays["chunks"].reshape(-1, 3)
    if "shapes" in arrays:
        arrays["shapes"] = arrays["shapes"].reshape(samples, len(field.ragged_axes))
    if field.frame.samples is not None:
        count = -(-samples // field.frame.samples)
    elif field.is_ragged:
        count = int(arrays["sample_frames"][-1])
    else:
        count = samples * field.bands
    if count != frames:
        raise fail(f"{frames} checksums for {count} frames")


def _check_chunks(
    field: Field,
    samples: int,
    arrays: dict[str, Index],
    find_chunks: Callable[[NDArray[np.int64]], NDArray[np.int64]],
    fail: Callable[[str], DamagedError],
) -> NDArray[np.int64]:
    """Where each chunk of the table lies; checked are that it exists, its size, and that all frames are there."""
    table = arrays["chunks"].astype(np.int64)
    lengths = np.diff(table[:, 1:], axis=0, prepend=0)
    if (lengths[:, 0] <= 0).any() or (lengths[:, 1] < 0).any():
        raise fail("the table of chunks does not ascend")
    at, size = find_chunks(table[:, 0]).T
    wrong = size != lengths[:, 1]
    if wrong.any():
        first = int(wrong.argmax())
        raise fail(f"chunk {table[first, 0]} has {size[first]} bytes, {lengths[first, 1]} expected")
    frames, nbytes = table[-1, 1:].tolist() if len(table) else (0, 0)
    if frames != len(arrays["checksums"]):
        raise fail(f"the chunks hold {frames} frames of {len(arrays['checksums'])}")
    if field.codec:
        raw_bytes = int(arrays["frame_offsets"][-1])
    elif field.is_ragged:
        raw_bytes = int(arrays["sample_offsets"][-1])
    else:
        raw_bytes = samples * field.fixed_bytes
        _check_rows(field, samples, arrays["chunks"], fail)
    if raw_bytes != nbytes:
        raise fail(f"the chunks hold {nbytes} bytes, {raw_bytes} expected")
    return np.ascontiguousarray(at)


def _check_rows(field: Field, samples: int, table: Index, fail: Callable[[str], DamagedError]) -> None:
    """Checks that each chunk of raw samples of one shape has the bytes of its samples: addresses rely on it."""
    per_frame = field.frame.samples
    if per_frame is None:
        ends = table[:, 1] * field.fixed_bytes // max(field.bands, 1)
    else:
        ends = np.minimum(table[:, 1] * per_frame, samples) * field.fixed_bytes
    if (ends != table[:, 2]).any():
        raise fail("a chunk has not the size of its samples")
