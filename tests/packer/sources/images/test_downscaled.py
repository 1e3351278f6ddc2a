"""A field of small images made from large ones."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
from opened_sources import read_each
from PIL import Image

from packer.errors import SourceError, UsageError
from packer.sources import SourceOptions, open_sources
from packer.sources.images.derived import KERNELS


@pytest.fixture(params=["RGB", "L"])
def folder(request, tmp_path):
    """Images of two sizes, colour or gray."""
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
    part = pickle.loads(pickle.dumps(source.slice(2 - len(names), 2)))
    assert [spec.name for spec in part.fields] == ["lr", "hr"]
    images = read_each(part)["lr"]
    assert part.names == names
    for name, image, shape in zip(names, images, part.shapes("lr").tolist(), strict=True):
        assert list(image.shape) == shape
        np.testing.assert_array_equal(image, small(folder, name, 4))


def test_squares_are_cut_from_both(folder):
    """Of one size each, a quarter of the other."""
    source = open_sources([f"hr={folder}"], SourceOptions(downscale=4, patch=8))
    assert [spec.shape[:2] for spec in source.fields] == [(2, 2), (8, 8)]
    np.testing.assert_array_equal(read_each(source)["lr"][1], small(folder, "a", 4)[:2, 2:4])


@pytest.mark.parametrize(
    ("field", "options", "error", "reason"),
    [
        ("hr", SourceOptions(downscale=1), UsageError, "2 or more is expected"),
        ("lr", SourceOptions(downscale=2), UsageError, "makes 'lr' from one other field"),
        (
            "hr",
            SourceOptions(downscale=3),
            SourceError,
            r"sample 'a' is 16 x 24 pixels, not a multiple of 3 \(one of 2 such samples\)",
        ),
        ("hr", SourceOptions(downscale=2, mode="rgba"), SourceError, "for 8-bit gray and RGB, not uint8 with 4"),
    ],
)
def test_what_cannot_be_made_smaller(folder, field, options, error, reason):
    """Each is refused with what was expected."""
    with pytest.raises(error, match=reason):
        open_sources([f"{field}={folder}"], options)


def keys_cubic(x):
    """The kernel of Keys (1981), a = -1/2."""
    x = abs(x)
    if x <= 1:
        return 1.5 * x**3 - 2.5 * x**2 + 1
    return -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2 if x < 2 else 0.0


def defined(image, factor):
    """MATLAB's imresize(image, 1 / factor) from its definition, pixel by pixel, along the rows and then the columns."""

    def along(line):
        out = []
        for k in range(len(line) // factor):
            centre = (k + 0.5) * factor - 0.5
            total = weight = 0.0
            for i in range(math.floor(centre - 2 * factor), math.ceil(centre + 2 * factor) + 1):
                mirrored = i % (2 * len(line))
                pixel = line[min(mirrored, 2 * len(line) - 1 - mirrored)]
                w = keys_cubic((centre - i) / factor)
                total, weight = total + w * pixel, weight + w
            out.append(total / weight)
        return np.stack(out)

    rows = along(image.astype(np.float64))
    return along(rows.swapaxes(0, 1)).swapaxes(0, 1)


@pytest.mark.parametrize("factor", [2, 3, 4])
@pytest.mark.parametrize("shape", [(12, 24, 3), (24, 12, 1), (60, 36, 3)])
def test_matlabs_kernel_is_as_it_is_defined(factor, shape):
    """Small ones are what the definition gives, rounded, for images smaller than the kernel too."""
    image = np.random.default_rng(factor).integers(0, 256, shape, dtype=np.uint8)
    wanted = defined(image, factor).clip(0, 255)
    found = KERNELS["matlab"](image, factor)
    assert found.dtype == np.uint8
    assert found.shape == (shape[0] // factor, shape[1] // factor, shape[2])
    assert np.abs(found - wanted).max() < 0.5 + 1e-9


def test_the_kernel_is_said_and_kept(folder, tmp_path):
    """--kernel matlab gives other pixels than Pillow's; plan and manifest say which kernel it was."""
    matlab = open_sources([f"hr={folder}"], SourceOptions(downscale=4, kernel="matlab"))
    pillow = open_sources([f"hr={folder}"], SourceOptions(downscale=4))
    assert any("by MATLAB's bicubic" in note for note in matlab.remarks)
    assert any("by Pillow's bicubic" in note for note in pillow.remarks)
    assert (matlab.origin["kernel"], "kernel" in pillow.origin) == ("matlab", False)
    (one,), (other,) = list(matlab.read()), list(pillow.read())
    for a, b, large in zip(one["lr"], other["lr"], one["hr"], strict=True):
        assert np.array_equal(a, KERNELS["matlab"](large, 4))
        assert not np.array_equal(a, b)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"kernel": "matlab"}, "--kernel needs --downscale"), ({"kernel": "x", "downscale": 2}, "pillow or matlab")],
)
def test_a_kernel_of_nothing_is_refused(folder, options, message):
    """A kernel without --downscale does nothing, and an unknown one cannot be."""
    with pytest.raises(UsageError, match=message):
        open_sources([f"hr={folder}"], SourceOptions(**options))
