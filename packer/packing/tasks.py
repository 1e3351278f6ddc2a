"""One shard as a task: a pure function of source, schema and plan. `running.py` runs tasks.

A sample that cannot be read, or whose file is not as it was planned, stops the task, or is skipped and listed.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import numpy as np
import xxhash

from packer.errors import SourceError
from packer.format import (
    ColumnTotals,
    Field,
    Shard,
    ShardEntry,
    ShardWriter,
    check_file,
    clear_errors,
    file_entry,
    removed_if_stopped,
    shard_totals,
)
from packer.packing.cutting import ShardPlan
from packer.packing.note import report_file, shard_file
from packer.packing.places import Place
from packer.packing.rejected import Rejected
from packer.packing.source_files import Stamps, changed_files
from packer.sources import Block, Source, count, stamps_when_read
from packer.watcher import NOBODY, Watcher
from packer.workers import keep_memory

#: Samples of the part that is read after a bad one; each further part has twice as many. To make a part takes time for
#: each sample in it, and the next bad one may be near.
_AFTER_BAD = 64

#: Returns the context in which a block is read, given the number of its first sample.
Step = Callable[[int], contextlib.AbstractContextManager[object]]


@dataclass(frozen=True)
class Make:
    """A shard that is packed; pickles small.

    Attributes:
        source: its samples alone.
        shard: as the plan has it.
        skip: skip samples that cannot be read, instead of stopping.
        base: the shard whose columns are taken over as they are, so far as the new one has their fields, and its
            schema. The source gives the other fields of its samples.
        number: in the names of its files; None for that of the plan.
        stamps: of the files of the source when it was planned, in their order; None if nobody compares them here.
        known_bad: samples that are not read, but listed as skipped, by number: one would end this process, its file
            has changed, or it was skipped before.
    """

    source: Source
    shard: ShardPlan
    skip: bool = False
    base: tuple[ShardEntry, tuple[Field, ...]] | None = None
    number: int | None = None
    stamps: Stamps | None = None
    known_bad: Mapping[int, Rejected] = field(default_factory=dict)

    @property
    def file_number(self) -> int:
        """Return the number in the names of its files."""
        return self.shard.number if self.number is None else self.number

    @property
    def samples(self) -> int:
        return self.shard.samples if self.base is None else self.base[0].samples


@dataclass(frozen=True)
class ShardTask:
    """All that packing one shard needs; pickles small.

    Attributes:
        make: the shard.
        place: of the dataset; the process that packs the shard puts it there.
        run: that makes the shard.
        fields: how every field is stored.
        map_limit: the LMDB map must not get larger than this; None for no limit.
        is_digested: whether the report has a digest of the samples: those in memory have no files that identify them.
    """

    make: Make
    place: Place
    run: str
    fields: tuple[Field, ...]
    map_limit: int | None = None
    is_digested: bool = False

    def without(self, bad: Mapping[int, Rejected]) -> ShardTask:
        """Return the same task, but for samples that are known to be bad, by number."""
        return replace(self, make=replace(self.make, known_bad={**self.make.known_bad, **bad}))


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

        # A draft of its own: a process that its scheduler has given up may go on for a while, and must not rename a
        # file that another process has half written.
        draft = task.place.draft(shard_file(task.run, task.make.file_number))
        try:
            with removed_if_stopped(draft):
                return _write_once(task, draft, count_done, step)
        except _ChangedFiles as changed:
            watcher.done(-amounts["samples"], -amounts["nbytes"])
            task = task.without(changed.samples)


def _write_once(task: ShardTask, draft: Path, done: Callable[[int, int], object], step: Step) -> ShardReport:
    make = task.make
    rejected: dict[int, Rejected] = {}
    writer = ShardWriter(
        draft,
        make.shard.number,
        task.fields,
        map_size=make.shard.map_size,
        named=make.source.names is not None,
        map_limit=task.map_limit,
    )
    with contextlib.ExitStack() as stack, writer:
        if make.base is not None:
            entry, fields = make.base
            writer.take(stack.enter_context(_open_checked(task.place, entry)), fields)
            done(0 if len(make.source) else entry.samples, entry.bytes)
        skipped = rejected if make.skip else None
        digest = xxhash.xxh3_128()
        when_read = stack.enter_context(stamps_when_read())
        for block, names in read_blocks(make.source, skipped, make.known_bad, step, writer.encoded):
            bytes_before = writer.raw_bytes
            writer.add(block, count(block), names if make.base is None else None)
            if task.is_digested:
                _digest_block(digest, block)
            done(count(block), writer.raw_bytes - bytes_before)
        _check_unchanged(make, rejected, when_read)
    samples_digest = digest.hexdigest() if task.is_digested else ""
    return finish_shard(task.place, task.run, make.file_number, draft, task.fields, rejected, samples_digest)


def _check_unchanged(make: Make, rejected: Mapping[int, Rejected], when_read: Mapping[str, tuple[int, int]]) -> None:
    """Compare the files of a shard, which were read, with what they were when it was planned.

    Args:
        rejected: the samples that are skipped already.
        when_read: what files were when they had been read.

    Raises:
        SourceError: one is another, and bad samples are not skipped.
        _ChangedFiles: samples are to be skipped for it.
    """
    changed = {} if make.stamps is None else changed_files(make.source.files(), make.stamps, when_read)
    if not changed:
        return
    if not make.skip:
        path, reason = next(iter(changed.items()))
        raise SourceError(reason, path)
    samples: dict[int, Rejected] = {}
    for number in range(len(make.source)):
        files = [path for path in make.source.slice(number, number + 1).files() if path in changed]
        if files and number not in rejected:
            samples[number] = Rejected.of(SourceError(changed[files[0]], files[0]), make.source.kind)
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
    known_bad: Mapping[int, Rejected] | None = None,
    step: Step = contextlib.nullcontext,
    finish: Callable[[Block], Block] = dict,
) -> Iterator[tuple[Block, Sequence[str] | None]]:
    """Yield the blocks of a source with the names of their samples.

    Args:
        rejected: bad samples are added here, by number, and skipped; None to raise at the first.
        known_bad: entries of samples that are not read, by number; they are added to `rejected`.
        step: returns the context in which a block is read, given the number of its first sample.
        finish: called with every block within its step; it reads the large arrays, and its result is yielded.

    Raises:
        SourceError: a sample cannot be read, and there is no `rejected`, or the error names no sample.
    """
    number, part_size = 0, len(source)
    for next_bad, entry in [*sorted((known_bad or {}).items()), (len(source), None)]:
        while number < next_bad:
            part_stop = min(next_bad, number + part_size)
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
        if entry and rejected is not None:
            rejected[next_bad] = entry
        number = next_bad + 1


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
    with place.drafted(name) as report_draft, clear_errors(report_draft):
        report_draft.write_bytes(msgspec.json.encode(report))
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
    entry = file_entry(file, path)
    entry = ShardEntry(**msgspec.structs.asdict(entry), samples=header.samples, index=index)
    return ShardReport(header.shard, entry, columns, {})
