"""Places that a damaged index gives: an error before anything is read there, whoever asks."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import xxhash

from packer.codecs.configs import NAMED
from packer.errors import DamagedError
from packer.format.column_index import ColumnIndex
from packer.format.schema import Field, FrameRule
from readers.checking import Checker
from readers.places import Places

#: Where the map of the one shard begins.
START = 1000


def places_of(field, samples, chunk_at, **arrays):
    """The places of a field of one shard, with a memory that holds nothing but the bytes 0, 1, 2, ... ."""
    index = ColumnIndex(
        field, {name: np.array(v, np.uint64) for name, v in arrays.items()}, np.array(chunk_at, np.int64), samples
    )
    return Places(field, [index], SimpleNamespace(starts=np.array([START]), bytes=memoryview(BYTES)))


BYTES = bytes(START) + bytes(range(200))


def coded():
    """Four frames of a sample each, two in a chunk at 10 and two in a chunk at 100, of 20 bytes each."""
    field = Field(name="x", dtype="uint8", shape=(9,), codec=NAMED["lz4"], frame=FrameRule(samples=1))
    return places_of(
        field, 4, [10, 100], checksums=[0] * 4, chunks=[[0, 2, 20], [1, 4, 40]], frame_offsets=[0, 10, 20, 30, 40]
    )


def test_places_of_a_sound_index():
    """Offsets in the stored bytes become addresses within the chunk; samples of no bytes may lie anywhere."""
    found = coded().stored_at(np.array([0, 1, 2, 3]), np.array([[0, 10], [10, 20], [20, 30], [30, 40]]))
    assert found.tolist() == [[1010, 1020], [1020, 1030], [1100, 1110], [1110, 1120]]
    assert coded().stored_at(np.array([2]), np.array([[7, 7]])).shape == (1, 2)


@pytest.mark.parametrize(
    ("number", "offsets"),
    [
        (2, [19, 30]),  # begins before its chunk
        (1, [10, 21]),  # ends behind its chunk
        (0, [-1, 5]),
        (3, [30, 41]),
        (1, [15, 10, 20]),  # not ascending
        (0, [5, 25, 15]),
    ],
)
def test_a_place_outside_its_chunk_is_an_error(number, offsets):
    """Reading there could crash: among sound ones, one such place is enough."""
    sound = list(range(0, 20, 20 // len(offsets)))[: len(offsets)]
    with pytest.raises(DamagedError, match="field 'x': an index of its column is damaged"):
        coded().stored_at(np.array([0, number]), np.array([sound, offsets]))


def test_bytes_without_chunks_are_an_error():
    """A column without a chunk holds no bytes."""
    field = Field(name="x", dtype="uint8", shape=(None,), frame=FrameRule(samples=2))
    places = places_of(
        field, 2, [], checksums=[0], chunks=np.zeros((0, 3)), sample_offsets=[0, 0, 0], shapes=[[0], [0]]
    )
    assert places.stored_at(np.array([0, 1]), np.zeros((2, 2), np.int64)).tolist() == [[0, 0], [0, 0]]
    with pytest.raises(DamagedError, match="an index of its column is damaged"):
        places.stored_at(np.array([0, 1]), np.array([[0, 0], [0, 1]]))


def checker(**changed):
    """Checks frames of a row of two bytes each, with right checksums: samples of 2, 1 and 3 rows at 0."""
    field = Field(name="x", dtype="uint8", shape=(None, 2), frame=FrameRule(rows=1))
    digests = [xxhash.xxh3_64_intdigest(BYTES[START + at : START + at + 2]) for at in range(0, 12, 2)]
    arrays = {
        "checksums": digests,
        "chunks": [[0, 6, 12]],
        "sample_frames": [0, 2, 3, 6],
        "sample_offsets": [0, 4, 6, 12],
        "shapes": [[2], [1], [3]],
    }
    places = places_of(field, 3, [0], **arrays | changed)
    return Checker(SimpleNamespace(places={"x": places}, shards=[SimpleNamespace(path="a.lmdb")]), "x", str)


@pytest.mark.parametrize(("number", "span"), [(0, [0, 4]), (1, [4, 2]), (2, [6, 6]), (2, [8, 2]), (2, [0, 0])])
def test_bytes_within_the_frames_of_a_sample_are_checked(number, span):
    """Of a sound index, bytes of a sample are taken for right, and for wrong where one of them was changed."""
    span = np.array([[START + span[0], span[1]]])
    checker().check(np.array([number]), span)
    if span[0, 1]:
        with pytest.raises(DamagedError, match=f"a.lmdb: field 'x', {number}: the bytes do not have their checksum"):
            checker(checksums=[0] * 6).check(np.array([number]), span)


@pytest.mark.parametrize(
    ("changed", "spans"),
    [
        ({}, {1: [3, 3]}),  # bytes before its first frame
        ({}, {1: [4, 3]}),  # bytes behind its last frame
        ({}, {0: [0, 4], 2: [5, 7]}),
        ({"sample_frames": [0, 2, 2, 6]}, {1: [4, 2]}),  # bytes, and no frame
        ({"sample_frames": [0, 4, 3, 6]}, {1: [4, 2]}),  # fewer than no frames
        ({"sample_frames": [0, 2, 9, 9]}, {1: [4, 2]}),  # frames that are not there
        ({"sample_frames": [0, 2**63, 3, 6]}, {1: [4, 2]}),
        ({"sample_frames": [0, 6, 0, 6]}, {0: [0, 4], 2: [6, 6]}),  # more frames than there are
        ({"sample_offsets": [0, 4, 13, 12]}, {1: [4, 2]}),  # a frame outside its chunk
    ],
)
def test_bytes_that_no_frame_covers_are_an_error(changed, spans):
    """What a checksum does not reach is not handed out unchecked."""
    numbers, places = np.array(list(spans)), np.array(list(spans.values()))
    places[:, 0] += START
    with pytest.raises(DamagedError, match="field 'x': an index of its column is damaged"):
        checker(**changed).check(numbers, places)


def test_no_more_frames_are_looked_at_than_there_are(monkeypatch):
    """Samples that an index gives all frames each are an error before memory is taken for the sum of them."""

    def looked(*_):
        raise AssertionError("frames were looked at")

    damaged = checker(sample_frames=[0, 6, 0, 6])
    monkeypatch.setattr(Checker, "_edges", looked)
    with pytest.raises(DamagedError, match="field 'x': an index of its column is damaged"):
        damaged.check(np.array([0, 2]), np.array([[START, 4], [START + 6, 6]]))
