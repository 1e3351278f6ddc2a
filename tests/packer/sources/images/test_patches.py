"""Images cut into patches: where they lie, what they are called, how parts and bad images are read."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from fields import flip
from opened_sources import read_joined
from PIL import Image

from packer.convert import ConvertOptions, convert
from packer.errors import SourceError, UsageError
from packer.sources import SourceOptions, open_sources
from packer.sources.images import derived, formats
from packer.sources.images.formats import read_image

SIZES = {"a": (20, 28), "b": (8, 8), "c": (17, 9), "d": (4, 40)}


@pytest.fixture
def pairs(tmp_path):
    """lr and hr, twice as large, of several sizes, one of them smaller than a patch."""
    rng = np.random.default_rng(0)
    for field, scale in (("lr", 1), ("hr", 2)):
        (tmp_path / field).mkdir()
        for name, (height, width) in SIZES.items():
            pixels = rng.integers(0, 256, (height * scale, width * scale, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / field / f"{name}.png")
    return [f"lr={tmp_path}/lr", f"hr={tmp_path}/hr"]


def open_cut(pairs, patch=16, stride=None):
    return open_sources(pairs, SourceOptions(patch=patch, stride=stride))


def pixels(pairs, field, name):
    folder = dict(text.split("=") for text in pairs)[field]
    with Image.open(Path(folder) / f"{name}.png") as picture:
        return np.asarray(picture)


@pytest.mark.parametrize("stride", [16, 8, 20])
def test_squares_are_the_pixels_at_their_places(pairs, stride):
    """Patch r, c begins at r and c strides; its partner shows the same place; small images give none."""
    source = open_cut(pairs, 16, stride)
    assert [spec.shape for spec in source.fields] == [(8, 8, 3), (16, 16, 3)]
    values = read_joined(source)
    expected = [
        f"{name}_{r}_{c}"
        for name, (height, width) in SIZES.items()
        for r in range((2 * height - 16) // stride + 1)
        for c in range((2 * width - 16) // stride + 1)
    ]
    assert source.names == expected
    assert len(source) == len(values["hr"])
    left = sum((2 * height - 16) % stride + (2 * width - 16) % stride > 0 for height, width in list(SIZES.values())[:3])
    assert f"of {left} images, pixels at the right or bottom edge are in no patch" in source.remarks[-1]
    assert ("pixels between patches are in none" in source.remarks[-1]) == (stride > 16)
    for i, label in enumerate(source.names):
        name, r, c = label.split("_")
        for field, scale in (("hr", 1), ("lr", 2)):
            y, x, side = int(r) * stride // scale, int(c) * stride // scale, 16 // scale
            np.testing.assert_array_equal(values[field][i], pixels(pairs, field, name)[y : y + side, x : x + side])


def test_every_part_reads_its_own_squares(pairs, monkeypatch):
    """Parts of parts, also within one image, and blocks of two patches, give what the whole gives."""
    source = open_cut(pairs, 16, 8)
    whole = read_joined(source)
    monkeypatch.setattr(derived, "BLOCK_BYTES", 2000)
    for start in range(0, len(source), 3):
        for stop in range(start + 1, len(source) + 1, 4):
            part = pickle.loads(pickle.dumps(source.slice(0, stop).slice(start, stop)))
            assert part.names == source.names[start:stop]
            np.testing.assert_array_equal(read_joined(part)["lr"], whole["lr"][start:stop])
    assert len(list(source.read())) > len(source) // 3


def damage(pairs, name):
    """Flips a bit of the pixels of an image of hr; returns its path."""
    path = Path(pairs[1].partition("=")[2]) / f"{name}.png"
    flip(path, -20, 1)
    return path


def test_a_bad_picture_is_numbered_by_its_first_square(pairs):
    """The error says which patch cannot be read; blocks before hold all patches before."""
    source = open_cut(pairs)
    damage(pairs, "c")
    got = []
    with pytest.raises(SourceError, match="wrong checksum") as caught:
        got.extend(len(block["hr"]) for block in source.read())
    assert sum(got) == caught.value.sample == source.names.index("c_0_0")


def test_a_bad_picture_without_squares_harms_none(pairs):
    """What is wrong with the pixels of an image that is too small for a patch is no matter."""
    source = open_cut(pairs)
    whole = read_joined(source)
    damage(pairs, "d")
    np.testing.assert_array_equal(read_joined(source)["hr"], whole["hr"])


def test_bad_squares_are_left_out(pairs, tmp_path, monkeypatch):
    """With on_error="skip" all patches of a bad image are rejected, and no other; it is read once, not by each."""
    path, read = damage(pairs, "b"), []
    monkeypatch.setattr(formats, "read_image", lambda path, *more: read.append(path) or read_image(path, *more))
    options = ConvertOptions(source=SourceOptions(patch=8), codec="none", workers=0, on_error="skip")
    report = convert(pairs, tmp_path / "out.packed", options)
    assert read.count(str(path)) == 1
    names = list(open_cut(pairs, 8).names)
    assert len(report.rejected) == sum(name.startswith("b_") for name in names) == 4
    assert report.samples == len(names) - 4


@pytest.mark.parametrize(
    ("patch", "stride", "error", "reason"),
    [
        (15, None, UsageError, "field 'lr' is 2 times as small, so both must be multiples of 2"),
        (16, 7, UsageError, "both must be multiples of 2"),
        (0, None, UsageError, "1 or more is expected"),
        (None, 8, UsageError, "--stride needs --patch"),
        (400, None, SourceError, "no image of field 'hr' is as large as 400 x 400 pixels"),
    ],
)
def test_squares_that_cannot_be(pairs, patch, stride, error, reason):
    """Each is refused with what was expected."""
    with pytest.raises(error, match=reason):
        open_cut(pairs, patch, stride)


def test_pairs_in_another_ratio(pairs):
    """A pair whose sizes are in another ratio than the first one's is named."""
    folder = Path(pairs[0].partition("=")[2])
    Image.new("RGB", (8, 9)).save(folder / "b.png")
    with pytest.raises(SourceError, match="sample 'b': 'hr' is not 2 times as large as 'lr'"):
        open_cut(pairs)
