"""Memory for what is read: on the CPU, also where `torch.set_default_device` says that new tensors lie elsewhere."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import torch

#: The device itself, not its name, which torch would take 0.2 us to look up.
CPU = torch.device("cpu")


def fresh(nbytes: int) -> torch.Tensor:
    """`nbytes` from torch's allocator, as a uint8 tensor (nbytes,); what it holds is left over."""
    return torch.empty(nbytes, dtype=torch.uint8, device=CPU)


def own_parts(whole: torch.Tensor, sizes: Iterable[int]) -> list[torch.Tensor]:
    """Return the parts of a tensor, of so many rows each, every part with a storage of its own.

    Sharing a tensor with another process frees the memory of its storage. An array made of another tensor on the same
    storage would then point at nothing.
    """
    edges = [0, *itertools.accumulate(sizes)]
    if whole.is_pinned():  # torch waits for copies to a device only of memory that it gave out itself
        parts = [torch.empty_like(whole[a:b], pin_memory=True) for a, b in itertools.pairwise(edges)]
        return [part.copy_(whole[a:b]) for part, (a, b) in zip(parts, itertools.pairwise(edges), strict=True)]
    array = whole.numpy()
    return [torch.from_numpy(array[a:b]) for a, b in itertools.pairwise(edges)]
