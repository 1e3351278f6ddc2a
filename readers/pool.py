"""Memory for batches, used again when nothing refers to it any more.

Fresh memory has to be mapped page by page: for batches of 14 MB of which a prefetching loader holds four, that
takes four times as long as reading them (42,000 samples/s against 167,000 from a pool).
"""

from __future__ import annotations

import weakref
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

import torch

#: Smaller batches come from the system's allocator, which reuses small memory well by itself.
LEAST_BYTES = 2**20
#: Sizes are rounded up to a multiple of this, so that batches of ragged samples find each other's memory.
STEP_BYTES = 2**20
#: Free buffers of one size that are kept; a loader with prefetch holds about this many.
KEEP = 6


class Pool:
    """Gives memory as tensors and takes it back when the last tensor on it is gone, views included.

    What counts is torch's storage: it owns a numpy array made for it alone, and the memory comes back when that
    array dies. No tensor that is still referred to, by whatever name or view, can change.

    Args:
        pinned: page-locked memory, from which copies to a GPU run beside everything else; for any size.
    """

    def __init__(self, pinned: bool = False) -> None:
        self.pinned = pinned
        self._free: defaultdict[int, deque[Any]] = defaultdict(deque)

    def allocate(self, nbytes: int) -> torch.Tensor:
        """`nbytes` of writable memory as a uint8 tensor (nbytes,); what it holds is left over."""
        if nbytes < LEAST_BYTES and not self.pinned:
            return torch.empty(nbytes, dtype=torch.uint8)
        size = -(-max(nbytes, 1) // STEP_BYTES) * STEP_BYTES
        if self.pinned and nbytes < STEP_BYTES:
            # Page-locking costs more than a page, and small fields should not lock a megabyte each.
            size = 1 << max(12, (nbytes - 1).bit_length())
        try:
            memory = self._free[size].pop()
        except IndexError:
            memory = torch.empty(size, dtype=torch.uint8, pin_memory=self.pinned)
        array = memory.numpy()[:nbytes]
        # numpy keeps `memory` alive through the view's base; the view itself is what dies with the storage.
        weakref.finalize(array, _give_back, weakref.ref(self), size, memory).atexit = False
        return torch.from_numpy(array)

    def take_back(self, size: int, memory: Any) -> None:
        """Keeps a buffer for the next call, unless enough of its size are kept."""
        free = self._free[size]
        if len(free) < KEEP:
            free.append(memory)


def _give_back(pool: Callable[[], Pool | None], size: int, memory: Any) -> None:
    alive = pool()
    if alive is not None:
        alive.take_back(size, memory)
