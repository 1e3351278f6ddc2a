"""Memory for what is read: on the CPU, also where `torch.set_default_device` says that new tensors lie elsewhere."""

from __future__ import annotations

import torch

#: The device itself, not its name, which torch would take 0.2 us to look up.
CPU = torch.device("cpu")


def fresh(nbytes: int) -> torch.Tensor:
    """`nbytes` from torch's allocator, as a uint8 tensor (nbytes,); what it holds is left over."""
    return torch.empty(nbytes, dtype=torch.uint8, device=CPU)
