"""Where frames lie: places that a damaged index gives are errors before anything is read at them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from packer.codecs.configs import NAMED
from packer.errors import DamagedError
from packer.format.column_index import ColumnIndex
from packer.format.schema import Field, FrameRule


def index_of(field: Field, samples: int, changed: dict[str, Any], **arrays: Any) -> ColumnIndex:
    """Two chunks, at 100 and at 500 in the file, and some index arrays changed."""
    built = {name: np.array(value, np.uint64) for name, value in {**arrays, **changed}.items()}
    return ColumnIndex(field, built, np.array([100, 500]), samples)


def coded(**changed: Any) -> ColumnIndex:
    """Four frames, two in each chunk."""
    return index_of(
        Field(name="x", dtype="uint8", shape=(9,), codec=NAMED["lz4"], frame=FrameRule(samples=1)),
        4,
        changed,
        checksums=[0] * 4,
        chunks=[[0, 2, 20], [1, 4, 40]],
        frame_offsets=[0, 10, 20, 30, 40],
    )


def ragged(**changed: Any) -> ColumnIndex:
    """Four frames of a sample each, two in each chunk."""
    return index_of(
        Field(name="x", dtype="uint8", shape=(None, 5), frame=FrameRule(samples=1)),
        4,
        changed,
        checksums=[0] * 4,
        chunks=[[0, 2, 20], [1, 4, 40]],
        sample_offsets=[0, 10, 20, 30, 40],
        shapes=[[2], [2], [2], [2]],
    )


def banded(**changed: Any) -> ColumnIndex:
    """Two samples of two frames of two rows, one sample in each chunk."""
    return index_of(
        Field(name="x", dtype="uint8", shape=(None, 5), frame=FrameRule(rows=2)),
        2,
        changed,
        checksums=[0] * 4,
        chunks=[[0, 2, 20], [1, 4, 40]],
        sample_frames=[0, 2, 4],
        sample_offsets=[0, 20, 40],
        shapes=[[4], [4]],
    )


KINDS = {"coded": coded, "ragged": ragged, "banded": banded}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_damaged_below_is_sound(kind: str) -> None:
    """Frames lie one behind another within each chunk, and samples are what their shapes say."""
    index = KINDS[kind]()
    assert index.frame_spans(0, 4).tolist() == [[100, 110], [110, 120], [500, 510], [510, 520]]
    index.check_samples("a.lmdb")


@pytest.mark.parametrize(
    ("kind", "changed", "frame"),
    [
        ("coded", {"frame_offsets": [0, 10, 15, 30, 40]}, 2),  # begins in the chunk before
        ("coded", {"frame_offsets": [0, 10, 25, 30, 40]}, 1),  # ends in the chunk behind
        ("coded", {"frame_offsets": [0, 12, 8, 30, 40]}, 1),  # ends before it begins
        ("ragged", {"sample_offsets": [0, 10, 15, 30, 40]}, 2),
        ("ragged", {"sample_offsets": [0, 10, 25, 30, 40]}, 1),
        ("ragged", {"sample_offsets": [0, 12, 8, 30, 40]}, 1),
        ("banded", {"sample_offsets": [0, 15, 40]}, 2),
        ("banded", {"sample_offsets": [0, 30, 40]}, 1),
        ("banded", {"sample_offsets": [5, 2, 40]}, 0),
    ],
)
def test_a_frame_outside_its_chunk_is_an_error(kind: str, changed: dict[str, Any], frame: int) -> None:
    """A frame begins and ends in its chunk, in this order; whoever asks for it alone is told so too."""
    index = KINDS[kind](**changed)
    with pytest.raises(ValueError, match="the places of its frames lie outside of their chunks"):
        index.frame_span(frame)
    with pytest.raises(ValueError, match="lie outside"):
        index.frame_spans(0, 4)


@pytest.mark.parametrize(
    ("kind", "changed", "words"),
    [
        ("ragged", {"sample_offsets": [0, 10, 21, 31, 41]}, "shape and size of sample 1 of the shard do not agree"),
        ("ragged", {"sample_offsets": [0, 10, 20, 40, 30]}, "shape and size of sample 2 of the shard do not agree"),
        ("ragged", {"shapes": [[2], [2], [2], [3]]}, "shape and size of sample 3 of the shard do not agree"),
        ("banded", {"sample_frames": [0, 1, 4]}, "shape and size of sample 0 of the shard do not agree"),
        ("banded", {"sample_frames": [0, 2, 3]}, "shape and size of sample 1 of the shard do not agree"),
        ("coded", {"frame_offsets": [0, 20, 10, 30, 40]}, "its frames do not ascend"),
    ],
)
def test_each_damage_of_samples_is_named(kind: str, changed: dict[str, Any], words: str) -> None:
    """Bytes, shapes and frames of every sample agree; the message names the first where they do not."""
    with pytest.raises(DamagedError, match=rf"^a\.lmdb: field 'x': {words}; run `packer repair`"):
        KINDS[kind](**changed).check_samples("a.lmdb")
