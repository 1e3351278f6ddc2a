"""The batches of one epoch, from sample numbers to what is handed out.

Work that does not touch the samples is done for many batches at once. An epoch is cut into groups of batches that are
located together, and groups into runs that are told to the kernel and read by one call a field. The batches are parts
of a run, each with storages of its own.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from packer.codecs import compiled
from packer.errors import UsageError
from packer.format.column import Numbers
from packer.format.schema import Field
from readers.batch import Ragged, share_offsets
from readers.dataset import PackedDataset
from readers.draws import Visits
from readers.fields import FieldReader, FixedRaw, KnownReader, NameReader, WholeReader, as_images
from readers.gather import LARGE_BYTES, Pool, own_parts
from readers.indexing import Items
from readers.mix import Mix, MixedItems
from readers.readahead import Warmth

#: Names of the reading threads begin with this.
THREAD_NAME = "packed-reader"

SomeRun = TypeVar("SomeRun")

#: Samples located at once, at most; their places take a megabyte a field.
GROUP_SAMPLES = 16384

#: Small batches are read several at a time, up to this many bytes, and then split: the calls of a batch cost more than
#: its copying.
RUN_BYTES = 512 * 2**10
#: If samples are large the calls weigh more than the processor's cache.
LARGE_SAMPLE = 4096
LARGE_RUN_BYTES = 2**21
#: If samples are larger still, batches are read one by one.
HUGE_SAMPLE = 2**16
#: Frames that machine code decodes keep a thread busy without the interpreter: the longer the better.
CODED_RUN_BYTES = 2**23


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
        warmth: what is known of earlier epochs.
    """

    dataset: PackedDataset | Mix
    pool: Pool
    threads: int = 0
    prefetch: int = 2
    finish: Callable[[Any], Any] | None = None
    warmth: Warmth = field(default_factory=Warmth)

    def batches(self, numbers: Numbers, batch_size: int, visits: Visits | None = None) -> Generator[Any, None, None]:
        """Items `numbers` (n,) in batches, the last one of what is left. To be closed, so that no thread is left.

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
        at_once = 1 if alone else self._at_once(fields, batch_size)
        located_runs = runs(fields, self.dataset.items, numbers, batch_size, at_once, visits)
        told = advisor.ahead(_up_to_failure(located_runs, failures), partial(_spans, fields), self.warmth)
        read = self._reader(by_name, is_ragged=any(reader.is_ragged for reader in fields))
        return self._ahead(read, told, failures) if self.threads else self._inline(read, told, failures)

    def _at_once(self, fields: Sequence[FieldReader], batch_size: int) -> int:
        """Return how many batches a run has; in the mean, if samples differ in size."""
        if isinstance(self.dataset, PackedDataset):
            return batches_at_once(fields, batch_size)
        if any(reader.is_ragged for reader in fields):
            return 1
        return min(batches_at_once(list(each.readers.values()), batch_size) for each in self.dataset.datasets)

    def _reader(self, by_name: Mapping[str, Callable[[Numbers], Any]], is_ragged: bool) -> Callable[[Run], list[Any]]:
        def read(run: Run) -> list[Any]:
            places, sizes = run
            batch = {name: values(found) for (name, values), found in zip(by_name.items(), places, strict=True)}
            if len(sizes) == 1:
                batches = [batch]
            else:
                parts = [split(values, sizes) for values in batch.values()]
                batches = [dict(zip(batch, values, strict=True)) for values in zip(*parts, strict=True)]
            if is_ragged:
                for each in batches:
                    share_offsets(each)
            return batches

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

        # A forked process makes itself a new pool of threads when it first asks torch for one; torch 2.13 fails with
        # "Invalid thread pool!" if two threads ask at once. So this one asks before the others start.
        torch.set_num_threads(torch.get_num_threads())
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
    # Few samples go into memory that the system's allocator finds again by itself.
    few = 0 if pool.pinned or reader.is_ragged else -(-LARGE_BYTES // max(int(reader.sample_bytes), 1))

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


def runs(
    readers: Sequence[FieldReader],
    items: Items | MixedItems,
    numbers: Numbers,
    batch_size: int,
    at_once: int,
    visits: Visits | None = None,
) -> Iterator[Run]:
    """Batches of items `numbers` (n,), so many `at_once` in a run, or so many bytes where samples differ in size."""
    for group in groups(readers, items, numbers, batch_size, batch_size, GROUP_SAMPLES, visits):
        by_bytes = at_once > 1 and any(isinstance(reader, WholeReader) and reader.is_ragged for reader in readers)
        edges = _edges_by_bytes(readers, group) if by_bytes else even_edges(len(group.sizes), at_once)
        # All of a group at once, not each between two copies, which leave nothing else in the processor's cache.
        yield from cut(group, edges)


def groups(
    readers: Sequence[FieldReader],
    items: Items | MixedItems,
    numbers: Numbers,
    batch_size: int,
    first: int,
    most: int,
    visits: Visits | None = None,
) -> Iterator[Run]:
    """Batches of items `numbers` (n,) that are located together.

    Args:
        first: samples of the first group, about. The first batch comes the sooner the fewer they are, and the second
            where much is looked up.
        most: samples of any group, about.
        visits: (n,), where random parts of samples are read.
    """
    start, group = 0, first
    growth = GROUP_SAMPLES if all(type(reader) is FixedRaw for reader in readers) else 4
    while start < len(numbers):
        end = start + -(-group // batch_size) * batch_size
        samples, anchors = items.of(numbers[start:end])
        own = None if visits is None else visits[start:end]
        places = [reader.locate(samples, own, anchors) for reader in readers]
        yield Run(places, _sizes(min(end, len(numbers)) - start, batch_size))
        start, group = end, min(growth * group, most)


def cut(group: Run, edges: list[int]) -> list[Run]:
    """Runs of the batches between two edges each; all but the last batch have as many samples."""
    size = group.sizes[0]
    return [
        Run([places[first * size : behind * size] for places in group.places], group.sizes[first:behind])
        for first, behind in itertools.pairwise(edges)
    ]


def even_edges(batches: int, at_once: int) -> list[int]:
    """The first batch of each run of so many, and the number of batches."""
    return [*range(0, batches, at_once), batches]


def _sizes(samples: int, batch_size: int) -> list[int]:
    """Samples of each batch."""
    rest = samples % batch_size
    return [batch_size] * (samples // batch_size) + ([rest] if rest else [])


def _edges_by_bytes(readers: Sequence[FieldReader], group: Run) -> list[int]:
    """What `even_edges` gives, by the bytes that the batches of a group have.

    Not by the mean: a dataset that begins with its small samples may end with runs of 200 MB else.
    """
    nbytes = np.zeros(sum(group.sizes), np.int64)
    for reader, places in zip(readers, group.places, strict=True):
        nbytes += reader.raw_bytes(places) if isinstance(reader, WholeReader) else int(reader.sample_bytes)
    before = np.cumsum(nbytes)[np.cumsum(group.sizes) - 1][:-1]
    return [0, *(np.flatnonzero(np.diff(before // CODED_RUN_BYTES, prepend=0)) + 1).tolist(), len(group.sizes)]


def batches_at_once(readers: Sequence[FieldReader], batch_size: int) -> int:
    """Batches of a run; in the mean, where samples differ in size."""
    readers = [reader for reader in readers if not isinstance(reader, NameReader | KnownReader)]
    whole = all(isinstance(reader, FixedRaw | WholeReader) for reader in readers)
    if not whole and any(reader.is_ragged for reader in readers):
        return 1
    sample = sum(reader.sample_bytes for reader in readers)
    by_machine = whole and machine_decodes((reader.field, reader.sample_bytes) for reader in readers)
    limit = CODED_RUN_BYTES if by_machine else bytes_at_once(sample)
    return int(max(1, limit // max(batch_size * sample, 1)))


def bytes_at_once(sample: float) -> int:
    """Bytes that are read by one call where samples have `sample` bytes each; at least one batch is."""
    if sample < LARGE_SAMPLE:
        return RUN_BYTES
    if sample >= HUGE_SAMPLE:
        return 0
    return LARGE_RUN_BYTES


def machine_decodes(fields: Iterable[tuple[Field, float]]) -> bool:
    """Whether machine code decodes most of what is coded, a whole run at once, when that is worth loading.

    Args:
        fields: each with its raw bytes, of a sample or of all.
    """
    coded = [(field, nbytes) for field, nbytes in fields if field.codec]
    mine = sum(nbytes for field, nbytes in coded if _by_machine(field))
    return 2 * mine > sum(nbytes for _, nbytes in coded) and compiled.loading.is_possible()


def _by_machine(field: Field) -> bool:
    """Whether all frames of a run are decoded by one call: those of samples that have frames of their own."""
    own = field.frame.samples == 1 or (field.frame.rows is not None and not field.is_ragged)
    return own and compiled.number_of(field.codec) is not None


def split(values: Any, sizes: list[int]) -> Sequence[Any]:
    """The batches of a run: parts of the values of one field, of so many samples each."""
    if isinstance(values, torch.Tensor):
        return own_parts(values, sizes)
    edges = [0, *itertools.accumulate(sizes)]
    if not isinstance(values, Ragged):
        return [values[a:b] for a, b in itertools.pairwise(edges)]
    ends = values.offsets.numpy()
    parts = own_parts(values.values, np.diff(ends[edges]).tolist())
    own = [torch.from_numpy(ends[a : b + 1] - ends[a]) for a, b in itertools.pairwise(edges)]
    return [Ragged(*part) for part in zip(parts, own, strict=True)]
