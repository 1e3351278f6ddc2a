"""Plans how a source is packed, and packs the shards that no earlier run has finished.

job = plan_job(source, options, rejected)
with changing(place) as change:
    if not is_published(job, change):
        packed = pack(job, change)
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

import packer
from packer.checking import compare_shard
from packer.codecs import codec_name
from packer.errors import UsageError
from packer.format import Manifest, ShardEntry, Splits
from packer.jobs.options import ConvertOptions, reading_limits
from packer.machine import processors
from packer.packing import (
    Change,
    LocalPlace,
    Note,
    Place,
    Plan,
    Rejected,
    Samples,
    ShardReport,
    ShardTask,
    SharedPlan,
    SourceFiles,
    make_manifest,
    make_plan,
    make_splits,
    read_rejected,
    run_tasks,
    source_files,
)
from packer.sources import SampleSource, Source
from packer.watcher import PACKING, Watcher
from packer.workers import Limits, check_may_start

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Job:
    """A source that is to be packed, and how.

    Attributes:
        files: the source files; none for samples in memory.
        source_bytes: size of all source files.
        limits: of reading in other processes; None to read in this one.
        splits: of all samples, if none is skipped.
        rejected: bad files that were found when the source was opened.
        verb: the command.
        base: the dataset whose columns are copied where the plan has their fields; None to pack all fields.
    """

    source: Source
    plan: Plan
    options: ConvertOptions
    files: SourceFiles
    source_bytes: int
    limits: Limits | None
    splits: Splits
    rejected: list[Rejected]
    verb: str
    base: Manifest | None = None

    def part(self, number: int) -> Source:
        """Return the samples of a shard."""
        shard = self.plan.shards[number]
        return self.source.part(shard.start, shard.stop)


@dataclass(frozen=True)
class Packed:
    """The shards of a job, all finished.

    Attributes:
        manifest: of these samples alone, without tables.
        names: of the samples; None if they have none.
        rejected: all that was skipped.
        kept_shards: how many shards an earlier run had finished.
    """

    manifest: Manifest
    names: Sequence[str] | None
    rejected: list[Rejected]
    kept_shards: int


def plan_job(source: Source, options: ConvertOptions, rejected: list[Rejected], verb: str = "convert") -> Job:
    """Plan how a source is packed. Nothing is written.

    Args:
        rejected: bad files that were found when it was opened.

    Raises:
        As `convert`.
    """
    in_memory = isinstance(source, SampleSource)
    if options.fields is not None and not in_memory:
        raise UsageError("fields is the schema of samples in memory, and files have their own; leave it out")
    limits = reading_limits(options, in_memory)
    if limits is not None and options.executor is None:
        check_may_start()  # before anything is written
    plan = make_plan(source, options.codec, options.shard_size, limits, options.watcher)
    log_plan(plan)
    files, source_bytes = source_files(source.files())
    splits = plan_splits(plan, options, lenient=bool(rejected))
    return Job(source, plan, options, files, source_bytes, limits, splits, rejected, verb)


def log_plan(plan: Plan) -> None:
    """Log the remarks of a plan; with --verbose, its shards too."""
    for remark in plan.remarks:
        _log.info("%s", remark)
    for shard in plan.shards:
        amounts = f"{shard.raw_bytes:,} bytes, map of {shard.map_size:,}"
        _log.debug("shard %d: samples %d to %d, %s", shard.number, shard.start, shard.stop - 1, amounts)


def plan_splits(plan: Plan, options: ConvertOptions, lenient: bool) -> Splits:
    """Return the splits that the samples of a source will be in, if none of them is skipped.

    Args:
        lenient: whether lists may name samples that are not there.

    Raises:
        UsageError: the rules cannot be followed.
    """
    source = plan.source
    samples = Samples(len(source), source.names, plan.origin, shifting=options.on_error == "skip")
    return make_splits(samples, options.splits, source.splits, lenient=lenient)


def make_note(job: Job) -> Note:
    """Return the note of a conversion: everything that decides the bytes of its shards.

    The origin holds the options of the sources, except those that leave bad samples out.
    """
    plan, options = job.plan, job.options
    settings: dict[str, Any] = {
        "the version of packer": packer.__version__,
        "--shard-size": options.shard_size or "chosen by the size of the data",
        "the number of samples": plan.samples,
    }
    settings["the command"] = job.verb
    settings["the list of fields"] = ", ".join(field.name for field in plan.fields)
    for column in plan.fields:
        settings[f"the codec of {column.name}"] = codec_name(column.codec)
        settings |= {
            f"the digits of {column.name}": config["digits"] for config in column.codec if config["id"] == "decimal"
        }
        settings[f"the type of {column.name}"] = column.in_words
        settings[f"the frames of {column.name}"] = msgspec.to_builtins(column.frame)
    settings["the source"] = plan.origin
    settings["the first sample of each shard"] = [shard.start for shard in plan.shards]
    return Note(shards=len(plan.shards), settings=settings, files=job.files)


def is_published(job: Job, change: Change) -> bool:
    """Return whether an earlier run of the same command had published its dataset, and was killed before `tidy`."""
    if job.files.count:
        return change.find_published(make_note(job))
    count = len(job.plan.shards)

    def are_same(entries: Sequence[ShardEntry]) -> bool:
        return len(entries) == count and all(map(partial(_has_same_samples, job, change.place), entries, range(count)))

    return change.find_published(make_note(job), are_same)


def _has_same_samples(job: Job, place: Place, entry: ShardEntry, number: int) -> bool:
    """Return whether a shard holds the samples that it should; for samples in memory, which no files identify."""
    part, start = job.part(number), job.plan.shards[number].start
    problems = compare_shard(place.local([entry]), job.plan.fields, (entry, part, start))
    place.release([entry])
    if problems:
        _log.warning("%s; it is packed again", problems[0])
    return not problems


def pack(job: Job, change: Change, overwrite: bool = True) -> Packed:
    """Pack all shards of a job that an earlier run has not finished.

    Args:
        overwrite: whether a dataset that is there, or another unfinished conversion, may be replaced.

    Raises:
        As `convert`.
    """
    options, plan, source, place = job.options, job.plan, job.source, change.place
    change.begin(make_note(job), overwrite)
    finished = change.reports(ShardReport)
    if not job.files.count:
        finished = {
            number: report for number, report in finished.items() if _has_same_samples(job, place, report.entry, number)
        }
    reports = list(finished.values())
    if isinstance(place, LocalPlace):
        _warn_of_full_disk(place.path, plan.file_bytes - sum(report.entry.bytes for report in reports))
    begin_packing(options.watcher, reports, plan.samples if job.base is None else job.base.samples)
    parts = {shard.number: job.part(shard.number) for shard in plan.shards if shard.number not in finished}
    reports += pack_shards(change, options, job.limits, plan, parts, job.base)
    reports.sort(key=lambda report: report.number)
    rejected = job.rejected + [entry for report in reports for _, entry in sorted(report.rejected.items())]
    shards, names, splits = [report.entry for report in reports], source.names, job.splits
    if any(report.rejected for report in reports):
        names = None if names is None else _packed_names(names, plan, reports)
        if splits:
            samples = Samples(sum(shard.samples for shard in shards), names, plan.origin)
            splits = make_splits(samples, options.splits, source.splits, lenient=True)
    columns = [report.columns for report in reports]
    manifest = make_manifest(
        shards, columns, plan.fields, plan.origin, rejected, planned_bytes=plan.file_bytes, splits=splits
    )
    return Packed(manifest, names, rejected, len(finished))


def _packed_names(names: Sequence[str], plan: Plan, reports: Sequence[ShardReport]) -> list[str]:
    """Return those of the names of all samples whose sample was packed and not skipped."""
    return [
        names[shard.start + number]
        for shard, report in zip(plan.shards, reports, strict=True)
        for number in range(shard.samples)
        if number not in report.rejected
    ]


def begin_packing(watcher: Watcher, finished: Sequence[ShardReport], samples: int) -> None:
    """Begin the step that packs so many samples, those of finished shards included."""
    finished_samples = sum(report.entry.samples for report in finished)
    if finished_samples:
        _log.info("going on after an earlier run, which has packed %s samples", f"{finished_samples:,}")
    watcher.step(PACKING, finished_samples, samples)


def pack_shards(
    change: Change,
    options: ConvertOptions,
    limits: Limits | None,
    plan: Plan | SharedPlan,
    sources: Mapping[int, Source],
    base: Manifest | None = None,
) -> Iterator[ShardReport]:
    """Pack some shards of a plan.

    Args:
        sources: the samples of these shards, by number.
        base: as in `Job`.
    """
    place = change.place
    # Workers of an executor may have another working directory.
    output = LocalPlace(place.path.absolute()) if options.executor and isinstance(place, LocalPlace) else place
    settings = plan.fields, plan.origin, options.on_error == "skip", options.map_limit
    tasks = [
        ShardTask(
            source,
            output,
            change.run,
            plan.shards[number],
            *settings,
            base=None if base is None else (base.shards[number], base.fields),
        )
        for number, source in sources.items()
    ]
    workers = 0 if limits is None else options.workers or processors()
    return run_tasks(tasks, options.watcher, workers, limits, options.executor)


def fetch_rejected(place: Place, manifest: Manifest) -> list[Rejected]:
    """Return the samples that were skipped when a dataset was made; raises as `read_rejected`."""
    return read_rejected(place.local([manifest.left_out] if manifest.left_out else []), manifest)


def _warn_of_full_disk(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        amounts = f"{needed:,} more bytes, but {free:,} are free; `packer plan` says how many are likely"
        _log.warning("%s may need up to %s", folder, amounts)
