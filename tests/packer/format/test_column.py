"""Columns: what is added comes back, for every shape, frame rule and codec; damaged indexes are errors."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import xxhash
from fields import any_field, any_value, same
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from packer.codecs import NAMED, PHOTO, Buffer, Config
from packer.errors import DamagedError, UsageError
from packer.format import Column, ColumnIndex, ColumnWriter, Field, FrameRule, Locator, column_writer
from packer.format.frame_cache import FrameCache

Samples = list[NDArray[Any]]


class Stored:
    """A column in memory: its chunks one behind the other with gaps between, as in a file."""

    def __init__(self, field: Field, chunk_bytes: int = 2**16) -> None:
        self.field = field
        self.file = bytearray(b"\xee" * 16)
        self.chunks: list[tuple[int, int]] = []
        self.writer = ColumnWriter(field, self.put, chunk_bytes)
        self.arrays: dict[str, bytes] = {}

    def put(self, chunk: Buffer) -> int:
        self.chunks.append((len(self.file), len(chunk)))
        self.file += bytes(chunk) + b"\xee" * 5
        return len(self.chunks) - 1

    def finish(self) -> Column:
        self.arrays = {name: values.tobytes() for name, values in self.writer.finish().items()}
        return self.column()

    def column(self) -> Column:
        # The index arrays lie after the chunks, at any byte.
        self.memory = self.file + b"".join(self.arrays.values())
        return Column(self.index_in(memoryview(self.memory)), memoryview(self.memory))

    def index_in(self, memory: Any) -> ColumnIndex:
        """The checked index, as views into memory that begins with the column's."""
        ends = list(itertools.accumulate(map(len, self.arrays.values()), initial=len(self.file)))
        places = dict(zip(self.arrays, itertools.pairwise(ends), strict=True))
        arrays = {name: memoryview(memory)[slice(*place)] for name, place in places.items()}
        return ColumnIndex(self.field, self.writer.samples, arrays, self.find_chunks, "a.lmdb")

    def find_chunks(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        absent = numbers[(numbers < 0) | (numbers >= len(self.chunks))]
        if len(absent):
            raise DamagedError(f"chunk {absent[0]} is missing")
        return np.array(self.chunks, np.int64).reshape(-1, 2)[numbers]


def wrong_frames(column: Column) -> list[int]:
    """Numbers of the frames whose checksums are wrong."""
    return [frame for _, wrong in column.check_frames() for frame in wrong]


def make_field(dtype: str, shape: Sequence[int | None], codec: tuple[Config, ...] = (), **rule: int) -> Field:
    kind = "image" if codec and codec[0]["id"] == PHOTO else "array"
    return Field(name="x", dtype=dtype, kind=kind, shape=tuple(shape), codec=codec, frame=FrameRule(**rule))


@st.composite
def columns(draw: st.DrawFn) -> tuple[Field, Samples]:
    """A field of any kind, dtype, shape, codec and frame rule, and samples for it."""
    field, rng = draw(any_field()), np.random.default_rng(draw(st.integers(0, 2**32)))
    return field, [any_value(rng, field, longest=5) for _ in range(draw(st.integers(0, 9)))]


def add(writer: ColumnWriter, samples: Samples, pieces: int) -> None:
    """Adds samples in blocks of `pieces`, from memory that is then overwritten."""
    for at in range(0, len(samples), pieces):
        block = [s.copy() for s in samples[at : at + pieces]]
        if writer.field.is_ragged:
            writer.add(block)
        else:
            stacked = np.stack(block)
            writer.add(stacked)
            stacked.reshape(-1).view(np.uint8)[...] = 0x55
        for sample in block:
            sample.reshape(-1).view(np.uint8)[...] = 0x55


@given(column=columns(), chunk_bytes=st.sampled_from([1, 7, 64, 300, 2**16]), pieces=st.integers(1, 5), data=st.data())
@settings(max_examples=400)
def test_samples_come_back_bit_for_bit(
    column: tuple[Field, Samples], chunk_bytes: int, pieces: int, data: st.DataObject
) -> None:
    """All samples together, and any run of them, equal what was added; every checksum is right."""
    field, samples = column
    stored = Stored(field, chunk_bytes)
    add(stored.writer, samples, pieces)
    reader = stored.finish()
    back = reader.read(0, len(samples))
    assert len(back) == len(samples)
    assert all(map(same, back, samples))
    start = data.draw(st.integers(0, len(samples)))
    stop = data.draw(st.integers(start, len(samples)))
    run = reader.read(start, stop)
    assert len(run) == stop - start
    assert all(map(same, run, samples[start:stop]))
    assert not wrong_frames(reader)
    assert stored.writer.raw_bytes == sum(s.nbytes for s in samples)
    assert stored.writer.stored_bytes == sum(size for _, size in stored.chunks)


@given(column=columns(), chunk_bytes=st.sampled_from([1, 64, 2**16]))
def test_blocks_of_any_length_give_the_same_bytes(column: tuple[Field, Samples], chunk_bytes: int) -> None:
    """How samples are handed over leaves no trace in what is stored."""
    field, samples = column
    results = []
    for pieces in (1, 3, 100):
        stored = Stored(field, chunk_bytes)
        add(stored.writer, samples, pieces)
        stored.finish()
        results.append((bytes(stored.file), stored.arrays))
    assert results[0] == results[1] == results[2]


@given(column=columns(), chunk_bytes=st.sampled_from([1, 64, 300]))
def test_frames_and_samples_know_each_other(column: tuple[Field, Samples], chunk_bytes: int) -> None:
    """The frames of a sample lie in one chunk, one behind the other, and each of them names that sample."""
    field, samples = column
    stored = Stored(field, chunk_bytes)
    add(stored.writer, samples, 4)
    column = stored.finish()
    assert column.frames_of(np.arange(len(samples))).frame.tolist() == list(range(column.index.frames))
    for sample in range(len(samples)):
        frames = column.frames_of(np.array([sample]))
        spans = frames.spans.tolist()
        assert not [(a, b) for a, b in itertools.pairwise(spans) if a[1] != b[0]]
        if spans:
            assert any(at <= spans[0][0] and spans[-1][1] <= at + size for at, size in stored.chunks)
        assert all(start <= sample < stop <= len(samples) for start, stop in column.index.samples_of(frames.frame))


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
        ([60, 40, 1, 99, 150, 10], 100, [100, 100, 150, 10]),
    ],
)
def test_chunks_are_filled(sizes: list[int], limit: int, expected: list[int]) -> None:
    """A chunk takes frames up to its limit, and that itself; one frame that is larger lies alone."""
    samples = [np.full(size, number, np.uint8) for number, size in enumerate(sizes)]
    for shape in {(None,), (sizes[0],)} if len(set(sizes)) == 1 else {(None,)}:
        stored = Stored(make_field("uint8", shape, samples=1), limit)
        add(stored.writer, samples, len(samples))
        assert all(map(same, stored.finish().read(0, len(samples)), samples))
        assert [size for _, size in stored.chunks] == expected


def test_index_arrays_of_a_small_column() -> None:
    """Literal arrays of a ragged column with two frames of two samples and chunks of one frame."""
    stored = Stored(make_field("uint16", [None, 2], samples=2), chunk_bytes=1)
    add(stored.writer, [np.arange(2 * n, dtype=np.uint16).reshape(n, 2) for n in (1, 2, 0, 3)], 4)
    stored.finish()
    assert {
        name: np.frombuffer(data, "<u8").tolist() for name, data in stored.arrays.items() if name != "checksums"
    } == {
        "chunks": [0, 1, 12, 1, 2, 24],
        "sample_offsets": [0, 4, 12, 12, 24],
        "shapes": [1, 2, 0, 3],
    }
    first = bytes([0, 0, 1, 0]) + bytes([0, 0, 1, 0, 2, 0, 3, 0])
    second = bytes([0, 0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0])
    sums = np.frombuffer(stored.arrays["checksums"], "<u8").tolist()
    assert sums == [xxhash.xxh3_64_intdigest(first), xxhash.xxh3_64_intdigest(second)]


def test_bands_of_an_image_are_differenced_apart() -> None:
    """With rows a frame, the first row of each band is stored as it is."""
    field = make_field("uint8", [None, 2, 1], ({"id": "photo"},), rows=2)
    stored = Stored(field)
    image = np.array([[5, 6], [7, 6], [100, 3], [99, 5], [8, 8]], np.uint8)[:, :, None]
    stored.writer.add([image])
    assert same(stored.finish().read(0, 1)[0], image)
    at, size = stored.chunks[0]
    assert stored.file[at : at + size] == bytes([10, 12, 4, 0, 200, 6, 1, 4, 16, 16])
    assert np.frombuffer(stored.arrays["frame_offsets"], "<u8").tolist() == [0, 4, 8, 10]
    assert np.frombuffer(stored.arrays["sample_frames"], "<u8").tolist() == [0, 3]


# ---------------------------------------------------------------- what does not fit


@pytest.mark.parametrize(
    ("shape", "values"),
    [
        ((3,), np.zeros((2, 3), "f8")),
        ((3,), np.zeros((2, 3), ">f4")),
        ((3,), np.zeros((2, 4), "f4")),
        ((3,), np.zeros(3, "f4")),
        ((None, 3), [np.zeros((2, 4), "f4")]),
        ((None, 3), [np.zeros(3, "f4")]),
        ((None, 3), [np.zeros((2, 3), "i4")]),
    ],
)
def test_another_dtype_or_shape_is_refused(shape: tuple[int | None, ...], values: Any) -> None:
    """Bytes that would be read back as other numbers are a usage error that names the field."""
    with pytest.raises(UsageError, match="'x'"):
        Stored(make_field("float32", shape, samples=4)).writer.add(values)


@pytest.mark.parametrize("ragged", [False, True])
def test_a_sample_too_large_for_any_chunk_is_refused(ragged: bool, monkeypatch: Any) -> None:
    """LMDB's largest value bounds a sample, which may be just as large; the message says so."""
    monkeypatch.setattr(column_writer, "MAX_CHUNK_BYTES", 100)
    Stored(make_field("uint8", (None if ragged else 100,), samples=1)).writer.add([np.zeros(100, np.uint8)])
    with pytest.raises(UsageError, match="101 bytes, but 100 is the most"):
        Stored(make_field("uint8", (None if ragged else 101,), samples=1)).writer.add([np.zeros(101, np.uint8)])


@pytest.mark.parametrize("rule", [{"rows": 4}, {"samples": 1}, {"samples": 3}])
def test_a_ragged_sample_too_large_as_an_array_is_refused(rule: dict[str, int], monkeypatch: Any) -> None:
    """However few bytes are stored of it: readers allocate no more for a sample, or for a frame of several."""
    monkeypatch.setattr(column_writer, "MAX_CHUNK_BYTES", 3000)
    field = make_field("uint8", (None,), NAMED["zstd"], **rule)
    size = 1000 if "samples" in rule and rule["samples"] > 1 else 3000
    Stored(field).writer.add([np.zeros(size, np.uint8)] * 3)
    with pytest.raises(UsageError, match="bytes, but 3,000 is the most"):
        Stored(field).writer.add([np.zeros(size + 1, np.uint8)] * 3)


@pytest.mark.parametrize("per_frame", [1, 4])
@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_samples_beyond_4_gib_are_found(codec: str, per_frame: int) -> None:
    """Addresses of raw rows, and places in frames, of a shard of 6 GiB, of which only the index is there."""
    field = make_field("uint8", [2**20], NAMED[codec], samples=per_frame)
    per_chunk, chunks, step = 1000, 6, 2**20 if codec == "none" else 100
    frames = np.arange(1, chunks + 1) * per_chunk // per_frame
    ends = frames * per_frame * step
    arrays = {
        "checksums": np.zeros(frames[-1]),
        "chunks": np.stack([np.arange(chunks), frames, ends], axis=1),
        "frame_offsets": np.arange(frames[-1] + 1) * per_frame * step,
    }
    memory = b"".join(array.tobytes() for array in arrays.values())
    edges = itertools.pairwise(itertools.accumulate((array.nbytes for array in arrays.values()), initial=0))
    data = {name: memoryview(memory)[start:stop] for name, (start, stop) in zip(arrays, edges, strict=True)}
    places = np.stack([np.arange(chunks) * 2**32, np.diff(ends, prepend=0)], axis=1)
    column = Column(
        ColumnIndex(field, chunks * per_chunk, data, lambda numbers: places[numbers], "a"), memoryview(memory)
    )
    asked = np.array([0, 4095, 4096, 5003, 5999])
    located = column.locate(asked)
    first = asked if codec == "none" else asked // per_frame * per_frame
    assert located.start.tolist() == (first // per_chunk * 2**32 + first % per_chunk * step).tolist()
    assert located.before.tolist() == ((asked - first) * 2**20).tolist()
    assert located.nbytes.tolist() == [2**20] * len(asked)


# ---------------------------------------------------------------- damaged indexes


def damaged_columns() -> list[Field]:
    return [
        make_field("uint8", [4, 5], samples=2),
        make_field("uint8", [4, 5], rows=3),
        make_field("uint16", [None, 5], samples=2),
        make_field("uint16", [None, None], rows=2),
        make_field("uint8", [4, 5], NAMED["lz4"], samples=1),
        make_field("uint8", [4, 5], NAMED["lz4"], samples=2),
        make_field("uint16", [None, 5, None], NAMED["photo+zstd"], rows=2),
        make_field("float32", [None, 5], NAMED["bitshuffle"], samples=3),
    ]


def filled(field: Field) -> Stored:
    rng = np.random.default_rng(3)
    stored = Stored(field, 200)
    add(stored.writer, [any_value(rng, field) for _ in range(12)], 5)
    stored.finish()
    return stored


@pytest.mark.parametrize("field", damaged_columns())
def test_wrong_numbers_in_an_index_never_crash(field: Field) -> None:
    """An index array with any number wrong is a DamagedError, or gives samples of the right kind."""
    stored = filled(field)
    chance = random.Random(5)
    whole = dict(stored.arrays)
    found = 0
    for _ in range(400):
        name = chance.choice(sorted(whole))
        damaged = np.frombuffer(whole[name], "<u8").copy()
        wrong = (0, 1, 2**64 - 1, 2**63, 2**48, 2**32, chance.randrange(300))
        damaged[chance.randrange(len(damaged))] = chance.choice(wrong)
        stored.arrays = {**whole, name: damaged.tobytes()}
        try:
            column = stored.column()
            for sample in range(12):
                with contextlib.suppress(DamagedError):
                    assert column.read(sample, sample + 1)[0].ndim == len(field.shape)
            wrong_frames(column)
        except DamagedError:
            found += 1
    assert found > 50


@pytest.mark.parametrize("field", damaged_columns())
def test_a_flipped_bit_is_found_by_the_checksum_of_its_frame(field: Field) -> None:
    """Exactly the frame that holds the bit fails."""
    stored = filled(field)
    column = stored.column()
    frames = column.frames_of(np.arange(12))
    for frame in np.flatnonzero(frames.stored).tolist():
        start, end = frames.spans[frame].tolist()
        stored.memory[(start + end) // 2] ^= 4
        assert wrong_frames(column) == [frame]
        stored.memory[(start + end) // 2] ^= 4


def test_a_frame_that_cannot_be_decoded_names_its_samples() -> None:
    """The message says file, field, samples and what to do."""
    stored = Stored(make_field("uint8", [500], NAMED["lz4"], samples=2))
    add(stored.writer, [np.zeros(500, np.uint8)] * 6, 6)
    column = stored.finish()
    start, end = column.frames_of(np.arange(2, 4)).spans[0].tolist()
    stored.memory[start + 4 : end] = b"\xff" * (end - start - 4)
    with pytest.raises(DamagedError, match=r"a\.lmdb: field 'x', samples 2 to 3 .*packer repair"):
        column.read(0, 4)


# ---------------------------------------------------------------- several shards


@given(column=columns(), chunk_bytes=st.sampled_from([1, 7, 64, 2**16]), data=st.data())
@settings(max_examples=300)
def test_samples_of_several_shards_come_back(
    column: tuple[Field, Samples], chunk_bytes: int, data: st.DataObject
) -> None:
    """Whenever their shards are opened, in any order, and again elsewhere: bytes, shapes, shards, and checksums.

    The cache may be too small for the frames of all samples that are asked for, or of a few.
    """
    field, samples = column
    shards, edges = [], data.draw(st.lists(st.integers(0, len(samples)), max_size=2).map(sorted))
    bounds = [0, *edges, len(samples)]
    for start, stop in itertools.pairwise(bounds):
        shards.append(Stored(field, chunk_bytes))
        add(shards[-1].writer, samples[start:stop], 4)
        shards[-1].finish()
    *starts, size = itertools.accumulate((len(shard.memory) for shard in shards), initial=0)
    memory = np.frombuffer(2 * b"".join(bytes(shard.memory) for shard in shards), np.uint8)
    indexes = []  # a locator does not keep them

    def opening(numbers: Sequence[int], first: int = 0) -> list[tuple[ColumnIndex, int]]:
        opened = [(shards[n].index_in(memory[first + starts[n] :]), first + starts[n]) for n in numbers]
        indexes.extend(opened)
        return opened

    cache = FrameCache(data.draw(st.sampled_from([0, 100, 1000, 2**20])))
    locator = Locator(field, [stop - start for start, stop in itertools.pairwise(bounds)], memory, opening, cache)
    for few in data.draw(st.lists(st.lists(st.integers(0, len(samples) - 1)), max_size=2)) if samples else []:
        locator.locate(np.array(few, np.int64))  # shards are opened one after another, in any order
    asked = data.draw(st.lists(st.integers(0, len(samples) - 1), max_size=9)) if samples else []
    moved = data.draw(st.lists(st.integers(0, len(shards) - 1), unique=True))
    for again in ([], moved):
        for shard in again:
            locator.add([shard], opening([shard], size))
        located = locator.locate(np.array(asked, np.int64))
        assert located.number.tolist() == asked
        assert located.shard.tolist() == [sum(number >= edge for edge in edges) for number in asked]
        assert located.shape.tolist() == [[*samples[number].shape] for number in asked]
        assert located.nbytes.tolist() == [samples[number].nbytes for number in asked]
        for position in range(min(len(asked), 2)):  # alone as among others
            alone, among = locator.locate(np.array(asked[position : position + 1])), located[position : position + 1]
            assert vars(alone).keys() == vars(among).keys()
            assert all(map(np.array_equal, vars(alone).values(), map(vars(among).get, vars(alone))))
        lies = located[located.nbytes > 0]
        assert ((lies.start >= size) == np.isin(lies.shard, again)).all()
        out = np.empty(int(located.nbytes.sum()), np.uint8)
        locator.decode(located, out)
        assert out.tobytes() == b"".join(samples[number].tobytes() for number in asked)
        frames = locator.frames(located)
        assert not locator.are_wrong(frames).any()
    assert np.bincount(frames.item, minlength=len(asked)).tolist() == located.frames.tolist()
