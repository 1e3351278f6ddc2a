"""The training scripts run as they are shown, learn something, and stay short enough to be read."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
from examples import mlp, pointnet, srcnn

from packer.convert import convert

EXAMPLES = sorted(Path(srcnn.__file__).parent.glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_each_fits_on_a_page(path: Path) -> None:
    """An example has less than 80 lines."""
    assert len(path.read_text().splitlines()) < 80


def test_srcnn_reports_an_epoch_of_each_batch_size(
    demo_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each batch size gets the monitor's line, and one with the seconds and both qualities."""
    pairs = [f"{field}={demo_data / 'pairs' / field}/astronaut_00*.png" for field in ("lr", "hr")]
    convert(pairs, tmp_path / "pairs.packed", workers=0)
    srcnn.main([str(tmp_path / "pairs.packed"), "--batch-sizes", "2", "8", "--device", "cpu"])
    lines = capsys.readouterr().out.splitlines()
    assert ["waited for data" in line for line in lines] == [True, False, True, False]
    assert [line.split(",")[0] for line in lines[1::2]] == ["batch 2", "batch 8"]
    quality, bicubic = (float(words.split(" dB")[0].split()[-1]) for words in lines[1].split("(bicubic"))
    assert bicubic - 6 < quality < bicubic + 6


def test_pointnet_tells_the_two_maps_apart(demo_data: Path, tmp_path: Path) -> None:
    """On clouds of many sizes it does better than the guess that all are of the commoner map."""
    convert([str(demo_data / "clouds" / "terrain_[0-3]*.ply")], tmp_path / "clouds.packed", workers=0)
    assert pointnet.main([str(tmp_path / "clouds.packed"), "--epochs", "8", "--batch-size", "4"]) > 0.85


def test_mlp_learns_33_features(tmp_path: Path) -> None:
    """A class that follows from 33 features of unlike scales is learnt; one that never changes does no harm."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(2000, 33)).astype(np.float32)
    label = (features[:, 0] + features[:, 7] > 0).astype(np.int64)
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file["features"] = np.where(np.arange(33) == 5, 3.0, features * 10.0 ** (np.arange(33) % 5)).astype(np.float32)
        file["label"] = label
    convert([str(tmp_path / "rows.h5")], tmp_path / "rows.packed", workers=0)
    assert mlp.main([str(tmp_path / "rows.packed"), "--epochs", "4"]) > 0.9
