"""Plans how a source is packed, and says how `rewrite` packs it.

job = plan_job(source, options, rejected)
with changing(place) as change:
    rewrite(change, job.command(...), job.makes(), finish)
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from packer.codecs import codec_name
from packer.errors import SourceError, UsageError
from packer.format import Field, GivenCommand, Manifest, ShardEntry, Splits
from packer.packing.manifest import make_manifest
from packer.packing.note import UNNAMED_CHANGE
from packer.packing.options import ConvertOptions, reading_limits
from packer.packing.places import Place
from packer.packing.plan import Plan, make_plan
from packer.packing.rejected import Rejected, read_rejected
from packer.packing.rewrite import Command, Shards
from packer.packing.source_files import SeenFiles, SourceFiles, source_files
from packer.packing.splits import Samples, make_splits
from packer.packing.tasks import Make
from packer.sources import SampleSource, Source
from packer.workers import Limits

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Job:
    """A source that is to be packed, and how.

    Attributes:
        files: the source files; none for samples in memory.
        source_bytes: size of all source files.
        seen: their stamps; None if there are none.
        limits: of reading in other processes; None to read in this one.
        splits: of all samples, if none is skipped.
        rejected: bad files that were found when the source was opened.
        commands: as the manifest has them.
    """

    source: Source
    plan: Plan
    options: ConvertOptions
    files: SourceFiles
    source_bytes: int
    limits: Limits | None
    seen: SeenFiles | None = None
    splits: Splits = field(default_factory=dict)
    rejected: list[Rejected] = field(default_factory=list)
    commands: tuple[GivenCommand, ...] = ()

    def make(self, number: int, base: tuple[ShardEntry, tuple[Field, ...]] | None = None) -> Make:
        """Return how a shard of the plan is packed; `base` as in `Make`."""
        shard, skip = self.plan.shards[number], self.options.on_error == "skip"
        samples = self.source.slice(shard.start, shard.stop)
        stamps = self.seen.stamps(samples.files()) if self.seen and samples.has_files_of_slices else None
        return Make(samples, shard, skip, base, stamps=stamps)

    def makes(self, base: Manifest | None = None) -> list[Make]:
        """Return all shards of the plan.

        Args:
            base: the dataset whose columns are taken over where the plan has their fields.
        """
        bases = [None] * len(self.plan.shards) if base is None else [(entry, base.fields) for entry in base.shards]
        return [self.make(number, base_shard) for number, base_shard in enumerate(bases)]

    def command(self, verb: str, **members: Any) -> Command:
        """Return the command that packs the job.

        The origin holds the options of the sources, except those that leave bad samples out.

        Args:
            members: other members of the command, such as `overwrite`.
        """
        plan, options = self.plan, self.options
        settings: dict[str, Any] = {
            "--shard-size": options.shard_size or "chosen by the size of the data",
            "the number of samples": plan.samples,
            "the list of fields": ", ".join(field.name for field in plan.fields),
        }
        for column in plan.fields:
            settings[f"the codec of {column.name}"] = codec_name(column.codec)
            settings |= {
                f"the digits of {column.name}": config["digits"] for config in column.codec if config["id"] == "decimal"
            }
            settings[f"the type of {column.name}"] = column.in_words
            settings[f"the frames of {column.name}"] = msgspec.to_builtins(column.frame)
        settings["the source"] = plan.origin
        settings["the first sample of each shard"] = [shard.start for shard in plan.shards]
        of_all: dict[str, Any] = {"settings": settings, "files": self.files, "shards": len(plan.shards)}
        return Command(verb=verb, fields=plan.fields, options=options, limits=self.limits, **(of_all | members))

    def packed(self, shards: Shards) -> Packed:
        """Return what was packed.

        Raises:
            SourceError: no sample was good, or a file that no task compares has changed since the plan was made.
        """
        if self.seen and not self.source.has_files_of_slices:
            files, _ = source_files(self.source.files())
            if difference := self.files.difference(files) or (files != self.files and UNNAMED_CHANGE):
                raise SourceError(f"{difference}, while it was packed; run again")
        plan, options, source, reports = self.plan, self.options, self.source, shards.reports
        rejected = self.rejected + [entry for report in reports for _, entry in sorted(report.rejected.items())]
        names, splits = source.names, self.splits
        entries = [report.entry for report in reports]
        if any(report.rejected for report in reports):
            names = (
                None
                if names is None
                else [
                    names[shard.start + number]
                    for shard, report in zip(plan.shards, reports, strict=True)
                    for number in range(shard.samples)
                    if number not in report.rejected
                ]
            )
            if splits:
                samples = Samples(sum(entry.samples for entry in entries), names, plan.origin)
                splits = make_splits(samples, options.splits, source.splits, lenient=True)
        columns = [report.columns for report in reports]
        manifest = make_manifest(
            entries,
            columns,
            plan.fields,
            plan.origin,
            rejected,
            planned_bytes=plan.file_bytes,
            splits=splits,
            commands=self.commands,
        )
        return Packed(manifest, names, rejected)


@dataclass(frozen=True)
class Packed:
    """The samples of a job, packed.

    Attributes:
        manifest: of these samples alone, without tables.
        names: of the samples; None if they have none.
        rejected: all that was skipped.
    """

    manifest: Manifest
    names: Sequence[str] | None
    rejected: list[Rejected]


def plan_job(source: Source, options: ConvertOptions, rejected: list[Rejected]) -> Job:
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
    plan = make_plan(source, options.codec, options.shard_size, limits, options.watcher)
    job = job_of(plan, options, limits)
    return replace(job, splits=plan_splits(plan, options, lenient=bool(rejected)), rejected=rejected)


def job_of(plan: Plan, options: ConvertOptions, limits: Limits | None) -> Job:
    """Return how the source of a plan is packed, its files as they are now; log the plan.

    Args:
        limits: as in `Job`.

    Raises:
        SourceError: a file is gone.
    """
    log_plan(plan)
    seen = SeenFiles()
    files, source_bytes = source_files(plan.source.files(), seen=seen)
    return Job(plan.source, plan, options, files, source_bytes, limits, seen if files.are_there else None)


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


def fetch_rejected(place: Place, manifest: Manifest) -> list[Rejected]:
    """Return the samples that were skipped when a dataset was made; raises as `read_rejected`."""
    return read_rejected(place.local([manifest.left_out] if manifest.left_out else []), manifest)
