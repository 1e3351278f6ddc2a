"""Large pictures are stored in bands of rows of about 64 KiB, whatever their depth and whether sizes differ."""

from __future__ import annotations

import math

import numpy as np
import pytest
from PIL import Image

from packer.convert import convert
from readers import PackedDataset


@pytest.mark.parametrize("kind", ["rgb8", "gray16"])
@pytest.mark.parametrize(
    ("codec", "sizes"),
    [
        ("none", [(600, 700), (620, 640)]),
        ("zstd", [(600, 700)] * 2),
        ("photo+lz4", [(600, 700), (620, 640)]),
        ("photo+zstd", [(600, 700)] * 2),
    ],
)
def test_large_pictures_are_cut_into_bands(tmp_path, kind: str, codec: str, sizes) -> None:
    """Bands hold 64 KiB and no more than a row less; partners below 1 MiB stay whole; any crop reads back."""
    rng = np.random.default_rng(0)
    pixels = []
    for number, (height, width) in enumerate(sizes):
        shape, top = ((height, width, 3), 256) if kind == "rgb8" else ((2 * height, width), 65536)
        image = rng.integers(0, top, shape, dtype=np.uint8 if kind == "rgb8" else np.uint16)
        pixels.append(image.reshape(*shape[:2], -1))
        for field, some in (("hr", image), ("lr", image[:8, :8])):
            (tmp_path / field).mkdir(exist_ok=True)
            Image.fromarray(some).save(tmp_path / field / f"{number}.png", compress_level=0)
    report = convert(
        [f"{field}={tmp_path}/{field}" for field in ("lr", "hr")], tmp_path / "out", codec=codec, workers=0
    )
    fields = {field.name: field for field in report.manifest.fields}
    assert fields["lr"].frame.rows is None
    row = math.prod(pixels[0].shape[1:]) * pixels[0].itemsize
    assert 2**16 - row < (fields["hr"].frame.rows or 0) * row <= 2**16 * 1.05
    ds = PackedDataset(tmp_path / "out")
    for number, image in enumerate(pixels):
        found = ds.read(number, "hr", slice(50, 300), slice(7, 450)).numpy()
        np.testing.assert_array_equal(found, image[50:300, 7:450].transpose(2, 0, 1))
