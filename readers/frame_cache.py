"""Decoded frames that are kept, so that samples of one frame need not decode it again and again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from readers.arrays import Numbers
from readers.gather import fresh


class Distinct(NamedTuple):
    """The frames of some items, each once: addresses (m,), an item of each (m,), and the frame of each item (n,)."""

    addresses: Numbers
    item: Numbers
    inverse: Numbers


def distinct(frames: Numbers) -> Distinct:
    """Return the frames at addresses (n,), among which one may stand several times.

    What np.unique does, in less time.
    """
    ordered = np.sort(frames)
    addresses = ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered
    inverse = addresses.searchsorted(frames)
    item = np.empty(len(addresses), np.int64)
    item[inverse] = np.arange(len(frames))
    return Distinct(addresses, item, inverse)


class FrameCache:
    """A ring of decoded frames of one size: the newest frame takes the slot of the oldest.

    For one thread at a time, `grow` included: whoever has it sees to that.

    Args:
        frame_bytes: raw bytes of a full frame.
        slots: how many frames to keep at least; grows to what one batch needs.
    """

    def __init__(self, frame_bytes: int, slots: int) -> None:
        self._frame_bytes = frame_bytes
        self._next = 0
        self._held: dict[int, int] = {}  # address of a frame -> slot
        self._owner: list[int] = []  # slot -> address of its frame
        self.slots = fresh(0)
        self.grow(slots)

    def grow(self, slots: int) -> None:
        """Makes room for at least `slots` frames; forgets all held ones if more are needed than there are."""
        if slots <= len(self._owner):
            return
        # First: if there is not so much memory, all stays as it was.
        self.slots = fresh(slots * self._frame_bytes)
        self._owner = [-1] * slots
        self._held = {}
        self._next = 0

    def fill(self, frames: Distinct, decode: Callable[[Numbers, Numbers, NDArray[np.uint8]], None]) -> Numbers:
        """Return the slot of the frame of each item, (n,), after decoding those that are in none.

        Args:
            decode: decodes the frames of items (m,) to places (m,) in memory, (bytes,) uint8.
        """
        wanted = frames.addresses.tolist()
        self.grow(2 * len(wanted))
        found = [self._held.get(frame, -1) for frame in wanted]
        in_use = set(found)
        missing = [i for i, slot in enumerate(found) if slot < 0]
        if missing:
            for i in missing:
                found[i] = self._take(in_use)
            slots = np.array(found, np.int64)[missing]
            decode(frames.item[missing], slots * self._frame_bytes, self.slots.numpy())
            # Not before: a frame that cannot be decoded is not held.
            for i in missing:
                self._owner[found[i]] = wanted[i]
                self._held[wanted[i]] = found[i]
        return np.array(found, np.int64)[frames.inverse]

    def _take(self, in_use: set[int]) -> int:
        """The oldest slot that the present batch does not use; forgets its frame."""
        while self._next in in_use:
            self._next = (self._next + 1) % len(self._owner)
        slot = self._next
        self._held.pop(self._owner[slot], None)
        self._owner[slot] = -1
        self._next = (slot + 1) % len(self._owner)
        return slot


class FrameStore:
    """Decoded frames of different sizes, by address; the one not used for longest goes first.

    Attributes:
        limit: bytes of frames to keep; 0 keeps none.
    """

    def __init__(self) -> None:
        self.limit = 0
        self._frames: OrderedDict[int, NDArray[np.uint8]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[FrameStore], tuple[Any, ...]]:
        return FrameStore, ()

    def get(self, address: int, decode: Callable[[], NDArray[np.uint8]]) -> NDArray[np.uint8]:
        """Return the frame at an address, decoded only if it is not kept. It is not to be written to."""
        if not self.limit:
            return decode()
        with self._lock:
            frame = self._frames.get(address)
            if frame is not None:
                self._frames.move_to_end(address)
                return frame
        # Without the lock: another thread may decode another frame meanwhile, or, rarely, this one too.
        frame = decode()
        with self._lock:
            if address not in self._frames:
                self._frames[address] = frame
                self._bytes += frame.nbytes
            while self._bytes > self.limit:
                self._bytes -= self._frames.popitem(last=False)[1].nbytes
        return frame
