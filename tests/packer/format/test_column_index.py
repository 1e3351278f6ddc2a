"""Indexes of columns: each lie in one is found, when it is opened or before anything is read where it leads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from packer.codecs import NAMED
from packer.errors import DamagedError
from packer.format import Column, ColumnIndex, Field, FrameRule

#: By name: a field, its number of samples, and its index arrays as they should be. Chunks are (number, frames and
#: bytes up to its end).
SOUND: dict[str, tuple[Field, int, dict[str, Any]]] = {
    "raw": (
        Field(name="x", dtype="uint8", shape=(4, 5), frame=FrameRule(samples=2)),
        5,
        {"checksums": [1, 2, 3], "chunks": [0, 2, 80, 1, 3, 100]},
    ),
    "raw rows": (
        Field(name="x", dtype="uint8", shape=(4, 5), frame=FrameRule(rows=3)),
        3,
        {"checksums": [1, 2, 3, 4, 5, 6], "chunks": [0, 2, 20, 1, 6, 60]},
    ),
    "ragged": (
        Field(name="x", dtype="uint16", shape=(None, 5), frame=FrameRule(samples=2)),
        3,
        {"checksums": [1, 2], "chunks": [0, 1, 30, 1, 2, 50], "sample_offsets": [0, 10, 30, 50], "shapes": [1, 2, 2]},
    ),
    "ragged rows": (
        Field(name="x", dtype="uint8", shape=(None, 5), frame=FrameRule(rows=2)),
        2,
        {
            "checksums": [1, 2, 3],
            "chunks": [0, 2, 15, 1, 3, 25],
            "sample_frames": [0, 2, 3],
            "sample_offsets": [0, 15, 25],
            "shapes": [3, 2],
        },
    ),
    "nothing": (
        Field(name="x", dtype="uint8", shape=(None,), frame=FrameRule(rows=2)),
        2,
        {"checksums": [], "chunks": [], "sample_frames": [0, 0, 0], "sample_offsets": [0, 0, 0], "shapes": [0, 0]},
    ),
    "coded": (
        Field(name="x", dtype="uint8", shape=(4, 5), codec=NAMED["lz4"], frame=FrameRule(samples=2)),
        5,
        {"checksums": [1, 2, 3], "chunks": [0, 2, 70, 1, 3, 90], "frame_offsets": [0, 40, 70, 90]},
    ),
}


def opened(kind: str, sizes: list[int] | None = None, **changed: Any) -> ColumnIndex:
    """The index of a field of `SOUND`, with some of its arrays changed: lists of numbers, or bytes.

    Args:
        sizes: of the chunks in the file; by default as the table has them.
    """
    field, samples, arrays = SOUND[kind]
    if sizes is None:
        sizes = np.diff(arrays["chunks"][2::3], prepend=0).tolist()
    at = np.cumsum([100, *sizes])[:-1]
    data = {
        name: memoryview(value if isinstance(value, bytes) else np.array(value, "<u8").tobytes())
        for name, value in {**arrays, **changed}.items()
    }

    def find_chunks(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.stack([at, sizes], axis=1)[numbers]

    return ColumnIndex(field, samples, data, find_chunks, "a.lmdb")


@pytest.mark.parametrize("kind", SOUND)
def test_a_sound_index_is_taken_as_it_is(kind: str) -> None:
    """Every index is taken as it is; chunks lie where they were found, and frames one behind the other."""
    index, arrays = opened(kind), SOUND[kind][2]
    assert index.frames == len(arrays["checksums"])
    edges = [100, *(100 + end for end in arrays["chunks"][2::3])]
    assert index.chunk_at.tolist() == edges[:-1]
    column = changed_later(kind)
    column.check_samples()
    spans = column.frames_of(np.arange(index.samples)).spans.ravel().tolist()
    assert len(spans) == 2 * index.frames
    assert spans[1:-1:2] == spans[2::2]
    assert not spans or (spans[0], spans[-1]) == (edges[0], edges[-1])


def changed_later(kind: str, **changed: Any) -> Column:
    """A column of which index arrays change after they were checked, as a file may."""
    index, memory, places = opened(kind), bytearray(600), {}
    for name, array in index.arrays.items():
        places[name] = len(memory), array.shape
        memory += np.array(changed.get(name, array), "<u8").tobytes()
    index.arrays = {name: np.ndarray(shape, "<u8", memory, at) for name, (at, shape) in places.items()}
    return Column(index, memoryview(memory))


@pytest.mark.parametrize(
    ("kind", "changed", "sample"),
    [
        ("coded", {"frame_offsets": [0, 40, 60, 90]}, 4),  # begins in the chunk before
        ("coded", {"frame_offsets": [0, 40, 75, 90]}, 2),  # ends in the chunk after
        ("coded", {"frame_offsets": [0, 50, 45, 90]}, 2),  # ends before it begins
        ("coded", {"frame_offsets": [2**64 - 1, 5, 70, 90]}, 0),
        ("coded", {"frame_offsets": [0, 40, 70, 91]}, 4),
        ("ragged", {"sample_offsets": [4, 14, 34, 54]}, 1),  # ends in the chunk after
        ("ragged", {"sample_offsets": [0, 10, 25, 50]}, 1),  # has not the bytes of its shape
        ("ragged", {"sample_offsets": [0, 35, 30, 50]}, 0),
        ("ragged", {"shapes": [1, 2, 3]}, 2),
        ("ragged", {"shapes": [1, 2**64 - 2, 2]}, 1),
        ("ragged rows", {"sample_offsets": [5, 20, 30]}, 0),
        ("ragged rows", {"sample_offsets": [0, 10, 25]}, 0),
        ("ragged rows", {"sample_offsets": [5, 2, 25]}, 0),
        ("ragged rows", {"sample_frames": [0, 1, 3]}, 0),  # fewer bands than its rows fill
        ("ragged rows", {"sample_frames": [0, 2, 2]}, 1),
        ("ragged rows", {"sample_frames": [1, 3, 4]}, 1),  # one that is not there
        ("ragged rows", {"sample_frames": [2**64 - 2, 0, 1]}, 0),
        ("nothing", {"sample_offsets": [0, 0, 1], "shapes": [0, 1]}, 1),  # a column without a chunk holds no bytes
        ("nothing", {"sample_offsets": [0, 0, 1], "shapes": [0, 1], "sample_frames": [0, 0, 1]}, 1),
    ],
)
def test_a_place_that_cannot_be_is_an_error(kind: str, changed: dict[str, Any], sample: int) -> None:
    """Samples lie in their chunk, in order, and hold what the shape says; reading and checking find it."""
    column = changed_later(kind, **changed)
    words = f"field 'x', sample {sample} of the shard: an index of its column is damaged; run `packer verify`, then"
    for start, stop in ((sample, sample + 1), (0, column.index.samples)):
        with pytest.raises(DamagedError, match=rf"^a\.lmdb: {words} `packer repair`"):
            column.read(start, stop)
    with pytest.raises(DamagedError, match=rf"^a\.lmdb: {words} `packer repair`"):
        _ = column.check_samples(), list(column.check_frames())


DAMAGES: dict[str, tuple[str, dict[str, Any], str]] = {
    "half a number": ("raw", {"checksums": bytes(23)}, "index array checksums has 23 bytes, 16 expected"),
    "frame_offsets": ("coded", {"frame_offsets": [0, 40, 90]}, "array frame_offsets has 24 bytes, 32 expected"),
    "sample_frames": ("ragged rows", {"sample_frames": [0, 3]}, "array sample_frames has 16 bytes, 24 expected"),
    "sample_offsets": ("ragged", {"sample_offsets": [0, 50]}, "array sample_offsets has 16 bytes, 32 expected"),
    "shapes": ("ragged", {"shapes": [1, 2, 2, 0]}, "array shapes has 32 bytes, 24 expected"),
    "half a chunk": ("raw", {"chunks": [0, 3, 100, 1]}, "index array chunks has 32 bytes, 24 expected"),
    "frames of samples": ("raw", {"checksums": [1, 2]}, "2 checksums for 3 frames"),
    "frames of rows": ("raw rows", {"checksums": [1, 2, 3]}, "3 checksums for 6 frames"),
    "frames of ragged rows": ("ragged rows", {"sample_frames": [0, 2, 4]}, "3 checksums for 4 frames"),
    "frames of chunks descend": ("raw", {"chunks": [0, 3, 80, 1, 2, 100]}, "the table of chunks does not ascend"),
    "bytes of chunks descend": ("raw", {"chunks": [0, 2, 110, 1, 3, 100]}, "the table of chunks does not ascend"),
    "a negative number": ("raw", {"chunks": [0, 2, 2**63, 1, 3, 100]}, "the table of chunks does not ascend"),
    "another size": ("raw", {"sizes": [80, 21]}, "chunk 1 has 21 bytes, 20 expected"),
    "the first size": ("raw", {"sizes": [79, 20]}, "chunk 0 has 79 bytes, 80 expected"),
    "a frame in no chunk": ("raw", {"chunks": [0, 1, 80, 1, 2, 100]}, "the chunks hold 2 frames of 3"),
    "a chunk without frames": ("raw", {"chunks": [0, 2, 80, 1, 2, 100]}, "the table of chunks does not ascend"),
    "no chunks": ("raw", {"chunks": []}, "the chunks hold 0 frames of 3"),
    "bytes of coded frames": ("coded", {"frame_offsets": [0, 40, 70, 91]}, "the chunks hold 90 bytes, 91 expected"),
    "bytes of ragged samples": ("ragged", {"sample_offsets": [0, 10, 30, 49]}, "hold 50 bytes, 49 expected"),
    "samples across chunks": (
        "raw",
        {"chunks": [0, 2, 70, 1, 3, 100], "sizes": [70, 30]},
        "a chunk has not the size of its samples",
    ),
    "samples of rows across chunks": (
        "raw rows",
        {"chunks": [0, 2, 25, 1, 6, 60], "sizes": [25, 35]},
        "a chunk has not the size of its samples",
    ),
    "fewer bytes than samples": (
        "raw",
        {"chunks": [0, 2, 80, 1, 3, 90], "sizes": [80, 10]},
        "a chunk has not the size of its samples",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_each_lie_is_found_when_the_index_is_opened(name: str) -> None:
    """Every check finds what it is for; the message names file and field, and says what to do."""
    kind, changed, message = DAMAGES[name]
    with pytest.raises(DamagedError, match=rf"^a\.lmdb: field 'x': .*{message}; run `packer verify`, then"):
        opened(kind, **changed)
