"""Filters of images: another one is an entry in the table, and all that writes and reads knows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from ways import handled

from packer.codecs import FILTERS
from packer.codecs.filters import Filter
from packer.errors import UsageError
from packer.format import FieldSpec
from packer.verify import verify
from packer.writer import DatasetWriter
from readers import Crop, PackedDataset

#: Above it samples are stored in bands of rows.
BANDED = 1100


def apply(images: NDArray[Any]) -> NDArray[Any]:
    """Each channel but the first less the one before it, then each row less the one above."""
    assert images.ndim == 4
    out = images.copy()
    out[..., 1:] -= images[..., :-1]
    out[:, 1:] -= out[:, :-1].copy()
    return out


def undo(images: NDArray[Any]) -> None:
    """The inverse, in place."""
    for row in range(1, images.shape[1]):
        images[:, row] += images[:, row - 1]
    for channel in range(1, images.shape[-1]):
        images[..., channel] += images[..., channel - 1]


@pytest.fixture(autouse=True)
def colours(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table with one filter more."""
    monkeypatch.setitem(FILTERS, "colours", Filter(apply, undo, ("uint8",)))


@pytest.mark.parametrize("stage", ['{"id": "zstd", "level": 1}', '{"id": "lz4"}', '{"id": "zlib", "level": 1}'])
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("by_machine", [False, True])
def test_images_come_back_through_a_new_filter(tmp_path: Path, stage: str, ragged: bool, by_machine: bool) -> None:
    """Whole samples, batches, crops and regions, of small images and of those in bands; also next to the loops."""
    with handled(by_machine):
        _write_and_read(tmp_path, stage, ragged)


def _write_and_read(tmp_path: Path, stage: str, ragged: bool) -> None:
    images = [
        (np.arange(BANDED * (18 + 2 * (ragged and n)) * 60) // 60 % 200 + n).astype(np.uint8).reshape(BANDED, -1, 60)
        for n in range(3)
    ]
    spec = FieldSpec(name="x", dtype="uint8", kind="image", shape=(BANDED, None if ragged else 18, 60))
    with DatasetWriter(tmp_path / "d", [spec], codec=f'[{{"id": "colours"}}, {stage}]') as writer:
        for image in images:
            writer.add({"x": image})
    dataset = PackedDataset(tmp_path / "d", verify=True)
    assert dataset.fields["x"].frame.rows is not None
    assert verify(tmp_path / "d").damages == ()
    for number, image in enumerate(images):
        assert np.array_equal(dataset[number]["x"].permute(1, 2, 0).numpy(), image)
        region = dataset.read(number, "x", rows=slice(500, 700), columns=slice(3, 9))
        assert np.array_equal(region.permute(1, 2, 0).numpy(), image[500:700, 3:9])
    crops = PackedDataset(tmp_path / "d", crop=Crop(8, "x", at=(70, 5)))[[2, 0]]["x"]
    for crop, number in zip(crops, (2, 0), strict=True):
        assert np.array_equal(crop.permute(1, 2, 0).numpy(), images[number][70:78, 5:13])


def test_a_filter_is_for_its_images_alone(tmp_path: Path) -> None:
    """Other dtypes are refused, with what it is for."""
    spec = FieldSpec(name="x", dtype="uint16", kind="image", shape=(9, 9, 3))
    writer = DatasetWriter(tmp_path / "d", [spec], codec='[{"id": "colours"}, {"id": "lz4"}]')
    with pytest.raises(UsageError, match="colours is for images of uint8, not image uint16"), writer:
        writer.add({"x": np.zeros((9, 9, 3), np.uint16)})
