"""Batches and samples in a form that `==` compares: dtype, shape and every bit of each value."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from readers import Ragged


def plain(value: Any) -> Any:
    """Return a batch, a sample or a field with each tensor as dtype, shape and bytes; dicts and lists stay."""
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
    """Return the samples of a field of a batch, one by one."""
    return values.to_list() if isinstance(values, Ragged) else list(values)
