"""Checks the index arrays of a column against each other and against the chunks, before anything relies on them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from packer.errors import DamagedError
from packer.format.column_index import ColumnIndex, Index
from packer.format.layout import index_arrays
from packer.format.schema import Field


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
    at = _check_chunks(field, samples, arrays, find_chunk, fail)
    return ColumnIndex(field, arrays, np.array(at, np.int64), samples)


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
) -> list[int]:
    """Where each chunk of the table lies; checked are that it exists, its size, and that all frames are there."""
    at = []
    frames_before = bytes_before = 0
    for number, frames_end, bytes_end in arrays["chunks"].tolist():
        if frames_end < frames_before or bytes_end < bytes_before:
            raise fail("the table of chunks does not ascend")
        offset, size = find_chunk(number)
        if size != bytes_end - bytes_before:
            raise fail(f"chunk {number} has {size} bytes, {bytes_end - bytes_before} expected")
        at.append(offset)
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
    return at


def _check_rows(field: Field, samples: int, table: Index, fail: Callable[[str], DamagedError]) -> None:
    """Checks that each chunk of raw samples of one shape has the bytes of its samples: addresses rely on it."""
    per_frame = field.frame.samples
    if per_frame is None:
        ends = table[:, 1] * field.fixed_bytes // max(-(-(field.shape[0] or 0) // (field.frame.rows or 1)), 1)
    else:
        ends = np.minimum(table[:, 1] * per_frame, samples) * field.fixed_bytes
    if (ends != table[:, 2]).any():
        raise fail("a chunk has not the size of its samples")
