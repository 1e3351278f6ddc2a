"""Decoded frames that are kept, so that samples which share a frame decode it once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from packer.format.arrays import Numbers

#: Bytes of decoded frames that are kept between two reads, unless more are asked for.
CACHE_BYTES = 32 * 2**20


class FrameCache:
    """Keeps decoded frames in a ring of memory, where the newest are written over the oldest.

    Positions count the bytes decoded so far; position n is stored at n % len(memory). One thread at a time may use it,
    while it holds `lock`.

    Args:
        limit: bytes that it grows to by itself.
    """

    def __init__(self, limit: int = CACHE_BYTES) -> None:
        self.lock = threading.RLock()
        self.memory = np.empty(0, np.uint8)
        self._limit = limit
        self._end = 0
        self._begins: OrderedDict[int, int] = OrderedDict()  # key of a frame: its first byte; the oldest first

    def grow(self, nbytes: int) -> None:
        """Make room for at least `nbytes` bytes of frames; if memory has to grow, all held frames are forgotten."""
        if nbytes > len(self.memory):
            # First: if the allocation fails, nothing has changed.
            self.memory = np.empty(nbytes, np.uint8)
            self._end = 0
            self._begins.clear()

    def is_too_small(self, sizes: Numbers) -> bool:
        """Return whether frames of these sizes (n,) should not be held all at once."""
        return int(sizes.sum() + sizes.max(initial=0)) > self._limit // 2

    def fill(
        self, keys: Numbers, sizes: Numbers, decode: Callable[[Numbers, Numbers, NDArray[np.uint8]], None]
    ) -> Numbers:
        """Return the place in `memory` of each frame, (n,), after decoding those that are not held.

        Args:
            keys: numbers that stand for the frames, each once, (n,).
            sizes: bytes that each decodes to, (n,).
            decode: decodes some of the frames, (m,), to places (m,) in memory.
        """
        # A frame that would cross the end of the memory begins at its start; less than one frame is left unused.
        most_bytes = int(sizes.sum() + sizes.max(initial=0))
        self.grow(max(most_bytes, min(2 * most_bytes, self._limit)))
        room = len(self.memory)
        while self._begins and next(iter(self._begins.values())) < self._end + most_bytes - room:
            self._begins.popitem(last=False)
        begins = [self._begins.get(key, -1) for key in keys.tolist()]
        missing = [i for i, begin in enumerate(begins) if begin < 0]
        if missing:
            end = self._end
            for i, size in zip(missing, sizes[missing].tolist(), strict=True):
                if end % room + size > room:
                    end += room - end % room
                begins[i] = end
                end += size
            decode(np.array(missing), np.array(begins)[missing] % room, self.memory)
            # Only now: a frame that cannot be decoded is not held.
            self._begins.update(zip(keys[missing].tolist(), [begins[i] for i in missing], strict=True))
            self._end = end
        return np.array(begins, np.int64) % max(room, 1)
