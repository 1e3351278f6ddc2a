"""The estimate of what packing makes, against what it makes."""

from __future__ import annotations

import time
from unittest import mock

import numpy as np
import pytest

from packer.convert import ConvertOptions, convert
from packer.packing import estimate, make_plan, open_source, read_examples
from packer.packing.estimating import TRIAL_RUN_BYTES, TRIAL_RUNS
from packer.sources import SampleSource
from packer.workers import Limits
from readers import PackedDataset


def samples(count, size, seed=0):
    """Arrays of few different values, compressible to a different degree each, and names' worth of text."""
    rng = np.random.default_rng(seed)
    return [{"a": rng.integers(0, 2 + i % 7, (size,), dtype=np.uint16), "t": "word " * (i % 5)} for i in range(count)]


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd", "bitshuffle"])
def test_the_estimate_is_near_the_truth(tmp_path, codec):
    """Files of a dataset larger than what was looked at are about as large as estimated, and no larger than the most.

    The plan counts the commits of chunks that are not encoded: a few pages, whatever the size.
    """
    source = samples(2000, 1000)
    found = estimate(make_plan(SampleSource(source), codec, None))
    made = convert(source, tmp_path / "out", codec=codec).file_bytes
    assert made <= found.most
    assert found.file_bytes == pytest.approx(made, rel=0.02, abs=8 * 4096)


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("height", [2, 2000])
def test_pictures_in_memory_are_estimated_too(tmp_path, codec, height):
    """Ragged in two axes, small and large: near the truth though no size was known to the plan."""
    rng = np.random.default_rng(0)
    source = [{"a": rng.integers(0, 9, (height + i % 2, 2 + i % 3, 3), dtype=np.uint8)} for i in range(500)]
    found = estimate(make_plan(SampleSource(source), codec, None))
    made = convert(source, tmp_path / "out", codec=codec)
    assert made.file_bytes == pytest.approx(found.file_bytes, rel=0.05, abs=16 * 4096)
    assert PackedDataset(tmp_path / "out")[499]["a"].numpy().tobytes() == source[499]["a"].tobytes()


def test_fixed_raw_fields_are_exact(tmp_path):
    """Where nothing is encoded and all sizes are known the estimate is the size."""
    source = [{"a": np.zeros(100)}] * 50
    found = estimate(make_plan(SampleSource(source), "none", None))
    assert found.exact
    assert found.file_bytes == found.most == convert(source, tmp_path / "out", codec="none").file_bytes


@pytest.mark.parametrize(("count", "places"), [(1, 1), (2, 2), (4, 4), (17, 4), (80, 10), (1000, 16)])
def test_samples_are_looked_at_once_and_everywhere(count, places):
    """Of a small source one in eight, four at least; spread from the first to the last, and none is taken twice."""
    found = read_examples(SampleSource([{"a": np.full(30_000, i)} for i in range(count)]))["a"]
    numbers = [int(array[0]) for array in found]
    assert len(set(numbers)) == len(numbers) == places
    assert min(numbers) == 0
    assert max(numbers) == count - 1


def test_looking_does_not_judge_text():
    """Text that cannot be stored is an error where it is packed, with its place."""

    class Raw(SampleSource):
        def slice(self, start, stop):
            return self

        def read(self):
            yield {"t": ["\ud800", "é"]}

    assert [array.nbytes for array in read_examples(Raw([{"t": "a"}, {"t": "b"}]))["t"]] == [3, 2] * 2


def test_looking_stops_early_but_not_at_one_end():
    """When the bytes run out, what was looked at is spread over the source all the same."""
    source = SampleSource([{"a": np.full(1000, i)} for i in range(1600)])
    with mock.patch("packer.packing.examples.EXAMPLE_BYTES", 4 * 16 * 8000):
        numbers = [int(array[0]) for array in read_examples(source)["a"]]
    assert len(numbers) < 16 * 17
    assert min(numbers) < 400
    assert max(numbers) > 1100


@pytest.mark.parametrize(("nbytes", "places"), [(2**20, 2), (3 * 2**20, 4), (2**30, 16)])
def test_no_more_is_read_than_may_be(nbytes, places):
    """The place that exceeds the bytes is the last one that is read: samples may have gigabytes."""
    taken = []

    class Counted(list):
        def __getitem__(self, number):
            taken.append(number)
            return super().__getitem__(number)

    large = {"a": np.zeros(2**19, np.uint8), "t": "x" * 2**19}
    fields = SampleSource([large]).fields
    with mock.patch("packer.packing.examples.EXAMPLE_BYTES", nbytes):
        found = read_examples(SampleSource(Counted([large] * 128), fields))
    assert len(found["a"]) == len(found["t"]) == len(taken) == places


class Slow:
    """Samples that take two milliseconds each to read."""

    def __init__(self, count):
        self.count = count
        self.asked, self.slept = [], 0.0

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        self.asked.append(number)
        began = time.perf_counter()
        time.sleep(0.002)
        self.slept += time.perf_counter() - began
        return {"x": np.full(TRIAL_RUN_BYTES // 16, 1, "u1")}


def test_samples_from_all_over_are_tried():
    """Runs of samples, spread evenly; the whole takes as much longer than they do as it is larger."""
    items = Slow(1600)
    plan = make_plan(SampleSource(items), "none", None)
    items.asked, items.slept = [], 0.0
    began = time.perf_counter()
    found = estimate(plan)
    took = time.perf_counter() - began
    starts = np.linspace(0, 1599, TRIAL_RUNS).astype(int)
    assert sorted(items.asked) == [n for start in starts for n in range(start, start + 16) if n < 1600]
    assert found.samples == len(items.asked)
    larger = 1600 / len(items.asked)
    assert 0.99 * items.slept * larger <= found.seconds <= 1.01 * took * larger


@pytest.mark.parametrize("limits", [None, Limits()])
@pytest.mark.parametrize("source", ["pairs", "clouds", "rows"])
def test_every_kind_of_source(request, source, limits):
    """In this process or in one of its own; all of a small source is tried."""
    opened = open_source(request.getfixturevalue(source).sources, ConvertOptions(), [])
    plan = make_plan(opened, "auto", None)
    found = estimate(plan, limits)
    assert found.samples == len(opened)
    assert found.seconds > 0


def test_bad_samples_are_passed_over(pairs):
    """They stop the conversion, or are skipped, when they are packed."""
    picture = pairs.folder / "hr" / "005.png"
    picture.write_bytes(picture.read_bytes()[:-20])
    plan = make_plan(open_source(pairs.sources, ConvertOptions(), []), "zstd", None)
    assert 0 < estimate(plan).samples < 12


class Grouped(SampleSource):
    """Rows in 8 groups of 64; it takes a while to decode a group, and the last one is kept."""

    seconds, decoded, group = 0.02, list[int](), -1
    cuts = np.arange(0, 512, 64)

    def slice(self, start, stop):
        part = super().slice(start, stop)
        part.__class__, part.group = Grouped, start // 64
        return part

    def read(self):
        if self.decoded[-1:] != [self.group]:
            self.decoded.append(self.group)
            time.sleep(self.seconds)
        return super().read()


def test_what_is_done_once_for_many_rows_is_done_once():
    """Samples from all over are tried group by group: each is decoded once, as in a conversion, and counts once."""
    Grouped.decoded.clear()
    found = estimate(make_plan(Grouped([{"x": np.full(4, n)} for n in range(512)]), "none", None))
    assert found.samples == 512
    assert sorted(Grouped.decoded) == list(range(8))
    assert found.seconds >= 8 * Grouped.seconds
