"""Converts sources into a packed dataset: a plan, shards packed by workers, and the manifest.

from packer.convert import convert
report = convert(["lr=DIV2K/LR", "hr=DIV2K/HR"], "div2k.packed", workers=8)
report = convert(my_torch_dataset, "mine.packed", codec="lz4")
"""

from __future__ import annotations

import logging
import os
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import xxhash

import packer
from packer.codecs import compiled
from packer.errors import ChangedMeanwhileError, UsageError, as_text
from packer.format import MANIFEST, Manifest, encode_constants
from packer.format import manifest as manifests
from packer.packing import (
    SHARDS_ALONE,
    Change,
    Command,
    Contents,
    ConvertOptions,
    Job,
    LocalPlace,
    Make,
    Place,
    Plan,
    Rejected,
    SeenFiles,
    ShardReport,
    Shards,
    SharedPlan,
    Stamps,
    begin_packing,
    changing,
    check_place,
    claim_plan,
    codec_texts,
    commands_of,
    explain_changes,
    fetch_rejected,
    files_elsewhere,
    find_plan,
    input_texts,
    open_source,
    pack_shards,
    parse_part,
    part_shards,
    place_of,
    plan_job,
    plan_splits,
    reading_limits,
    rewrite,
    write_plan,
)
from packer.remote import Lease, RemoteFile, default_cache, fetch_files, inputs_here, list_urls, url_in
from packer.sources import PackedSource, Source, list_files, named_paths
from packer.watcher import Watcher

__all__ = ["ConvertOptions", "PartReport", "Report", "convert", "convert_part"]

_log = logging.getLogger(__name__)


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
        job = _find_job(sources, options, place) or plan_job(open_source(sources, options, rejected), options, rejected)
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
    change = Change(place, has_lock=False)
    digest = _command_digest(sources, options)
    leases = list[Lease]()  # what was fetched stays in the cache until it is packed
    fetch = partial(_fetch, input_texts(sources) or (), leases, options.watcher)
    skip, makes = options.on_error == "skip", list[Make]()
    with claim_plan(place, digest, partial(find_plan, change, digest)) as shared_plan:
        plan: Plan | SharedPlan
        parts: Mapping[int, tuple[Source, Stamps | None]] | None = None
        if shared_plan is not None:
            change.begin(shared_plan.note, options.overwrite)
            plan = shared_plan
            numbers, finished, missing = _find_missing(change, part, plan)
            named = _named_paths(input_texts(sources) or (), options)
            parts = shared_plan.sources(place, change.run, missing, not options.overwrite, named, fetch)
        if parts is not None:
            makes = [Make(part, plan.shards[number], skip, stamps=stamps) for number, (part, stamps) in parts.items()]
        else:
            job = _share_plan(sources, options, change, digest)
            plan = job.plan
            numbers, finished, missing = _find_missing(change, part, plan)
            makes = [job.make(number) for number in missing]
    limits = reading_limits(options)
    command = Command(verb="convert", fields=plan.fields, options=options, limits=limits)
    begin_packing(command, finished.values(), sum(plan.shards[number].samples for number in numbers))
    reports = list(pack_shards(change, command, makes))
    change.forget_late(numbers)
    unfinished = len(plan.shards) - change.count_reports()
    rejected = [bad for report in reports for _, bad in sorted(report.rejected.items())]
    seconds = time.perf_counter() - start_time
    kept_shards = len(numbers) - len(reports)
    return PartReport(place.address, len(numbers), kept_shards, len(plan.shards), unfinished, tuple(rejected), seconds)


def _find_missing(
    change: Change, part: str, plan: Plan | SharedPlan
) -> tuple[Sequence[int], dict[int, ShardReport], list[int]]:
    """Return the shards of a part, the reports of those that are finished, and the numbers of the others."""
    numbers = part_shards(part, len(plan.shards))
    finished = change.reports(ShardReport, numbers)
    return numbers, finished, [shard for shard in numbers if shard not in finished]


def _share_plan(sources: Any, options: ConvertOptions, change: Change, command: str) -> Job:
    """Plan a conversion, begin its run, and write the plan for the other parts.

    Raises:
        UsageError: the samples are in memory; also as `convert`.
        SourceError, WriteError, ResourceError, DatasetError: as `convert`.
    """
    rejected: list[Rejected] = []
    inputs = input_texts(sources) or []  # listed before the files are opened: more may arrive
    listing = _list_digest(inputs, list_urls(inputs), options) if command else ""
    job = plan_job(open_source(sources, options, rejected), options, rejected)
    if not job.files.count:
        raise UsageError(
            "a part is packed of files, and these are samples in memory: pack each part by itself, and merge"
        )
    note = job.command("convert").note
    change.begin(note, options.overwrite)
    if command and not any(files_elsewhere(job.source.files(), _named_paths(inputs, options))):
        write_plan(change, command, note, job.plan, "" if rejected else listing)
    return job


def _find_job(sources: Any, options: ConvertOptions, place: Place) -> Job | None:
    """Return the job whose plan a part of the same command has written; None if there is none, or a file has changed.

    No source file is opened. Of sources at a URL, the files of unfinished shards are fetched.
    """
    command = _command_digest(sources, options)
    if not command:
        return None
    change = Change(place, has_lock=False)
    shared_plan = find_plan(change, command)
    if shared_plan is None or not shared_plan.listing:
        return None
    inputs = input_texts(sources) or []
    at_urls = list_urls(inputs)
    if shared_plan.listing != _list_digest(inputs, at_urls, options):
        return None
    run = change.run = change.run_of(shared_plan.note)
    seen = SeenFiles()
    named = _named_paths(inputs, options)
    plan_of_files = shared_plan.plan(place, run, named, at_urls, seen)
    if plan_of_files is None:
        return None
    plan, source_bytes = plan_of_files
    if at_urls:
        finished, leases = change.reports(ShardReport), list[Lease]()
        missing = [shard.number for shard in plan.shards if shard.number not in finished]
        fetch = partial(_fetch, inputs, leases, options.watcher)
        if shared_plan.sources(place, run, missing, False, named, fetch) is None:
            return None
        weakref.finalize(plan.source, leases.clear)
    _log.info("no source file has changed since a part made the plan, so it holds")
    limits, splits = reading_limits(options), plan_splits(plan, options, lenient=False)
    return Job(plan.source, plan, options, shared_plan.note.files, source_bytes, limits, seen, splits)


def _named_paths(inputs: Sequence[str], options: ConvertOptions) -> list[str]:
    """Return the files and folders that a command names, which alone its parts open by the plan of another."""
    return named_paths(inputs_here(inputs), options.source)


def _fetch(inputs: Sequence[str], leases: list[Lease], watcher: Watcher, paths: Sequence[str]) -> None:
    """Fetch the files of inputs at URLs that belong at `paths`, and put what keeps them in the cache into `leases`."""
    leases += fetch_files(inputs, paths, watcher)


def _list_digest(inputs: Sequence[str], at_urls: Mapping[str, RemoteFile], options: ConvertOptions) -> str:
    """Return a digest of the names of all files that are there to be packed; empty if names do not tell all.

    Args:
        at_urls: those at URLs.
    """
    paths = list_files([text for text in inputs if not url_in(text)], options.source, options.watcher)
    if paths is None or any(path.endswith(".mdb") for path in at_urls):  # whose keys are samples
        return ""
    digest = xxhash.xxh3_128()
    for path in chain(paths, sorted(at_urls)):
        digest.update(os.fsencode(path) + b"\0")
    return digest.hexdigest()


def _command_digest(sources: Any, options: ConvertOptions) -> str:
    """Return a digest of all that decides the plan of a conversion, but for the files themselves.

    It is empty if parts cannot share a plan. Files at a URL are fetched, so the path of the cache counts, too.
    """
    inputs = input_texts(sources)
    if inputs is None:
        return ""
    paths = [Path(text.partition("=")[2] or text) for text in inputs if not url_in(text)]
    folder = "" if all(path.is_absolute() for path in paths) else os.getcwd()  # noqa: PTH109
    if any(map(url_in, inputs)):
        folder += f"\0{default_cache()}"
    like = None if options.like is None else place_of(options.like).read(MANIFEST)
    settings = options.codec, options.shard_size, options.source, options.on_error, like
    return xxhash.xxh3_64_hexdigest(
        msgspec.json.encode((packer.__version__, as_text(repr((inputs, folder))), settings))
    )
