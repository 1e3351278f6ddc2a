"""Batches and samples as torchvision's transforms take them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch

from packer.errors import UsageError
from readers.valid import check_read

#: An axis longer than this is not the channels of an image.
CHANNELS = 4


def as_tv_tensors(batch: Mapping[str, Any], masks: Collection[str] = ()) -> dict[str, Any]:
    """Return a batch or a sample whose images are `tv_tensors.Image`, and some fields `tv_tensors.Mask`; no copies.

    Transforms of `torchvision.transforms.v2` change all of these alike, with one draw. Of a plain dict they take the
    first tensor for the image, and leave the others as they are.

        batch_transform=lambda batch: flip(as_tv_tensors(batch, masks=("label",)))              # one draw a batch
        sample_transform=lambda sample: flip(as_tv_tensors(sample, masks=("label",)))     # one draw a sample

    Images are the tensors (B, C, H, W) of up to 4 channels; if there are none, as in a sample, the tensors (C, H, W).
    In a list, images are always (C, H, W). All other fields stay as they are.

    Args:
        batch: of images with their channels first, as datasets give them.
        masks: names of the fields that label each pixel, (..., H, W). They are not interpolated.

    Raises:
        UsageError: there is no such mask, or no image.
    """
    from torchvision import tv_tensors  # here: it is no dependency

    check_read("as_tv_tensors: masks", masks, batch)
    axes = 4 if any(_is_image(value, 4) for value in batch.values()) else 3
    images = 0

    def with_type(name: str, value: Any, axes: int) -> Any:
        nonlocal images
        if isinstance(value, list):
            return [with_type(name, image, 3) for image in value]
        if name in masks:
            return tv_tensors.Mask(value)
        if not _is_image(value, axes):
            return value
        images += 1
        return tv_tensors.Image(value)

    typed_batch = {name: with_type(name, value, axes) for name, value in batch.items()}
    if not images:
        shapes = ", ".join(f"{name} {list(getattr(value, 'shape', ()))}" for name, value in batch.items())
        raise UsageError(
            f"as_tv_tensors: no field is an image, (B, C, H, W) or (C, H, W) of up to {CHANNELS} channels: {shapes}"
        )
    return typed_batch


def _is_image(value: Any, axes: int) -> bool:
    return isinstance(value, torch.Tensor) and value.ndim == axes and value.shape[-3] <= CHANNELS
