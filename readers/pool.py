"""Memory for batches, used again when nothing refers to it any more.

Fresh memory has to be mapped page by page: for batches of 14 MB of which a prefetching loader holds four, that
takes four times as long as reading them (42,000 samples/s against 167,000 from a pool).
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Hashable

import numpy as np
import torch
from numpy.typing import NDArray

from readers.buffers import Buffers, Shaped
from readers.fresh import CPU, fresh

#: Smaller batches come from the system's allocator, which reuses small memory well by itself.
LEAST_BYTES = 2**20
#: Free buffers that are kept, where the caller does not say.
KEEP = 6
#: Batches in use at a time where each is read when it is asked for: the caller's last one, the next, and one to spare.
BATCHES = 3


class Pool:
    """Gives memory as tensors and takes it back when the last tensor on it is gone, views included.

    What counts is torch's storage: it owns a numpy array made for it alone, and the memory comes back when that
    array dies. No tensor that is still referred to, by whatever name or view, can change.

    Args:
        pinned: page-locked memory, from which copies to a GPU run beside everything else; for any size. It comes
            from torch's own pool, which also waits for copies that are under way when the tensor is dropped.
        keep: free buffers to keep, at most; the oldest are dropped.
    """

    def __init__(self, pinned: bool = False, keep: int = KEEP) -> None:
        self.pinned = pinned
        self._keep = keep
        # Memory comes back in whichever thread and at whichever moment garbage is collected, so there is no lock here
        # that the same thread might hold already: each call on a deque is safe by itself.
        self._free: deque[NDArray[np.uint8]] = deque(maxlen=keep)
        self._lent: dict[int, tuple[object, NDArray[np.uint8]]] = {}
        self._given_back = _giver_back(self._free, self._lent)
        self._buffers: dict[tuple[Hashable, int, int, torch.dtype], Buffers] = {}

    def __reduce__(self) -> tuple[type[Pool], tuple[bool, int]]:
        return Pool, (self.pinned, self._keep)

    def allocate(self, nbytes: int) -> torch.Tensor:
        """`nbytes` of writable memory as a uint8 tensor (nbytes,); what it holds is left over."""
        if self.pinned:
            return torch.empty(nbytes, dtype=torch.uint8, device=CPU, pin_memory=True)
        if nbytes < LEAST_BYTES:
            return fresh(nbytes)
        memory = self._fitting(nbytes)
        if memory is None:
            memory = fresh(_rounded(nbytes)).numpy()
        # The view keeps `memory` alive, as its base; the view itself is what dies with the storage.
        view = memory[:nbytes]
        # A plain reference: weakref.finalize takes 1 to 2 us more.
        reference = weakref.ref(view, self._given_back)
        self._lent[id(reference)] = reference, memory
        return torch.from_numpy(view)

    def buffers(self, what: Hashable, rows: int, length: int, dtype: torch.dtype, shaped: Shaped) -> Buffers:
        """Memory for batch after batch of `what`, from epoch to epoch; see `Buffers`. It is not page-locked."""
        key = what, rows, length, dtype
        if key not in self._buffers:
            self._buffers[key] = Buffers(rows, length, dtype, shaped, BATCHES)
        return self._buffers[key]

    def _fitting(self, nbytes: int) -> NDArray[np.uint8] | None:
        """A free buffer that is large enough and not twice too large; None if there is none."""
        for _ in range(len(self._free)):
            try:
                memory = self._free.pop()
            except IndexError:  # another thread was faster
                return None
            if nbytes <= len(memory) <= 2 * nbytes:
                return memory
            self._free.appendleft(memory)
        return None


def _rounded(nbytes: int) -> int:
    """Up to the next quarter of a power of two, so that batches of ragged samples find each other's memory."""
    step = 1 << max(nbytes.bit_length() - 3, 12)
    return -(-nbytes // step) * step


def _giver_back(
    free: deque[NDArray[np.uint8]], lent: dict[int, tuple[object, NDArray[np.uint8]]]
) -> Callable[[object], None]:
    """What is called when a view has died; it does not keep the pool alive."""

    def give_back(reference: object) -> None:
        free.append(lent.pop(id(reference))[1])

    return give_back
