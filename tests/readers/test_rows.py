"""Regions of one sample: what `ds.read` gives is what slicing the whole sample gives, and no more is decoded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from packer.errors import MissingNameError, SampleIndexError, UsageError
from packer.format import FieldSpec, FrameRule
from packer.writer import DatasetWriter
from readers import Crop, PackedDataset

HEIGHT, WIDTH = 701, 550
BAND = 65536 // (WIDTH * 3)


@pytest.fixture(scope="module")
def picture() -> NDArray[np.uint8]:
    """A picture of more than 1 MiB, smooth enough for every codec to shrink it."""
    rows, columns = np.mgrid[:HEIGHT, :WIDTH]
    noise = np.random.default_rng(0).integers(0, 3, (HEIGHT, WIDTH // 10, 3)).repeat(10, axis=1)
    return ((rows[..., None] // 3 + columns[..., None] // 2 + noise) % 256).astype(np.uint8)


def _packed(folder: Path, picture: NDArray[np.uint8], codec: str, ragged: bool) -> Path:
    shape = (None, None, 3) if ragged else picture.shape
    fields = [FieldSpec(name="x", dtype="uint8", kind="image", shape=shape)]
    with DatasetWriter(folder / "p", fields, codec=codec) as writer:
        for name in ("first", "second"):
            writer.add({"x": picture if name == "first" else picture[::-1]}, name=name)
    return folder / "p"


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("codec", ["lz4", "photo+zstd"])
def test_only_the_bands_of_a_region_are_decoded(
    tmp_path: Path, picture: NDArray[np.uint8], decoded: list[int], codec: str, ragged: bool
) -> None:
    """Pictures over 1 MiB lie in bands of rows: of some 18, a region of 64 rows takes two or three, each once."""
    ds = PackedDataset(_packed(tmp_path, picture, codec, ragged))
    assert ds.fields["x"].frame == FrameRule(rows=BAND)
    for top, left, bands in ((0, 0, 2), (BAND - 1, 300, 3), (2 * BAND, 486, 2), (HEIGHT - 64, 17, 2)):
        decoded.clear()
        region = ds.read("first", "x", slice(top, top + 64), slice(left, left + 64))
        assert np.array_equal(region.permute(1, 2, 0), picture[top : top + 64, left : left + 64])
        assert len(decoded) == bands
        assert max(decoded) == BAND * WIDTH * 3
    decoded.clear()
    assert np.array_equal(ds.read(1, "x", slice(-1, None)).permute(1, 2, 0), picture[:1])
    assert decoded == [(HEIGHT - 1) % BAND * WIDTH * 3 + WIDTH * 3]


@pytest.mark.parametrize("ragged", [False, True])
def test_a_region_of_more_bands_than_are_decoded_at_once(
    tmp_path: Path, picture: NDArray[np.uint8], decoded: list[int], ragged: bool
) -> None:
    """Bands are decoded some at a time, each once, and rows come in the order asked whichever band holds them."""
    ds = PackedDataset(_packed(tmp_path, picture, "zstd", ragged))
    region = ds.read("first", "x", columns=slice(400, 450, 3))
    assert np.array_equal(region.permute(1, 2, 0), picture[:, 400:450:3])
    assert len(decoded) == -(-HEIGHT // BAND)


def test_the_whole_sample_and_other_crops(packed: Path, samples: list[dict[str, Any]]) -> None:
    """Without rows and columns all of the sample comes, scalars and text too, whatever the dataset crops."""
    ds = PackedDataset(packed, crop=Crop(size=2, of="lr"))
    assert np.array_equal(ds.read(3, "lr").permute(1, 2, 0), samples[3]["lr"])
    assert np.array_equal(ds.read(3, "lr", columns=slice(1, 4)).permute(1, 2, 0), samples[3]["lr"][:, 1:4])
    assert ds.read(-1, "label") == samples[-1]["label"]
    assert ds.read(4, "caption") == samples[4]["caption"]


def test_what_cannot_be_read_is_said(packed: Path) -> None:
    """No such field, sample, name or axis; text; no slice; steps backwards."""
    ds = PackedDataset(packed)
    with pytest.raises(UsageError, match="no field 'hr' is read; there are x, label"):
        ds.read(0, "hr")
    with pytest.raises(SampleIndexError, match="sample 60 of 60"):
        ds.read(60, "lr", slice(0, 1))
    with pytest.raises(MissingNameError, match="b/1"):
        ds.read("b/1", "lr", slice(0, 1))
    with pytest.raises(UsageError, match="'label' has 0 axes, so no rows"):
        ds.read(0, "label", slice(0, 1))
    with pytest.raises(UsageError, match="'x' has 1 axes, so no columns"):
        ds.read(0, "x", columns=slice(0, 1))
    with pytest.raises(UsageError, match="'caption' is text"):
        ds.read(0, "caption", slice(0, 1))
    with pytest.raises(UsageError, match="rows 3: a slice is expected"):
        ds.read(0, "lr", 3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="a step of 1 or more"):
        ds.read(0, "lr", rows=slice(0, 3, 0))
    with pytest.raises(UsageError, match="a step of 1 or more"):
        ds.read(0, "lr", slice(None, None, -1))
