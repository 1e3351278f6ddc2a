"""The batches of one epoch, from sample numbers to what is handed out.

Work that does not touch the samples is done for many batches at once. An epoch is cut into groups of batches that are
located together, and groups into runs that are told to the kernel and read by one call a field. The batches are parts
of a run, each with storages of its own.

A page that is not in memory costs a wait for the disk, one after another. Named beforehand (`posix_fadvise`, WILLNEED)
pages are read next to each other. Asking for bytes that are in memory already costs time for nothing, so that is done
only while the process really reads from the disk.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from packer.format import PAGE_SIZE, Located, Numbers
from readers.batch import Ragged
from readers.dataset import PackedDataset
from readers.draws import Visits
from readers.fields import FieldReader, as_images, memory_for
from readers.gather import Pool, own_parts
from readers.indexing import Items
from readers.mix import Mix, MixedItems, Together
from readers.opened import Opened

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

#: Names of the reading threads begin with this.
THREAD_NAME = "packed-reader"
#: Samples located at once, at most; their places take a megabyte a field.
GROUP_SAMPLES = 16384
#: Most kernels read no more than their read-ahead for one call, and drop the rest.
PIECE_BYTES = 128 * 2**10
#: How far ahead to ask while reading is cold, at most, and at first.
COLD_BYTES = 8 * 2**20
FIRST_BYTES = 2**20
#: While reading is warm, this many runs are read before another look at whether it still is.
CHECKED_RUNS = 8
#: Stretches with a smaller gap than this between them are asked for as one: a call costs as much as the gap.
GAP_BYTES = 16 * 2**10


class Run(NamedTuple):
    """Some batches that are read by one call a field: places of their samples by field, and samples of each."""

    places: list[Located]
    sizes: list[int]


@dataclass(frozen=True)
class Stream:
    """Reads batches of a dataset in the order asked.

    Attributes:
        threads: 0 reads in the caller's thread; else as many read ahead.
        prefetch: batches read ahead by threads, at most, or one a thread if that is more; what counts as one
            are the batches of a run if they are small and there is no transform.
        finish: applied to each batch, after the dataset's transforms, by the thread that read it.
    """

    dataset: PackedDataset | Mix
    pool: Pool
    threads: int = 0
    prefetch: int = 2
    finish: Callable[[Any], Any] | None = None

    def batches(self, numbers: Numbers, batch_size: int, visits: Visits | None = None) -> Generator[Any, None, None]:
        """Return items `numbers` (n,) in batches, the last one of what is left; closing it stops the threads.

        `visits` (n,) say what random parts of them are read, if any are.

        An error of an index or of a size (a picture smaller than the crop) comes when the samples are located, up to
        `GROUP_SAMPLES` before their batch; what was located before is read and handed out first.
        """
        readers, failures = self.dataset.readers, list[Exception]()
        batch_size = min(batch_size, max(len(numbers), 1))  # some ask for one of all there is, whatever that is
        # A transform may take any time, and give any number of bytes: its batches are read ahead one by one.
        alone = self.threads and self.dataset.transforms
        # Parts of pinned memory would have to be copied again, into pinned memory of their own.
        limit = 0 if alone or self.pool.pinned else min((reader.run_bytes for reader in readers.values()), default=0)
        located = runs(readers.values(), self.dataset.items, numbers, batch_size, limit, visits)
        due = told(_up_to_failure(located, failures), readers.values(), self.dataset.opened)
        read = partial(self._read, readers)
        return self._ahead(read, due, failures) if self.threads else self._inline(read, due, failures)

    def _read(self, readers: Mapping[str, FieldReader], run: Run) -> list[Any]:
        """Return the batches of a run, read into memory of the pool if it pays."""
        batch: dict[str, Any] = {}
        for (name, reader), places in zip(readers.items(), run.places, strict=True):
            memory = memory_for(reader, len(places), self.pool)
            batch[name] = as_images(reader.field, reader.read(places, memory))
        batches = [batch]
        if len(run.sizes) > 1:
            parts = [split(values, run.sizes) for values in batch.values()]
            batches = [dict(zip(batch, values, strict=True)) for values in zip(*parts, strict=True)]
        return batches

    def _finished(self, batch: Any, size: int) -> Any:
        batch = self.dataset.transformed(batch, size)
        return batch if self.finish is None else self.finish(batch)

    def _inline(
        self, read: Callable[[Run], list[Any]], due: Iterator[Run], failures: list[Exception]
    ) -> Generator[Any, None, None]:
        """Yield batches read by the caller's thread; each is finished when it is asked for."""
        for run in due:
            yield from map(self._finished, _handed_over(read(run)), run.sizes)
        if failures:
            raise failures.pop()

    def _ahead(
        self, read: Callable[[Run], list[Any]], due: Iterator[Run], failures: list[Exception]
    ) -> Generator[Any, None, None]:
        """Yield batches read by threads, in order; none is left running when the caller stops."""

        def finished(run: Run) -> list[Any]:
            return list(map(self._finished, read(run), run.sizes))

        # A forked process makes itself a new pool of threads when it first asks torch for one; torch 2.13 fails with
        # "Invalid thread pool!" if two threads ask at once. So this one asks before the others start.
        torch.set_num_threads(torch.get_num_threads())
        waiting: deque[Future[list[Any]]] = deque()
        threads = ThreadPoolExecutor(self.threads, THREAD_NAME)
        try:
            for run in due:
                waiting.append(threads.submit(finished, run))
                if len(waiting) > max(self.prefetch, self.threads):
                    yield from _handed_over(waiting.popleft().result())
            while waiting:
                yield from _handed_over(waiting.popleft().result())
            if failures:
                raise failures.pop()
        finally:
            waiting.clear()
            # Garbage is collected by whichever thread comes by, and one of these cannot wait for itself.
            is_reader = threading.current_thread().name.startswith(THREAD_NAME)
            threads.shutdown(wait=not is_reader, cancel_futures=True)


def _up_to_failure(located: Iterator[Run], failures: list[Exception]) -> Iterator[Run]:
    """Yield the runs up to an error, which is put into `failures`: those before it that were not read yet can be."""
    try:
        yield from located
    except Exception as error:
        failures.append(error)


def _handed_over(batches: list[Any]) -> Iterator[Any]:
    """Yield batches without keeping them."""
    batches.reverse()
    while batches:
        yield batches.pop()


# ---------------------------------------------------------------- runs


def runs(
    readers: Collection[FieldReader],
    items: Items | MixedItems,
    numbers: Numbers,
    batch_size: int,
    limit: int,
    visits: Visits | None = None,
) -> Iterator[Run]:
    """Yield the batches of items `numbers` (n,) in runs of up to `limit` bytes, of one batch at least.

    The first group that is located is one batch, so that it comes soon; any other has about `GROUP_SAMPLES`.

    Args:
        visits: (n,), if random parts of samples are read.
    """
    start, group = 0, batch_size
    while start < len(numbers):
        stop = min(start + -(-group // batch_size) * batch_size, len(numbers))
        samples, anchors = items.of(numbers[start:stop])
        own = None if visits is None else visits[start:stop]
        places = [reader.locate(samples, own, anchors) for reader in readers]
        sizes = [min(batch_size, stop - at) for at in range(start, stop, batch_size)]
        each = sum(
            (reader.nbytes(at) for reader, at in zip(readers, places, strict=True)), np.zeros(len(samples), np.int64)
        )
        nbytes = np.add.reduceat(each, range(0, stop - start, batch_size))
        # All of a group at once, not each between two copies, which leave nothing else in the processor's cache.
        yield from [
            Run([at[first * batch_size : last * batch_size] for at in places], sizes[first:last])
            for first, last in itertools.pairwise(_edges(nbytes.tolist(), limit))
        ]
        start, group = stop, GROUP_SAMPLES


def _edges(nbytes: Sequence[int], limit: int) -> list[int]:
    """Return the first batch of each run of up to `limit` bytes, and the number of batches, which have `nbytes`."""
    edges, held = [0], 0
    for number, size in enumerate(nbytes):
        if held and held + size > limit:
            edges.append(number)
            held = 0
        held += size
    return [*edges, len(nbytes)]


def split(values: Any, sizes: list[int]) -> Sequence[Any]:
    """Return the batches of a run: parts of the values of one field, with `sizes` samples."""
    if isinstance(values, torch.Tensor):
        return own_parts(values, sizes)
    edges = [0, *itertools.accumulate(sizes)]
    if not isinstance(values, Ragged):
        return [values[a:b] for a, b in itertools.pairwise(edges)]
    ends = values.offsets.numpy()
    parts = own_parts(values.values, np.diff(ends[edges]).tolist())
    own = [torch.from_numpy(ends[a : b + 1] - ends[a]) for a, b in itertools.pairwise(edges)]
    return [Ragged(*part) for part in zip(parts, own, strict=True)]


# ---------------------------------------------------------------- what the kernel is told


def told(runs: Iterator[Run], readers: Collection[FieldReader], opened: Opened | Together) -> Iterator[Run]:
    """Yield the same runs, each when it is to be read; while reading is cold they are asked for `COLD_BYTES` earlier.

    The very first run is asked for too, since nobody knows whether it is in memory.
    """
    waiting: deque[tuple[Run, int]] = deque()
    ahead, reach, blocks = 0, 0, _blocks_read()
    works = hasattr(os, "posix_fadvise") and resource is not None
    cold = works and not opened.is_warm
    for number, run in enumerate(runs, 1):
        nbytes = 0
        if cold:
            spans = np.concatenate([reader.spans(at) for reader, at in zip(readers, run.places, strict=True)])
            nbytes = int((spans[:, 1] - spans[:, 0]).sum())
            works = works and ask(opened, spans)
        waiting.append((run, nbytes))
        ahead += nbytes
        while waiting and (ahead > reach or not cold):
            due, nbytes = waiting.popleft()
            ahead -= nbytes
            yield due
            if cold or number % CHECKED_RUNS == 0:
                before, blocks = blocks, _blocks_read()
                cold = works and blocks > before  # what was asked for counts as reading, too
                opened.is_warm = not cold
            # Not far at first, or the first batch would be long in coming.
            reach = min(2 * reach + FIRST_BYTES, COLD_BYTES) if cold else 0
    for due, _ in waiting:
        yield due


def ask(opened: Opened | Together, spans: Numbers) -> bool:
    """Ask for the bytes of `spans`, start and end each, (n, 2); return whether the file system takes advice."""
    starts = opened.memory.starts
    spans = spans[spans[:, 1] > spans[:, 0]]  # samples of no bytes lie nowhere; a length of 0 asks for the whole file
    spans = spans[spans[:, 0].argsort()]
    first = spans[:, 0] // PAGE_SIZE * PAGE_SIZE
    reach = np.maximum.accumulate(spans[:, 1])
    by_start = starts.argsort()
    shard = by_start[starts[by_start].searchsorted(first, side="right") - 1]
    # Maps of two files often lie side by side in memory.
    parted = (first[1:] > reach[:-1] + GAP_BYTES) | (shard[1:] != shard[:-1])
    edges = [0, *(np.flatnonzero(parted) + 1).tolist(), len(first)] if len(first) else []
    for begin, end in itertools.pairwise(edges):
        offset, stop = (int(at - starts[shard[begin]]) for at in (first[begin], reach[end - 1]))
        for piece in range(offset, stop, PIECE_BYTES):
            length = min(PIECE_BYTES, stop - piece)
            try:
                os.posix_fadvise(opened.shards[shard[begin]].fd, piece, length, os.POSIX_FADV_WILLNEED)
            except OSError:
                return False
    return True


def _blocks_read() -> int:
    """Return how many blocks this process has read from the disk."""
    return 0 if resource is None else resource.getrusage(resource.RUSAGE_SELF).ru_inblock
