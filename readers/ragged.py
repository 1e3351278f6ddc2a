"""A batch of a field that is ragged in its first axis: all values one after another, and where each sample ends."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import torch
from torch import Tensor

_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


class Ragged(NamedTuple):
    """Values of a whole batch. A named tuple, so that torch moves and pins it like any nest of tensors.

    Attributes:
        values: (sum of n_i, ...); sample i has the rows offsets[i] to offsets[i + 1].
        offsets: (B + 1,) int64, beginning with 0.
    """

    values: Tensor
    offsets: Tensor

    @property
    def lengths(self) -> Tensor:
        """Rows of each sample, (B,) int64."""
        return self.offsets.diff()

    def to_list(self) -> list[Tensor]:
        """One tensor a sample, views of `values`."""
        return [self.values[a:b] for a, b in itertools.pairwise(self.offsets.tolist())]

    def to_padded(self, fill: complex = 0) -> Tensor:
        """(B, longest, ...), with `fill` behind the rows of the shorter samples."""
        lengths = self.lengths
        longest = int(lengths.max()) if len(lengths) else 0
        padded = self.values.new_full((len(lengths), longest, *self.values.shape[1:]), fill)
        inside = torch.arange(longest, device=lengths.device) < lengths[:, None]
        # torch writes no unsigned numbers of several bytes through a mask; their bytes, as signed ones, it does.
        plain = _SIGNED.get(self.values.dtype, self.values.dtype)
        padded.view(plain)[inside] = self.values.view(plain)
        return padded

    def to_nested(self) -> Tensor:
        """A nested tensor of layout `torch.jagged`, sharing `values`."""
        return torch.nested.nested_tensor_from_jagged(self.values, self.offsets)
