"""Tells the kernel which bytes are wanted next, when they have to come from the disk.

A page that is not in memory costs a fault, one after another: 75 MB/s for records of 48 kB. Named beforehand
(`posix_fadvise`, WILLNEED) they are read side by side: 950 MB/s. A call for bytes that are in memory
already costs a microsecond for nothing, so advice is given only while the process really reads from the disk.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from packer.format.column import Numbers
from packer.format.shard import Shard
from packer.format.sizes import PAGE_SIZE
from readers.gather import Memory

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

Run = TypeVar("Run")

#: Most kernels read no more than their read-ahead, 128 KiB where nobody set it, for one call, and drop the rest:
#: of 64 MiB asked for at once, one with large requests still read 8. All pieces together cost no more than one.
PIECE_BYTES = 128 * 2**10
#: How far ahead to ask while reading is cold, at most, and at first.
COLD_BYTES = 8 * 2**20
FIRST_BYTES = 2**20
#: While reading is warm, how often to look whether it still is: looking takes 2 to 4 us, and 10 between large copies.
CHECK_SECONDS = 4e-3
#: How long reading that was found warm is taken to be so when the next epoch begins: to try takes 0.2 ms of the 12 that
#: an epoch of 10,000 pairs of pictures has.
WARM_SECONDS = 1.0
#: Of the first run so many stretches are tried, to see whether they are in memory: 37 us. Asking for all of it takes
#: 250 to 360 us for 128 pairs of pictures, more than reading them.
TRIES = 8
#: Stretches with a smaller gap than this between them are asked for as one: a call costs as much as the gap.
GAP_BYTES = 16 * 2**10


@dataclass
class Warmth:
    """What a loader knows from before: until when, by `time.monotonic`, its samples are taken to be in memory."""

    until: float = 0.0

    def __reduce__(self) -> tuple[type[Warmth], tuple[()]]:
        return Warmth, ()  # another machine has another clock, and other files in memory


class Advisor:
    """Asks for bytes ahead of time, while reading is cold.

    Args:
        memory: the mapped shards.
        shards: the open shards, in the order of `memory`.
    """

    def __init__(self, memory: Memory, shards: Sequence[Shard]) -> None:
        self._memory = memory
        self._shards = shards
        self._blocks = _blocks_read()
        self._reads_around = True
        self.works = hasattr(os, "posix_fadvise") and resource is not None

    def ahead(self, runs: Iterator[Run], spans: Callable[[Run, int | None], Numbers], warmth: Warmth) -> Iterator[Run]:
        """The same runs, each handed over when it is to be read; cold ones are asked for up to `COLD_BYTES` earlier.

        So is the first, unless it seems to be in memory: a page that is missing makes the kernel read all around it,
        8 MiB where it is set for large files, for a record of 48 kB.

        Args:
            spans: gives address and size of the bytes of a run, (n, 2); of all its samples, or of about so many.
            warmth: of the loader whose runs these are; another one may read samples that are not in memory.
        """
        try:
            yield from self._ahead(runs, spans, warmth)
        finally:
            self._read_around(True)

    def _ahead(self, runs: Iterator[Run], spans: Callable[[Run, int | None], Numbers], warmth: Warmth) -> Iterator[Run]:
        waiting: deque[tuple[Run, int]] = deque()
        ahead = reach = 0
        checked = time.monotonic()
        cold, first = self.works and checked > warmth.until, True
        for run in runs:
            if cold:
                self._read_around(False)
                cold = not (first and self.in_memory(spans(run, TRIES)))
            first = False
            if cold:
                wanted = spans(run, None)
                self.ask(wanted)
                waiting.append((run, int(wanted[:, 1].sum())))
                ahead += waiting[-1][1]
            else:
                waiting.append((run, 0))
            while waiting and (ahead > reach or not cold):
                due, nbytes = waiting.popleft()
                ahead -= nbytes
                yield due
                del due
                now = time.monotonic()
                if cold or now >= checked + CHECK_SECONDS:
                    checked = now
                    cold = self.works and self.is_cold()
                    warmth.until = 0.0 if cold else now + WARM_SECONDS
                # Not far at first, or the first batch would be long in coming.
                reach = min(2 * reach + FIRST_BYTES, COLD_BYTES) if cold else 0
        while waiting:
            yield waiting.popleft()[0]

    def _read_around(self, wanted: bool) -> None:
        """Whether a missing page makes the kernel read what lies around it: not while all that is read is asked for."""
        if self.works and wanted != self._reads_around:
            self._reads_around = wanted
            for shard in self._shards:
                shard.read_around(wanted)

    def is_cold(self) -> bool:
        """Whether anything came from the disk since the last call; the advice itself counts as reading."""
        before, self._blocks = self._blocks, _blocks_read()
        return self._blocks > before

    def in_memory(self, spans: Numbers) -> bool:
        """Whether some of `spans`, address and size each, (n, 2), can be read without waiting for the disk."""
        wanted = spans[spans[:, 1] > 0, 0]
        if not hasattr(os, "RWF_NOWAIT"):
            return False
        tried = wanted[:: max(1, len(wanted) // TRIES)]
        owner = self._owner(tried)
        try:
            for shard in set(owner.tolist()):
                # What is tried must not make the kernel read around it.
                os.posix_fadvise(self._shards[shard].fd, 0, 0, os.POSIX_FADV_RANDOM)
            for shard, offset in zip(owner.tolist(), (tried - self._memory.starts[owner]).tolist(), strict=True):
                os.preadv(self._shards[shard].fd, [bytearray(1)], offset, os.RWF_NOWAIT)
        except OSError:  # not in memory, or a file system that does not tell
            return False
        return True

    def ask(self, spans: Numbers) -> None:
        """Asks for the bytes of `spans`, address and size each, (n, 2)."""
        # Samples of no bytes lie nowhere, and a length of 0 would ask for the whole file.
        wanted = spans[spans[:, 1] > 0]
        if not self.works or not len(wanted):
            return
        for shard, offset, length in self._pieces(wanted).tolist():
            try:
                os.posix_fadvise(self._shards[shard].fd, offset, length, os.POSIX_FADV_WILLNEED)
            except OSError:  # a file system that takes no advice
                self.works = False
                return

    def _pieces(self, spans: Numbers) -> Numbers:
        """Shard, offset in its file and length of what to ask for, (n, 3)."""
        order = spans[:, 0].argsort()
        first = spans[order, 0] // PAGE_SIZE * PAGE_SIZE
        reach = np.maximum.accumulate(spans[order].sum(axis=1))
        owner = self._owner(first)
        # Maps of two files often lie side by side in memory.
        parted = (first[1:] > reach[:-1] + GAP_BYTES) | (owner[1:] != owner[:-1])
        begins = np.flatnonzero(np.concatenate([[True], parted]))
        ends = np.concatenate([begins[1:], [len(first)]]) - 1
        lengths = reach[ends] - first[begins]
        pieces = -(-lengths // PIECE_BYTES)
        owner = owner[begins].repeat(pieces)
        within = (np.arange(len(owner)) - (pieces.cumsum() - pieces).repeat(pieces)) * PIECE_BYTES
        offsets = (first[begins]).repeat(pieces) - self._memory.starts[owner] + within
        return np.stack([owner, offsets, np.minimum(lengths.repeat(pieces) - within, PIECE_BYTES)], axis=1)

    def _owner(self, addresses: Numbers) -> Numbers:
        """The shard that holds each address."""
        shards = self._memory.starts.argsort()
        owner: Numbers = shards[self._memory.starts[shards].searchsorted(addresses, side="right") - 1]
        return owner


def _blocks_read() -> int:
    return 0 if resource is None else resource.getrusage(resource.RUSAGE_SELF).ru_inblock
