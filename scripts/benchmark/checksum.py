"""A sum over all bytes of a batch that does not depend on the order of the samples or the layout in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from readers import Ragged

#: Words are summed as integers of their own size: floats have no sum that is free of their order.
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def checksum(batch: Any) -> int:
    """The sum of the words of all tensors and arrays in `batch`; offsets of ragged samples are left out."""
    leaves = pytree.tree_leaves(batch, is_leaf=lambda node: isinstance(node, Ragged))
    values = [leaf.values if isinstance(leaf, Ragged) else leaf for leaf in leaves]
    return sum(_sum(torch.as_tensor(value)) for value in values if isinstance(value, (torch.Tensor, np.ndarray)))


def _sum(values: torch.Tensor) -> int:
    if values.dim() == 4 and not values.is_contiguous():
        values = values.permute(0, 2, 3, 1)  # channels_last: summed as it lies in memory
    return int(values.contiguous().view(_WORDS[values.element_size()]).sum(dtype=torch.int64))
