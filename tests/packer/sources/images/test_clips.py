"""Folders of images as samples: clips of numbered frames, and fields by the names of the images."""

from __future__ import annotations

import logging
import re
import shutil
import sys

import numpy as np
import pytest
from jpeg_files import as_jpeg, photograph
from opened_sources import read_each, source_of
from picture_files import picture, save
from PIL import Image

from packer.convert import convert
from packer.errors import SourceError, UsageError
from packer.export import export
from packer.format import FieldSpec
from packer.sources import SourceOptions, base
from packer.sources.images import kind
from readers import PackedDataset

FOLDERS = SourceOptions(samples="folders")


def clip(folder, frames, height=4, width=5, name="{:08}.png", seed=0):
    """Writes numbered frames; returns them as one array (T, H, W, 3)."""
    return np.stack([save(folder / name.format(n), picture(height, width, seed=seed + n)) for n in frames])


@pytest.fixture
def reds(tmp_path):
    """As REDS: LR/000/00000000.png and HR/000/00000000.png, clips of 3, 5 and 3 frames; by field, a list."""
    made = {"0": range(3), "002": range(5), "010": range(3)}
    lr = [clip(tmp_path / "LR" / name, frames, seed=i) for i, (name, frames) in enumerate(made.items())]
    hr = [clip(tmp_path / "HR" / name, frames, 8, 10, seed=90 + i) for i, (name, frames) in enumerate(made.items())]
    return {"lr": lr, "hr": hr}


def test_a_folder_of_frames_is_a_sample(tmp_path, reds):
    """REDS comes back equal, pair by pair and clip by clip."""
    sources = [f"lr={tmp_path}/LR", f"hr={tmp_path}/HR"]
    source = source_of(sources, source=FOLDERS)
    assert source.names == ["0", "002", "010"]
    assert source.fields == (
        FieldSpec(name="lr", dtype="uint8", shape=(None, 4, 5, 3)),
        FieldSpec(name="hr", dtype="uint8", shape=(None, 8, 10, 3)),
    )
    np.testing.assert_array_equal(source.shapes("hr"), [(3, 8, 10, 3), (5, 8, 10, 3), (3, 8, 10, 3)])
    assert len(source.files()) == 22
    last = read_each(source.slice(1, 3))
    for name, wanted_clips in reds.items():
        for found, wanted in zip(last[name], wanted_clips[1:], strict=True):
            np.testing.assert_array_equal(found, wanted)
    assert any("3 clips of 3 to 5 frames" in note for note in source.remarks)
    assert any("hr is 2 times as large as lr in every sample" in note for note in source.remarks)


@pytest.mark.parametrize("large", [False, True])
def test_clips_of_jpeg_files_keep_them(tmp_path, caplog, monkeypatch, large):
    """`auto` stores the files of all frames as they are, of clips that are read by pieces, too; a PNG stays pixels."""
    if large:
        monkeypatch.setattr(kind, "LARGE_BYTES", 0)
    files = [as_jpeg(photograph(64, 96, seed), quality=30) for seed in range(6)]
    for number, file in enumerate(files):
        (tmp_path / "in" / str(number // 3)).mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / str(number // 3) / f"{number}.jpg").write_bytes(file)
    with caplog.at_level(logging.INFO):
        convert(str(tmp_path / "in"), tmp_path / "out", source=FOLDERS, workers=0)
    assert "JPEG files of image stay as they are" in caplog.text
    export(tmp_path / "out", tmp_path / "again")
    assert [path.read_bytes() for path in sorted((tmp_path / "again").rglob("*.jpg"))] == files
    clips = read_each(source_of([str(tmp_path / "in")], source=FOLDERS))["image"]
    for sample, wanted in zip(PackedDataset(tmp_path / "out"), clips, strict=True):
        np.testing.assert_array_equal(sample["image"], wanted)
    Image.fromarray(photograph(64, 96)).save(tmp_path / "in" / "1" / "6.png")
    convert(str(tmp_path / "in"), tmp_path / "mixed", source=FOLDERS, codec="jpeg", workers=0)
    np.testing.assert_array_equal(PackedDataset(tmp_path / "mixed")[1]["image"][3], photograph(64, 96))


def test_clips_of_one_length_are_one_array(tmp_path, monkeypatch):
    """Vimeo90K, sequences/00001/0001/im1.png to im7.png: all axes fixed, however few frames a block holds."""
    monkeypatch.setattr(kind.KIND, "block_bytes", 150)
    frames = [clip(tmp_path / "seq" / "00001" / f"{n:04}", range(1, 8), name="im{}.png", seed=n) for n in (1, 2)]
    source = source_of([str(tmp_path / "seq")], source=FOLDERS)
    assert source.fields == (FieldSpec(name="image", dtype="uint8", shape=(7, 4, 5, 3)),)
    assert source.names == ["00001/0001", "00001/0002"]
    np.testing.assert_array_equal(read_each(source)["image"], frames)
    source = source_of([str(tmp_path / "seq" / "00001" / "0002")], source=FOLDERS)
    assert source.names == ["0002"]
    np.testing.assert_array_equal(read_each(source)["image"], frames[1:])


def test_frames_stand_in_the_order_of_their_numbers(tmp_path):
    """Natural order, in folders whose names are equal numbers too; markers of names are taken off."""
    for name, seed in (("01", 0), ("1", 50)):
        wanted = clip(tmp_path / "lr" / name, (2, 9, 10, 11), name="f{}x2.png", seed=seed)
        clip(tmp_path / "hr" / name, (2, 9, 10, 11), 8, 10, name="f{}.png")
        source = source_of([f"lr={tmp_path}/lr", f"hr={tmp_path}/hr"], source=FOLDERS)
        np.testing.assert_array_equal(read_each(source)["lr"][-1], wanted)
    assert source.names == ["01", "1"]


def test_images_of_several_names_in_each_folder_are_fields_to_be_named(tmp_path):
    """a/rgb.png, a/depth.png, b/rgb.png, b/depth.png: the error gives the patterns, which make samples a and b."""
    for name in "ba":
        save(tmp_path / "set" / name / "rgb.png", picture(seed=ord(name)))
        save(tmp_path / "set" / name / "depth.png", picture(4, 5 + (name == "b"), 1))
    patterns = [f"depth='{tmp_path}/set/*/depth.*'", f"rgb='{tmp_path}/set/*/rgb.*'"]
    with pytest.raises(UsageError, match=re.escape(f"as in {' '.join(patterns)}")):
        source_of([str(tmp_path / "set")], source=FOLDERS)
    named = source_of([pattern.replace("'", "") for pattern in patterns], source=FOLDERS)
    assert named.names == ["a", "b"]
    assert {spec.name: (spec.shape, spec.kind) for spec in named.fields} == {
        "depth": ((4, None, 1), "image"),
        "rgb": ((4, 5, 3), "image"),
    }
    np.testing.assert_array_equal(read_each(named)["rgb"][1], picture(seed=ord("b")))
    (tmp_path / "set" / "b" / "depth.png").unlink()
    with pytest.raises(
        SourceError, match=r"b/rgb.png: field 'rgb' has this file, but there is no partner of that name in 'depth'"
    ):
        source_of([pattern.replace("'", "") for pattern in patterns], source=FOLDERS)


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_large_clips_are_what_small_ones_are(tmp_path, reds, monkeypatch, codec):
    """Clips that are read in pieces come out equal; one with a damaged frame far from its start is skipped."""
    monkeypatch.setattr(kind, "LARGE_BYTES", 100)
    monkeypatch.setattr(kind.KIND, "block_bytes", 100)
    monkeypatch.setattr(base, "PIECE_BYTES", 200_000)
    made = {"0": range(3), "002": range(5), "010": range(3)}
    hr = {name: clip(tmp_path / "large" / name, frames, 300, 400) for name, frames in made.items()}
    path = tmp_path / "large" / "002" / "00000004.png"
    path.write_bytes(path.read_bytes()[:-20])
    sources = [f"lr={tmp_path}/LR", f"hr={tmp_path}/large"]
    report = convert(sources, tmp_path / "out", workers=0, source=FOLDERS, codec=codec, on_error="skip")
    assert [(bad.file, bad.shard) for bad in report.rejected] == [(str(path), 0)]
    assert [bool(field.frame.rows) for field in report.manifest.fields] == [False, True]
    dataset = PackedDataset(tmp_path / "out")
    assert list(dataset.names) == ["0", "010"]
    for number, name in enumerate(("0", "010")):
        np.testing.assert_array_equal(dataset[name]["lr"], reds["lr"][2 * number])
        np.testing.assert_array_equal(dataset[name]["hr"], hr[name])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the limit is kept on Linux alone")
def test_a_clip_that_is_larger_than_memory_is_packed(tmp_path):
    """Frames are decoded some at a time: 240 MB of them take less than half of that."""
    save(tmp_path / "clips" / "a" / "0.png", np.zeros((2000, 2000, 3), np.uint8))
    for number in range(1, 20):
        shutil.copy(tmp_path / "clips" / "a" / "0.png", tmp_path / "clips" / "a" / f"{number}.png")
    report = convert(str(tmp_path / "clips"), tmp_path / "out", workers=1, read_bytes=10**8, source=FOLDERS)
    assert report.raw_bytes == 240_000_000


def test_a_gap_is_said(tmp_path):
    """A missing number is in the plan, with the frame before it; numbers in even steps are no gap."""
    clip(tmp_path / "clips" / "a", (0, 10, 20))
    clip(tmp_path / "clips" / "b", (0, 1, 2, 4))
    (said,) = (note for note in source_of([str(tmp_path / "clips")], source=FOLDERS).remarks if "gaps" in note)
    assert "gaps in b (after 00000002.png)" in said


@pytest.mark.parametrize(
    ("file", "size", "reason"),
    [
        ("00000003.png", (4, 6), r"images of different sizes \(00000000.png is 4 x 5 and 00000003.png is 4 x 6\)"),
        ("thumb.png", (4, 5), "images that are not numbered alike, such as"),
        ("1_2.png", (4, 5), "images that are not numbered alike, such as"),
        ("01.png", (4, 5), "two images with the same number"),
    ],
)
def test_what_is_no_clip_is_refused(tmp_path, file, size, reason):
    """Frames of another size or name are an error that names the clip; left out, the others are packed."""
    clip(tmp_path / "clips" / "a", range(3))
    clip(tmp_path / "clips" / "b", range(3))
    save(tmp_path / "clips" / "b" / file, picture(*size))
    with pytest.raises(SourceError, match=f"clips/b: holds {reason}"):
        source_of([str(tmp_path / "clips")], source=FOLDERS)
    left = source_of([str(tmp_path / "clips")], source=FOLDERS, on_error="skip")
    assert (left.names, left.fields[0].shape) == (["a"], (3, 4, 5, 3))


def test_a_clip_that_lacks_a_frame_is_left_out_as_a_whole(tmp_path, reds):
    """A damaged frame, and one without a partner, are errors; left out, their clips go as a whole."""
    (tmp_path / "HR" / "002" / "00000004.png").unlink()
    sources = [f"lr={tmp_path}/LR", f"hr={tmp_path}/HR"]
    with pytest.raises(
        SourceError,
        match=r"LR/002/00000004.png: field 'lr' has this file, but there is no partner of that name in 'hr'",
    ):
        source_of(sources, source=FOLDERS)
    (tmp_path / "LR" / "0" / "00000001.png").write_bytes(b"no image")
    source = source_of(sources, source=FOLDERS, on_error="skip")
    assert source.names == ["010"]
    np.testing.assert_array_equal(read_each(source)["hr"][0], reds["hr"][2])
    path = tmp_path / "LR" / "010" / "00000002.png"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(SourceError, match=r"00000002\.png") as caught:
        list(source.read())
    assert caught.value.sample == 0
    (tmp_path / "HR" / "010" / "00000000.png").write_bytes(b"")
    with pytest.raises(SourceError, match="no clip is left"):
        source_of(sources, source=FOLDERS, on_error="skip")


def test_the_wrong_unit_is_said(tmp_path, reds):
    """Images next to clips, patches of clips, and rows are refused."""
    with pytest.raises(UsageError, match="--patch, --stride and --downscale are for single images"):
        source_of([str(tmp_path / "LR")], source=SourceOptions(samples="folders", patch=2))
    with pytest.raises(UsageError, match="--samples rows: sources of images take files or folders"):
        source_of([str(tmp_path / "LR")], source=SourceOptions(samples="rows"))
    save(tmp_path / "LR" / "cover.png")
    with pytest.raises(SourceError, match=r"LR/cover.png: lies next to the folders that are the samples"):
        source_of([str(tmp_path / "LR")], source=FOLDERS)
