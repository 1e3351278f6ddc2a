"""Asks the kernel for the bytes of the next runs while this one is read.

Each page that is not in memory costs a wait for the disk. The kernel reads pages in parallel if it is asked for them
beforehand (`madvise`, WILLNEED). To ask for bytes that are in memory already wastes time, so that is done only
while the process really reads from the disk.

Its constants were fitted to the rows `cold` of `scripts/bench`.
"""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np

from packer.format import PAGE_SIZE, Numbers
from readers.mix_source import MixShards
from readers.opened import Opened

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

#: Most kernels read no more than their read-ahead for one call, and drop the rest.
PIECE_BYTES = 128 * 2**10
#: How far ahead to ask while reading is cold, at most, and at first.
COLD_BYTES = 8 * 2**20
FIRST_BYTES = 2**20
#: While reading is warm, this many runs are read before another look at whether it still is.
CHECKED_RUNS = 2
#: Stretches that lie closer together than this are asked for as one: a call costs as much as reading the gap.
GAP_BYTES = 16 * 2**10

Run = TypeVar("Run")


def with_readahead(
    runs: Iterator[Run], spans_of: Callable[[Run], Numbers], opened: Opened | MixShards
) -> Iterator[Run]:
    """Yield the same runs; while reading is cold, ask the kernel for each up to `COLD_BYTES` before it is read.

    The very first run is asked for too, since it may not be in memory.

    Args:
        spans_of: gives the first address of each stretch that a run reads and the one after its last, (n, 2).
    """
    waiting: deque[tuple[Run, int]] = deque()
    ahead_bytes, reach_bytes, blocks = 0, 0, _blocks_read()
    works = hasattr(mmap, "MADV_WILLNEED") and resource is not None
    cold = works and not opened.is_warm
    for number, run in enumerate(runs, 1):
        nbytes = 0
        if cold:
            spans = spans_of(run)
            nbytes = int((spans[:, 1] - spans[:, 0]).sum())
            works = works and advise_kernel(opened, spans)
        waiting.append((run, nbytes))
        ahead_bytes += nbytes
        while waiting and (ahead_bytes > reach_bytes or not cold):
            next_run, nbytes = waiting.popleft()
            ahead_bytes -= nbytes
            yield next_run
            if cold or number % CHECKED_RUNS == 0:
                blocks_before, blocks = blocks, _blocks_read()
                cold = works and blocks > blocks_before  # blocks that were asked for count as read, too
                opened.is_warm = not cold
            # Not far at first, or the first batch would come late.
            reach_bytes = min(2 * reach_bytes + FIRST_BYTES, COLD_BYTES) if cold else 0
    for next_run, _ in waiting:
        yield next_run


def advise_kernel(opened: Opened | MixShards, spans: Numbers) -> bool:
    """Ask for the bytes of `spans`, start and end each, (n, 2), in this order; of those near each other by one call.

    Returns:
        whether the file system takes advice.
    """
    starts, shards = opened.addressed
    spans = spans[spans[:, 1] > spans[:, 0]]  # samples of no bytes lie nowhere; a length of 0 asks for the whole file
    if not len(spans):
        return True
    order = spans[:, 0].argsort()
    spans = spans[order]
    first = spans[:, 0] // PAGE_SIZE * PAGE_SIZE
    ends = np.maximum.accumulate(spans[:, 1])
    by_start = starts.argsort()
    shard = by_start[starts[by_start].searchsorted(first, side="right") - 1]
    # Maps of two files often lie side by side in memory.
    parted = (first[1:] > ends[:-1] + GAP_BYTES) | (shard[1:] != shard[:-1])
    begins = np.append(0, np.flatnonzero(parted) + 1)
    stops = np.append(begins[1:], len(first))
    # Shards are often mapped at descending addresses: what is read first is asked for first.
    for group in np.minimum.reduceat(order, begins).argsort().tolist():
        begin, end = begins[group], stops[group]
        offset, stop = (int(address - starts[shard[begin]]) for address in (first[begin], ends[end - 1]))
        for piece in range(offset, stop, PIECE_BYTES):
            length = min(PIECE_BYTES, stop - piece)
            try:
                shards[shard[begin]].load_ahead(piece, length)
            except OSError:
                return False
    return True


def _blocks_read() -> int:
    """Return how many blocks this process has read from the disk."""
    return 0 if resource is None else resource.getrusage(resource.RUSAGE_SELF).ru_inblock
