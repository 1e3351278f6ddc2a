"""Tells the kernel which bytes are wanted next, when they have to come from the disk.

A page that is not in memory costs a fault, one after another: 75 MB/s for records of 48 kB. Named beforehand
(`posix_fadvise`, WILLNEED) they are read side by side: 950 MB/s. A call for bytes that are in memory
already costs a microsecond for nothing, so advice is given only while the process really reads from the disk.
"""

from __future__ import annotations

import os

import numpy as np

from packer.format.pages import PAGE_SIZE
from readers.memory import Memory
from readers.places import Numbers

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

#: Stretches with a smaller gap than this between them are asked for as one: a call costs as much as the gap.
GAP_BYTES = 16 * 2**10


class Advisor:
    """Asks for bytes ahead of time, while reading is cold.

    Args:
        memory: the mapped shards.
        files: descriptor of each shard's file, in the order of `memory`.
    """

    def __init__(self, memory: Memory, files: list[int]) -> None:
        self._memory = memory
        self._files = files
        self._blocks = _blocks_read()
        self.works = hasattr(os, "posix_fadvise") and resource is not None

    def is_cold(self) -> bool:
        """Whether anything came from the disk since the last call; the advice itself counts as reading."""
        before, self._blocks = self._blocks, _blocks_read()
        return self._blocks > before

    def ask(self, spans: Numbers) -> None:
        """Asks for the bytes of `spans`, address and size each, (n, 2)."""
        if not self.works or not len(spans):
            return
        order = spans[:, 0].argsort()
        first = spans[order, 0] // PAGE_SIZE * PAGE_SIZE
        behind = spans[order].sum(axis=1)
        reach = np.maximum.accumulate(behind)
        begins = np.flatnonzero(np.concatenate([[True], first[1:] > reach[:-1] + GAP_BYTES]))
        ends = np.concatenate([begins[1:], [len(first)]]) - 1
        shards = self._memory.starts.argsort()
        owner = shards[self._memory.starts[shards].searchsorted(first[begins], side="right") - 1]
        offsets = np.maximum(first[begins] - self._memory.starts[owner], 0)
        lengths = reach[ends] - self._memory.starts[owner] - offsets
        for shard, offset, length in zip(owner.tolist(), offsets.tolist(), lengths.tolist(), strict=True):
            os.posix_fadvise(self._files[shard], offset, length, os.POSIX_FADV_WILLNEED)


def _blocks_read() -> int:
    return 0 if resource is None else resource.getrusage(resource.RUSAGE_SELF).ru_inblock
