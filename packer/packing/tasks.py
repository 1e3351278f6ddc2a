"""One shard as a task: a pure function of source, schema and plan. Runs tasks in our own processes, or by an executor.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue

import msgspec
import numpy as np
import xxhash

from packer.errors import PackerError, SourceError, WriteError
from packer.format import (
    ColumnTotals,
    Field,
    Shard,
    ShardEntry,
    ShardWriter,
    check_file,
    clear_errors,
    file_digest,
    shard_totals,
)
from packer.packing.cutting import ShardPlan
from packer.packing.note import report_file, shard_file
from packer.packing.places import Place
from packer.packing.rejected import Rejected
from packer.packing.source_files import Stamps, changed_files
from packer.sources import BLOCK_BYTES, Block, Source, block_bytes, count, read_through, stamps_when_read
from packer.watcher import NOBODY, Watcher
from packer.workers import Limits, Lost, Reporter, keep_memory, run_in_processes

_log = logging.getLogger(__name__)

#: Calls that an executor is given at one time: more than a cluster has workers.
WAITING_CALLS = 1024
#: Small shards are packed by one call up to so many raw bytes, if there are at least so many calls.
CALL_BYTES, LEAST_CALLS = 2**24, 32

#: Samples of the part that is read after a bad one; each further part has twice as many. To make a part takes time for
#: each sample in it, and the next bad one may be near.
_AFTER_BAD = 64

#: Returns the context in which a block is read, given the number of its first sample.
Step = Callable[[int], contextlib.AbstractContextManager[object]]


@dataclass(frozen=True)
class ShardTask:
    """All that packing one shard needs; pickles small.

    Attributes:
        source: the samples of this shard alone.
        place: of the dataset; the process that packs the shard puts it there.
        run: that makes the shard.
        shard: as the plan has it.
        fields: how every field is stored.
        skip: skip samples that cannot be read, instead of stopping.
        map_limit: the LMDB map must not get larger than this; None for no limit.
        crashing: samples that would end this process, or were skipped before, by number: they are not read, but listed
            as skipped.
        number: in the names of the files; None for that of the shard.
        base: the shard whose columns are taken over as they are, so far as `fields` has them, and its schema. The
            source gives the other fields of its samples.
        stamps: of the files of the source when it was planned, in their order; None if nobody compares them here.
        is_digested: whether the report has a digest of the samples: those in memory have no files that identify them.
    """

    source: Source
    place: Place
    run: str
    shard: ShardPlan
    fields: tuple[Field, ...]
    skip: bool = False
    map_limit: int | None = None
    crashing: Mapping[int, Rejected] = field(default_factory=dict)
    number: int | None = None
    base: tuple[ShardEntry, tuple[Field, ...]] | None = None
    is_digested: bool = False
    stamps: Stamps | None = None


class ShardReport(msgspec.Struct, frozen=True):
    """The result of packing a shard.

    Attributes:
        number: of the shard among those of its run.
        entry: of the shard, as the manifest will have it.
        columns: bytes of every column, by field.
        rejected: the samples that were skipped, by their number in the shard's part of the source.
        samples_digest: xxh3-128 of the samples, if they were in memory.
    """

    number: int
    entry: ShardEntry
    columns: dict[str, ColumnTotals]
    rejected: dict[int, Rejected]
    samples_digest: str = ""

    @property
    def raw_bytes(self) -> int:
        return sum(column.raw for column in self.columns.values())


class _ChangedFiles(Exception):  # noqa: N818 - no error: the shard is packed again
    """Files were changed before they were read, or while they were: `samples` are skipped for it, by number."""

    def __init__(self, samples: Mapping[int, Rejected]) -> None:
        super().__init__()
        self.samples = samples


def write_shard(task: ShardTask, watcher: Watcher = NOBODY, step: Step = contextlib.nullcontext) -> ShardReport:
    """Pack one shard as a draft, and put it in its place, with its report behind it.

    Raises:
        SourceError: a sample cannot be read, or its file was changed, unless such samples are skipped.
        WriteError: the shard cannot be written.
        DamagedError: the shard whose columns are taken over is damaged.
    """
    keep_memory()
    while True:
        amounts: Counter[str] = Counter()

        def count_done(samples: int, nbytes: int, amounts: Counter[str] = amounts) -> None:
            amounts.update(samples=samples, nbytes=nbytes)
            watcher.done(samples, nbytes)

        try:
            return _write_once(task, count_done, step)
        except _ChangedFiles as changed:
            watcher.done(-amounts["samples"], -amounts["nbytes"])
            task = replace(task, crashing={**task.crashing, **changed.samples})


def _write_once(task: ShardTask, done: Callable[[int, int], object], step: Step) -> ShardReport:
    number = task.shard.number if task.number is None else task.number
    file = shard_file(task.run, number)
    # A draft of its own: a process that its scheduler has given up may go on for a while, and must not rename a file
    # that another process has half written.
    draft = task.place.draft(file)
    rejected: dict[int, Rejected] = {}
    writer = ShardWriter(
        draft,
        task.shard.number,
        task.fields,
        map_size=task.shard.map_size,
        named=task.source.names is not None,
        map_limit=task.map_limit,
    )
    with contextlib.ExitStack() as stack, writer:
        if task.base is not None:
            entry, fields = task.base
            writer.take(stack.enter_context(_open_checked(task.place, entry)), fields)
            done(0 if len(task.source) else entry.samples, entry.bytes)
        skipped = rejected if task.skip else None
        digest = xxhash.xxh3_128()
        when_read = stack.enter_context(stamps_when_read())
        for block, names in read_blocks(task.source, skipped, task.crashing, step, writer.encoded):
            bytes_before = writer.raw_bytes
            writer.add(block, count(block), names if task.base is None else None)
            if task.is_digested:
                _digest_block(digest, block)
            done(count(block), writer.raw_bytes - bytes_before)
        _check_unchanged(task, rejected, when_read)
    samples_digest = digest.hexdigest() if task.is_digested else ""
    return finish_shard(task.place, task.run, number, draft, task.fields, rejected, samples_digest)


def _check_unchanged(
    task: ShardTask, rejected: Mapping[int, Rejected], when_read: Mapping[str, tuple[int, int]]
) -> None:
    """Compare the files of a shard, which were read, with what they were when it was planned.

    Args:
        rejected: the samples that are skipped already.
        when_read: what files were when they had been read.

    Raises:
        SourceError: one is another, and bad samples are not skipped.
        _ChangedFiles: samples are to be skipped for it.
    """
    changed = {} if task.stamps is None else changed_files(task.source.files(), task.stamps, when_read)
    if not changed:
        return
    if not task.skip:
        path, reason = next(iter(changed.items()))
        raise SourceError(reason, path)
    samples: dict[int, Rejected] = {}
    for number in range(len(task.source)):
        files = [path for path in task.source.slice(number, number + 1).files() if path in changed]
        if files and number not in rejected:
            samples[number] = Rejected.of(SourceError(changed[files[0]], files[0]), task.source.kind)
    if samples:
        raise _ChangedFiles(samples)


def digest_samples(source: Source, skip: bool = False) -> str:
    """Return the xxh3-128 of all samples of a source, in hex: it identifies those in memory.

    Args:
        skip: skip samples that cannot be read, instead of stopping.

    Raises:
        SourceError: a sample cannot be read.
    """
    digest = xxhash.xxh3_128()
    for block, _ in read_blocks(source, {} if skip else None):
        _digest_block(digest, block)
    return digest.hexdigest()


def _digest_block(digest: xxhash.xxh3_128, block: Block) -> None:
    for name, values in block.items():
        for value in values:
            data = value.encode() if isinstance(value, str) else np.ascontiguousarray(value).tobytes()
            digest.update(f"{name} {getattr(value, 'shape', None)} {len(data)} ".encode() + data)


def _open_checked(place: Place, entry: ShardEntry) -> Shard:
    """Return a shard of a dataset, open, after its digest was compared: damage is not taken over."""
    path = place.local([entry]) / entry.file
    try:
        check_file(path, entry, whole=True)
        return Shard(path, entry.bytes, entry.index)
    finally:
        place.release([entry])


def read_blocks(
    source: Source,
    rejected: dict[int, Rejected] | None,
    crashing: Mapping[int, Rejected] | None = None,
    step: Step = contextlib.nullcontext,
    finish: Callable[[Block], Block] = dict,
) -> Iterator[tuple[Block, Sequence[str] | None]]:
    """Yield the blocks of a source with the names of their samples.

    Args:
        rejected: bad samples are added here, by number, and skipped; None to raise at the first.
        crashing: entries of samples that are not read, by number; they are added to `rejected`.
        step: returns the context in which a block is read, given the number of its first sample.
        finish: called with every block within its step; it reads the large arrays, and its result is yielded.

    Raises:
        SourceError: a sample cannot be read, and there is no `rejected`, or the error names no sample.
    """
    number, part_size = 0, len(source)
    for next_crash, crash in [*sorted((crashing or {}).items()), (len(source), None)]:
        while number < next_crash:
            part_stop = min(next_crash, number + part_size)
            part = source if (number, part_stop) == (0, len(source)) else source.slice(number, part_stop)
            try:
                blocks = part.read()
                while True:
                    with step(number):
                        raw_block = next(blocks, None)
                        block = None if raw_block is None else finish(raw_block)
                    if block is None:
                        break
                    end = number + count(block)
                    yield block, None if source.names is None else source.names[number:end]
                    number = end
                number, part_size = part_stop, 2 * part_size
            except SourceError as error:
                if rejected is None or error.sample is None:
                    raise
                rejected[number] = Rejected.of(error, source.kind)
                number += 1
                part_size = _AFTER_BAD
        if crash and rejected is not None:
            rejected[next_crash] = crash
        number = next_crash + 1


def finish_shard(
    place: Place,
    run: str,
    number: int,
    draft: Path,
    fields: Sequence[Field],
    rejected: Mapping[int, Rejected] | None = None,
    samples_digest: str = "",
) -> ShardReport:
    """Put a finished shard in its place, and its report behind it; a shard without one is packed again.

    Raises:
        WriteError: that cannot be done.
    """
    file, rejected_samples = shard_file(run, number), rejected or {}
    with clear_errors(draft):
        draft.stat()  # somebody may have removed the folder
    report = make_report(draft, fields, file)
    entry = msgspec.structs.replace(report.entry, rejected=len(rejected_samples))
    numbered = {
        sample: msgspec.structs.replace(entry_of_sample, shard=number, sample=sample)
        for sample, entry_of_sample in rejected_samples.items()
    }
    report = ShardReport(number, entry, report.columns, numbered, samples_digest)
    place.put_draft(draft, file)
    # Not synced: a report that a power cut takes, or cuts short, costs no more than packing its shard again.
    name = report_file(run, number)
    report_draft = place.draft(name)
    with clear_errors(report_draft):
        report_draft.write_bytes(msgspec.json.encode(report))
    place.put_draft(report_draft, name)
    return report


def make_report(path: Path, fields: Sequence[Field], file: str) -> ShardReport:
    """Return the report of a shard of which nothing was skipped.

    Args:
        file: its path within the dataset.

    Raises:
        DamagedError: the shard cannot be read.
    """
    with Shard(path) as shard:
        header = shard.header()
        columns = shard_totals([shard.index(number, field, header.samples) for number, field in enumerate(fields)])
        index = shard.index_digest()
    size, digest = path.stat().st_size, file_digest(path)
    entry = ShardEntry(file=file, bytes=size, digest=digest, samples=header.samples, index=index)
    return ShardReport(header.shard, entry, columns, {})


# ---------------------------------------------------------------- running tasks


def run_tasks(
    tasks: Sequence[ShardTask],
    watcher: Watcher,
    workers: int = 0,
    limits: Limits | None = None,
    executor: Executor | None = None,
) -> Iterator[ShardReport]:
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


def _run_processes(tasks: Sequence[ShardTask], workers: int, watcher: Watcher, limits: Limits) -> Iterator[ShardReport]:
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
                if not tasks[number].skip:
                    _drop_culprits(lost, 1, limits)  # which raises its error
        tasks = _drop_culprits(lost, workers, limits)


def _pack(task: ShardTask, reporter: Reporter) -> ShardReport:
    """Pack the shard of a task in a process of its own, and report how far it is."""
    try:
        return write_shard(task, Watcher(done=lambda *amount: reporter.report(amount)), reporter.step)
    except (PackerError, MemoryError, BrokenPipeError, ConnectionResetError):
        raise
    except Exception as error:
        _log.debug("shard %d", task.shard.number, exc_info=True)
        raise WriteError(f"shard {task.shard.number} was not packed: {type(error).__name__}: {error}") from None


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
        number: (task.source, result.step, BLOCK_BYTES)
        for number, (task, result) in enumerate(lost)
        if result.step is not None
    }
    while searches:
        numbers, items = list(searches), list(searches.values())
        searches = {}
        for index, result in run_in_processes(_read_alone, items, workers, limits):
            if isinstance(result, Lost) and result.step is not None:
                task = lost[numbers[index]][0]
                error = _culprit_error(task.source, task.shard.start, result)
                if not task.skip:
                    raise error
                _log.warning("%s; the shard is packed again without it", error)
                culprits[numbers[index]][result.step] = Rejected.of(error, task.source.kind)
                searches[numbers[index]] = task.source, result.step + 1, sys.maxsize
    for (task, result), culprit in zip(lost, culprits, strict=True):
        if culprit.keys() <= task.crashing.keys():
            raise WriteError(
                f"packing shard {task.shard.number} {result.reason}; no sample does so when it is read alone: run the "
                "same command again to go on, with fewer --workers if memory is short; finished shards are kept"
            )
    return [
        replace(task, crashing={**task.crashing, **culprit}) for (task, _), culprit in zip(lost, culprits, strict=True)
    ]


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


def _run_executor(tasks: Sequence[ShardTask], executor: Executor, watcher: Watcher) -> Iterator[ShardReport]:
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
                    raise WriteError(f"the executor takes no shards: {error}") from error
                futures[future] = call
                future.add_done_callback(done.put)
            if not futures:
                return
            future = done.get()
            number = futures.pop(future)[0].shard.number
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
        if call and (len(call) == most_tasks or nbytes + task.shard.raw_bytes > CALL_BYTES):
            yield call
            call, nbytes = [], 0
        call.append(task)
        nbytes += task.shard.raw_bytes
    if call:
        yield call
