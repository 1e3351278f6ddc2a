"""What `packer bench` measures with: draws, ways to read, passes, and the setting it recommends."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from packer.cli.bench_advice import advice
from packer.cli.bench_measuring import (
    DATALOADER,
    INDEXING,
    LOADER,
    NO_TIME,
    Choice,
    Clock,
    Passes,
    Rate,
    Report,
    Setting,
    Speed,
    Subject,
    Way,
    obstacle,
    warm_passes,
)
from packer.convert import convert
from packer.errors import DatasetError
from packer.warm import can_drop, disk_bytes, drop_files, read_files
from readers import PackedDataset


def pictures(count, size, ragged=False):
    """Samples with an image that every codec can shrink."""
    return [
        {"x": np.full((size + (i % 3 if ragged else 0), size, 3), i % 5, np.uint8), "label": np.int64(i)}
        for i in range(count)
    ]


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """A dataset of 300 small images of one shape, several to a frame."""
    return convert(pictures(300, 16), tmp_path_factory.mktemp("benching") / "packed", codec="x=zstd,label=none").path


@given(st.integers(1, 40), st.lists(st.integers(0, 100), min_size=1, max_size=5))
def test_draws(n, counts):
    """All samples are drawn about as often, within every pass, and later passes draw others."""
    one = Passes(Setting(INDEXING, 1), n)
    for count in counts:
        found = Counter(one.drawn(count).tolist())
        assert sum(found.values()) == count
        assert set(found) <= set(range(n))
        assert max(found.values(), default=0) - min((found[i] for i in range(n)), default=0) <= 1


@pytest.mark.parametrize("setting", Choice(None, [7], [0, 2], 1).settings(7, blocks=True), ids=lambda one: one.text)
def test_ways_read_what_they_are_given(packed, setting):
    """Every way gives the batches of the samples it was given, pass after pass; by blocks as many of its own."""
    numbers = np.random.default_rng(0).permutation(300)[:49]
    with Way(setting, PackedDataset(packed)) as way:
        for part in (numbers, numbers[:14], numbers):
            found = [batch["label"].tolist() for batch in way.start(part)]
            assert {len(labels) for labels in found} == {7}
            read = list(itertools.chain.from_iterable(found))
            if setting.shuffle == "full":
                assert read == part.tolist()
            else:
                assert len(set(read)) == len(part)


def test_the_same_numbers_read_the_same_samples(packed):
    """A pass by blocks can be made warm by reading it twice, also one that is longer than an epoch."""
    with Way(Setting(LOADER, 8, 0, "block"), PackedDataset(packed)) as way:
        first, again = ([batch["label"].tolist() for batch in way.start(np.arange(400) % 300)] for _ in range(2))
    assert first == again
    assert len(first) == 50


def test_files_warm_and_cold(packed):
    """A file that was dropped comes from the disk again, one that was read through does not."""
    files = [packed / "shards" / "00000.lmdb"]
    if not can_drop():
        pytest.skip("this system cannot drop files")
    drop_files(files)
    before = disk_bytes()
    read_files(files)
    if disk_bytes() == before:
        pytest.skip("files of this folder stay in memory")
    before = disk_bytes()
    read_files(files)
    assert disk_bytes() == before


def test_failing_workers_are_told():
    """A worker that dies is a remark on its setting; other failures are not swallowed."""
    one = Passes(Setting(DATALOADER, 8, 2), 8)
    with one.guarded():
        raise RuntimeError("DataLoader worker is killed by signal: Bus error.\nmore")
    assert one.failure == "DataLoader worker is killed by signal: Bus error."
    assert one.rate(1.0) is None
    with pytest.raises(RuntimeError, match="ours"), Passes(Setting(LOADER, 8, 2), 8).guarded():
        raise RuntimeError("ours")


def test_damage_found_by_a_worker_is_one_sentence(packed):
    """The error that a worker meets comes out as it was raised there, without the worker's traceback."""
    with pytest.raises(DatasetError) as caught, Passes(Setting(DATALOADER, 8, 1), 300).guarded():
        list(DataLoader(PackedDataset(packed), 8, sampler=[0, 999], num_workers=1))
    with pytest.raises(DatasetError) as plain:
        PackedDataset(packed)[[0, 999]]
    assert type(caught.value) is type(plain.value)
    assert str(caught.value) == str(plain.value)


def test_without_time_left(packed):
    """Settings that could not be measured have the reason, and no rate."""
    clock = Clock(-10.0)
    assert clock.left < 0
    found = warm_passes(Subject(packed, None), [Setting(INDEXING, 8)], 0.01, clock)
    assert [(one.failure, one.rates) for one in found] == [(NO_TIME, [])]


def test_batches_too_large_for_the_machine(packed):
    """What would fill memory or shared memory is not tried; only worker processes need the latter."""
    subject, clock = Subject(packed, None), Clock(10.0)
    none = replace(subject.machine, free=None, shared_free=None)
    workers, threads = Setting(DATALOADER, 8, 2), Setting(LOADER, 8, 2)

    def told(setting, **changes):
        subject.machine = replace(none, **changes)
        return obstacle(Passes(setting, 300), subject, clock)

    assert told(workers) == told(threads, shared_free=1000) == told(threads, free=2**30) == ""
    assert "of memory" in told(threads, free=100_000)
    assert "--shm-size" in told(workers, shared_free=1000)


def rate(samples, fastest=0.0):
    return Rate(samples, samples, max(samples, fastest), samples * 10, 3, 100, 0, 0.0)


def speeds(rates):
    return [Speed(setting, rate(*warm), rate(cold)) for setting, warm, cold in rates]


PLAIN, THREADS, WORKERS = Setting(LOADER, 8, 0), Setting(LOADER, 8, 2), Setting(DATALOADER, 8, 4)


def advised(packed, speeds, fits=True):
    return advice(Report(str(packed), 300, 10.0, 3000, ("x", "label"), speeds, "", fits))


def test_the_simplest_of_the_fastest_is_recommended(packed):
    """Threads and processes have to be worth it; `ds[indices]` is no loader."""
    index = (Setting(INDEXING, 8), (9000,), 1)
    near = [index, (PLAIN, (950,), 1), (THREADS, (1000,), 1), (WORKERS, (990,), 1)]
    assert advised(packed, speeds(near)).setting == PLAIN
    far = [index, (PLAIN, (500,), 1), (THREADS, (1000,), 1), (WORKERS, (1010,), 1)]
    found = advised(packed, speeds(far))
    assert found.setting == THREADS
    assert found.code.startswith("Loader(dataset, batch_size=8, shuffle=True, threads=2")
    best = [index, (PLAIN, (500,), 1), (THREADS, (600,), 1), (WORKERS, (1000,), 1)]
    assert "num_workers=4, persistent_workers=True" in advised(packed, speeds(best)).code
    wavering = [index, (PLAIN, (800, 1700), 1), (THREADS, (1000, 1700), 1)]
    assert "busy" in advised(packed, speeds(wavering)).reasons[-1]
    assert "busy" not in " ".join(found.reasons)
    assert advised(packed, [Speed(index[0], rate(1), None)]) is None


def test_what_does_not_fit_into_memory_is_judged_cold(packed):
    """If files leave the memory again the cold rates count, and it says so."""
    found = advised(packed, speeds([(PLAIN, (1000,), 10), (WORKERS, (500,), 50)]), fits=False)
    assert found.setting == WORKERS
    assert any("does not fit" in reason for reason in found.reasons)
