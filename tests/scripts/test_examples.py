"""The training scripts run as they are shown, learn something, and stay short enough to be read."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import h5py
import numpy as np
import pytest
from examples import behaviour_cloning, classification, distributed, mlp, pointnet, segmentation, srcnn, video_sr
from ranks import call_in_ranks

from packer.codecs import NAMED
from packer.convert import convert
from packer.errors import UsageError
from packer.sources import SourceOptions

ROOT = Path(__file__).resolve().parents[2]
DEMO = {
    "pairs": ("lr={}/pairs/lr", "hr={}/pairs/hr"),
    "clips": ("lr={}/clips/lr", "hr={}/clips/hr"),
    "photographs": ("{}/photographs",),
    "clouds": ("{}/clouds",),
    "digits": ("{}/digits.h5",),
    "demos": ("{}/demos.hdf5",),
    "volumes": ("image={}/volumes/imagesTr", "label={}/volumes/labelsTr"),
}
SPLITS = {"volumes": {"train": 0.8, "test": 0.2}, "pairs": {"train": 0.9, "valid": 0.1}}
SPLITS["photographs"] = SPLITS["pairs"]
CLIPS, GROUPS = SourceOptions(samples="folders"), SourceOptions(samples="groups")
UNITS = {"clips": CLIPS, "demos": GROUPS, "photographs": SourceOptions(label="folder")}
EXAMPLES = sorted(Path(srcnn.__file__).parent.glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_each_fits_on_a_page(path: Path) -> None:
    """An example has less than 95 lines."""
    assert len(path.read_text().splitlines()) < 95


def test_the_commands_of_the_book_run(
    demo_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each is given the datasets that scripts/demo makes, and there is one for every script; here without an epoch."""
    for name, sources in DEMO.items():
        given, out = [source.format(demo_data) for source in sources], tmp_path / f"data/packed/{name}.packed"
        convert(given, out, codec="none", source=UNITS.get(name, SourceOptions()), splits=SPLITS.get(name))
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "examples.md").read_text()
    commands = re.findall(r"^\.venv/bin/python (scripts/examples/\S+) ([^#\n]*)", page, re.MULTILINE)
    assert {ROOT / script for script, _ in commands} == {path for path in EXAMPLES if path.stem != "__init__"}
    for script, arguments in commands:
        monkeypatch.setattr("sys.argv", [script, *arguments.split(), "--epochs", "0"])
        runpy.run_path(str(ROOT / script), run_name="__main__")


@pytest.mark.parametrize(
    "name",
    ["behaviour_cloning", "classification", "distributed", "mlp", "pointnet", "segmentation", "srcnn", "video_sr"],
)
def test_a_dataset_of_something_else_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The fields that it has are named."""
    convert([{"depth": np.zeros(3)}] * 4, tmp_path / "depth.packed")
    monkeypatch.setattr("sys.argv", [name, str(tmp_path / "depth.packed")])
    with pytest.raises(UsageError, match=r"has no field .*it has depth"):
        runpy.run_path(str(ROOT / f"scripts/examples/{name}.py"), run_name="__main__")


def test_classification_tells_classes(demo_data: Path, tmp_path: Path) -> None:
    """After three epochs it tells more photographs right than chance would; the dataset keeps the JPEG files."""
    source, splits = SourceOptions(label="folder"), {"train": 0.75, "valid": 0.25}
    report = convert(str(demo_data / "photographs"), tmp_path / "a.packed", source=source, splits=splits)
    assert [field.codec for field in report.manifest.fields] == [NAMED["jpeg"], ()]
    given = [str(tmp_path / "a.packed"), "--size", "32", "--device", "cpu"]
    assert classification.main(given) > 2 / 9


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


def test_two_ranks_train_and_validate(demo_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two processes share the steps of an epoch, and count each validation sample once, as one process does."""
    pairs = [f"{field}={demo_data / 'pairs' / field}/astronaut_0*.png" for field in ("lr", "hr")]
    convert(pairs, tmp_path / "pairs.packed", workers=0, splits={"train": 0.8, "valid": 0.2})
    arguments = [str(tmp_path / "pairs.packed"), "--batch-size", "9"]
    distributed.main(arguments)
    one = re.fullmatch(r"epoch 0: (\d+) steps on 1 ranks, error ([\d.]+) on (\d+) samples\n", capsys.readouterr().out)
    printed = call_in_ranks(2, "examples.distributed", "main", *arguments, trains=True)
    two = re.fullmatch(r"epoch 0: (\d+) steps on 2 ranks, error ([\d.]+) on (\d+) samples\n", printed)
    assert one
    assert two
    assert int(two[1]) == int(one[1]) // 2
    assert two[3] == one[3]
    assert float(two[2]) == pytest.approx(float(one[2]), rel=0.5)


def test_pointnet_tells_the_two_maps_apart(demo_data: Path, tmp_path: Path) -> None:
    """On clouds of many sizes it does better than the guess that all are of the commoner map."""
    convert([str(demo_data / "clouds" / "terrain_[0-2]*.ply")], tmp_path / "clouds.packed", workers=0)
    assert pointnet.main([str(tmp_path / "clouds.packed"), "--epochs", "12", "--batch-size", "4"]) > 0.85


def test_video_sr_beats_bicubic(demo_data: Path, tmp_path: Path) -> None:
    """On windows of clips of several lengths, one crop a window, it is no worse than bicubic after some epochs."""
    clips = [f"{field}={demo_data}/clips/{field}/00[0-4]/*.png" for field in ("lr", "hr")]
    convert(clips, tmp_path / "clips.packed", workers=0, source=CLIPS)
    assert video_sr.main([str(tmp_path / "clips.packed"), "--epochs", "4", "--crop", "32", "--device", "cpu"]) > -0.1


def test_behaviour_is_cloned(demo_data: Path, tmp_path: Path) -> None:
    """What was learnt of windows of demonstrations does far better than nothing on those that were held back."""
    convert([str(demo_data / "demos.hdf5")], tmp_path / "demos.packed", workers=0, source=GROUPS)
    assert behaviour_cloning.main([str(tmp_path / "demos.packed"), "--epochs", "3", "--device", "cpu"]) < 0.6


def test_lesions_are_found(demo_data: Path, tmp_path: Path) -> None:
    """On whole volumes that were held back, the masks overlap with those that were drawn."""
    sources = [source.format(demo_data) for source in DEMO["volumes"]]
    convert(sources, tmp_path / "volumes.packed", workers=0, splits=SPLITS["volumes"])
    assert segmentation.main([str(tmp_path / "volumes.packed"), "--epochs", "2", "--device", "cpu"]) > 0.6


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
