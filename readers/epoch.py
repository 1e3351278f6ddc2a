"""The number of the present epoch, seen by worker processes too."""

from __future__ import annotations

import torch

from readers.fresh import CPU


class Epoch:
    """A number in memory that worker processes share, so that those that stay between epochs see it change."""

    def __init__(self) -> None:
        self._number = torch.zeros(1, dtype=torch.int64, device=CPU).share_memory_()  # type: ignore[no-untyped-call]

    @property
    def number(self) -> int:
        return int(self._number)

    @number.setter
    def number(self, value: int) -> None:
        self._number.fill_(value)

    def __setstate__(self, state: dict[str, torch.Tensor]) -> None:
        # A copy by pickle or deepcopy has memory of its own; within DataLoader's workers it is shared already.
        self._number = state["_number"].share_memory_()  # type: ignore[no-untyped-call]
