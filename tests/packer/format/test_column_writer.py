"""Chunks: as many whole frames in each as it has room for."""

from __future__ import annotations

import numpy as np
import pytest

from packer.format.column_writer import Chunks


def chunks_of(sizes: list[int], limit: int, rows: bool) -> list[int]:
    """Bytes of the chunks of frames of some sizes, added one by one or as rows of one size."""
    stored: list[bytes] = []

    def put(chunk: memoryview) -> int:
        stored.append(bytes(chunk))
        return len(stored) - 1

    chunks = Chunks(put, limit)
    frames = [np.full(size, number, np.uint8) for number, size in enumerate(sizes)]
    if rows:
        chunks.append_rows(np.stack(frames))
    else:
        for frame in frames:
            chunks.append([frame.data])
    chunks.flush()
    assert b"".join(stored) == b"".join(frame.tobytes() for frame in frames)
    assert [number for number, _, _ in chunks.table] == list(range(len(stored)))
    assert [end for _, _, end in chunks.table] == np.cumsum([len(chunk) for chunk in stored]).tolist()
    return [len(chunk) for chunk in stored]


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize(
    ("sizes", "limit", "expected"),
    [
        ([25] * 8, 100, [100, 100]),  # a whole multiple of the sample
        ([25] * 9, 100, [100, 100, 25]),
        ([25] * 8, 99, [75, 75, 50]),
        ([25] * 8, 101, [100, 100]),
        ([100] * 3, 100, [100] * 3),
        ([150] * 2, 100, [150, 150]),  # larger than a chunk: one of its own
        ([50, 50], 100, [100]),
    ],
)
def test_chunks_are_filled(sizes: list[int], limit: int, expected: list[int], rows: bool) -> None:
    """A chunk takes frames up to its limit, and that itself; one frame that is larger lies alone."""
    assert chunks_of(sizes, limit, rows) == expected


def test_frames_of_several_sizes() -> None:
    """What no longer fits begins the next chunk."""
    assert chunks_of([60, 40, 1, 99, 150, 10], 100, rows=False) == [100, 100, 150, 10]
