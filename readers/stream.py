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
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from packer.errors import UsageError
from readers.dataset import PackedDataset
from readers.field_reader import FieldReader, locate_all
from readers.fixed import FixedRaw
from readers.gathering import as_images
from readers.places import Numbers
from readers.pool import LEAST_BYTES, Pool
from readers.take import settle

#: Samples located at once; their places take half a megabyte a field.
GROUP_SAMPLES = 8192

#: Batches of few bytes are read several at a time, up to this many bytes, and then split: for 100 rows of 140 bytes the
#: calls of a batch cost three times as much as its copying. They take 13 us so, 14.5 in runs of 192 KiB.
RUN_BYTES = 512 * 2**10
#: Where samples are large the calls weigh more than the cache: pairs of 13 kB in batches of 8 take 17 us so, and 23 in
#: runs of 512 KiB. Where nothing is decoded, runs may be longer: in batches of 128 those take 120 us a batch alone, and
#: 107 two at a time; with LZ4 they take a tenth longer so.
LARGE_SAMPLE = 4096
LARGE_RUN_BYTES, RAW_RUN_BYTES = 2**21, 2**22
#: And where they are larger still, batches are read one by one: 8 pairs of 118 kB take 92 us so, 107 in those runs.
HUGE_SAMPLE = 2**16

#: Names of the reading threads begin with this.
THREAD_NAME = "packed-reader"


class Run(NamedTuple):
    """Some batches that are read by one call a field: places of their samples by field, and samples of each."""

    places: list[Numbers]
    sizes: list[int]


@dataclass(frozen=True)
class Stream:
    """Reads batches of a dataset in the order asked.

    Attributes:
        threads: 0 reads in the caller's thread; else as many read ahead.
        prefetch: batches read ahead by threads, at most, or one a thread where that is more; what counts as one
            are the batches of a run where they are small and there is no transform.
        finish: applied to each batch, behind the dataset's transform, by the thread that read it.
    """

    dataset: PackedDataset
    pool: Pool
    threads: int = 0
    prefetch: int = 2
    finish: Callable[[Any], Any] | None = None

    def batches(self, numbers: Numbers, batch_size: int) -> Generator[Any, None, None]:
        """Samples `numbers` (n,) in batches, the last one of what is left. To be closed, so that no thread is left.

        An error of an index or of a size (a picture smaller than the crop) comes when the samples are located, up to
        `GROUP_SAMPLES` before their batch; what was located before is read and handed out first.
        """
        # Those of the present epoch, and of no other until the last batch.
        readers = self.dataset.readers
        # A transform may take any time, and give any number of bytes: its batches are read ahead one by one.
        alone = self.threads and self.dataset.transform is not None
        located = _located(list(readers.values()), numbers, batch_size, bool(alone))
        failures: list[Exception] = []
        sound = _up_to_failure(located, failures)
        runs = self.dataset.opened.advisor.ahead(sound, partial(_spans, list(readers.values())))
        read = self._reader(readers)
        return self._ahead(read, runs, failures) if self.threads else self._inline(read, runs, failures)

    def _reader(self, by_name: Mapping[str, FieldReader]) -> Callable[[Run], list[Any]]:
        each = [(name, _values(reader, self.pool)) for name, reader in by_name.items()]

        def read(run: Run) -> list[Any]:
            places, sizes = run
            batch = {name: values(found) for (name, values), found in zip(each, places, strict=True)}
            if len(sizes) == 1:
                return [batch]
            # Not `split`: its parts share one version counter, so that writing to one batch would fail the
            # backward pass of another.
            parts = [torch.unsafe_split_with_sizes(values, sizes) for values in batch.values()]
            return [dict(zip(batch, values, strict=True)) for values in zip(*parts, strict=True)]

        return read

    def _finished(self, batch: Any) -> Any:
        if self.dataset.transform is not None:
            batch = self.dataset.transform(batch)
        return batch if self.finish is None else self.finish(batch)

    def _inline(
        self, read: Callable[[Run], list[Any]], runs: Iterator[Run], failures: list[Exception]
    ) -> Generator[Any, None, None]:
        """Batches read by the caller's thread; each is finished when it is asked for."""
        as_is = self.dataset.transform is None and self.finish is None
        for run in runs:
            waiting = read(run)
            waiting.reverse()
            while waiting:
                yield waiting.pop() if as_is else self._finished(waiting.pop())
        if failures:
            raise failures.pop()

    def _ahead(
        self, read: Callable[[Run], list[Any]], runs: Iterator[Run], failures: list[Exception]
    ) -> Generator[Any, None, None]:
        """Batches read by threads, in order; none is left running when the caller stops."""
        process = os.getpid()

        def finished(run: Run) -> list[Any]:
            return [self._finished(batch) for batch in read(run)]

        waiting: deque[Future[list[Any]]] = deque()
        settle()
        threads = ThreadPoolExecutor(self.threads, THREAD_NAME)
        try:
            for run in runs:
                _check_process(process)
                waiting.append(threads.submit(finished, run))
                if len(waiting) > max(self.prefetch, self.threads):
                    yield from _one_by_one(waiting.popleft().result())
            while waiting:
                _check_process(process)
                yield from _one_by_one(waiting.popleft().result())
            if failures:
                raise failures.pop()
        finally:
            waiting.clear()
            # Garbage is collected by whichever thread comes by, and one of these cannot wait for itself.
            is_reader = threading.current_thread().name.startswith(THREAD_NAME)
            threads.shutdown(wait=not is_reader, cancel_futures=True)


def _up_to_failure(runs: Iterator[Run], failures: list[Exception]) -> Iterator[Run]:
    """The runs up to an error, which is put into `failures`: those before it that were not read yet can be."""
    try:
        yield from runs
    except Exception as error:
        failures.append(error)


def _check_process(process: int) -> None:
    if os.getpid() != process:
        raise UsageError(
            "a loop over a Loader with threads cannot go on in a forked process: its threads stayed in the other; "
            "begin a new loop, after load_state_dict() with the state of the old one"
        )


def bytes_at_once(sample: int, is_raw: bool = False) -> int:
    """Bytes that are read by one call where samples of fixed shape have `sample` bytes each; at least one batch is."""
    if sample < LARGE_SAMPLE:
        return RUN_BYTES
    if sample >= HUGE_SAMPLE:
        return 0
    return RAW_RUN_BYTES if is_raw else LARGE_RUN_BYTES


def _values(reader: FieldReader, pool: Pool) -> Callable[[Numbers], Any]:
    """What reads samples by their places; into memory of the pool, where there is enough to read."""
    field = reader.field
    read, allocate, is_image = reader.read, pool.allocate, field.kind == "image"
    # Fewer samples are left to the system's allocator.
    least = 0 if pool.pinned or field.is_ragged else -(-LEAST_BYTES // max(field.fixed_bytes, 1))

    def values(places: Numbers) -> Any:
        found = read(places, allocate) if len(places) >= least else read(places)
        return as_images(field, found) if is_image else found

    return values


def _one_by_one(batches: list[Any]) -> Iterator[Any]:
    """Hands batches over without keeping them."""
    batches.reverse()
    while batches:
        yield batches.pop()


def _spans(readers: Sequence[FieldReader], run: Run) -> Numbers:
    """Address and size of the bytes of a run, (n, 2)."""
    return np.concatenate([r.spans(places) for r, places in zip(readers, run.places, strict=True)])


def _located(readers: Sequence[FieldReader], numbers: Numbers, batch_size: int, alone: bool) -> Iterator[Run]:
    """The batches, located a group at a time; as many in a run as are best read at once, or each `alone`."""
    at_once = 1 if alone else _batches_at_once(readers, batch_size)
    # The first groups are small, so that the first batch comes at once.
    start, group = 0, batch_size
    while start < len(numbers):
        end = start + -(-group // batch_size) * batch_size
        places = locate_all(readers, numbers[start:end])
        sizes = _sizes(min(end, len(numbers)) - start, batch_size)
        for first in range(0, len(sizes), at_once):
            run = sizes[first : first + at_once]
            at = first * batch_size
            yield Run([found[at : at + sum(run)] for found in places], run)
        start, group = end, min(4 * group, GROUP_SAMPLES)


def _sizes(samples: int, batch_size: int) -> list[int]:
    """Samples of each batch."""
    rest = samples % batch_size
    return [batch_size] * (samples // batch_size) + ([rest] if rest else [])


def _batches_at_once(readers: Sequence[FieldReader], batch_size: int) -> int:
    if any(reader.field.is_ragged for reader in readers):
        return 1
    sample = sum(reader.field.fixed_bytes for reader in readers)
    limit = bytes_at_once(sample, all(type(reader) is FixedRaw for reader in readers))
    return max(1, limit // max(batch_size * sample, 1))
