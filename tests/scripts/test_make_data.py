"""The demo inputs are what the demo and the tests rely on."""

from __future__ import annotations

from pathlib import Path

import nibabel
import numpy as np
import pytest
from inputs.clouds import FORMATS, write_ply
from make_data import MAKERS, make_data
from PIL import Image
from plyfile import PlyData

from packer.convert import convert
from packer.sources import SourceOptions
from readers import PackedDataset


def test_pairs_are_16_and_64_px_and_named_alike(demo_data: Path) -> None:
    """There are at least 2,000 pairs; the files of a pair have one name and RGB pixels."""
    lr, hr = (sorted(path.name for path in (demo_data / "pairs" / field).iterdir()) for field in ("lr", "hr"))
    assert lr == hr
    assert len(lr) >= 2000
    for field, side in (("lr", 16), ("hr", 64)):
        with Image.open(demo_data / "pairs" / field / lr[0]) as picture:
            assert (picture.size, picture.mode) == ((side, side), "RGB")


def test_pictures_differ_in_size_and_scale_by_four(demo_data: Path) -> None:
    """Each of the 40 whole pictures has its own size, four times that of its LR partner."""
    sizes = set()
    for path in sorted((demo_data / "pictures" / "hr").iterdir()):
        with Image.open(path) as hr, Image.open(demo_data / "pictures" / "lr" / f"{path.stem}x4.png") as lr:
            assert hr.size == (4 * lr.width, 4 * lr.height)
            sizes.add(hr.size)
    assert len(sizes) == 40


def test_clips_are_frames_of_one_size(demo_data: Path) -> None:
    """There are 18 pairs of clips of 8 to 12 frames, numbered from 0, of 24 x 32 and 96 x 128 pixels."""
    for field, size in (("lr", (32, 24)), ("hr", (128, 96))):
        clips = sorted((demo_data / "clips" / field).iterdir())
        assert {len(list(clip.iterdir())) for clip in clips} == set(range(8, 13))
        assert len(clips) == 18
        with Image.open(clips[0] / "00000007.png") as frame:
            assert frame.size == size


def test_photographs_are_files_of_classes(demo_data: Path) -> None:
    """There are nine folders of 16 JPEG files of many sizes, baseline and progressive."""
    found = {path.parent.name: path for path in (demo_data / "photographs").glob("*/*.jpg")}
    files = sorted((demo_data / "photographs").glob("*/*"))
    assert (len(found), len(files)) == (9, 144)
    kinds = set()
    for path in files:
        with Image.open(path) as picture:
            kinds.add((picture.format, picture.mode, "progressive" in picture.info))
    assert kinds == {("JPEG", "RGB", False), ("JPEG", "RGB", True)}


def test_clouds_have_three_formats_and_as_many_sizes_as_files(demo_data: Path) -> None:
    """No two clouds have the same number of points; text and both byte orders occur."""
    clouds = [PlyData.read(str(path)) for path in sorted((demo_data / "clouds").iterdir())]
    assert len({cloud["vertex"].count for cloud in clouds}) == len(clouds) >= 60
    assert {(cloud.text, cloud.byte_order) for cloud in clouds} == {(True, "="), (False, "<"), (False, ">")}


def test_volumes_have_two_channels_and_a_mask(demo_data: Path) -> None:
    """There are 12 of as many sizes, named as nnU-Net has it; the three files of each lie on one grid."""
    sizes = set()
    for path in sorted((demo_data / "volumes" / "labelsTr").iterdir()):
        label, name = nibabel.load(path), path.name.removesuffix(".nii.gz")
        channels = [nibabel.load(demo_data / f"volumes/imagesTr/{name}_{n:04d}.nii.gz") for n in range(2)]
        assert {image.shape for image in (label, *channels)} == {label.shape}
        assert not [image for image in channels if not np.array_equal(image.affine, label.affine)]
        assert set(np.unique(np.asarray(label.dataobj))) == {0, 1}
        sizes.add(label.shape)
    assert len(sizes) == 12


def test_tables_and_videos_are_packed_by_one_line_each(demo_data: Path, tmp_path: Path) -> None:
    """60 rows of a CSV with the files that it names, of parquet with pictures, 60 videos of unlike lengths."""
    table = PackedDataset(
        convert(demo_data / "photographs.csv", tmp_path / "table", source=SourceOptions(files=("image",))).path
    )
    photograph = sorted((demo_data / "photographs").glob("*/00.jpg"))[0]
    with Image.open(photograph) as image:
        assert np.array_equal(table[0]["image"].permute(1, 2, 0), np.asarray(image))
    parquet = PackedDataset(convert(demo_data / "digits.parquet", tmp_path / "parquet").path)
    assert parquet[:10]["label"].tolist() == list(range(10))
    videos = PackedDataset(
        convert({"clip": demo_data / "videos"}, tmp_path / "videos", source=SourceOptions(label="folder")).path
    )
    assert videos[0]["clip"].shape == (16, 96, 128, 3)
    assert len(table) == len(parquet) == len(videos) == 60


@pytest.mark.parametrize("format", FORMATS)
def test_cloud_files_hold_every_bit(tmp_path: Path, format: str) -> None:
    """Every format gives the float32 values back exactly, also those with many digits."""
    points = np.zeros(4, dtype=[(name, "f4") for name in "xyz"] + [(name, "u1") for name in ("red", "green", "blue")])
    points["x"] = np.array([1 / 3, np.pi * 1e5, np.finfo("f4").max, np.finfo("f4").tiny])
    points["green"] = [0, 1, 254, 255]
    write_ply(tmp_path / "a.ply", points, format)
    vertex = PlyData.read(str(tmp_path / "a.ply"))["vertex"]
    for name in points.dtype.names:
        assert np.array_equal(vertex[name], points[name])


@pytest.fixture
def quick_makers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Makers that write one small file each; the list grows by the name of each that runs."""
    ran: list[str] = []

    def make(path: Path) -> None:
        ran.append(path.name)
        path.write_text("made")

    for name in MAKERS:
        monkeypatch.setitem(MAKERS, name, make)
    return ran


def test_a_second_run_makes_nothing(tmp_path: Path, quick_makers: list[str]) -> None:
    """Inputs that are there already are left as they are."""
    assert make_data(tmp_path / "data")
    assert not make_data(tmp_path / "data")
    assert quick_makers == list(MAKERS)


def test_an_interrupted_run_is_taken_up_again(tmp_path: Path, quick_makers: list[str]) -> None:
    """If the stamp says unfinished, all inputs are made anew."""
    make_data(tmp_path)
    (tmp_path / ".made").write_text("unfinished")
    assert make_data(tmp_path)
    assert quick_makers == 2 * list(MAKERS)


def test_somebody_elses_files_are_left_alone(tmp_path: Path, quick_makers: list[str]) -> None:
    """A folder that happens to have one of our names is an error, and keeps its content."""
    (tmp_path / "clouds").mkdir()
    (tmp_path / "clouds" / "own.ply").write_text("mine")
    with pytest.raises(FileExistsError, match="clouds is there and was not made by this script"):
        make_data(tmp_path)
    assert (tmp_path / "clouds" / "own.ply").read_text() == "mine"
    assert quick_makers == []
