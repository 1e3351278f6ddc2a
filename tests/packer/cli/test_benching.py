"""What `packer bench` measures with: draws, probes, passes, and the setting it recommends."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import DataLoader

from packer.cli.benching.draws import BlockDraws, FullDraws, draws_of
from packer.cli.benching.obstacles import NO_TIME, obstacle
from packer.cli.benching.page_cache import disk_bytes, drop, warm
from packer.cli.benching.passes import Clock, Passes, timed
from packer.cli.benching.probes import DECODING, FETCHING, GATHERING, OWN, READING, ProbedDataset, pages_of
from packer.cli.benching.recommending import advice
from packer.cli.benching.results import Rate, Speed, Split
from packer.cli.benching.settings import DATALOADER, INDEXING, LOADER, Choice, Setting
from packer.cli.benching.speeds import warm_speeds
from packer.cli.benching.splits import Splitting, median_split, split_of
from packer.cli.benching.subject import Subject
from packer.cli.benching.ways import open_way
from packer.codecs import rowdelta
from packer.codecs.configs import FrameCodec
from packer.convert import convert
from packer.errors import DatasetError
from packer.format.pages import PAGE_SIZE
from packer.page_cache import can_drop
from readers import PackedDataset, fixed

CODECS = ["lz4", "zstd", "rowdelta+zstd", "bitshuffle"]


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


def packed_pictures(folder, codec, size, ragged):
    """A dataset of one field of images with this codec."""
    (folder / "x").mkdir()
    for i, sample in enumerate(pictures(12, size, ragged)):
        Image.fromarray(sample["x"]).save(folder / "x" / f"{i:02}.png")
    return convert([f"x={folder / 'x'}"], folder / "packed", codec=codec, workers=0).path


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("ragged", [False, True], ids=["fixed", "ragged"])
@pytest.mark.parametrize("size", [8, 100, 620], ids=["shared", "own", "bands"])
@pytest.mark.parametrize("codec", CODECS)
def test_all_decoding_is_seen(tmp_path, codec, size, ragged):
    """Whatever the codec, the shape and the frames: decoding is timed, and the values are those without probes."""
    path = packed_pictures(tmp_path, codec, size, ragged)
    probed, plain = ProbedDataset(path), PackedDataset(path)
    frame = plain.fields["x"].frame
    assert {8: (frame.samples or 0) > 1, 100: frame.samples == 1, 620: frame.rows is not None}[size]
    for mine, theirs in zip(probed[[3, 0, 11]]["x"], plain[[3, 0, 11]]["x"], strict=True):
        assert torch.equal(mine, theirs)
    assert probed.seconds[DECODING] > 0
    assert probed.seconds[READING] > 0
    assert probed.seconds[GATHERING] > 0


def test_raw_fields_decode_nothing(packed):
    """What was kept raw is gathered, not decoded."""
    probed = ProbedDataset(packed, ["label"])
    assert probed[[5, 7]]["label"].tolist() == [5, 7]
    assert probed.seconds[DECODING] == 0
    assert probed.seconds[GATHERING] > 0


@pytest.mark.parametrize(
    ("owner", "name", "codec", "ragged", "handled"),
    [
        (FrameCodec, "decode_into", "zstd", False, "one_by_one"),
        (FrameCodec, "decode_frames", "lz4", True, "one_by_one"),
        (FrameCodec, "decode_frames", "lz4", False, "one_by_one"),
        (fixed, "undo_rows", "rowdelta+zstd", False, "one_by_one"),
        (rowdelta, "accumulate", "rowdelta+zstd", True, "one_by_one"),
        (FrameCodec, "decode_frames", "rowdelta+zstd", True, "by_machine"),
        (FrameCodec, "decode_frames", "rowdelta+zstd", False, "by_machine"),
    ],
)
def test_slow_decoding_is_decoding(request, tmp_path, monkeypatch, owner, name, codec, ragged, handled):
    """Time that decoding takes counts as such and as nothing else; what was replaced meanwhile is put back."""
    request.getfixturevalue(handled)
    path = packed_pictures(tmp_path, codec, 100, ragged)
    plain = getattr(owner, name)

    def slow(*arguments):
        time.sleep(0.05)
        return plain(*arguments)

    monkeypatch.setattr(owner, name, slow)
    probed = ProbedDataset(path)
    began = time.perf_counter()
    probed[[0, 11]]
    wall = time.perf_counter() - began
    taken = list(probed.seconds)
    assert taken[DECODING] >= 0.05
    assert taken[READING] + taken[DECODING] + taken[GATHERING] + taken[OWN] <= wall
    assert taken[GATHERING] < 0.05
    assert getattr(owner, name) is slow


def test_probes_reach_worker_processes(packed):
    """What a worker takes down is seen by the process that started it."""
    probed = ProbedDataset(packed)
    loader = DataLoader(probed, 8, num_workers=1)
    batches = list(loader)
    assert sum(len(batch["label"]) for batch in batches) == 300
    assert 0 < probed.seconds[DECODING] < probed.seconds[FETCHING]
    del loader


def test_a_probed_dataset_lets_go_of_its_files(packed):
    """Once nobody has it, its shards are closed without waiting for the garbage collector."""
    probed = ProbedDataset(packed)
    probed[[1, 2]]
    shard = probed.opened.shards[0]
    assert shard.fd >= 0
    del probed
    assert shard.fd == -1


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 5 * PAGE_SIZE)), max_size=20))
def test_every_page_is_touched(spans):
    """Each page of each span has an address among those touched, and none lies outside of the spans."""
    touched = pages_of(np.array(spans, np.int64).reshape(-1, 2)).tolist()
    pages = {at // PAGE_SIZE for start, size in spans for at in range(start, start + size)} if spans else set()
    assert {at // PAGE_SIZE for at in touched} == pages
    assert all(any(start <= at < start + size for start, size in spans) for at in touched)


@given(st.integers(1, 40), st.lists(st.integers(0, 100), min_size=1, max_size=5))
def test_full_draws(n, counts):
    """All samples are drawn about as often, within every call, and later calls draw others."""
    draws = FullDraws(n)
    for count in counts:
        found = Counter(draws.take(count).tolist())
        assert sum(found.values()) == count
        assert set(found) <= set(range(n))
        assert max(found.values(), default=0) - min((found[i] for i in range(n)), default=0) <= 1


def test_block_draws_are_epochs(packed):
    """Draws of a shuffle by blocks, joined, are whole epochs one after another."""
    draws = draws_of(Setting(LOADER, 8, 0, "block"), PackedDataset(packed))
    assert isinstance(draws, BlockDraws)
    numbers = np.concatenate([draws.take(n) for n in (1, 99, 0, 350, 150)])
    assert sorted(numbers[:300]) == sorted(numbers[300:]) == list(range(300))
    assert numbers[:300].tolist() != numbers[300:].tolist()


@pytest.mark.parametrize("setting", [*Choice(None, [7], [0, 2], 1, blocks=True).settings(7)], ids=lambda one: one.text)
def test_ways_read_what_they_are_given(packed, setting):
    """Every way gives the batches of the samples it was given, in their order, pass after pass."""
    numbers = np.random.default_rng(0).permutation(300)[:50]
    with open_way(setting, PackedDataset(packed)) as way:
        for part in (numbers, numbers[:10]):
            found = [batch["label"].tolist() for batch in way.batches(part)]
            assert [len(labels) for labels in found[:-1]] == [7] * (len(found) - 1)
            assert list(itertools.chain.from_iterable(found)) == part.tolist()


def test_files_warm_and_cold(packed):
    """A file that was dropped comes from the disk again, one that was read through does not."""
    files = [packed / "shards" / "00000.lmdb"]
    if not can_drop():
        pytest.skip("this system cannot drop files")
    drop(files)
    before = disk_bytes()
    warm(files)
    if disk_bytes() == before:
        pytest.skip("files of this folder stay in memory")
    before = disk_bytes()
    warm(files)
    assert disk_bytes() == before


def test_a_split_adds_up():
    """What a process does beside fetching is handing over; what is left within it is the rest."""
    taken = [1.0, 2.0, 3.0, 9.0, 1.0]
    apart = split_of(Setting(DATALOADER, 8, 1), "warm", 20.0, taken, None)
    assert apart.parts == {"reading": 1, "decoding": 2, "gathering": 3, "handing over": 12, "rest": 2}
    thread = split_of(Setting(LOADER, 8, 1), "warm", 20.0, taken, None)
    assert (thread.handing_over, thread.rest) == (14, 0)
    inline = split_of(Setting(INDEXING, 8), "warm", 20.0, taken, 0.5)
    assert (inline.handing_over, inline.rest, inline.copying) == (0, 14, 0.5)
    assert median_split([apart, thread, inline]).batch == 20


def test_copying_is_measured(packed):
    """Where there is a device each batch is copied, and its time stands beside the others."""
    copied = []

    def copy(batch):
        copied.append(len(batch["label"]))
        time.sleep(0.005)

    splitting = Splitting(Subject(packed, None), Clock(0.1), copy)
    (split,) = splitting.warm([Setting(INDEXING, 8)], 0.01)
    assert set(copied) == {8}
    assert split.copying >= 0.005
    assert sum(split.parts.values()) == pytest.approx(split.batch)


def test_failing_workers_are_told():
    """A worker that dies is a remark on its setting; other failures are not swallowed."""
    one = Passes(Setting(DATALOADER, 8, 2), FullDraws(8))
    with one.guarded():
        raise RuntimeError("DataLoader worker is killed by signal: Bus error.\nmore")
    assert one.failure == "DataLoader worker is killed by signal: Bus error."
    assert one.rate(1.0) is None
    with pytest.raises(RuntimeError, match="ours"), Passes(Setting(LOADER, 8, 2), FullDraws(8)).guarded():
        raise RuntimeError("ours")


def test_damage_found_by_a_worker_is_one_sentence(packed):
    """The error that a worker meets comes out as it was raised there, without the worker's traceback."""
    with pytest.raises(DatasetError) as caught, Passes(Setting(DATALOADER, 8, 1), FullDraws(300)).guarded():
        list(DataLoader(PackedDataset(packed), 8, sampler=[0, 999], num_workers=1))
    with pytest.raises(DatasetError) as plain:
        PackedDataset(packed)[[0, 999]]
    assert type(caught.value) is type(plain.value)
    assert str(caught.value) == str(plain.value)


def test_without_time_left(packed):
    """Settings that could not be measured have the reason, and no rate."""
    clock = Clock(-10.0)
    assert clock.left < 0
    found = warm_speeds(Subject(packed, None), [Setting(INDEXING, 8)], 0.01, clock)
    assert [(one.failure, one.rates) for one in found] == [(NO_TIME, [])]


def test_batches_too_large_for_the_machine(packed):
    """What would fill memory or shared memory is not tried; only worker processes need the latter."""
    subject, clock = Subject(packed, None), Clock(10.0)
    none = replace(subject.machine, free=None, shared_free=None)
    workers, threads = Setting(DATALOADER, 8, 2), Setting(LOADER, 8, 2)

    def told(setting, **changes):
        subject.machine = replace(none, **changes)
        return obstacle(Passes(setting, FullDraws(300)), subject, clock)

    assert told(workers) == told(threads, shared_free=1000) == told(threads, free=2**30) == ""
    assert "of memory" in told(threads, free=100_000)
    assert "--shm-size" in told(workers, shared_free=1000)


def test_timed_counts_batches(packed):
    """`timed` reads all batches, and its time is that of the loop."""
    seen = []
    with open_way(Setting(INDEXING, 4), PackedDataset(packed)) as way:
        seconds = timed(way, np.arange(10), lambda batch: (seen.append(len(batch["label"])), time.sleep(0.01)))
    assert seen == [4, 4, 2]
    assert seconds >= 0.03


def rate(samples, fastest=0.0):
    return Rate(samples, samples, max(samples, fastest), samples * 10, 3, 100, 0, 0.0)


def speeds(rates):
    return [Speed(setting, rate(*warm), rate(cold)) for setting, warm, cold in rates]


PLAIN, THREADS, WORKERS = Setting(LOADER, 8, 0), Setting(LOADER, 8, 2), Setting(DATALOADER, 8, 4)


def test_the_simplest_of_the_fastest_is_recommended(packed):
    """Threads and processes have to be worth it; `ds[indices]` is no loader."""
    subject = Subject(packed, None)
    index = (Setting(INDEXING, 8), (9000,), 1)
    near = [index, (PLAIN, (950,), 1), (THREADS, (1000,), 1), (WORKERS, (990,), 1)]
    assert advice(subject, speeds(near), [], fits=True).setting == PLAIN
    far = [index, (PLAIN, (500,), 1), (THREADS, (1000,), 1), (WORKERS, (1010,), 1)]
    found = advice(subject, speeds(far), [], fits=True)
    assert found.setting == THREADS
    assert found.code.startswith("Loader(dataset, batch_size=8, shuffle=True, threads=2")
    best = [index, (PLAIN, (500,), 1), (THREADS, (600,), 1), (WORKERS, (1000,), 1)]
    assert "num_workers=4, persistent_workers=True" in advice(subject, speeds(best), [], fits=True).code
    wavering = [index, (PLAIN, (800, 1700), 1), (THREADS, (1000, 1700), 1)]
    assert "busy" in advice(subject, speeds(wavering), [], fits=True).reasons[-1]
    assert "busy" not in " ".join(found.reasons)
    assert advice(subject, [Speed(index[0], rate(1), None)], [], fits=True) is None


def test_what_does_not_fit_into_memory_is_judged_cold(packed):
    """Where files leave the memory again the cold rates count, and it says so."""
    found = advice(Subject(packed, None), speeds([(PLAIN, (1000,), 10), (WORKERS, (500,), 50)]), [], fits=False)
    assert found.setting == WORKERS
    assert any("does not fit" in reason for reason in found.reasons)


def test_a_large_part_is_named(packed):
    """The part that takes most of a batch's time stands among the reasons, with what would help."""
    split = Split(PLAIN, "warm", 1.0, 0.1, 0.7, 0.1, 0.0, 0.1)
    found = advice(Subject(packed, None), speeds([(PLAIN, (1000,), 10)]), [split], fits=True)
    assert "70% is decoding" in found.reasons[-1]
    assert "packer repack" in found.reasons[-1]
