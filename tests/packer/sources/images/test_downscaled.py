"""A field of small pictures made from large ones."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from PIL import Image

from packer.checking.against import compare
from packer.convert import ConvertOptions, convert
from packer.errors import SourceError, UsageError
from packer.sources.opening import SourceOptions, open_sources


@pytest.fixture(params=["RGB", "L"])
def folder(request, tmp_path):
    """Pictures of two sizes, colour or gray."""
    rng = np.random.default_rng(0)
    (tmp_path / "hr").mkdir()
    for name, size in (("a", (16, 24)), ("b", (32, 8))):
        pixels = rng.integers(0, 256, size if request.param == "L" else (*size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "hr" / f"{name}.png")
    return tmp_path / "hr"


def small(folder, name, factor):
    with Image.open(folder / f"{name}.png") as picture:
        resized = picture.resize((picture.width // factor, picture.height // factor), Image.Resampling.BICUBIC)
    return np.asarray(resized).reshape(resized.height, resized.width, -1)


@pytest.mark.parametrize("names", [["a", "b"], ["b"]])
def test_the_small_ones_are_pillows(folder, names):
    """lr is what Pillow's bicubic makes, hr what the file holds, of several sizes or of one, in parts too."""
    source = open_sources([f"hr={folder}"], SourceOptions(downscale=4))
    part = pickle.loads(pickle.dumps(source.part(2 - len(names), 2)))
    assert [spec.name for spec in part.fields] == ["lr", "hr"]
    images = [image for block in part.read() for image in block["lr"]]
    assert part.names == names
    for name, image, shape in zip(names, images, part.shapes("lr").tolist(), strict=True):
        assert list(image.shape) == shape
        np.testing.assert_array_equal(image, small(folder, name, 4))


def test_one_size_is_a_fixed_field(folder):
    """Pictures of one size give a field of one size."""
    source = open_sources([f"hr={folder}/a.png"], SourceOptions(downscale=2))
    assert source.fields[0].shape[:2] == (8, 12)
    (block,) = source.read()
    np.testing.assert_array_equal(block["lr"], [small(folder, "a", 2)])


def test_with_patches_it_is_packed(folder, tmp_path):
    """Squares are cut from both, and packed as the source gives them."""
    options = SourceOptions(downscale=4, patch=8)
    convert([f"hr={folder}"], tmp_path / "out.packed", ConvertOptions(source=options, workers=0))
    source = open_sources([f"hr={folder}"], options)
    assert [spec.shape[:2] for spec in source.fields] == [(2, 2), (8, 8)]
    assert compare(tmp_path / "out.packed", source) == []


@pytest.mark.parametrize(
    ("field", "options", "error", "reason"),
    [
        ("hr", SourceOptions(downscale=1), UsageError, "2 or more is expected"),
        ("lr", SourceOptions(downscale=2), UsageError, "makes 'lr' from one other field"),
        (
            "hr",
            SourceOptions(downscale=3),
            SourceError,
            r"sample 'a' is 16 x 24, no multiple of 3 \(one of 2 such samples\)",
        ),
        ("hr", SourceOptions(downscale=2, mode="rgba"), SourceError, "for 8-bit gray and RGB, not uint8 with 4"),
    ],
)
def test_what_cannot_be_made_smaller(folder, field, options, error, reason):
    """Each is refused with what was expected."""
    with pytest.raises(error, match=reason):
        open_sources([f"{field}={folder}"], options)
