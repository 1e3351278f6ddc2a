"""Runs tasks that pack shards: in this process, in processes of our own, or by an executor.

In processes of our own, a sample whose reading crashes, hangs or takes too much memory is found and treated as any bad
one: it stops the conversion, or the shard is packed again without it. An executor (a pool, a Dask cluster, MPI) runs
the plain task.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import sys
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Executor, Future
from queue import SimpleQueue

from packer.errors import PackerError, SourceError, WriteError
from packer.packing.rejected import Rejected
from packer.packing.tasks import ShardReport, ShardTask, write_shard
from packer.sources import BLOCK_BYTES, Source, block_bytes, read_through
from packer.watcher import Watcher
from packer.workers import Limits, Lost, Reporter, run_in_processes

_log = logging.getLogger(__name__)

#: Calls that an executor is given at one time: more than a cluster has workers.
WAITING_CALLS = 1024
#: Small shards are packed by one call up to so many raw bytes, if there are at least so many calls.
CALL_BYTES, LEAST_CALLS = 2**24, 32


def run_tasks(
    tasks: Sequence[ShardTask],
    watcher: Watcher,
    workers: int = 0,
    limits: Limits | None = None,
    executor: Executor | None = None,
) -> Generator[ShardReport]:
    """Yield the reports of all tasks, in the order in which they finish. Closed, it stops the others.

    Args:
        workers: processes of our own; 0 packs in this one, without limits.
        limits: of reading a sample in processes of our own; None for the usual ones.
        executor: runs the tasks instead.

    Raises:
        PackerError: what a task raises; the others are stopped.
        SourceError: reading a sample crashes, hangs or takes too much memory, and such samples are not skipped.
        WriteError: a process was killed or crashed, or a task was lost.
    """
    if executor is not None:
        return _run_executor(tasks, executor, watcher)
    if workers:
        return _run_processes(tasks, workers, watcher, limits or Limits())
    return (write_shard(task, watcher) for task in tasks)


def _run_processes(
    tasks: Sequence[ShardTask], workers: int, watcher: Watcher, limits: Limits
) -> Generator[ShardReport]:
    while tasks:
        amounts: Counter[tuple[int, int]] = Counter()  # samples (0) and bytes (1) by number of the task
        lost: list[tuple[ShardTask, Lost]] = []

        def count_done(number: int, amount: tuple[int, int], amounts: Counter[tuple[int, int]] = amounts) -> None:
            amounts.update({(number, 0): amount[0], (number, 1): amount[1]})
            watcher.done(*amount)

        with contextlib.closing(run_in_processes(_pack, tasks, workers, limits, count_done)) as results:
            for number, result in results:
                if not isinstance(result, Lost):
                    yield result
                    continue
                watcher.done(-amounts[number, 0], -amounts[number, 1])
                lost.append((tasks[number], result))
                if not tasks[number].make.skip:
                    _drop_culprits(lost, 1, limits)  # which raises its error
        tasks = _drop_culprits(lost, workers, limits)


def _pack(task: ShardTask, reporter: Reporter) -> ShardReport:
    """Pack the shard of a task in a process of its own, and report how far it is."""
    try:
        return write_shard(task, Watcher(done=lambda *amount: reporter.report(amount)), reporter.step)
    except (PackerError, MemoryError, BrokenPipeError, ConnectionResetError):
        raise
    except Exception as error:
        _log.debug("shard %d", task.make.shard.number, exc_info=True)
        raise WriteError(f"shard {task.make.shard.number} was not packed: {type(error).__name__}: {error}") from None


def _drop_culprits(lost: Sequence[tuple[ShardTask, Lost]], workers: int, limits: Limits) -> list[ShardTask]:
    """Return the tasks of processes that were lost, without the samples that are the cause.

    Other processes read the samples one at a time; the sample that kills one is a culprit. After the first of a shard,
    the rest of the shard is read like this, so that it is packed once more, and not once for each culprit.

    Raises:
        SourceError: there is such a sample, and bad ones are not skipped.
        WriteError: there is none in a shard.
    """
    culprits: list[dict[int, Rejected]] = [{} for _ in lost]
    searches = {
        number: (task.make.source, result.step, BLOCK_BYTES)
        for number, (task, result) in enumerate(lost)
        if result.step is not None
    }
    while searches:
        numbers, items = list(searches), list(searches.values())
        searches = {}
        for index, result in run_in_processes(_read_alone, items, workers, limits):
            if isinstance(result, Lost) and result.step is not None:
                task = lost[numbers[index]][0]
                error = _culprit_error(task.make.source, task.make.shard.start, result)
                if not task.make.skip:
                    raise error
                _log.warning("%s; the shard is packed again without it", error)
                culprits[numbers[index]][result.step] = Rejected.of(error, task.make.source.kind)
                searches[numbers[index]] = task.make.source, result.step + 1, sys.maxsize
    for (task, result), culprit in zip(lost, culprits, strict=True):
        if culprit.keys() <= task.make.known_bad.keys():
            raise WriteError(
                f"packing shard {task.make.shard.number} {result.reason}; no sample does so when it is read alone: run "
                "the same command again to go on, with fewer --workers if memory is short; finished shards are kept"
            )
    return [task.without(culprit) for (task, _), culprit in zip(lost, culprits, strict=True)]


def find_culprit(source: Source, start: int, lost: Lost, limits: Limits) -> SourceError:
    """Return the error of the sample that ended a process: samples of the block that it read are read one by one.

    Args:
        start: number of the first sample of the source, for samples without names.
    """
    ((_, result),) = run_in_processes(_read_alone, [(source, lost.step or 0, BLOCK_BYTES)], 1, limits)
    return _culprit_error(source, start, result if isinstance(result, Lost) else lost)


def _culprit_error(source: Source, start: int, lost: Lost) -> SourceError:
    """Return the error of the sample that a process read alone when it was lost."""
    number = lost.step or 0
    # Any file of the sample may be at fault.
    names, files = source.names, source.slice(number, number + 1).files()
    sample = f"{start + number:,}" if names is None else repr(names[number])
    return SourceError(f"sample {sample}: {lost.error.reason}", " or ".join(files) or None, number)


def _read_alone(search: tuple[Source, int, int], reporter: Reporter) -> None:
    """Read samples, each by itself and as one step: source, number of the first, and about how many bytes."""
    source, first, most_bytes = search
    nbytes = 0
    for number in range(first, len(source)):
        if nbytes > most_bytes:
            return
        with (
            contextlib.suppress(SourceError),
            reporter.step(number),
        ):  # the error comes up again when the shard is packed
            nbytes += sum(block_bytes(read_through(block)) for block in source.slice(number, number + 1).read())


def write_shards(tasks: Sequence[ShardTask]) -> list[ShardReport]:
    """Pack some shards, one after another; raises as `write_shard`."""
    return [write_shard(task) for task in tasks]


def _run_executor(tasks: Sequence[ShardTask], executor: Executor, watcher: Watcher) -> Generator[ShardReport]:
    """Yield the reports of the tasks; those that still wait are cancelled when the caller stops.

    A few calls for each worker wait at a time: an executor keeps what it is given, and there may be 100,000.
    """
    waiting = _group_tasks(tasks)
    futures: dict[Future[list[ShardReport]], Sequence[ShardTask]] = {}
    # Futures come here by themselves: to wait for all of them takes time for each of them, at each one that is done.
    done: SimpleQueue[Future[list[ShardReport]]] = SimpleQueue()
    try:
        while True:
            for call in itertools.islice(waiting, WAITING_CALLS - len(futures)):
                try:
                    future = executor.submit(write_shards, call)
                except RuntimeError as error:  # it was shut down
                    raise WriteError(
                        f"the executor takes no shards: {error}; give one that is not shut down"
                    ) from error
                futures[future] = call
                future.add_done_callback(done.put)
            if not futures:
                return
            future = done.get()
            number = futures.pop(future)[0].make.shard.number
            try:
                reports = future.result()
            except PackerError:
                raise
            except Exception as error:
                raise WriteError(f"shard {number} was not packed: {type(error).__name__}: {error}") from error
            for report in reports:
                watcher.done(report.entry.samples, report.raw_bytes)
                yield report
    finally:
        for future in futures:
            future.cancel()


def _group_tasks(tasks: Sequence[ShardTask]) -> Iterator[Sequence[ShardTask]]:
    """Yield the tasks of each call of an executor: one, or several of small shards, since a call takes some ms."""
    most_tasks, call, nbytes = max(1, len(tasks) // LEAST_CALLS), list[ShardTask](), 0
    for task in tasks:
        if call and (len(call) == most_tasks or nbytes + task.make.shard.raw_bytes > CALL_BYTES):
            yield call
            call, nbytes = [], 0
        call.append(task)
        nbytes += task.make.shard.raw_bytes
    if call:
        yield call
