"""Converts sources into a packed dataset: a plan, shards packed by workers, and the manifest.

from packer.convert import convert
report = convert(["lr=DIV2K/LR", "hr=DIV2K/HR"], "div2k.packed", workers=8)
report = convert(my_torch_dataset, "mine.packed", codec="lz4")
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from packer.codecs import compiled
from packer.errors import ChangedMeanwhileError, UsageError
from packer.format import Manifest, encode_constants
from packer.format import manifest as manifests
from packer.packing import (
    SHARDS_ALONE,
    Change,
    Command,
    Contents,
    ConvertOptions,
    Job,
    LocalPlace,
    Place,
    Plan,
    PlanSharing,
    Rejected,
    ShardReport,
    Shards,
    SharedPlan,
    begin_packing,
    changing,
    check_place,
    codec_texts,
    commands_of,
    explain_changes,
    fetch_rejected,
    open_source,
    pack_shards,
    parse_part,
    part_shards,
    place_of,
    plan_job,
    reading_limits,
    rewrite,
)
from packer.sources import PackedSource

__all__ = ["ConvertOptions", "PartReport", "Report", "convert", "convert_part"]


@dataclass(frozen=True)
class Report:
    """The result of a conversion.

    Attributes:
        path: the folder, or the URL as it was given.
        source_bytes: size of all source files; 0 for samples in memory.
        kept_shards: shards that an earlier run of the same conversion had finished.
        seconds: how long it took.
    """

    path: Path | str
    manifest: Manifest
    rejected: tuple[Rejected, ...]
    source_bytes: int
    kept_shards: int
    seconds: float

    @property
    def samples(self) -> int:
        return self.manifest.samples

    @property
    def raw_bytes(self) -> int:
        return self.manifest.raw_bytes

    @property
    def file_bytes(self) -> int:
        return self.manifest.file_bytes


@dataclass(frozen=True)
class PartReport:
    """The result of packing a part of the shards.

    Attributes:
        path: the folder, or the URL as it was given.
        shards: how many this part has.
        kept_shards: of these, those that an earlier run had finished.
        of: shards of the whole dataset.
        missing: shards of the whole dataset that no part has finished yet.
        rejected: samples that were skipped in this part.
        seconds: how long it took.
    """

    path: Path | str
    shards: int
    kept_shards: int
    of: int
    missing: int
    rejected: tuple[Rejected, ...]
    seconds: float


def convert(sources: Any, out: str | os.PathLike[str], options: ConvertOptions | None = None, **changes: Any) -> Report:
    """Pack `sources` into the folder `out`. Run again after a crash: finished shards are kept.

    Args:
        sources: a path, a list of paths or `FIELD=PATH` as on the command line, a mapping of field to path, a
            `Source`, or a sequence of dicts of arrays (a list, a torch Dataset). URLs as fsspec takes them are
            fetched into the cache first.
        out: folder of the dataset: a new or empty one, or one with an unfinished conversion of the same call. There,
            finished shards stay, and samples they skipped stay listed; `on_error`, `map_limit` and the limits of
            reading may differ. For samples in memory, finished shards are compared with the samples, and packed again
            if they differ. Or a URL, as text: each shard is uploaded when it is finished, the manifest last. There,
            samples in memory are always packed from the beginning.
        options: how to convert.
        changes: single options by name, over those in `options`.

    Raises:
        UsageError: sources, options or `out` do not fit together; the message says why.
        SourceError: a source file is bad, and `on_error` is `stop`; or no sample is left.
        WriteError: the output cannot be written.
        ResourceError: the system gives no more open files, memory or processes.
        DatasetError: a packed dataset that is the source is damaged.
    """
    options = replace(options or ConvertOptions(), **changes)
    start_time = time.perf_counter()
    place = place_of(out)
    rejected: list[Rejected] = []
    check_place(sources, place, options.overwrite)
    base = sources.base if isinstance(sources, PackedSource) else None
    read = [] if base is None else [(LocalPlace(Path(sources.folder)), base)]
    with explain_changes(read):
        job = PlanSharing(sources, options, place).find_job()
        job = job or plan_job(open_source(sources, options, rejected), options, rejected)
    compiled.prepare(field.codec for field in job.plan.fields)  # for those who read it afterwards
    job = replace(job, commands=commands_of("convert", sources, options))
    command = _command(job, place)
    with changing(place) as change, explain_changes([] if command.takes else read):
        if command.takes and change.manifest not in command.bases:
            raise ChangedMeanwhileError.at(place)  # after its samples were opened
        shards = rewrite(change, command, job.makes(), partial(_contents, job))
        rejected, kept_shards = fetch_rejected(place, change.dataset), len(change.dataset.shards)
    if shards is not None:
        kept_shards = shards.kept
    seconds = time.perf_counter() - start_time
    return Report(place.address, change.dataset, tuple(rejected), job.source_bytes, kept_shards, seconds)


def _command(job: Job, place: Place) -> Command:
    """Return the command that packs a job into a place."""
    options, source = job.options, job.source
    if not isinstance(source, PackedSource):
        return job.command("convert", overwrite=options.overwrite)
    base = source.base or manifests.read(Path(source.folder))
    if not (isinstance(place, LocalPlace) and place.path.resolve() == Path(source.folder).resolve()):
        return job.command("convert", overwrite=options.overwrite, bases=[base])
    # The shards that it reads are gone once it is done, so the options alone tell the same command.
    settings = {
        "the seed": source.origin.get("shuffled"),
        "--codec": codec_texts(options.codec),
        "--shard-size": options.shard_size or "chosen by the size of the data",
    }
    return job.command(
        "repack in place",
        overwrite=options.overwrite,
        bases=[base],
        settings=settings,
        files=SHARDS_ALONE,
        shards=None,
        takes=base.shards,
    )


def _contents(job: Job, shards: Shards) -> Contents:
    """Return what the dataset of a job holds."""
    packed = job.packed(shards)
    constants = encode_constants(job.source.constants)
    return Contents(manifest=packed.manifest, names=packed.names, rejected=packed.rejected, constants=constants)


def convert_part(
    sources: Any,
    out: str | os.PathLike[str],
    part: str,
    options: ConvertOptions | None = None,
    **changes: Any,
) -> PartReport:
    """Pack every n-th shard of a dataset and publish nothing; any number of processes may do so at once.

    They may run on any machines that see the sources and `out`, in any order, and more than once. The first makes the
    plan and writes it to `out`; the others wait for it, and look at the files of their own shards alone (of sources at
    a URL: fetch them, if the cache has the same path on all machines; else each makes a plan of its own). `convert`
    with the same arguments checks that no file was added or changed, packs the missing shards, and publishes the
    dataset.

    Args:
        sources: paths, as for `convert`.
        part: "17/400" packs the 17th of each 400 shards. "0/400" is the last of them, for jobs that count from 0.

    Raises:
        UsageError: no such part, samples in memory, a file has changed since the plan was made, or the part that made
            the plan has failed; also as `convert`.
        SourceError, WriteError, ResourceError, DatasetError: as `convert`.
    """
    options = replace(options or ConvertOptions(), **changes)
    start_time = time.perf_counter()
    parse_part(part)  # before the sources are opened
    place = place_of(out)
    check_place(sources, place, options.overwrite)
    sharing = PlanSharing(sources, options, place)
    change, makes = sharing.change, None
    with sharing.claim() as shared_plan:
        plan: Plan | SharedPlan
        if shared_plan is not None:
            change.begin(shared_plan.note, options.overwrite)
            plan = shared_plan
            numbers, finished, missing = _find_missing(change, part, plan)
            makes = sharing.makes(plan, missing, is_strict=not options.overwrite)
        if makes is None:
            job = _plan_for_parts(sources, options, sharing)
            plan = job.plan
            numbers, finished, missing = _find_missing(change, part, plan)
            makes = [job.make(number) for number in missing]
    limits = reading_limits(options)
    command = Command(verb="convert", fields=plan.fields, options=options, limits=limits)
    begin_packing(command, finished.values(), sum(plan.shards[number].samples for number in numbers))
    reports = list(pack_shards(change, command, makes))
    change.forget_late(numbers)
    unfinished = len(plan.shards) - change.files.count_reports()
    rejected = [bad for report in reports for _, bad in sorted(report.rejected.items())]
    seconds = time.perf_counter() - start_time
    kept_shards = len(numbers) - len(reports)
    return PartReport(place.address, len(numbers), kept_shards, len(plan.shards), unfinished, tuple(rejected), seconds)


def _find_missing(
    change: Change, part: str, plan: Plan | SharedPlan
) -> tuple[Sequence[int], dict[int, ShardReport], list[int]]:
    """Return the shards of a part, the reports of those that are finished, and the numbers of the others."""
    numbers = part_shards(part, len(plan.shards))
    finished = change.files.reports(ShardReport, numbers)
    return numbers, finished, [shard for shard in numbers if shard not in finished]


def _plan_for_parts(sources: Any, options: ConvertOptions, sharing: PlanSharing) -> Job:
    """Plan a conversion, begin its run, and write the plan for the other parts.

    Raises:
        UsageError: the samples are in memory; also as `convert`.
        SourceError, WriteError, ResourceError, DatasetError: as `convert`.
    """
    rejected: list[Rejected] = []
    listing = sharing.list_files()  # before the files are opened: more may arrive
    job = plan_job(open_source(sources, options, rejected), options, rejected)
    if not job.files.are_there:
        raise UsageError(
            "a part is packed of files, and these are samples in memory: pack each part by itself, and merge"
        )
    note = job.command("convert").note
    sharing.change.begin(note, options.overwrite)
    sharing.write(note, job.plan, "" if rejected else listing)
    return job
