"""`packer bench`: its table, its JSON, what it refuses, and the setting it recommends."""

from __future__ import annotations

import json
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from made_datasets import put_manifest
from torch.utils.data import DataLoader

from packer.cli import bench
from packer.cli.doctor import machine_of
from packer.codecs import compiled, compiling
from packer.convert import convert
from packer.format import manifest as manifests
from readers import Loader, PackedDataset

QUICK = ["--seconds", "0.2", "--batch-size", "8", "--workers", "0", "--workers", "1", "-q"]


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
    """It fits 80 columns, has a row for each way and number of workers, and ends with a loader that can be made."""
    result = packer("bench", packed, *QUICK, "--batch-size", "3")
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    rows = [line.split() for line in lines[lines.index("") + 1 :]]
    assert rows[0] == ["samples/s", "batch", "3", "batch", "8"]
    assert [row[:2] for row in rows[1:5]] == [[way, n] for way in ("Loader", "DataLoader") for n in ("0", "1")]
    assert all(float(rate.replace(",", "")) > 0 for row in rows[1:5] for rate in row[2:])
    code = lines[-1].removeprefix("Start from  ")
    names = {"Loader": Loader, "DataLoader": DataLoader, "dataset": PackedDataset(packed)}
    assert len(eval(code, names)) in (12, 32)


def test_what_is_measured_is_machine_code(packer, packed, monkeypatch):
    """Also in a new environment, where other processes would begin without; of raw frames nothing is loaded."""
    for fields, is_loaded in (("label", False), ("hr", True)):
        fresh = compiled.Loading(compiled.loading.module)
        monkeypatch.setattr(compiled, "loading", fresh)
        monkeypatch.setattr(compiling, "compiled_files", lambda _: [])
        monkeypatch.setattr(compiling, "start", lambda _: True)
        packer("bench", packed, *QUICK, "--fields", fields)
        assert (fresh.found is not None) == is_loaded


def test_json_has_every_setting_asked_for(packer, packed):
    """Sizes beyond the number of samples become one, of all samples; fields are chosen, with blanks between names."""
    asked = ["--batch-size", "96", "--batch-size", "300", "--fields", "label, hr", "--json"]
    result = packer("bench", packed, *QUICK, *asked)
    found = json.loads(result.stdout)
    assert [(one["batch_size"], one["way"], one["workers"]) for one in found["speeds"]] == [
        (size, way, workers) for size in (8, 96) for way in ("Loader", "DataLoader") for workers in (0, 1)
    ]
    assert not [speed for speed in found["speeds"] if not (speed["samples"] > 0)]
    assert (found["fields"], found["sample_bytes"]) == (["label", "hr"], 8 + 24 * 24 * 3)
    assert found["use"]


def test_refusals(refused, packed, tmp_path):
    """Each is one sentence, before anything is measured."""
    refused(2, ["bench", packed, "--fields", "depth"], "no field 'depth'", "hr, xyz, label")
    refused(2, ["bench", packed, "--workers", "-1"], "--workers")
    refused(2, ["bench", packed, "--seconds", "0"], "--seconds")
    put_manifest(tmp_path, msgspec.structs.replace(manifests.read(packed), samples=0, shards=()))
    refused(1, ["bench", tmp_path], "no samples")


def test_batches_too_large_for_the_memory(packer, packed, monkeypatch):
    """They are not tried, and a warning names each; without any rate nothing is recommended."""
    monkeypatch.setattr(bench, "machine_of", lambda path: replace(machine_of(path), free=10_000))
    result = packer("bench", packed, *QUICK)
    assert "too large for the free memory" in " ".join(result.stdout.split())
    assert "warning: Loader 0, batch 8: its batches do not fit the free memory" in result.stderr
    assert result.stdout.endswith("\nNo setting was measured.\n")


def test_workers_that_die(packer, packed, monkeypatch):
    """Worker processes that find no shared memory cost their own rows alone."""

    class Dying:
        def __init__(self, *_, num_workers, **__):
            self.workers = num_workers

        def __iter__(self):
            if self.workers:
                raise RuntimeError("DataLoader worker is killed by signal: Bus error.\nmore")
            return iter([None])

    monkeypatch.setattr("torch.utils.data.DataLoader", Dying)
    result = packer("bench", packed, *QUICK)
    assert "DataLoader 1, batch 8: DataLoader worker is killed by signal: Bus error.\n" in result.stderr
    assert ["DataLoader", "1", "-"] in [line.split() for line in result.stdout.splitlines()]


@pytest.mark.parametrize(
    ("rates", "code"),
    [
        ((950, 1000, 0, 990), "Loader(dataset, batch_size=8, shuffle=True, threads=0)"),
        ((500, 1000, 0, 1010), "Loader(dataset, batch_size=8, shuffle=True, threads=4)"),
        (
            (500, 600, 0, 1000),
            "DataLoader(dataset, batch_size=8, shuffle=True, num_workers=4, persistent_workers=True)",
        ),
        ((0, 0, 1, 0), "DataLoader(dataset, batch_size=8, shuffle=True)"),
    ],
)
def test_the_simplest_of_the_fastest_is_recommended(packer, packed, monkeypatch, rates, code):
    """Threads, and processes even more, have to be worth it."""
    given = dict(zip([("Loader", 0), ("Loader", 4), ("DataLoader", 0), ("DataLoader", 4)], rates, strict=True))
    monkeypatch.setattr(bench, "_measure", lambda _, setting, *__: given[setting[0], setting[2]])
    monkeypatch.setattr(bench, "machine_of", lambda path: replace(machine_of(path), cuda=None))
    result = packer("bench", packed, "--batch-size", "8", "--workers", "0", "--workers", "4", "-q", "--fields", "label")
    assert result.stdout.splitlines()[-1] == f"Start from  {code}"
