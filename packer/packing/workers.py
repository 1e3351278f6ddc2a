"""Runs shard tasks: in processes of our own, or by an executor of somebody else's (a pool, a Dask cluster, MPI).

In processes of our own a sample whose reading crashes, hangs or takes too much memory is found and treated as any bad
one: it stops the conversion, or the shard is packed anew without it. A foreign executor runs the plain task.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future, as_completed
from dataclasses import replace
from itertools import islice
from typing import Any

from packer.errors import PackerError, SourceError, WriteError
from packer.packing.rejected import Rejected
from packer.packing.tasks import ShardReport, ShardTask, read_blocks, remove_partials, write_shard
from packer.sources.apart import Here, Limits, Lost, each, run
from packer.sources.base import Progress, Source, read_through

#: Samples' progress is sent after this many raw bytes, since a message costs more than a small sample.
_TELL_BYTES = 2**20

_log = logging.getLogger(__name__)


def run_processes(
    tasks: Sequence[ShardTask], workers: int, progress: Progress, limits: Limits | None = None
) -> Iterator[ShardReport]:
    """Yield the reports of all tasks, in the order in which they finish. Closed, it stops what is being packed.

    Args:
        limits: what reading a sample may take; None for the usual ones.

    Raises:
        PackerError: what a task raises; the others are stopped.
        SourceError: reading a sample crashes, hangs or takes too much memory, and such samples are not skipped.
        WriteError: a process was killed or crashed.
    """
    limits = limits or Limits()
    try:
        while tasks:
            told: Counter[tuple[int, int]] = Counter()  # samples (0) and bytes (1) by number of the task
            again = []

            def tell(number: int, amount: tuple[int, int], told: Counter[tuple[int, int]] = told) -> None:
                told.update({(number, 0): amount[0], (number, 1): amount[1]})
                progress(*amount)

            with contextlib.closing(run(_pack, tasks, workers, limits, tell)) as results:
                for number, result in results:
                    if isinstance(result, Lost):
                        again.append(_without_culprit(tasks[number], result))
                        progress(-told[number, 0], -told[number, 1])
                    else:
                        yield result
            tasks = again
    finally:
        remove_partials(tasks)  # of those that were stopped


def _pack(task: ShardTask, here: Here) -> ShardReport:
    """Pack the shard of a task in a process of its own, and tell how far it is."""
    samples = nbytes = 0

    def tell(more_samples: int, more_bytes: int) -> None:
        nonlocal samples, nbytes
        samples += more_samples
        nbytes += more_bytes
        if nbytes >= _TELL_BYTES:
            here.tell((samples, nbytes))
            samples = nbytes = 0

    try:
        report = write_shard(task, tell, here.step)
    except (PackerError, MemoryError, BrokenPipeError, ConnectionResetError):
        raise
    except Exception as error:
        _log.debug("shard %d", task.shard.number, exc_info=True)
        raise WriteError(f"shard {task.shard.number} was not packed: {type(error).__name__}: {error}") from None
    here.tell((samples, nbytes))
    return report


def _without_culprit(task: ShardTask, lost: Lost) -> ShardTask:
    """Return the task of a process that was lost, without the sample whose reading was the reason.

    Raises:
        SourceError: there is such a sample, and bad ones are not skipped.
        WriteError: there is none.
    """
    remove_partials([task])
    found = None if lost.at is None else _culprit(task, lost.at, lost.limits)
    if found is None:
        if lost.kind == "memory":
            raise WriteError(f"shard {task.shard.number}: out of memory; take fewer --workers, or raise --read-memory")
        how = "read for too long" if lost.kind == "time" else f"died ({lost.ending})"
        kept = "what is finished is kept, " if any(task.path.parent.glob("*.lmdb")) else ""
        raise WriteError(
            f"the process that packed shard {task.shard.number} {how}; {kept}run the same command again to go on"
        )
    number, error = found
    if not task.skip:
        raise error
    _log.warning("%s; the shard is packed anew without it", error)
    return replace(task, crashing={**task.crashing, number: Rejected.of(error, task.source.kind)})


def _culprit(task: ShardTask, at: int, limits: Limits) -> tuple[int, SourceError] | None:
    """Return the sample of the block at number `at` that ends the process that reads it, and how; None if none does.

    Reads in processes of their own: the block again, then halves of it.
    """
    source = task.source
    if _fault(_read_block, source.part(at, len(source)), limits) is None:
        return None
    good, step = at, 1
    while (error := _fault(_read_all, source.part(good, min(good + step, len(source))), limits)) is None:
        good, step = good + step, step * 2
        if good >= len(source):
            return None
    bad = min(good + step, len(source))
    while bad - good > 1:
        middle = (good + bad) // 2
        found = _fault(_read_all, source.part(good, middle), limits)
        if found is None:
            good = middle
        else:
            bad, error = middle, found
    # A sample of several files may be the fault of any of them.
    names, files = source.names, source.part(good, good + 1).files()
    which = f"{task.shard.start + good:,}" if names is None else repr(names[good])
    return good, SourceError(f"sample {which}: {error.reason}", " or ".join(files) or None, good)


def _fault(function: Any, part: Source, limits: Limits) -> SourceError | None:
    """Return what ended the process that reads; None if it came through."""
    return next((found for found in each(function, [part], limits) if isinstance(found, SourceError)), None)


def _read_all(source: Source) -> None:
    """Read all samples; bad ones are passed over."""
    with contextlib.suppress(SourceError):  # an error is no crash; whoever packs the shard meets it too
        for _ in read_blocks(source, [], finish=read_through):
            pass


def _read_block(source: Source) -> None:
    with contextlib.suppress(SourceError):
        for block in islice(source.read(), 1):
            read_through(block)


def run_executor(tasks: Sequence[ShardTask], executor: Executor, progress: Progress) -> Iterator[ShardReport]:
    """Yield the reports of the tasks, in any order. Those that still wait are cancelled when the caller stops.

    Raises:
        PackerError: of a task.
        WriteError: a task was lost.
    """
    futures: dict[Future[ShardReport], ShardTask] = {}
    try:
        for task in tasks:
            try:
                futures[executor.submit(write_shard, task)] = task
            except RuntimeError as error:  # it was shut down
                raise WriteError(f"the executor takes no shards: {error}") from error
        for future in as_completed(futures):
            try:
                report = future.result()
            except PackerError:
                raise
            except Exception as error:
                number = futures[future].shard.number
                raise WriteError(f"shard {number} was not packed: {type(error).__name__}: {error}") from error
            remove_partials([futures[future]])  # of a worker that was lost, so that another did its work
            progress(report.entry.samples, report.raw_bytes)
            yield report
    finally:
        for future in futures:
            future.cancel()
