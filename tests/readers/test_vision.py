"""Which fields are images and masks to torchvision. It is not installed next to this torch: two types stand in for its.

Whether its transforms change them alike was tried with torchvision itself; the page on augmentation shows it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from packer.errors import UsageError
from readers import PackedDataset, as_tv_tensors


class Image(torch.Tensor):
    """Stands in for `tv_tensors.Image`, also a subclass that shares the memory of a tensor."""

    def __new__(cls, data: torch.Tensor) -> Any:
        return data.as_subclass(cls)


class Mask(Image):
    """Stands in for `tv_tensors.Mask`."""


@pytest.fixture(autouse=True)
def torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("torchvision")
    module.tv_tensors = ModuleType("torchvision.tv_tensors")  # type: ignore[attr-defined]
    module.tv_tensors.Image, module.tv_tensors.Mask = Image, Mask  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchvision", module)


def types(batch: dict[str, Any]) -> dict[str, type]:
    return {name: type(value[0] if isinstance(value, list) else value) for name, value in batch.items()}


def test_images_and_masks_of_a_batch_and_of_a_sample(packed: Path) -> None:
    """Tensors (B, C, H, W), or (C, H, W), also in lists, are images; masks are named; the rest stays what it is."""
    ds = PackedDataset(packed)
    for read in (ds[:4], ds[3]):
        found = as_tv_tensors(read, masks=("depth",))
        images = {"lr": Image, "depth": Mask, "picture": Image}
        assert types(found) == types(read) | images
        assert found["lr"].data_ptr() == read["lr"].data_ptr()
        assert not [name for name in ("x", "label", "xyz") if found[name] is not read[name]]
        assert found["caption"] == read["caption"]
    assert {type(picture) for picture in as_tv_tensors(ds[:4])["picture"]} == {Image}


def test_axes_tell_a_batch_from_a_sample() -> None:
    """Arrays of three axes next to batches of images are none; masks have any number of axes; 5 channels are others."""
    batch = {"image": torch.zeros(2, 3, 8, 8), "steps": torch.zeros(2, 5, 7), "mask": torch.zeros(2, 8, 8)}
    assert types(as_tv_tensors(batch, ["mask"])) == {"image": Image, "steps": torch.Tensor, "mask": Mask}
    sample = {"image": torch.zeros(1, 8, 8), "mask": torch.zeros(8, 8), "bands": torch.zeros(5, 8, 8)}
    assert types(as_tv_tensors(sample, ["mask"])) == {"image": Image, "mask": Mask, "bands": torch.Tensor}


def test_what_has_no_image_is_refused(rows: Path) -> None:
    """A batch without pictures, and a mask that there is not."""
    with pytest.raises(UsageError, match=r"no field is an image, .*: x \[4, 33\], y \[4\]"):
        as_tv_tensors(PackedDataset(rows)[:4])
    with pytest.raises(UsageError, match="no field 'label' is read; there are x, y"):
        as_tv_tensors(PackedDataset(rows)[:4], masks=("label",))
