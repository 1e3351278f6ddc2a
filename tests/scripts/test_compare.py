"""The comparison measures what it says, with the systems that are installed here; missing ones are skipped."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import pictures
import pytest
import torch
from benchmark.measuring import Rounds, WrongContentError, checksum
from benchmark.store import Bench
from comparing import command, hub, photographs, training, video
from comparing.inputs import WORKLOADS, Loose
from comparing.systems import SYSTEMS, Ours

HERE = ["loose files", "LMDB", "TensorDict", "packer"]
OTHERS = {"WebDataset, buffer of 1,000", "zarr, shuffled by chunks", "TensorStore", "HF datasets, Arrow", "FFCV"}
DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """One that measures once, of few samples."""
    return Bench(tmp_path, Rounds(least=1, most=1, seconds=0), 1 / 500)


# The process that converts is kept for other tests.
@pytest.mark.keeps_open
@pytest.mark.parametrize("workload", [replace(WORKLOADS[0], batches=(8,)), WORKLOADS[3]], ids=["pairs", "clouds"])
def test_systems_here_are_measured(bench: Bench, workload: Any) -> None:
    """Each converts the loose files, gives their bytes back and is in the tables; ragged samples if it can."""
    with bench.alone():
        results = command.compare(bench, HERE, [workload])
    names = {system.name for system in SYSTEMS if system.takes_ragged or not workload.is_ragged} - OTHERS
    assert set(results["writing"][workload.name]) == names
    for found in results["reading"].values():
        assert set(found) == names
        assert not [one for one in found.values() if not (one["samples_a_second"] > 0)]
    table = command.tables(results)
    assert not [name for name in names if f"| {name} |" not in table]


@pytest.mark.keeps_open
def test_a_system_that_is_missing_is_left_out(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is named with the reason, and the others are measured."""

    def fail(loose: Loose, path: Path) -> None:
        raise ImportError("No module named 'lz9'")

    monkeypatch.setattr(SYSTEMS[1], "write", fail)
    with bench.alone():
        results = command.compare(bench, ["LMDB", "packer, none"], [WORKLOADS[2]])
    assert list(results["writing"]["rows of 33 floats"]) == ["packer, none"]
    assert "- Left out: LMDB, lz4 + pickle (No module named 'lz9')." in command.tables(results)


def test_a_workload_that_no_system_takes_has_no_column(bench: Bench) -> None:
    """TensorDict cannot keep clouds: asked for alone, it is measured with the other workloads."""
    with bench.alone():
        results = command.compare(bench, ["TensorDict"], [WORKLOADS[3]])
    assert (results["writing"], results["reading"]) == ({}, {})
    assert "clouds, batch" not in command.tables(results)


def test_what_cannot_be_measured_is_said_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No system of a name, and a folder that another run is at work in."""
    arguments = ["--data", str(tmp_path), "--only"]
    assert command.main([*arguments, "no such"]) == 2
    assert (
        "compare: error: --only: none of the systems is called so; there are loose files, " in capsys.readouterr().err
    )
    with Bench(tmp_path, Rounds(least=1, most=1, seconds=0), 1 / 500).alone():
        assert command.main([*arguments, "packer"]) == 2
    assert "is in use by another run" in capsys.readouterr().err


@pytest.mark.keeps_open
def test_wrong_content_is_an_error(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system that gives other bytes than the source is not measured."""

    def half(self: Ours, loose: Loose, path: Path, batch: int) -> Any:
        return {"Loader": lambda: [loose[0]]}

    monkeypatch.setattr(Ours, "epochs", half)
    with bench.alone(), pytest.raises(WrongContentError, match="packer, none"):
        command.compare(bench, ["packer, none"], [WORKLOADS[2]])


def test_the_page_shows_what_was_measured() -> None:
    """Tables of docs/compare.md are those of docs/compare.json, which has every system."""
    results = json.loads((DOCS / "compare.json").read_text())
    assert command.tables(results) in (DOCS / "compare.md").read_text()
    assert set(results["writing"]["pairs 16/64 px"]) | set(results["left_out"]) == {system.name for system in SYSTEMS}


def test_pictures_are_drawn_of_what_there_is(tmp_path: Path) -> None:
    """Systems that were not measured, or not for one workload, leave no bar."""
    page = tmp_path / "page.md"
    page.write_text(
        "| thousand samples a second | a | b |\n"
        "| --- | ---: | ---: |\n"
        "| x | 2.0 |  |\n"
        "| packer | **4.0** | **1,000** |\n\n"
    )
    drawn = pictures.bars(page, ["x", "y", "packer"])
    assert re.findall(r">([^<>\n]+)</text>", drawn)[1:] == [
        *["a", "x", "2.0", "packer", "4.0"],
        *["b", "x", "fixed shapes only", "packer", "1,000"],
    ]
    few, full, none, same = (float(width) for width in re.findall(r'<rect .* width="([\d.]+)"', drawn))
    assert (2 * few, none, same) == (full, 0, full)


def test_videos_are_compared_on_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyAV gives the frames of a window of the file, and packed frames are near to them."""
    monkeypatch.setattr(video, "CODECS", ("jpeg:90",))
    monkeypatch.setattr(video, "WORKERS", 1)
    table = video.compare(tmp_path, count=2, frames=30, batches=1, rounds=1)
    assert len(re.findall(r"\| (?:mp4|packer), .*? \| [\d,]+ \| [\d.]+ \|", table)) in (3, 4)  # torchcodec may lack
    (least,) = re.findall(r"\| packer, jpeg:90 \| [\d.]+ \| [\d.]+ \| ([\d.]+) at least", table)
    assert float(least) > 30
    path = tmp_path / "2x30/files/001.mp4"
    with av.open(str(path)) as file:
        frames = [frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)]
    assert np.array_equal(video.by_pyav(path, 9), frames[9:25])


def test_photographs_are_compared_on_their_own(tmp_path: Path) -> None:
    """Files and packed datasets are read in turn; the dataset has the bytes of the files."""
    table = photographs.compare(tmp_path, count=9, rounds=1)
    rates = dict(re.findall(r"\| ((?:files|packer), .*?) \| ([\d,]+) \|", table))
    assert len(rates) == 4
    files, packed = (
        float(re.findall(rf"\| {name} \| [\d.]+ \| ([\d.]+) \|", table)[0]) for name in ("files", "packer")
    )
    assert packed < files + 0.1


# Loaders keep their worker processes.
@pytest.mark.keeps_open
def test_what_training_loops_are_given_is_compared_on_its_own(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pairs are cropped and episodes cut into windows by every system that is here; windows are the same in all."""
    monkeypatch.setattr(training, "SECONDS", 0.0)
    tables = training.compare(bench, rounds=1).split("\n\n")
    for table, names in zip(tables, (["loose files", "LMDB", "TensorDict", "packer"], ["HDF5", "zarr"]), strict=False):
        rates = re.findall(r"^\| (\w.*?) \| ([\d,]+) \| ([\d,]+) \|$", table, re.M)
        assert {name for name in names if any(row[0].startswith(name) for row in rates)} == set(names)
        assert all(float(rate.replace(",", "")) > 0 for row in rates for rate in row[1:])
    ways = training.window_ways(tmp_path / "windows", 2)
    sums = {name: sum(checksum(batch) for batch in begin()) for name, begin in ways.items()}
    assert len(sums) >= 5
    assert len(set(sums.values())) == 1


# Loaders keep their worker processes.
@pytest.mark.keeps_open
def test_what_lies_on_the_hub_is_compared_on_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows and pictures are packed and read by every system that is here, and are the same in all."""
    monkeypatch.setattr(training, "SECONDS", 0.0)
    monkeypatch.setattr(hub, "TARS", 2)
    sums: dict[str, set[int]] = {}

    def measure(ways: hub.Ways, rounds: int) -> dict[str, training.Rates]:
        sums[" ".join(ways)] = {
            sum(checksum(dict(enumerate(_values(batch)))) for batch in begin()) for begin in ways.values()
        }
        return training.measure(ways, rounds)

    monkeypatch.setattr(hub, "measure", measure)
    tables = hub.compare(tmp_path / "hub", 1, 1 / 250)
    names = {name for name, *rates in re.findall(r"^\| (\w.*?) \| ([\d,.]+) \|", tables, re.M) if all(rates)}
    for name in ("pq.read_table, and cp", "WebDataset", "loose files", "packer, of the tars", "packer, auto"):
        assert any(one.startswith(name) for one in names)
    assert [len(one) for one in sums.values()] == [1, 1]


def _values(batch: Any) -> list[torch.Tensor]:
    return [torch.as_tensor(values) for values in (batch.values() if isinstance(batch, dict) else batch)]
