"""PNG files out of a packed dataset."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from jpeg_files import photograph
from opened_sources import open_images, read_each
from PIL import Image
from real_files import real_files

from packer.convert import convert
from packer.errors import UsageError
from packer.export import export
from packer.export.png import write_png
from packer.format import FieldSpec
from packer.sources import SourceOptions, open_sources
from packer.writer import DatasetWriter
from readers import PackedDataset


@settings(max_examples=60)
@given(data=st.data())
def test_every_pixel_comes_back(data):
    """Images of 8 and 16 bits and 1 to 4 channels are read from the PNG as they were, and Pillow takes the file."""
    dtype = data.draw(st.sampled_from([np.uint8, np.uint16]))
    shape = data.draw(st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 4)))
    image = data.draw(hnp.arrays(dtype, shape))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.png"
        with path.open("wb") as file:
            write_png(file, image)
        with Image.open(path) as picture:
            opened = np.asarray(picture)
            assert picture.size == (shape[1], shape[0])
        if (dtype, shape[2]) == (np.uint16, 2):  # a source refuses it, since Pillow opens the high bytes, as RGBA
            assert np.array_equal(opened[:, :, [0, 3]], image >> 8)
            return
        (found,) = read_each(open_images({"x": folder}))["x"]
        assert found.dtype == dtype
        assert np.array_equal(found, image)


def test_a_name_as_long_as_a_file_may_have_is_written(tmp_path):
    """Under a temporary name that is no longer than file systems allow."""
    name = "ä" * 125
    with DatasetWriter(tmp_path / "d", [FieldSpec(name="x", dtype="uint8", kind="image", shape=(2, 2, 3))]) as writer:
        writer.add({"x": np.zeros((2, 2, 3), np.uint8)}, name=name)
    export(tmp_path / "d", tmp_path / "out")
    assert [path.name for path in (tmp_path / "out/x").iterdir()] == [f"{name}.png"]


def test_images_without_names_are_numbered(tmp_path):
    """Images of samples made in Python go to PNG too; numbers have as many digits as the last one needs."""
    spec = FieldSpec(name="a", dtype="uint8", kind="image", shape=(2, 3, 1))
    convert([{"a": np.full((2, 3, 1), n, np.uint8)} for n in range(11)], tmp_path / "d", fields=[spec])
    assert export(tmp_path / "d", tmp_path / "out").to == "png"
    assert sorted(p.name for p in (tmp_path / "out/a").iterdir()) == [f"{n:02d}.png" for n in range(11)]


def test_an_image_without_pixels_is_refused(tmp_path):
    """PNG has no pictures of no pixels: the sample is named."""
    spec = FieldSpec(name="a", dtype="uint8", kind="image", shape=(None, 3, 1))
    convert([{"a": np.zeros((n, 3, 1), np.uint8)} for n in (1, 0)], tmp_path / "d", fields=[spec])
    with pytest.raises(UsageError, match=r"'a', sample '1': PNG cannot hold \(0, 3\) pixels; export to hdf5"):
        export(tmp_path / "d", tmp_path / "out")


def test_real_pictures_come_back(tmp_path, contents):
    """Interlaced, 16-bit, palette and gray files: what is exported is what was packed."""
    for number, path in enumerate(real_files("png_odd/**/*.png")):
        if path.stem == "basn4a16":  # gray with alpha of 16 bits, which is refused
            continue
        convert(f"x={path}", tmp_path / f"{number}.one", workers=0)
        export(tmp_path / f"{number}.one", tmp_path / f"{number}.out")
        convert(f"x={tmp_path}/{number}.out/x", tmp_path / f"{number}.two", workers=0)
        assert contents(tmp_path / f"{number}.one") == contents(tmp_path / f"{number}.two")


@pytest.mark.parametrize("codec", ["jpeg:90", "none"])
def test_clips_are_folders_of_frames(tmp_path, codec):
    """A frame is the JPEG file that the dataset keeps, byte for byte, or else a PNG; they are read as clips again."""
    clips = [np.stack([photograph(24, 30, step) for step in range(steps)]) for steps in (3, 5)]
    convert([{"clip": clip} for clip in clips], tmp_path / "d", codec=codec)
    assert export(tmp_path / "d", tmp_path / "out", to="files").files == 8
    suffix = ".png" if codec == "none" else ".jpg"
    assert [path.name for path in sorted((tmp_path / "out/clip/1").iterdir())] == [f"{n:08d}{suffix}" for n in range(5)]
    if codec != "none":
        file = simplejpeg.encode_jpeg(clips[1][4], 90, "RGB", "420", fastdct=False)
        assert (tmp_path / "out/clip/1/00000004.jpg").read_bytes() == file
    again = read_each(open_sources([f"clip={tmp_path / 'out/clip'}"], SourceOptions(samples="folders")))["clip"]
    for ours, theirs in zip(again, PackedDataset(tmp_path / "d"), strict=True):
        assert np.array_equal(ours, theirs["clip"])
    assert export(tmp_path / "d", tmp_path / "pngs", to="png").files == 8
    again = read_each(open_sources([f"clip={tmp_path / 'pngs/clip'}"], SourceOptions(samples="folders")))["clip"]
    for ours, theirs in zip(again, PackedDataset(tmp_path / "d"), strict=True):
        assert np.array_equal(ours, theirs["clip"])


def test_arrays_that_png_does_not_hold_go_to_hdf5_though_they_are_jpeg_files(tmp_path):
    """Arrays (H, W) and (H, W, 3) come back as arrays."""
    convert([{"x": photograph(24, 30)[..., 0], "y": photograph(24, 30)}], tmp_path / "d", codec="jpeg:90")
    assert export(tmp_path / "d", tmp_path / "out").to == "hdf5"


def test_a_clip_without_frames_has_no_file(tmp_path):
    """It is an error rather than a sample that is left out."""
    convert([{"clip": np.zeros((n, 4, 4, 3), np.uint8)} for n in (1, 0)], tmp_path / "d", codec="none")
    with pytest.raises(UsageError, match=r"field 'clip', sample '1': PNG cannot hold \(0, 4, 4\) pixels"):
        export(tmp_path / "d", tmp_path / "out", to="png")
