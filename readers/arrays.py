"""What arrays of numbers and memory are called in this room, and which dtype is which of torch's."""

from __future__ import annotations

from collections.abc import Callable

import torch

from packer.format.column import Numbers as Numbers  # (n,) int64: sample numbers, offsets, addresses

#: Gives `n` bytes of writable memory as a uint8 tensor (n,).
Allocate = Callable[[int], torch.Tensor]

TORCH_DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name)
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
}
