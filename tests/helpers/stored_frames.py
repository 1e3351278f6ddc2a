"""Frames as they lie in a shard, for tests of decoding and hashing many of them."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.codecs import NAMED, FrameCodec, Frames

Bytes = NDArray[np.uint8]


class Stored(NamedTuple):
    """Frames in memory, and the bytes that they decode to, joined in order."""

    codec: FrameCodec
    memory: bytearray
    frames: Frames
    wanted: Bytes


def stored(codec: str, raw: Sequence[NDArray[Any]], order: Sequence[int] | None = None, channels: int = 0) -> Stored:
    """Encode arrays to frames, in memory with other bytes before, between and behind them; `order` chooses frames."""
    dtype = raw[0].dtype if raw else np.dtype("u1")
    coder, memory, spans = FrameCodec(NAMED[codec], dtype, channels), bytearray(b"\xee" * 5), []
    for values in raw:
        data = bytes(coder.encode(np.ascontiguousarray(values)))
        spans.append((len(memory), len(memory) + len(data)))
        memory += data + b"\xdd" * 3
    chosen = range(len(raw)) if order is None else order
    sizes = [raw[n].nbytes for n in chosen]
    frames = Frames(numbers([spans[n] for n in chosen]).reshape(-1, 2), numbers(sizes))
    return Stored(coder, memory, frames, as_bytes([raw[n] for n in chosen]))


def numbers(values: Any) -> NDArray[np.int64]:
    return np.array(values, np.int64)


def as_memory(frames: bytes | bytearray) -> Bytes:
    """Return memory in which frames lie, as `decode_frames` takes it."""
    return np.frombuffer(frames, np.uint8)


def as_bytes(arrays: Sequence[NDArray[Any]]) -> Bytes:
    """Return the bytes of arrays, joined in order."""
    return np.frombuffer(b"".join(array.tobytes() for array in arrays), np.uint8)


def mixed(count: int, dtype: str = "u2", seed: int = 0) -> list[NDArray[Any]]:
    """Return arrays of different lengths: some that shrink, some of noise, which are stored raw, and empty ones."""
    rng = np.random.default_rng(seed)
    out = []
    for n in range(count):
        nbytes = 0 if n % 7 == 3 else 8 * (90 + 11 * n)
        out.append(rng.integers(0, 256 if n % 5 == 1 else 3, nbytes, np.uint8).view(dtype))
    return out


class Guarded:
    """Memory to decode into, between guard bytes that must not change."""

    GUARD, MARK = 4096, 0xA5

    def __init__(self, nbytes: int) -> None:
        self._all = np.full(nbytes + 2 * self.GUARD, self.MARK, np.uint8)
        self.out: Bytes = self._all[self.GUARD : self.GUARD + nbytes]

    def is_whole(self) -> bool:
        """Return whether the guard bytes are unchanged."""
        around = (self._all[: self.GUARD], self._all[self.GUARD + len(self.out) :])
        return all(bool((part == self.MARK).all()) for part in around)


def at_the_edge(data: bytes) -> Bytes:
    """Return the same bytes right before a protected page: reading past their end kills the process. Linux only."""
    pages = -(-len(data) // mmap.PAGESIZE)
    whole = np.frombuffer(mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE), np.uint8)
    edge = whole.ctypes.data + pages * mmap.PAGESIZE
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(edge), mmap.PAGESIZE, 0) == 0
    found: Bytes = whole[pages * mmap.PAGESIZE - len(data) : pages * mmap.PAGESIZE]
    found[:] = np.frombuffer(data, np.uint8)
    return found


class Numbers(NamedTuple):
    """Where a frame lies in memory, its decoded size, and its place in the output."""

    start: int
    end: int
    size: int
    place: int


#: Wrong numbers of a frame that lies in `held` bytes of memory and is decoded into `room` bytes.
LIES: dict[str, Callable[[Numbers, int, int], Numbers]] = {
    "begins before the memory": lambda one, held, room: one._replace(start=-1),
    "lies before the memory": lambda one, held, room: one._replace(start=one.start - held, end=one.end - held),
    "lies far before the memory": lambda one, held, room: one._replace(start=one.start - 2**62, end=one.end - 2**62),
    "ends behind the memory": lambda one, held, room: one._replace(end=held + 1),
    "lies behind the memory": lambda one, held, room: one._replace(start=one.start + held, end=one.end + held),
    "lies far behind the memory": lambda one, held, room: one._replace(start=one.start + 2**62, end=one.end + 2**62),
    "ends before it begins": lambda one, held, room: one._replace(start=one.end, end=one.start),
    "is cut": lambda one, held, room: one._replace(end=one.end - 1),
    "is longer": lambda one, held, room: one._replace(end=one.end + 1),
    "is almost nothing": lambda one, held, room: one._replace(end=one.start + 3),
    "is nothing": lambda one, held, room: one._replace(end=one.start),
    "has more bytes": lambda one, held, room: one._replace(size=one.size + 1),
    "has fewer bytes": lambda one, held, room: one._replace(size=one.size - 1),
    "has no bytes": lambda one, held, room: one._replace(size=0),
    "has less than no bytes": lambda one, held, room: one._replace(size=-1),
    "has very many bytes": lambda one, held, room: one._replace(size=2**63 - 1),
    "goes before the room": lambda one, held, room: one._replace(place=-1),
    "goes all before the room": lambda one, held, room: one._replace(place=one.place - room),
    "goes far before the room": lambda one, held, room: one._replace(place=-(2**63)),
    "reaches behind the room": lambda one, held, room: one._replace(place=room - one.size + 1),
    "goes behind the room": lambda one, held, room: one._replace(place=room),
    "goes far behind the room": lambda one, held, room: one._replace(place=2**63 - 1),
}
#: Those that do not change the number of stored bytes.
OUTSIDE = tuple(name for name in LIES if name.startswith(("lies", "goes", "reaches")))


def lying(one: Stored, lie: str) -> Frames:
    """Return frames with places, of which the numbers of the second are wrong."""
    spans, sizes = one.frames.spans.copy(), one.frames.sizes.copy()
    places = sizes.cumsum() - sizes
    said = Numbers(*spans[1].tolist(), int(sizes[1]), int(places[1]))
    *spans[1], sizes[1], places[1] = LIES[lie](said, len(one.memory), len(one.wanted))
    return Frames(spans, sizes, places)


def apart(one: Stored) -> tuple[Stored, Bytes, Bytes]:
    """Return the frames, placed backwards with gaps of five bytes; memory to decode into; and its bytes afterwards."""
    sizes = one.frames.sizes
    out = np.full(int(sizes.sum()) + 5 * len(sizes), 0x77, np.uint8)
    places = len(out) - (sizes + 5).cumsum()
    wanted = out.copy()
    for place, size, end in zip(places.tolist(), sizes.tolist(), sizes.cumsum().tolist(), strict=True):
        wanted[place : place + size] = one.wanted[end - size : end]
    return one._replace(frames=one.frames._replace(places=places)), out, wanted
