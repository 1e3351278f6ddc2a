"""The batches of one epoch, from sample numbers to what is handed out.

Work that does not touch the samples is done for many batches at once: sample numbers are turned into places a group
of batches at a time (5 us a batch and field saved), and the kernel is told of a whole group's bytes.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np

from packer.errors import UsageError
from readers.advice import Warmth
from readers.arrays import Numbers
from readers.dataset import PackedDataset
from readers.draws import Visits
from readers.fields import FieldReader, FixedRaw
from readers.gather import KEPT_BYTES, LARGE_BYTES, Pool
from readers.gathering import as_images
from readers.runs import Run, batches_at_once, runs, split

#: Names of the reading threads begin with this.
THREAD_NAME = "packed-reader"

SomeRun = TypeVar("SomeRun")


@dataclass(frozen=True)
class Stream:
    """Reads batches of a dataset in the order asked.

    Attributes:
        threads: 0 reads in the caller's thread; else as many read ahead.
        prefetch: batches read ahead by threads, at most, or one a thread where that is more; what counts as one
            are the batches of a run where they are small and there is no transform.
        finish: applied to each batch, behind the dataset's transform, by the thread that read it.
        warmth: what is known of earlier epochs.
    """

    dataset: PackedDataset
    pool: Pool
    threads: int = 0
    prefetch: int = 2
    finish: Callable[[Any], Any] | None = None
    warmth: Warmth = field(default_factory=Warmth)

    def batches(self, numbers: Numbers, batch_size: int, visits: Visits | None = None) -> Generator[Any, None, None]:
        """Samples `numbers` (n,) in batches, the last one of what is left. To be closed, so that no thread is left.

        `visits` (n,) say what random parts of them are read, if any are.

        An error of an index or of a size (a picture smaller than the crop) comes when the samples are located, up to
        `GROUP_SAMPLES` before their batch; what was located before is read and handed out first.
        """
        readers = self.dataset.readers
        # A transform may take any time, and give any number of bytes: its batches are read ahead one by one.
        alone = self.threads and self.dataset.transform is not None
        fields = list(readers.values())
        batch_size = min(batch_size, max(len(numbers), 1))  # some ask for one of all there is, whatever that is
        by_name = {name: _values(reader, self.pool) for name, reader in readers.items()}
        advisor, failures = self.dataset.opened.advisor, list[Exception]()
        at_once = 1 if alone else batches_at_once(fields, batch_size)
        located_runs = runs(fields, numbers, batch_size, at_once, visits)
        told = advisor.ahead(_up_to_failure(located_runs, failures), partial(_spans, fields), self.warmth)
        read = self._reader(by_name)
        return self._ahead(read, told, failures) if self.threads else self._inline(read, told, failures)

    def _reader(self, by_name: Mapping[str, Callable[[Numbers], Any]]) -> Callable[[Run], list[Any]]:
        def read(run: Run) -> list[Any]:
            places, sizes = run
            batch = {name: values(found) for (name, values), found in zip(by_name.items(), places, strict=True)}
            if len(sizes) == 1:
                return [batch]
            parts = [split(values, sizes) for values in batch.values()]
            return [dict(zip(batch, values, strict=True)) for values in zip(*parts, strict=True)]

        return read

    def _finished(self, batch: Any) -> Any:
        if self.dataset.transform is not None:
            batch = self.dataset.transform(batch)
        return batch if self.finish is None else self.finish(batch)

    def _inline(
        self, read: Callable[[Run], list[Any]], told: Iterator[Run], failures: list[Exception]
    ) -> Generator[Any, None, None]:
        """Batches read by the caller's thread; each is finished when it is asked for."""
        as_is = self.dataset.transform is None and self.finish is None
        for run in told:
            waiting = read(run)
            waiting.reverse()
            while waiting:
                yield waiting.pop() if as_is else self._finished(waiting.pop())
        if failures:
            raise failures.pop()

    def _ahead(
        self, read: Callable[[Run], list[Any]], told: Iterator[Run], failures: list[Exception]
    ) -> Generator[Any, None, None]:
        """Batches read by threads, in order; none is left running when the caller stops."""
        process = os.getpid()

        def finished(run: Run) -> list[Any]:
            return [self._finished(batch) for batch in read(run)]

        waiting: deque[Future[list[Any]]] = deque()
        threads = ThreadPoolExecutor(self.threads, THREAD_NAME)
        try:
            for run in told:
                _check_process(process)
                waiting.append(threads.submit(finished, run))
                if len(waiting) > max(self.prefetch, self.threads):
                    yield from _handed_over(waiting.popleft().result())
            while waiting:
                _check_process(process)
                yield from _handed_over(waiting.popleft().result())
            if failures:
                raise failures.pop()
        finally:
            waiting.clear()
            # Garbage is collected by whichever thread comes by, and one of these cannot wait for itself.
            is_reader = threading.current_thread().name.startswith(THREAD_NAME)
            threads.shutdown(wait=not is_reader, cancel_futures=True)


def _up_to_failure(located: Iterator[SomeRun], failures: list[Exception]) -> Iterator[SomeRun]:
    """The runs up to an error, which is put into `failures`: those before it that were not read yet can be."""
    try:
        yield from located
    except Exception as error:
        failures.append(error)


def _check_process(process: int) -> None:
    if os.getpid() != process:
        raise UsageError(
            "a loop over a Loader with threads cannot go on in a forked process: its threads stayed in the other; "
            "begin a new loop, after load_state_dict() with the state of the old one"
        )


def _values(reader: FieldReader, pool: Pool) -> Callable[[Numbers], Any]:
    """Return what reads samples by their places; into memory of the pool if it pays."""
    field, read = reader.field, reader.read
    # Samples that are copied, and few others, go into memory that the system's allocator finds again.
    least = KEPT_BYTES if type(reader) is FixedRaw else LARGE_BYTES
    few = 0 if pool.pinned or field.is_ragged else -(-least // max(field.fixed_bytes, 1))

    def values(places: Numbers) -> Any:
        return as_images(field, read(places, pool.allocate if len(places) >= few else None))

    return values


def _handed_over(batches: list[Any]) -> Iterator[Any]:
    """Hands batches over without keeping them."""
    batches.reverse()
    while batches:
        yield batches.pop()


def _spans(readers: Sequence[FieldReader], run: Run, some: int | None = None) -> Numbers:
    """Address and size of the bytes of a run, (n, 2); of all its samples, or of about so many of them."""
    step = 1 if some is None else max(1, sum(run.sizes) // some)
    return np.concatenate([r.spans(places[::step]) for r, places in zip(readers, run.places, strict=True)])
