"""What packed datasets are measured against gives the same samples as the packed ones should."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from file_datasets import Rows, cloud_files, pair_files
from PIL import Image


def test_pair_files_give_partners_as_planes(demo_data: Path) -> None:
    """A sample is (3, H, W) uint8 for both fields, HR four times LR, with Pillow's pixels."""
    sample = pair_files(demo_data / "pictures")[7]
    lr, hr = sample["lr"], sample["hr"]
    assert hr.shape == (3, 4 * lr.shape[1], 4 * lr.shape[2])
    with Image.open(demo_data / "pictures" / "hr" / "0008.png") as picture:
        assert np.array_equal(hr.permute(1, 2, 0), np.array(picture))


@pytest.mark.parametrize("index", [0, 1, 2], ids=["text", "little", "big"])
def test_cloud_files_give_native_floats(demo_data: Path, index: int) -> None:
    """Whatever the format, a cloud is (n, 3) float32 in metres and (n, 3) uint8."""
    sample = cloud_files(demo_data / "clouds")[index]
    assert sample["xyz"].dtype == torch.float32
    assert sample["xyz"].shape == sample["rgb"].shape == ((30 + index) * (40 + index), 3)
    assert 236 <= sample["xyz"][:, 2].min() <= sample["xyz"][:, 2].max() <= 1076


def test_digit_rows_give_image_and_label(demo_data: Path) -> None:
    """A row is an (8, 8) image and its label, a number."""
    rows = Rows(demo_data / "digits.h5", "images", "labels")
    sample = rows[1796]
    rows.file.close()
    assert sample["images"].shape == (8, 8)
    assert sample["labels"].shape == ()
