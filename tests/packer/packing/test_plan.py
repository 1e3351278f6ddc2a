"""Plans: which sample goes where, and how large each file gets, from sizes alone."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer.errors import SourceError, UsageError
from packer.format import FieldSpec, ShardWriter, map_size
from packer.packing import FieldSizes, field_sizes, make_plan
from packer.packing.cutting import AUTO_SHARDS, AUTO_SMALLEST, GIB, cut_shards
from packer.packing.estimating import estimate
from packer.packing.examples import MOST_FILES, MOST_ROWS
from packer.packing.remarks import remark_on_lengths
from packer.sources import Block, SampleSource, Source

MIB = 2**20


class Rows(Source):
    """Rows of one byte, none of which exists."""

    kind = "test"
    fields = (FieldSpec(name="x", dtype="int8"),)
    names = None

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def shapes(self, field: str) -> None:
        return None

    def slice(self, start: int, stop: int) -> Rows:
        return Rows(stop - start)

    def files(self) -> list[str]:
        return []

    def read(self) -> Iterator[Block]:
        yield {"x": np.zeros(self.count, np.int8)}


@pytest.mark.parametrize("codec", ["auto", "zstd"])
def test_a_plan_takes_no_memory_for_rows_of_one_size(codec: str) -> None:
    """Of ten thousand million rows of one byte too: nothing is made for each, and a bounded number is tried."""
    tracemalloc.start()
    try:
        plan = make_plan(Rows(10**10), codec, None)
        trial = estimate(plan)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (plan.samples, sum(shard.samples for shard in plan.shards)) == (10**10, 10**10)
    assert sum(plan.raw_bytes.values()) == 10**10
    assert trial.samples <= MOST_ROWS
    assert peak < 64 * MIB


def test_few_samples_that_have_names_are_tried() -> None:
    """Each may be a file that has to be opened."""
    assert estimate(make_plan(Clouds([1] * 50_000), "none", None)).samples <= MOST_FILES


class Clouds(Source):
    """Clouds with a label, a caption of unknown size where asked for, and names where asked for."""

    kind = "test"

    def __init__(self, points: list[int], captions: bool = False, names: str | None = "cloud-") -> None:
        self.points = points
        self.fields = (FieldSpec(name="xyz", dtype="float32", shape=(None, 3)), FieldSpec(name="label", dtype="int64"))
        if captions:
            self.fields = (*self.fields, FieldSpec(name="caption", dtype="uint8", kind="text", shape=(None,)))
        self.names = None if names is None else [f"{names}{n}" for n in range(len(points))]

    def __len__(self) -> int:
        return len(self.points)

    def shapes(self, field: str) -> Any:
        return np.array([[n, 3] for n in self.points], np.int64).reshape(-1, 2) if field == "xyz" else None

    def slice(self, start: int, stop: int) -> Source:
        return Clouds(self.points[start:stop])

    def read(self) -> Iterator[Block]:
        yield {
            "xyz": [np.full((n, 3), n, "f4") for n in self.points],
            "label": np.array(self.points, np.int64),
        }

    def files(self) -> list[str]:
        return []


def plan_of(source: Clouds, shard_size: int | None = None, codec: str = "none") -> Any:
    return make_plan(source, codec, shard_size)


def test_where_the_codec_is_given_no_sample_is_read() -> None:
    """Headers say all that a plan needs then; `auto` tries some."""

    class Unread(Clouds):
        def slice(self, start: int, stop: int) -> Source:
            raise AssertionError("it is read")

    assert make_plan(Unread([5, 7]), "lz4", None).samples == 2
    with pytest.raises(AssertionError, match="it is read"):
        make_plan(Unread([5, 7]), "auto", None)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_sample_too_large_to_be_read_is_refused(codec: str) -> None:
    """A ragged sample of 4 GiB as an array, encoded or not, is named before anything is packed."""
    largest = (2**32 - 4112) // 12
    assert plan_of(Clouds([1, largest]), codec=codec).samples == 2
    with pytest.raises(UsageError, match=r"field 'xyz' of sample 'cloud-1' has 4,294,963,188 bytes, but 4,294,963,184"):
        plan_of(Clouds([1, largest + 1]), codec=codec)


# ---------------------------------------------------------------- remarks


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ((5, 6, 7, 8), None),
        ((5, 6, 9, 8), "xyz and label differ in length in 1 of 4 samples, such as number 2: 7 and 9 rows"),
        ((5, 1, 9, 8), "xyz and label differ in length in 2 of 4 samples, such as number 1: 6 and 1 rows"),
        ((1, 2, 3, 8), None),
    ],
)
def test_fields_of_unequal_lengths_are_named(labels: tuple[int, ...], words: str | None) -> None:
    """Fields that have as many rows in half of the samples at least, but not in all: of one cloud, as it seems."""

    class Labelled(Clouds):
        def shapes(self, field: str) -> Any:
            rows = {"xyz": self.points, "label": labels, "boxes": [n + 100 for n in labels]}[field]
            return np.array([[n, 3] if field == "xyz" else [n] for n in rows], np.int64)

    source = Labelled([5, 6, 7, 8], names=None)
    kinds = {"boxes": "float32", "xyz": "float32", "label": "uint8"}
    shapes = {"xyz": (None, 3)}
    source.fields = tuple(FieldSpec(name=n, dtype=t, shape=shapes.get(n, (None,))) for n, t in kinds.items())
    assert make_plan(source, "none", None).remarks == (() if words is None else (words,))


# ---------------------------------------------------------------- cutting

sample_sizes = st.lists(st.integers(0, 10_000), min_size=1, max_size=200).map(lambda s: np.array(s, np.int64))


@given(sizes=sample_sizes, shard_size=st.integers(4096, 500_000))
def test_every_sample_is_in_one_shard(sizes: Any, shard_size: int) -> None:
    """Shards follow each other from the first sample on, none is empty, and there are no more than needed."""
    starts = cut_shards(sizes, shard_size)
    assert starts[0] == 0
    assert not [(a, b) for a, b in itertools.pairwise(starts) if not (a < b)]
    assert starts[-1] < len(sizes)
    assert len(starts) <= max(1, -(-int(sizes.sum()) // shard_size))


@given(sizes=sample_sizes, shard_size=st.integers(4096, 500_000))
def test_shards_have_about_the_same_bytes(sizes: Any, shard_size: int) -> None:
    """No shard is larger than the size asked for by more than one sample at each end."""
    starts = cut_shards(sizes, shard_size)
    shards = [int(part.sum()) for part in np.split(sizes, starts[1:])]
    assert max(shards) <= shard_size + 2 * int(sizes.max())


def test_without_a_size_the_data_decides() -> None:
    """At least 16 MiB a shard, up to 16 shards, at most 1 GiB a shard."""
    for total, count in ((MIB, 1), (AUTO_SMALLEST, 1), (3 * AUTO_SMALLEST, 3), (8 * GIB, AUTO_SHARDS), (64 * GIB, 64)):
        assert len(cut_shards(np.full(1024, total // 1024), None)) == count
    assert len(cut_shards(np.full(10_000, GIB), None)) == 4096


def test_samples_of_one_size_are_cut_where_others_are() -> None:
    """A shard ends with the sample that reaches its share: of 21,700 bytes in three, 7,234 and 14,467 are shares."""
    sizes = np.full(31, 700)
    assert cut_shards(sizes, 8192) == [0, 11, 21]
    assert cut_shards(np.broadcast_to(np.int64(700), (31,)), 8192) == [0, 11, 21]


def test_samples_that_are_read_as_one_stay_together() -> None:
    """Two groups of 60 MiB are two shards, where rows that are read one by one would be eight."""
    sizes, cuts = np.full(1200, MIB // 10), np.array([0, 650])
    assert cut_shards(sizes, None, cuts) == [0, 650]
    assert len(cut_shards(sizes, None)) == 8
    assert len(cut_shards(sizes * 10, None, cuts)) == AUTO_SHARDS  # groups of 600 MiB are too large


def test_there_are_no_more_shards_than_samples() -> None:
    """Samples are not cut."""
    assert cut_shards(np.array([10 * GIB, 10 * GIB]), GIB) == [0, 1]


@pytest.mark.parametrize("size", [0, 1, 4095, -5])
def test_a_shard_size_too_small_is_refused(size: int) -> None:
    """The message names the option and the least size."""
    with pytest.raises(UsageError, match=r"--shard-size.*4 KiB"):
        cut_shards(np.array([10]), size)


# ---------------------------------------------------------------- plans


def test_without_samples_there_is_no_plan() -> None:
    """An empty source is an error before anything is made."""
    with pytest.raises(SourceError, match="no sample"):
        plan_of(Clouds([]))


def test_sizes_come_from_headers() -> None:
    """Bytes of fixed and ragged fields are known; those of text are not, and said not to be."""
    sizes = field_sizes(Clouds([1, 0, 5], captions=True), dict)
    assert sizes["xyz"].bytes.tolist() == [12, 0, 60]
    assert sizes["label"].bytes.tolist() == [8, 8, 8]
    assert sizes["caption"].bytes.tolist() == [256] * 3  # as all short text
    assert [s.known for s in sizes.values()] == [True, True, False]


def test_unknown_sizes_are_those_of_the_samples_looked_at() -> None:
    """Every sample is planned with the shape of one that was looked at; if none can be read, with the least."""
    spec = FieldSpec(name="a", dtype="uint8", shape=(None, None, 3))
    source = SampleSource([{"a": 0}] * 5, [spec])
    seen = {"a": [np.zeros((2, 5, 3), np.uint8), np.zeros((4, 1, 3), np.uint8)]}
    sizes = field_sizes(source, lambda: seen)["a"]
    assert (sizes.bytes.tolist(), sizes.known) == ([30, 12, 30, 12, 30], False)
    assert field_sizes(source, dict)["a"].bytes.tolist() == [3] * 5


def test_extents_of_fields() -> None:
    """Mean, largest sample and row of a ragged field and of a scalar."""
    source = Clouds([10, 30])
    sizes = field_sizes(source, dict)
    cloud, label = (sizes[spec.name].extent(spec) for spec in source.fields)
    assert (cloud.mean, cloud.largest, cloud.row) == (240.0, 360, 12)
    assert (label.mean, label.largest, label.row) == (8.0, 8, 8)


def test_the_row_is_that_of_the_large_samples() -> None:
    """What is cut by rows is large: of 99 pictures of 10 x 10 and one of 1000 x 2000 the row is nearly 6000 bytes."""
    shapes = np.array([[10, 10, 3]] * 99 + [[1000, 2000, 3]], np.int64)
    spec = FieldSpec(name="hr", dtype="uint8", kind="image", shape=(None, None, 3))
    extent = FieldSizes(shapes, shapes.prod(axis=1), known=True).extent(spec)
    assert 5900 < extent.row < 6000
    none = np.zeros((2, 3), np.int64)
    assert FieldSizes(none, none.prod(axis=1), known=True).extent(spec).row == 0


@pytest.mark.parametrize("names", [None, "cloud-", "é" * 40])
@pytest.mark.parametrize("shard_size", [None, 4096, 20_000])
def test_the_files_have_the_planned_sizes(tmp_path: Path, shard_size: int | None, names: str | None) -> None:
    """Raw columns: each shard's file is as large as planned, in a map that never grows."""
    source = Clouds([int(n) for n in np.random.default_rng(0).integers(0, 200, 60)], names=names)
    plan = plan_of(source, shard_size)
    assert plan.exact
    assert [s.number for s in plan.shards] == list(range(len(plan.shards)))
    assert (plan.shards[0].start, plan.shards[-1].stop) == (0, 60)
    for shard in plan.shards:
        path = tmp_path / f"{shard.number}.lmdb"
        options: dict[str, Any] = {
            "named": names is not None,
            "origin": {"kind": "test"},
            "map_size": shard.map_size,
            "map_limit": shard.map_size,
        }
        with ShardWriter(path, shard.number, plan.fields, **options) as writer:
            (block,) = source.slice(shard.start, shard.stop).read()
            part = source.names[shard.start : shard.stop] if source.names is not None else None
            writer.add(block, shard.stop - shard.start, part)
        assert path.stat().st_size == shard.file_bytes
        assert writer.raw_bytes == shard.raw_bytes
        assert shard.map_size == map_size(shard.file_bytes)
    assert plan.file_bytes == sum(s.file_bytes for s in plan.shards)
    assert plan.raw_bytes == {"xyz": sum(source.points) * 12, "label": 480}


def test_encoded_or_unknown_sizes_are_no_exact_plan() -> None:
    """The plan says whether its sizes are exact or upper bounds."""
    points = [100] * 20
    assert plan_of(Clouds(points)).exact
    assert not plan_of(Clouds(points), codec="lz4").exact
    assert not plan_of(Clouds(points, captions=True)).exact


def test_remarks_on_lengths_compare_each_field_with_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A field is compared with a bounded number of others, however many have lengths of their own."""

    class Many(Rows):
        fields = tuple(FieldSpec(name=f"f{n}", dtype="int8", shape=(None,)) for n in range(100))

    calls, flatnonzero = [], np.flatnonzero
    monkeypatch.setattr(np, "flatnonzero", lambda values: calls.append(1) or flatnonzero(values))
    source = Many(4)
    shapes = {spec.name: np.arange(4)[:, None] * (n + 1) for n, spec in enumerate(source.fields)}
    remark_on_lengths(source, {spec.name: FieldSizes.of(spec, shapes[spec.name]) for spec in source.fields})
    assert 100 <= len(calls) <= 16 * 100  # of 4,950 pairs
