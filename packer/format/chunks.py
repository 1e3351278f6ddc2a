"""Frames joined into chunks, in memory that is used again from chunk to chunk."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import numpy as np
import xxhash
from numpy.typing import NDArray

from packer.codecs.configs import Buffer
from packer.errors import UsageError
from packer.format.limits import CHUNK_BYTES, MAX_CHUNK_BYTES

#: Stores a chunk and returns the number under which it is found. The chunk does not change until the next commit.
PutChunk = Callable[[memoryview], int]


class ChunkBuffers:
    """Memory for chunks. Fresh memory is mapped page by page, which takes longer than filling it."""

    #: Free buffers that are kept: as many as chunks are stored between two commits, and one.
    KEEP = 3

    def __init__(self) -> None:
        self._free: list[NDArray[np.uint8]] = []
        self._stored: list[NDArray[np.uint8]] = []

    def take(self, nbytes: int) -> NDArray[np.uint8]:
        """A buffer of `nbytes` bytes; what it holds is left over."""
        for number, buffer in enumerate(self._free):
            if len(buffer) == nbytes:
                return self._free.pop(number)
        return np.empty(nbytes, np.uint8)

    def give_back(self, buffer: NDArray[np.uint8]) -> None:
        """Takes a buffer whose chunk was stored; until the next commit it is left as it is."""
        self._stored.append(buffer)

    def committed(self) -> None:
        """What was stored so far is on its way to the disk."""
        # Those of single samples that are larger than chunks get differ in size, and may have gigabytes.
        usual = [buffer for buffer in self._stored if len(buffer) <= CHUNK_BYTES]
        self._free = (self._free + usual)[-self.KEEP :]
        self._stored = []


class Chunks:
    """The chunks of one column, and the arrays that tell where each frame went.

    Args:
        put: stores a chunk.
        limit: bytes of a chunk; what must lie in one chunk and is larger gets a chunk of its own.
    """

    def __init__(self, put: PutChunk, limit: int, buffers: ChunkBuffers) -> None:
        self.checksums = array("Q")
        self.offsets = array("Q", [0])  # ends of the frames in the column's stored bytes
        self.table: list[tuple[int, int, int]] = []  # chunk number, frames up to its end, stored bytes likewise
        self._put = put
        self._limit = limit
        self._buffers = buffers
        self._buffer = np.empty(0, np.uint8)
        self._used = 0

    def append(self, frames: list[Buffer]) -> None:
        """Adds frames that must lie in one chunk."""
        self._make_room(sum(map(len, frames)))
        for frame in frames:
            self._note(frame)
            self._copy(np.frombuffer(frame, np.uint8))

    def append_rows(self, frames: NDArray[np.uint8]) -> None:
        """Adds frames of one size (m, bytes), as many at a time as the chunk has room for."""
        size = frames.shape[1]
        at = 0
        while at < len(frames):
            self._make_room(size)
            fit = max(1, (self._limit - self._used) // size) if size else len(frames)
            some = frames[at : at + fit]
            for frame in some:
                self._note(frame.data)
            self._copy(some.reshape(-1))
            at += len(some)

    def flush(self) -> None:
        """Stores the chunk that is being filled."""
        if len(self.checksums) == (self.table[-1][1] if self.table else 0):
            return
        number = self._put(self._buffer[: self._used].data)
        self.table.append((number, len(self.checksums), self.offsets[-1]))
        self._buffers.give_back(self._buffer)
        self._buffer = np.empty(0, np.uint8)
        self._used = 0

    def _make_room(self, size: int) -> None:
        """Sees to it that `size` more bytes fit into the buffer."""
        if size > MAX_CHUNK_BYTES:
            raise UsageError(f"a sample takes {size:,} bytes; {MAX_CHUNK_BYTES:,} is the most, split it into several")
        if self._used and self._used + size > self._limit:
            self.flush()
        if self._used + size > len(self._buffer):
            # Nothing has been written to it yet: a buffer has the size of a chunk, unless one sample is larger.
            self._buffer = self._buffers.take(max(size, self._limit))

    def _copy(self, data: NDArray[np.uint8]) -> None:
        self._buffer[self._used : self._used + len(data)] = data
        self._used += len(data)

    def _note(self, frame: Buffer) -> None:
        self.checksums.append(xxhash.xxh3_64_intdigest(frame))
        self.offsets.append(self.offsets[-1] + len(frame))
