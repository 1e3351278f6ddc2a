"""The batches of one epoch, from sample numbers to finished batches.

    plan        what this rank reads of the epoch, and how
    locate      groups of batches are located together, and cut into runs, which are read by one call a field
    advise      the kernel is asked for the bytes of the next runs
    read        a run is read, by the caller's thread or by threads; its batches are parts of it
    finish      functions of the caller's own are called with each batch, by the caller's thread or by threads ahead

Work that does not touch the samples is done for many batches at once. The batches of a run have storages of their own.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from packer.errors import DamagedError
from packer.format import Located, Numbers, starts_of
from readers.batch import Ragged
from readers.draws import Visits, Words
from readers.fields import RUN_BYTES, FieldReader, read_located
from readers.finishing import TRIED, Finisher
from readers.gather import Pool, split_with_own_storage
from readers.mix_source import AnySource
from readers.placing import call_once_a_visit
from readers.readahead import with_readahead
from readers.shard_stream import Stream
from readers.shards import OpenShard
from readers.share import GROUP_SAMPLES, Batches
from readers.valid import remark

#: About how many bytes are located at once if a function of the caller's own says where they lie.
ASKED_BYTES = 4 * RUN_BYTES
#: Names of the reading threads begin with this.
THREAD_NAME = "packed-reader"

Result = TypeVar("Result")
#: A batch as it is gathered, its samples, and what its transforms draw from, see `Transforms.draw_seeds`.
Gathered = tuple[Any, int, Words | None]


@dataclass(frozen=True)
class ReadPlan:
    """What one rank reads in an epoch, and how.

    Attributes:
        batches: that it reads, as numbers of items.
        visits: gives the random words of samples, (n,), by position in the epoch, (n,); None if nothing is drawn.
        pool: gives memory for batches.
        finisher: makes batches that are handed out of those that are gathered.
        threads: 0 reads in the caller's thread; else as many read ahead.
        prefetch: how many batches functions are called for ahead at most, or without functions how many runs are read
            ahead; or one for each thread if that is more.
        stream: opens shards one by one, as batches need them; None if the dataset is open as a whole.
        skipped: damaged items are skipped in their batches, and put in here with the reason; None if they stop the
            epoch.
    """

    source: AnySource
    batches: Batches
    visits: Callable[[Numbers], Visits] | None
    pool: Pool
    finisher: Finisher
    threads: int = 0
    prefetch: int = 2
    stream: Stream | None = None
    skipped: dict[int, str] | None = None

    @cached_property
    def readers(self) -> Mapping[str, FieldReader]:
        """Return what reads each field, by name; of a stream once the first shards are open."""
        return self.source.readers if self.stream is None else self.stream.readers

    def group_end(self, first: int) -> int:
        """Return the end of the group of batches that are located at once, and begin with batch `first`."""
        if self.stream is not None:
            return min(first + self.stream.group, len(self.batches))
        samples = GROUP_SAMPLES
        if self.source.asks:
            # A function of the caller's own is called for each, and may take long: only a few runs wait for it.
            sample_bytes = sum(reader.sample_bytes for reader in self.readers.values())
            samples = max(1, min(samples, int(ASKED_BYTES / max(1, sample_bytes))))
        return self.batches.group_end(first, samples)

    @property
    def run_bytes(self) -> int:
        """Return up to how many bytes of batches are read at once; 0 reads each batch by itself."""
        preferred = [reader.run_bytes for reader in self.readers.values()]
        # Parts of pinned memory would have to be copied once more, each into pinned memory of its own.
        return 0 if self.pool.pinned or 0 in preferred else max(preferred, default=0)


class Run(NamedTuple):
    """Some batches that are read by one call a field.

    Attributes:
        numbers: of their items, (n,).
        located: where their samples lie, by field.
        sizes: samples of each batch. From this and from `seeds`, `read` removes damaged samples.
        seeds: what the transforms of each batch draw from, or None.
        opened: shards of a stream, which must stay open until they are read; `read` empties it.
        error: why the only batch cannot be located; it is raised when the batch is due.
    """

    numbers: Numbers
    located: Sequence[Located]
    sizes: list[int]
    seeds: list[Words | None]
    opened: list[OpenShard]
    error: Exception | None = None


def read_batches(plan: ReadPlan) -> Generator[Any, None, None]:
    """Yield the batches of a plan, in order; closing it stops the threads.

    An error is raised when its batch is due, even if it was found earlier, when that batch was located.
    """

    def spans(run: Run) -> Numbers:
        """Return start and end of the bytes that a run reads, (n, 2); none for a run that cannot be located."""
        readers: Mapping[str, FieldReader] = {} if run.error else plan.readers
        parts = [reader.spans(located) for reader, located in zip(readers.values(), run.located, strict=True)]
        return np.concatenate([np.zeros((0, 2), np.int64), *parts])

    runs = locate_runs(plan)
    if plan.stream is None:
        runs = with_readahead(runs, spans, plan.source.opened)
    with ExitStack() as stack:
        # Where functions are called, the first batches decide, which are read and finished by the caller's thread.
        finisher, tried = plan.finisher, itertools.islice(runs, 0 if plan.finisher.threads is not None else TRIED)
        first = stack.enter_context(closing(_gather(plan, tried, threads=0)))
        if finisher.threads is None:
            for gathered in first:
                batch = finisher.try_out(*gathered)
                del gathered
                yield batch
                del batch
                if finisher.threads is not None:
                    break
        threads = finisher.threads or 0
        rest = itertools.chain(first, stack.enter_context(closing(_gather(plan, runs, max(plan.threads, threads)))))
        if threads:
            yield from _call_ahead(rest, finisher.finish, threads, max(plan.prefetch, threads))
            return
        for batch, size, seeds in rest:
            batch = finisher.finish(batch, size, seeds) if finisher.has_functions else batch
            yield batch
            # The generator must not hold a batch whose memory the pool could use again.
            del batch


def _gather(plan: ReadPlan, runs: Iterator[Run], threads: int) -> Generator[Gathered, None, None]:
    """Yield the batches of runs as they are gathered, read by threads; without functions of the caller's finished."""
    finisher = plan.finisher

    def finish(*gathered: Any) -> Gathered:
        return finisher.finish(*gathered), 0, None

    def read(run: Run) -> Iterable[Gathered]:
        batches = read_run(plan, run)
        if finisher.has_functions or not finisher.copies:
            return batches
        finished = itertools.starmap(finish, batches)
        return _handed_over(list(finished)) if threads else finished

    depth = threads if finisher.has_functions else max(plan.prefetch, threads)
    with closing(_call_ahead(zip(runs), read, threads, depth)) as results:
        for batches in results:
            yield from batches
            del batches  # which holds memory that the next run may use


def _handed_over(batches: list[Gathered]) -> Iterator[Gathered]:
    """Yield batches, and keep none that was handed out."""
    batches.reverse()
    while batches:
        yield batches.pop()


def _call_ahead(
    arguments: Iterator[tuple[Any, ...]], function: Callable[..., Result], threads: int, depth: int
) -> Generator[Result, None, None]:
    """Yield what a function returns for each tuple of arguments, in order; by threads, up to `depth` calls ahead.

    Without threads each call is made when its result is asked for. No thread is left running when the caller stops.
    """
    if not threads:
        for values in arguments:
            yield function(*values)
        return
    # In a forked process torch makes a new pool of threads at its first use; torch 2.13 fails with "Invalid thread
    # pool!" if two threads use it first at once. So this thread uses it before the others start.
    torch.set_num_threads(torch.get_num_threads())
    waiting: deque[Future[Result]] = deque()
    pool = ThreadPoolExecutor(threads, THREAD_NAME)
    error: Exception | None = None
    try:
        while error is None:
            try:
                waiting.append(pool.submit(function, *next(arguments)))
            except StopIteration:
                break
            except Exception as raised:  # it is due after all that was submitted before
                error = raised
            if len(waiting) > depth:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
        if error is not None:
            raise error
    finally:
        error = None  # it refers to this frame, and this frame to it
        waiting.clear()
        # Garbage collection may run this in one of the reading threads, which cannot wait for itself.
        is_reader = threading.current_thread().name.startswith(THREAD_NAME)
        pool.shutdown(wait=not is_reader, cancel_futures=True)


# ---------------------------------------------------------------- locating


def locate_runs(plan: ReadPlan) -> Iterator[Run]:
    """Yield the runs of a plan up to the first batch that cannot be located.

    The first group is one batch, so that it comes soon; see `ReadPlan.group_end` for the others.
    """
    first, answers, has_error = 0, dict[int, Any](), False
    while first < len(plan.batches):
        stop = plan.group_end(first) if first and not has_error else first + 1
        try:
            with call_once_a_visit(answers) if plan.source.asks else nullcontext():
                runs = _make_runs(plan, first, stop)
        except Exception as error:
            if stop - first == 1:
                yield Run(np.zeros(0, np.int64), [], [0], [None], [], error)
                return
            has_error = True
            continue  # one of these batches is wrong; now one by one, so that those before it come first
        if not has_error:
            answers.clear()
        runs.reverse()
        while runs:  # none is kept, since it keeps shards open
            yield runs.pop()
        first = stop


def _make_runs(plan: ReadPlan, first: int, stop: int) -> list[Run]:
    """Return the batches `first` to `stop` in runs of up to `run_bytes` bytes, of one batch at least."""
    numbers, positions, edges = plan.batches.group(first, stop)
    visits = None if plan.visits is None else plan.visits(positions)
    asked = plan.source.items.resolve(numbers, visits)
    seeds = None if visits is None else plan.source.transforms.draw_seeds(visits)
    opened = [] if plan.stream is None else plan.stream.open(asked.samples, first, stop)
    readers = plan.readers
    located = [reader.locate(asked) for reader in readers.values()]
    nbytes = np.zeros(len(positions), np.int64)
    for reader, field_located in zip(readers.values(), located, strict=True):
        nbytes += reader.nbytes(field_located)
    # All of a group at once, not between copies, which push everything else out of the processor's cache.
    sizes, bounds = np.diff(edges).tolist(), edges.tolist()
    return [
        Run(
            numbers[bounds[begin] : bounds[end]],
            [field_located[bounds[begin] : bounds[end]] for field_located in located],
            sizes[begin:end],
            [None if seeds is None else seeds[bounds[number] : bounds[number + 1]] for number in range(begin, end)],
            list(opened),
        )
        for begin, end in itertools.pairwise(_cut_runs(np.add.reduceat(nbytes, edges[:-1]).tolist(), plan.run_bytes))
    ]


def _cut_runs(nbytes: Sequence[int], limit: int) -> list[int]:
    """Return the first batch of each run of up to `limit` bytes, and the number of batches; `nbytes` are theirs."""
    edges, run_bytes = [0], 0
    for number, size in enumerate(nbytes):
        if run_bytes and run_bytes + size > limit:
            edges.append(number)
            run_bytes = 0
        run_bytes += size
    return [*edges, len(nbytes)]


# ---------------------------------------------------------------- reading


def read_run(plan: ReadPlan, run: Run) -> Iterator[Gathered]:
    """Return the batches of a run, which is read now, into memory of the pool if it pays."""
    if run.error is not None:
        raise run.error
    try:
        values = read_located(plan.readers, run.located, plan.pool)
    except DamagedError:
        if plan.skipped is None:
            raise
        values = read_located(plan.readers, _locate_sound(plan.readers, run, plan.skipped), plan.pool)
    run.opened.clear()
    if plan.finisher.takes_runs:
        values = plan.finisher.finish(values, len(run.numbers), None)
    return _split_run(run, [values])


def _split_run(run: Run, values: list[dict[str, Any]]) -> Iterator[Gathered]:
    """Yield the batches of a run, each made when it is asked for, and kept by nobody else.

    A run of tiny samples has thousands: made at once, they would push each other out of the processor's cache.

    Args:
        values: of the whole run, the only item of a list, which is emptied.
    """
    if len(run.sizes) == 1:
        yield values.pop(), run.sizes[0], run.seeds[0]
        return
    parts = {name: split_values(field_values, run.sizes) for name, field_values in values.pop().items()}
    for size, seeds in zip(run.sizes, run.seeds, strict=True):
        yield {name: next(field_parts) for name, field_parts in parts.items()}, size, seeds


def _locate_sound(readers: Mapping[str, FieldReader], run: Run, skipped: dict[int, str]) -> list[Located]:
    """Return where the samples of a run lie that can be read, by field; remove the others from the run.

    Raises:
        DamagedError: no sample of a batch can be read.
    """
    is_sound, errors = np.ones(len(run.numbers), bool), {}

    def check(first: int, stop: int) -> None:
        """Read some samples; if one of them is damaged, each half of them."""
        try:
            read_located(readers, [field_located[first:stop] for field_located in run.located], None)
        except DamagedError as error:
            if stop - first > 1:
                check(first, (first + stop) // 2)
                check((first + stop) // 2, stop)
                return
            is_sound[first], errors[first] = False, str(error)

    check(0, len(is_sound))
    bounds = starts_of(run.sizes).tolist()
    for number, (first, stop) in enumerate(itertools.pairwise(bounds)):
        sound = np.flatnonzero(is_sound[first:stop])
        if not len(sound):
            raise DamagedError(f"{errors[first]}; no sample of this batch can be read")
        seeds = run.seeds[number]
        run.sizes[number], run.seeds[number] = len(sound), None if seeds is None else seeds[sound]
    for place, error in errors.items():
        remark(f"sample {run.numbers[place]} is skipped: {error}")
        skipped[int(run.numbers[place])] = error
    return [field_located[np.flatnonzero(is_sound)] for field_located in run.located]


def split_values(values: Any, sizes: list[int]) -> Iterator[Any]:
    """Return the batches of a run: parts of the values of one field, with `sizes` samples; made one by one.

    Args:
        values: tensors, or arrays in their place.
    """
    if isinstance(values, torch.Tensor):
        return split_with_own_storage(values, sizes)
    if isinstance(values, np.ndarray) and len(set(sizes)) == 1:
        return iter(values.reshape(len(sizes), sizes[0], *values.shape[1:]))
    if isinstance(values, dict):
        parts = {name: split_values(part, sizes) for name, part in values.items()}
        return ({name: next(part) for name, part in parts.items()} for _ in sizes)
    edges = [0, *itertools.accumulate(sizes)]
    if not isinstance(values, Ragged):
        return (values[start:stop] for start, stop in itertools.pairwise(edges))
    ends = np.asarray(values.offsets)
    rows = split_values(values.values, np.diff(ends[edges]).tolist())
    offsets = (ends[start : stop + 1] - ends[start] for start, stop in itertools.pairwise(edges))
    return map(Ragged, rows, map(torch.from_numpy, offsets) if isinstance(values.offsets, torch.Tensor) else offsets)
