"""The batches of one epoch, from sample numbers to what is handed out.

    plan        what this rank reads of the epoch
    located     groups of batches are located together, and cut into runs, which are read by one call a field
    asked_for   the kernel is asked for the bytes of the next runs
    read        a run is read, by the caller's thread or by threads; its batches are parts of it

Work that does not touch the samples is done for many batches at once. The batches of a run have storages of their own.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from packer.format import Located, Numbers
from readers.batch import Ragged
from readers.dataset import PackedDataset
from readers.draws import Visits
from readers.fields import FieldReader, as_images, memory_for
from readers.gather import Pool, own_parts
from readers.indexing import Items
from readers.mix import Mix, MixedItems
from readers.readahead import asked_for

#: Names of the reading threads begin with this.
THREAD_NAME = "packed-reader"
#: Samples located at once, at most; their places take a megabyte a field.
GROUP_SAMPLES = 16384


@dataclass(frozen=True)
class Plan:
    """What one rank reads in an epoch.

    Attributes:
        readers: what reads each field, by name.
        items: which sample each number means.
        numbers: of the items, in the order in which they are read, (n,).
        edges: where each batch begins among these, and where the last one ends, (batches + 1,).
        visits: by which random parts of samples are drawn, (n,); None if none are.
        run_bytes: batches are read several at once, up to this many bytes; 0 reads each by itself.
    """

    readers: Mapping[str, FieldReader]
    items: Items | MixedItems
    numbers: Numbers
    edges: Numbers
    visits: Visits | None
    run_bytes: int


class Run(NamedTuple):
    """Some batches that are read by one call a field.

    Attributes:
        places: where their samples lie, by field.
        sizes: samples of each batch.
        error: why the only batch cannot be located; it is raised when the batch is due.
    """

    places: Sequence[Located]
    sizes: list[int]
    error: Exception | None = None


@dataclass(frozen=True)
class Stream:
    """Reads the batches of a dataset.

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

    def plan(self, numbers: Numbers, edges: Numbers, visits: Visits | None = None) -> Plan:
        """Return the plan for items `numbers` (n,) in batches between `edges` (batches + 1,), see `Plan`."""
        readers = self.dataset.readers
        likes = [reader.run_bytes for reader in readers.values()]
        # A transform may take any time, and give any number of bytes: its batches are read ahead one by one. Parts of
        # pinned memory would have to be copied again, into pinned memory of their own.
        alone = (self.threads and self.dataset.transforms) or self.pool.pinned or 0 in likes
        return Plan(readers, self.dataset.items, numbers, edges, visits, 0 if alone else max(likes, default=0))

    def batches(self, plan: Plan) -> Generator[Any, None, None]:
        """Yield the batches of a plan, in order; closing it stops the threads.

        An error comes when its batch is due, whether it was found while that was located or read.
        """
        due = asked_for(located(plan), partial(_spans, plan), self.dataset.opened)
        if self.threads:
            yield from self._ahead(plan, due)
            return
        for run in due:
            yield from map(self._finished, _handed_over(self._read(plan, run)), run.sizes)

    def _ahead(self, plan: Plan, due: Iterator[Run]) -> Generator[Any, None, None]:
        """Yield batches read by threads, in order; none is left running when the caller stops."""

        def finished(run: Run) -> list[Any]:
            return list(map(self._finished, self._read(plan, run), run.sizes))

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
        finally:
            waiting.clear()
            # Garbage is collected by whichever thread comes by, and one of these cannot wait for itself.
            is_reader = threading.current_thread().name.startswith(THREAD_NAME)
            threads.shutdown(wait=not is_reader, cancel_futures=True)

    def _read(self, plan: Plan, run: Run) -> list[Any]:
        """Return the batches of a run, read into memory of the pool if it pays."""
        if run.error is not None:
            raise run.error
        batch: dict[str, Any] = {}
        for (name, reader), places in zip(plan.readers.items(), run.places, strict=True):
            memory = memory_for(reader, len(places), self.pool)
            batch[name] = as_images(reader.field, reader.read(places, memory))
        if len(run.sizes) == 1:
            return [batch]
        parts = [split(values, run.sizes) for values in batch.values()]
        return [dict(zip(batch, values, strict=True)) for values in zip(*parts, strict=True)]

    def _finished(self, batch: Any, size: int) -> Any:
        batch = self.dataset.transformed(batch, size)
        return batch if self.finish is None else self.finish(batch)


def _handed_over(batches: list[Any]) -> Iterator[Any]:
    """Yield batches without keeping them."""
    batches.reverse()
    while batches:
        yield batches.pop()


# ---------------------------------------------------------------- runs


def located(plan: Plan) -> Iterator[Run]:
    """Yield the runs of a plan up to the first batch that cannot be located.

    The first group that is located is one batch, so that it comes soon; any other has about `GROUP_SAMPLES`.
    """
    first, samples, batches = 0, 1, len(plan.edges) - 1
    while first < batches:
        stop = int(plan.edges.searchsorted(plan.edges[first] + samples))
        runs = _runs(plan, first, min(stop, batches))
        yield from runs
        if runs[-1].error is not None:
            return
        first, samples = stop, GROUP_SAMPLES


def _runs(plan: Plan, first: int, stop: int) -> list[Run]:
    """Return the batches `first` to `stop` in runs of up to `run_bytes` bytes, of one batch at least."""
    some = slice(plan.edges[first], plan.edges[stop])
    edges, numbers = plan.edges[first : stop + 1] - some.start, plan.numbers[some]
    nbytes = np.zeros(len(numbers), np.int64)
    places = []
    try:
        samples, anchors = plan.items.of(numbers)
        for reader in plan.readers.values():
            places.append(reader.locate(samples, None if plan.visits is None else plan.visits[some], anchors))
            nbytes += reader.nbytes(places[-1])
    except Exception as error:
        if stop - first == 1:
            return [Run([], [len(numbers)], error)]
        runs: list[Run] = []  # one of many is wrong: those before it come first
        while first < stop and not (runs and runs[-1].error):
            runs += _runs(plan, first, first + 1)
            first += 1
        return runs
    # All of a group at once, not each between two copies, which leave nothing else in the processor's cache.
    sizes, bounds = np.diff(edges).tolist(), edges.tolist()
    return [
        Run([at[bounds[a] : bounds[b]] for at in places], sizes[a:b])
        for a, b in itertools.pairwise(_cut(np.add.reduceat(nbytes, edges[:-1]).tolist(), plan.run_bytes))
    ]


def _cut(nbytes: Sequence[int], limit: int) -> list[int]:
    """Return the first batch of each run of up to `limit` bytes, and the number of batches, which have `nbytes`."""
    edges, held = [0], 0
    for number, size in enumerate(nbytes):
        if held and held + size > limit:
            edges.append(number)
            held = 0
        held += size
    return [*edges, len(nbytes)]


def _spans(plan: Plan, run: Run) -> Numbers:
    """Return start and end of the bytes that a run reads, (n, 2)."""
    spans = [reader.spans(at) for reader, at in zip(plan.readers.values(), run.places, strict=False)]
    return np.concatenate([np.zeros((0, 2), np.int64), *spans])


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
