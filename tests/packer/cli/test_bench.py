"""`packer bench`: its table, its JSON, its picture, and what it refuses."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import signal
import time

import msgspec
import numpy as np
import pytest

from packer.cli import bench_measuring
from packer.cli.bench_measuring import Passes
from packer.convert import convert
from packer.format import manifest as manifests
from packer.writer import DatasetWriter

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
    from torch.utils.data import DataLoader

    from readers import Loader, PackedDataset

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
    """With --fields the others are not read; one that is not there is wrong usage."""
    found = json.loads(packer("bench", packed, *QUICK, "--fields", "label,hr", "--json").stdout)
    assert found["fields"] == ["label", "hr"]
    assert found["sample_bytes"] == 8 + 24 * 24 * 3


def test_the_plot(packer, packed, tmp_path):
    """--plot writes a picture."""
    pytest.importorskip("matplotlib")
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
    plain = Passes.run

    def run(*arguments):
        fragile = _Fragile()
        del fragile
        time.sleep(10)
        plain(*arguments)

    monkeypatch.setattr(Passes, "run", run)
    result = packer("bench", packed, *QUICK)
    assert result.exit_code == 130
    assert result.stderr == "packer: stopped\n"


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
