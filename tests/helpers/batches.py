"""Batches and samples in a form that `==` compares: dtype, shape and every bit of all that they hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from readers import Ragged


def plain(value: Any) -> Any:
    """What a batch, a sample or a field holds: nests stay, tensors become dtype, shape and bytes."""
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, Ragged):
        return {"values": plain(value.values), "offsets": plain(value.offsets)}
    if isinstance(value, list):
        return [plain(part) for part in value]
    if isinstance(value, torch.Tensor):
        assert value.device.type in ("cpu", "cuda")
        return plain(value.numpy(force=True))
    if isinstance(value, np.ndarray | np.generic):
        return str(value.dtype), value.shape, value.tobytes()
    return value


def listed(values: Any) -> list[Any]:
    """The samples of a field of a batch, one by one."""
    return values.to_list() if isinstance(values, Ragged) else list(values)


def items(batch: dict[str, Any]) -> list[dict[str, Any]]:
    """The samples of a batch, one by one, as they went in: arrays of channels last, and texts."""
    columns = {name: [as_packed(value) for value in listed(values)] for name, values in batch.items()}
    return [dict(zip(columns, sample, strict=True)) for sample in zip(*columns.values(), strict=True)]


def as_packed(value: Any, image: bool | None = None) -> Any:
    """A sample of a field as it went in, an array or a text; of three axes it is an image, if nobody says otherwise."""
    if isinstance(value, str):
        return value
    is_image = value.ndim == 3 if image is None else image
    return np.asarray(value.permute(1, 2, 0) if is_image else value)
