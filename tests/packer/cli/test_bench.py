"""`packer bench`: its table, its JSON, its picture, what it refuses, and the setting it recommends."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import signal
import time
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from torch.utils.data import DataLoader

from packer.cli import bench_measuring
from packer.cli.bench_measuring import DATALOADER, INDEXING, LOADER, Measurement, Rate, Report, Setting, Speed, advice
from packer.cli.machine import machine_of
from packer.convert import convert
from packer.errors import DatasetError
from packer.format import manifest as manifests
from packer.writer import DatasetWriter
from readers import Loader, PackedDataset

QUICK = ["--seconds", "0.5", "--batch-size", "8", "--workers", "0", "--workers", "1", "-q"]


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """A dataset of 96 samples: a compressed image, a ragged cloud and a raw label."""
    rng = np.random.default_rng(1)
    samples = [
        {
            "hr": rng.integers(0, 9, (24, 24, 3)).astype(np.uint8),
            "xyz": np.zeros((i % 7, 3), np.float32),
            "label": np.int64(i),
        }
        for i in range(96)
    ]
    return convert(samples, tmp_path_factory.mktemp("bench") / "packed", codec="hr=zstd,xyz=lz4,label=none").path


def test_the_table(packer, packed):
    """It fits 80 columns, has a line for each setting, and ends with a loader that can be made, and why."""
    result = packer("bench", packed, *QUICK)
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    first = [line.split()[:2] for line in lines]
    for way in ("ds[indices]", "Loader", "DataLoader"):
        assert ["8", way] in first
    code = next(line for line in lines if line.startswith("Start from")).split(maxsplit=2)[2]
    names = {"Loader": Loader, "DataLoader": DataLoader, "dataset": PackedDataset(packed)}
    assert len(eval(code, names)) == 12
    assert "samples/s" in lines[lines.index(f"Start from  {code}") + 1]


def test_json_has_every_setting_asked_for(packer, packed):
    """Every way, batch size and number of workers has its rates, and one is recommended."""
    result = packer("bench", packed, *QUICK, "--batch-size", "3", "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    settings = [tuple(speed["setting"].values()) for speed in found["speeds"] if speed["setting"]["shuffle"] == "full"]
    expected = [("ds[indices]", size, 0) for size in (3, 8)]
    expected += [(way, size, workers) for way in ("Loader", "DataLoader") for size in (3, 8) for workers in (0, 1)]
    assert sorted(settings) == sorted((*one, "full") for one in expected)
    for speed in found["speeds"]:
        assert speed["warm"]["samples"] > 0
        assert speed["warm"]["bytes"] == pytest.approx(speed["warm"]["samples"] * found["sample_bytes"])
        assert (speed["cold"] is None) == bool(found["cold_failure"])
    assert found["advice"]["setting"] in [speed["setting"] for speed in found["speeds"]]


def test_batches_have_no_more_samples_than_there_are(packer, packed):
    """The sizes that are larger become one, of all samples."""
    asked = ["--seconds", "0.5", "-q", "--workers", "0", "--json"]
    found = json.loads(
        packer("bench", packed, *asked, "--batch-size", 8, "--batch-size", 128, "--batch-size", 256).stdout
    )
    assert {speed["setting"]["batch_size"] for speed in found["speeds"]} == {8, 96}


def test_fields_are_chosen(packer, packed):
    """With --fields the others are not read, whatever blanks are between names; one that is not there is refused."""
    found = json.loads(packer("bench", packed, *QUICK, "--fields", "label, hr", "--json").stdout)
    assert found["fields"] == ["label", "hr"]
    assert found["sample_bytes"] == 8 + 24 * 24 * 3


def test_the_plot(packer, packed, tmp_path):
    """--plot writes a picture."""
    path = tmp_path / "bench.png"
    result = packer("bench", packed, *QUICK, "--plot", path)
    assert result.exit_code == 0, result.stderr
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert path.stat().st_size > 10_000


def test_where_files_cannot_be_dropped(packer, packed, monkeypatch):
    """Without a way to make files cold the columns stay empty, and a line says why."""
    monkeypatch.setattr(bench_measuring, "can_drop", lambda: False)
    result = packer("bench", packed, *QUICK)
    assert result.exit_code == 0, result.stderr
    assert "cold could not be measured: this system" in result.stdout


def test_where_nothing_comes_from_the_disk(packer, packed, monkeypatch):
    """Passes that were to be cold and read nothing from the disk are not shown as cold."""
    monkeypatch.setattr("packer.cli.bench_measuring.disk_bytes", lambda: 0)
    found = json.loads(packer("bench", packed, *QUICK, "--json").stdout)
    assert "hardly anything was read from the disk" in found["cold_failure"]
    assert all(speed["cold"] is None for speed in found["speeds"])


def test_what_is_refused(packer, refused, packed, tmp_path, monkeypatch):
    """What cannot be measured or drawn is told in a sentence, before anything is measured."""
    refused(2, ["bench", tmp_path], "not a packed dataset")
    refused(2, ["bench", packed, "--fields", "depth"], "no field 'depth'", "hr, xyz, label")
    refused(2, ["bench", packed, "--workers", "-1"], "--workers")
    refused(2, ["bench", packed, "--seconds", "0"], "--seconds")
    refused(2, ["bench", packed, "--plot", tmp_path / "bench.txt"], ".png")
    refused(2, ["bench", packed, "--plot", tmp_path / "none" / "bench.png"], "no folder")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    refused(2, ["bench", packed, "--plot", tmp_path / "bench.png"], "pip install")


class _Fragile:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)


def test_a_signal_that_python_swallowed(packer, packed, monkeypatch):
    """An interruption whose exception was lost while a loader was taken apart ends the command all the same."""

    def lost():
        fragile = _Fragile()
        del fragile
        time.sleep(10)

    monkeypatch.setattr(bench_measuring, "disk_bytes", lost)
    result = packer("bench", packed, *QUICK)
    assert result.exit_code == 130
    assert result.stderr == "packer: stopped\n"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"free": 10_000}, "! ds[indices], batch 8; Loader 0, batch 8; DataLoader 0, batch 8: its batches would take"),
        ({"free": 100_000_000, "shared_free": 1000}, "! DataLoader 1, batch 8: its batches would take"),
    ],
)
def test_batches_too_large_for_the_machine(packer, packed, monkeypatch, changes, words):
    """What would fill memory or shared memory is not tried; only worker processes need the latter."""
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setattr(bench_measuring, "machine_of", lambda path: replace(machine_of(path), **changes))
    result = packer("bench", packed, *QUICK, "--fields", "hr")
    assert result.exit_code == 0, result.stderr
    refusals = [line for line in result.stdout.splitlines() if line.startswith("! ")]
    assert any(all(part in line for part in words.split("; ")) for line in refusals), result.stdout
    assert ("--shm-size" in result.stdout) == ("shared_free" in changes)
    assert ("nothing can be recommended" in result.stdout) == ("shared_free" not in changes)


def test_without_time_left(packer, packed, monkeypatch):
    """Settings that could not be measured have the reason, and no rate."""
    hours = itertools.count(step=3600.0)
    monkeypatch.setattr(bench_measuring.time, "monotonic", lambda: next(hours))
    found = json.loads(packer("bench", packed, *QUICK, "--json").stdout)
    assert {speed["failure"] for speed in found["speeds"]} == {"there was no time left; give more --seconds"}
    assert all(speed["warm"] is None for speed in found["speeds"])
    assert found["advice"] is None


def test_an_unfinished_dataset(refused, tmp_path):
    """A conversion that was not finished ends it with 1."""
    with contextlib.suppress(KeyboardInterrupt), DatasetWriter(tmp_path / "half") as writer:
        writer.add({"x": np.zeros(3)})
        raise KeyboardInterrupt
    refused(1, ["bench", tmp_path / "half"], "is unfinished")


def test_a_dataset_without_samples(refused, packed, tmp_path):
    """There is nothing to measure, and it says so."""
    manifests.write(tmp_path, msgspec.structs.replace(manifests.read(packed), samples=0, shards=()))
    refused(1, ["bench", tmp_path], "no samples")


def test_each_sample_comes_once_before_any_comes_again():
    """Within a pass; later passes draw others."""
    one = Measurement(Setting(INDEXING, 3), batches=8)
    first, second = one.draw(10).tolist(), one.draw(10).tolist()
    assert (sorted(first[:10]), sorted(first[10:20]), len(first)) == (list(range(10)), list(range(10)), 24)
    assert first != second


@pytest.fixture(scope="module")
def frames(tmp_path_factory):
    """A dataset of 300 small images of one shape, several to a frame."""
    samples = [{"x": np.full((16, 16, 3), i % 5, np.uint8), "label": np.int64(i)} for i in range(300)]
    return convert(samples, tmp_path_factory.mktemp("bench") / "frames", codec="x=zstd,label=none").path


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("way", [(INDEXING, "full"), (LOADER, "full"), (LOADER, "block"), (DATALOADER, "full")])
def test_ways_read_what_they_are_given(frames, way, workers):
    """Every way gives the batches of the samples it was given, pass after pass; by blocks as many of its own."""
    numbers = np.random.default_rng(0).permutation(300)[:49]
    setting = Setting(way[0], 7, workers, way[1])
    read = setting.reader(PackedDataset(frames))
    for number, part in enumerate((numbers, numbers[:14], numbers)):
        found = [batch["label"].tolist() for batch in read(number, part)]
        assert {len(labels) for labels in found} == {7}
        given = list(itertools.chain.from_iterable(found))
        if setting.shuffle == "full":
            assert given == part.tolist()
        else:
            assert len(set(given)) == len(part)


def test_the_same_numbers_read_the_same_samples(frames):
    """A pass by blocks can be made warm by reading it twice, also one that is longer than an epoch."""
    read = Setting(LOADER, 8, 0, "block").reader(PackedDataset(frames))
    first, again = ([batch["label"].tolist() for batch in read(1, np.arange(400) % 300)] for _ in range(2))
    assert first == again
    assert len(first) == 50


def test_failing_workers_are_told():
    """A worker that dies is a remark on its setting; other failures are not swallowed."""
    one = Measurement(Setting(DATALOADER, 8, 2))
    with one.guarded():
        raise RuntimeError("DataLoader worker is killed by signal: Bus error.\nmore")
    assert one.failure == "DataLoader worker is killed by signal: Bus error."
    with pytest.raises(RuntimeError, match="ours"), Measurement(Setting(LOADER, 8, 2)).guarded():
        raise RuntimeError("ours")


def test_damage_found_by_a_worker_is_one_sentence(frames):
    """The error that a worker meets comes out as it was raised there, without the worker's traceback."""
    with pytest.raises(DatasetError) as caught, Measurement(Setting(DATALOADER, 8, 1)).guarded():
        list(DataLoader(PackedDataset(frames), 8, sampler=[0, 999], num_workers=1))
    with pytest.raises(DatasetError) as plain:
        PackedDataset(frames)[[0, 999]]
    assert type(caught.value) is type(plain.value)
    assert str(caught.value) == str(plain.value)


def rate(samples, fastest=0.0):
    return Rate(samples, samples, max(samples, fastest), samples * 10, 3, 100, 0, 0.0)


def speeds(rates):
    return [Speed(setting, rate(*warm), rate(cold)) for setting, warm, cold in rates]


PLAIN, THREADS, WORKERS = Setting(LOADER, 8, 0), Setting(LOADER, 8, 2), Setting(DATALOADER, 8, 4)


def advised(frames, speeds, fits=True):
    return advice(Report(str(frames), 300, 10.0, 3000, ("x", "label"), speeds, "", fits))


def test_the_simplest_of_the_fastest_is_recommended(frames):
    """Threads and processes have to be worth it; `ds[indices]` is no loader."""
    index = (Setting(INDEXING, 8), (9000,), 1)
    near = [index, (PLAIN, (950,), 1), (THREADS, (1000,), 1), (WORKERS, (990,), 1)]
    assert advised(frames, speeds(near)).setting == PLAIN
    far = [index, (PLAIN, (500,), 1), (THREADS, (1000,), 1), (WORKERS, (1010,), 1)]
    found = advised(frames, speeds(far))
    assert found.setting == THREADS
    assert found.code.startswith("Loader(dataset, batch_size=8, shuffle=True, threads=2")
    best = [index, (PLAIN, (500,), 1), (THREADS, (600,), 1), (WORKERS, (1000,), 1)]
    assert "num_workers=4, persistent_workers=True" in advised(frames, speeds(best)).code
    wavering = [index, (PLAIN, (800, 1700), 1), (THREADS, (1000, 1700), 1)]
    assert "busy" in advised(frames, speeds(wavering)).reasons[-1]
    assert "busy" not in " ".join(found.reasons)
    assert advised(frames, [Speed(index[0], rate(1), None)]) is None


def test_what_does_not_fit_into_memory_is_judged_cold(frames):
    """If files leave the memory again the cold rates count, and it says so."""
    found = advised(frames, speeds([(PLAIN, (1000,), 10), (WORKERS, (500,), 50)]), fits=False)
    assert found.setting == WORKERS
    assert any("does not fit" in reason for reason in found.reasons)
