"""Chunks: as many whole frames in each as it has room for."""

from __future__ import annotations

import numpy as np
import pytest

from packer.format import ColumnWriter, Field


def chunks_of(sizes: list[int], limit: int, ragged: bool) -> list[int]:
    """Bytes of the chunks of samples of some sizes, each a frame, added one by one or as one array."""
    stored: list[bytes] = []

    def put(chunk: memoryview) -> int:
        stored.append(bytes(chunk))
        return len(stored) - 1

    samples = [np.full(size, number, np.uint8) for number, size in enumerate(sizes)]
    column = ColumnWriter(Field(name="x", dtype="uint8", shape=(None if ragged else sizes[0],)), put, limit)
    column.add(samples if ragged else np.stack(samples))
    table = column.finish()["chunks"]
    assert b"".join(stored) == b"".join(sample.tobytes() for sample in samples)
    assert table[:, 0].tolist() == list(range(len(stored)))
    assert table[:, 2].tolist() == np.cumsum([len(chunk) for chunk in stored]).tolist()
    return [len(chunk) for chunk in stored]


@pytest.mark.parametrize("ragged", [False, True])
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
def test_chunks_are_filled(sizes: list[int], limit: int, expected: list[int], ragged: bool) -> None:
    """A chunk takes frames up to its limit, and that itself; one frame that is larger lies alone."""
    assert chunks_of(sizes, limit, ragged) == expected


def test_frames_of_several_sizes() -> None:
    """What no longer fits begins the next chunk."""
    assert chunks_of([60, 40, 1, 99, 150, 10], 100, ragged=True) == [100, 100, 150, 10]
