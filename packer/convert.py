"""Converts sources into a packed dataset: a plan, shards packed by workers, and the manifest.

from packer.convert import convert
report = convert(["lr=DIV2K/LR", "hr=DIV2K/HR"], "div2k.packed", workers=8)
report = convert(my_torch_dataset, "mine.packed", codec="lz4")
"""

from __future__ import annotations

import logging
import os
import shutil
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import xxhash

import packer
from packer.checking import compare_shard
from packer.codecs import codec_name, parse_codec
from packer.errors import SourceError, UsageError, as_text
from packer.format import MANIFEST, FieldSpec, Manifest, ShardEntry, Splits, encode_constants, same_constants
from packer.machine import processors, usual_memory
from packer.packing import (
    Change,
    LocalPlace,
    Note,
    Place,
    Plan,
    Rejected,
    Rule,
    Samples,
    ShardReport,
    ShardTask,
    SharedPlan,
    changing,
    check_output,
    claim_plan,
    classes_of,
    codec_texts,
    find_plan,
    make_manifest,
    make_plan,
    make_splits,
    origin_of,
    parse_part,
    parse_rules,
    part_shards,
    place_of,
    read_manifest,
    read_rejected,
    run_tasks,
    source_files,
    write_plan,
)
from packer.remote import is_url, local_inputs
from packer.sources import (
    FittedSource,
    LabelledSource,
    PackedSource,
    SampleSource,
    Source,
    SourceOptions,
    list_files,
    open_sources,
)
from packer.watcher import NOBODY, PACKING, Watcher
from packer.workers import Limits, check_may_start

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ConvertOptions:
    """How to convert. The command line makes the help of its options from these lines, as far as `In Python`.

    Attributes:
        codec: auto, none, lz4, lz4hc, zstd, bitshuffle, shuffle+lz4, shuffle+zstd, decimal+lz4, decimal+zstd,
            photo+lz4, photo+zstd, jpeg, or a numcodecs config as JSON; for all fields or for one, repeated or with
            commas: --codec hr=zstd,label=none.  [default: auto] In Python a mapping of field to codec, too.
        shard_size: About how many raw bytes a shard holds, such as 1GiB.  [default: 16 shards of 16 MiB to 1 GiB]
        workers: Processes; 0 packs in this one, without limits for reading.  [default: as many as processors] In Python
            the default for samples in memory is 0.
        on_error: Stop at the first bad file or sample, or skip it. In Python `stop` or `skip`; what is skipped is
            listed in left-out-*.jsonl.
        overwrite: Replace a dataset that is there, once the new one is done.
        map_limit: The LMDB map of a shard must not get larger than this.
        fields: schema of samples in memory; None infers it.
        like: Pack as the samples of this dataset are: fields, codecs, frames, digits and classes, so that both can be
            merged.
        splits: A split of the samples: a fraction such as 0.9, a file with one name on each line, or a pattern over
            names. In Python a mapping of name to a fraction, `@FILE`, a pattern or names, as for `packer.split.split`;
            None takes the splits that the source has itself.
        source: options of the sources, such as `SourceOptions(mode="rgb")`.
        read_seconds: A sample whose reading takes longer is bad; 0 for no limit. In Python None is no limit. It holds
            for one sample (or a block of some MiB), and for the headers of one HDF5 file. A sample that crashes its
            reader is bad as well. With `workers` 0 there are no limits: a crash while reading ends this process.
        read_bytes: A sample whose reading takes more memory is bad; 0 for no limit.  [default: an eighth of
            what there is, but 1GiB at least and half of it at most] In Python None is no limit. Memory that the process
            holds anyway does not count. Linux only.
        executor: packs the shards instead of processes of our own: any `concurrent.futures.Executor`. There are no
            limits of reading there: a crash while reading ends the executor's process.
        watcher: a `packer.watcher.Watcher`, whose functions are called with bad files, each step, and the amount that
            is done. The step `packing` starts with the samples that an earlier run has packed.
    """

    codec: str | Mapping[str, str] = "auto"
    shard_size: int | None = None
    workers: int | None = None
    on_error: str = "stop"
    overwrite: bool = False
    map_limit: int | None = None
    fields: Sequence[FieldSpec] | None = None
    like: str | os.PathLike[str] | None = None
    splits: Mapping[str, Rule] | None = None
    source: SourceOptions = field(default_factory=SourceOptions)
    read_seconds: float | None = Limits.seconds
    read_bytes: int | None = field(default_factory=usual_memory)
    executor: Executor | None = None
    watcher: Watcher = NOBODY

    def __post_init__(self) -> None:
        if self.on_error not in ("stop", "skip"):
            raise UsageError(f"on_error is {self.on_error!r}; stop or skip are expected")
        if self.like is not None and (self.codec != "auto" or self.fields is not None):
            raise UsageError(f"--like {self.like}: codecs and fields are those of this dataset; give no others")
        if self.workers is not None and self.workers < 0:
            raise UsageError(f"{self.workers} workers; 0 or more are expected")
        if self.map_limit is not None and self.map_limit < 1:
            raise UsageError(f"a map of {self.map_limit} bytes; 1 or more are expected")
        _ = self.limits, parse_rules(self.splits or {})  # checks them
        for text in codec_texts(self.codec).values():
            if text != "auto":
                parse_codec(text)  # here, because a large source takes long to open

    @property
    def limits(self) -> Limits:
        """What reading one sample may take."""
        return Limits(self.read_seconds, self.read_bytes)


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


def reading_limits(options: ConvertOptions, in_memory: bool) -> Limits | None:
    """Return the limits of reading in other processes; None to read in this one."""
    if options.workers == 0 or (options.workers is None and in_memory):
        return None
    return options.limits


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
    job = _find_job(sources, options, place) or plan_job(open_source(sources, options, rejected), options, rejected)
    with changing(place) as change:
        if is_published(job, change):
            rejected, kept_shards = fetch_rejected(place, change.dataset), len(change.dataset.shards)
        else:
            packed = pack(job, change, options.overwrite)
            manifest = change.write_tables(packed.manifest, packed.names, packed.rejected)
            constants = change.write_constants(encode_constants(job.source.constants))
            change.publish(msgspec.structs.replace(manifest, constants=constants))
            rejected, kept_shards = packed.rejected, packed.kept
        change.tidy()
    path = place.path if isinstance(place, LocalPlace) else str(place)
    seconds = time.perf_counter() - start_time
    return Report(path, change.dataset, tuple(rejected), job.source_bytes, kept_shards, seconds)


def convert_part(
    sources: Any,
    out: str | os.PathLike[str],
    part: str,
    options: ConvertOptions | None = None,
    **changes: Any,
) -> PartReport:
    """Pack every n-th shard of a dataset and publish nothing; any number of processes may do so at once.

    They may run on any machines that see the sources and `out`, in any order, and more than once. The first makes the
    plan and writes it to `out`; the others wait for it, and look at the files of their own shards alone. `convert` with
    the same arguments checks that no file was added or changed, packs the missing shards, and publishes the dataset.

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
    change = Change(place, is_alone=False)
    command = _command_digest(sources, options)
    with claim_plan(place, command, partial(find_plan, change, command)) as shared_plan:
        plan: Plan | SharedPlan | None = shared_plan
        parts: Mapping[int, Source] | None = None
        if shared_plan is not None:
            change.begin(shared_plan.note, options.overwrite)
            numbers = part_shards(part, len(shared_plan.shards))
            finished = change.reports(ShardReport, numbers)
            missing = [shard for shard in numbers if shard not in finished]
            parts = shared_plan.sources(place, change.run, missing, is_strict=not options.overwrite)
        if plan is None or parts is None:
            plan, parts = _share_plan(sources, options, change, command)
    numbers = part_shards(part, len(plan.shards))
    finished = change.reports(ShardReport, numbers)
    missing = [shard for shard in numbers if shard not in finished]
    limits = reading_limits(options, in_memory=False)
    _begin_packing(
        options.watcher,
        [finished[shard] for shard in numbers if shard in finished],
        sum(plan.shards[shard].samples for shard in numbers),
    )
    reports = list(_pack_shards(change, options, limits, plan, {shard: parts[shard] for shard in missing}))
    change.forget_late(numbers)
    unfinished = len(plan.shards) - change.count_reports()
    rejected = [bad for report in reports for _, bad in sorted(report.rejected.items())]
    path = place.path if isinstance(place, LocalPlace) else str(place)
    seconds = time.perf_counter() - start_time
    kept_shards = len(numbers) - len(reports)
    return PartReport(path, len(numbers), kept_shards, len(plan.shards), unfinished, tuple(rejected), seconds)


def _share_plan(
    sources: Any, options: ConvertOptions, change: Change, command: str
) -> tuple[Plan, Mapping[int, Source]]:
    """Make a plan, and write it for the other parts; return it, and the samples of each shard."""
    rejected: list[Rejected] = []
    listing = _list_digest(sources, options) if command else ""  # before the files are opened: more may arrive
    job = plan_job(open_source(sources, options, rejected), options, rejected)
    if not job.files[0]:
        raise UsageError(
            "a part is packed of files, and these are samples in memory: pack each part by itself, and merge"
        )
    note = _make_note(job)
    change.begin(note, options.overwrite)
    if command:
        write_plan(change, command, note, job.plan, "" if rejected else listing)
    return job.plan, dict(enumerate(job.parts))


def _find_job(sources: Any, options: ConvertOptions, place: Place) -> Job | None:
    """Return the job whose plan a part of the same command has written; None if there is none, or a file has changed.

    No source file is opened.
    """
    command = _command_digest(sources, options)
    if not command:
        return None
    change = Change(place, is_alone=False)
    shared_plan = find_plan(change, command)
    if shared_plan is None or not shared_plan.listing or shared_plan.listing != _list_digest(sources, options):
        return None
    plan_of_files = shared_plan.plan(place, change.run_of(shared_plan.note))
    if plan_of_files is None:
        return None
    plan, source_bytes = plan_of_files
    _log.info("no source file has changed since a part made the plan, so it holds")
    limits, splits = reading_limits(options, in_memory=False), plan_splits(plan, options, lenient=False)
    return Job(plan.source, plan, options, shared_plan.note.files, source_bytes, limits, splits, [], "convert")


def _list_digest(sources: Any, options: ConvertOptions) -> str:
    """Return a digest of the names of all files that are there to be packed; empty if names do not tell all."""
    paths = list_files(_input_texts(sources) or [], options.source, options.watcher)
    if paths is None:
        return ""
    digest = xxhash.xxh3_128()
    for path in paths:
        digest.update(os.fsencode(path) + b"\0")
    return digest.hexdigest()


def _command_digest(sources: Any, options: ConvertOptions) -> str:
    """Return a digest of all that decides the plan of a conversion, but for the files themselves.

    It is empty if parts cannot share a plan: files at a URL are fetched to other paths on each machine.
    """
    inputs = _input_texts(sources)
    if inputs is None or any(is_url(text) or is_url(text.partition("=")[2]) for text in inputs):
        return ""
    paths = [text.partition("=")[2] or text for text in inputs]
    folder = "" if all(map(os.path.isabs, paths)) else os.getcwd()  # noqa: PTH109
    like = None if options.like is None else place_of(options.like).read(MANIFEST)
    settings = options.codec, options.shard_size, options.source, options.on_error, like
    return xxhash.xxh3_64_hexdigest(
        msgspec.json.encode((packer.__version__, as_text(repr((inputs, folder))), settings))
    )


@dataclass(frozen=True)
class Job:
    """A source that is to be packed, and how.

    Attributes:
        files: `Note.files` of the source files; (0, "") for samples in memory.
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
    files: tuple[int, str]
    source_bytes: int
    limits: Limits | None
    splits: Splits
    rejected: list[Rejected]
    verb: str
    base: Manifest | None = None

    @property
    def parts(self) -> list[Source]:
        """Return the samples of each shard."""
        return [self.source.part(shard.start, shard.stop) for shard in self.plan.shards]


@dataclass(frozen=True)
class Packed:
    """The shards of a job, all finished.

    Attributes:
        manifest: of these samples alone, without tables.
        names: of the samples; None if they have none.
        rejected: all that was skipped.
        kept: how many shards an earlier run had finished.
    """

    manifest: Manifest
    names: Sequence[str] | None
    rejected: list[Rejected]
    kept: int


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
        _log.debug("%s: samples %d to %d, %s", shard.file, shard.start, shard.stop - 1, amounts)


def is_published(job: Job, change: Change) -> bool:
    """Return whether an earlier run of the same command had published its dataset, and was killed before `tidy`."""
    if job.files[0]:
        return change.find_published(_make_note(job))
    sources = job.parts

    def are_same(entries: Sequence[ShardEntry]) -> bool:
        return len(entries) == len(sources) and all(
            map(partial(_has_same_samples, job, change.place), entries, range(len(sources)))
        )

    return change.find_published(_make_note(job), are_same)


def _has_same_samples(job: Job, place: Place, entry: ShardEntry, number: int) -> bool:
    """Return whether a shard holds the samples that it should; for samples in memory, which no files identify."""
    shard = job.plan.shards[number]
    part = job.source.part(shard.start, shard.stop)
    problems = compare_shard(place.local([entry]), job.plan.fields, (entry, part, shard.start))
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
    change.begin(_make_note(job), overwrite)
    finished = change.reports(ShardReport)
    if not job.files[0]:
        finished = {
            number: report for number, report in finished.items() if _has_same_samples(job, place, report.entry, number)
        }
    reports = list(finished.values())
    if isinstance(place, LocalPlace):
        _warn_of_full_disk(place.path, plan.file_bytes - sum(report.entry.bytes for report in reports))
    _begin_packing(options.watcher, reports, plan.samples if job.base is None else job.base.samples)
    missing = [shard for shard in plan.shards if shard.number not in finished]
    parts = {shard.number: source.part(shard.start, shard.stop) for shard in missing}
    reports += _pack_shards(change, options, job.limits, plan, parts, job.base)
    reports.sort(key=lambda report: report.number)
    rejected = job.rejected + [entry for report in reports for _, entry in sorted(report.rejected.items())]
    shards, names, splits = [report.entry for report in reports], source.names, job.splits
    if any(report.rejected for report in reports):
        if names is not None:
            pairs = zip(plan.shards, reports, strict=True)
            names = [
                names[n]
                for shard, report in pairs
                for n in range(shard.start, shard.stop)
                if n - shard.start not in report.rejected
            ]
        if splits:
            samples = Samples(sum(shard.samples for shard in shards), names, plan.origin)
            splits = make_splits(samples, options.splits, source.splits, lenient=True)
    columns = [report.columns for report in reports]
    manifest = make_manifest(
        shards, columns, plan.fields, plan.origin, rejected, planned_bytes=plan.file_bytes, splits=splits
    )
    return Packed(manifest, names, rejected, len(finished))


def _begin_packing(watcher: Watcher, finished: Sequence[ShardReport], samples: int) -> None:
    """Begin the step that packs so many samples, those of finished shards included."""
    finished_samples = sum(report.entry.samples for report in finished)
    if finished_samples:
        _log.info("going on after an earlier run, which has packed %s samples", f"{finished_samples:,}")
    watcher.step(PACKING, finished_samples, samples)


def _pack_shards(
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


def open_source(
    sources: Any, options: ConvertOptions, rejected: list[Rejected] | None, are_beside: bool = False
) -> Source:
    """Open `sources`; with the option `like`, the result has the fields of that dataset.

    Args:
        are_beside: as for `open_sources`.
        rejected: skipped files are added here. None if nothing will be packed; then a bad sample that is found early
            raises no error.

    Raises:
        UsageError, SourceError, ResourceError: as `convert`.
    """

    if options.like is not None:
        like = read_manifest(place_of(options.like))
        source = open_source(sources, replace(options, like=None, fields=like.fields), rejected)
        return fit_source(source, like)

    def report_bad(error: SourceError) -> None:
        is_early = error.sample is not None  # it comes again when the sample is read
        if options.on_error == "stop" and not (is_early and rejected is None):
            raise error
        if options.watcher.bad is not NOBODY.bad:  # which would stop here too
            options.watcher.bad(error)
        if rejected is not None and not is_early:
            rejected.append(Rejected.of(error))

    if isinstance(sources, Source):
        if options.source != SourceOptions():
            raise UsageError("SourceOptions are for paths, and this source has been opened already; leave them out")
        if isinstance(sources, PackedSource) and rejected is not None:
            # Its shards are not those of the new dataset.
            folder = LocalPlace(Path(sources.folder))
            old_rejected = fetch_rejected(folder, read_manifest(folder))
            rejected += [msgspec.structs.replace(bad, shard=None) for bad in old_rejected]
        return sources
    inputs = _input_texts(sources)
    if inputs is not None:
        inputs, leases = local_inputs(inputs, options.watcher)
        limits = reading_limits(options, in_memory=False)
        watcher = replace(options.watcher, bad=report_bad)
        source = open_sources(inputs, options.source, watcher, limits, are_beside)
        weakref.finalize(source, leases.clear)  # what was fetched stays in the cache as long as the source lives
        return source
    if isinstance(sources, Mapping) or not (hasattr(sources, "__len__") and hasattr(sources, "__getitem__")):
        shown = f"an object of type {type(sources).__name__}"
        raise UsageError(f"cannot pack {shown}; paths or a sequence of dicts are expected")
    if options.source != SourceOptions():
        raise UsageError("SourceOptions are for files, and these are samples in memory; leave them out")
    return SampleSource(sources, options.fields)


def packed_folder(sources: Any) -> str | os.PathLike[str] | None:
    """Return the folder of the packed dataset that `sources` name; None if they are anything else."""
    inputs = [sources] if isinstance(sources, (str, os.PathLike)) else sources
    folder = inputs[0] if isinstance(inputs, (list, tuple)) and len(inputs) == 1 else None
    return folder if isinstance(folder, (str, os.PathLike)) and (Path(folder) / MANIFEST).exists() else None


def fit_source(source: Source, like: Manifest) -> Source:
    """Return a source whose samples are packed as those of a dataset.

    Raises:
        UsageError: it does not fit; the message names the difference.
    """
    if isinstance(source, SampleSource):
        return source  # opened with the fields of the dataset; it has no classes and constants of its own
    if isinstance(source, LabelledSource) and set(source.classes) <= set(like.classes):
        source.number_as(like.classes)
    fitted = FittedSource(source, like.fields)
    check_classes(like.classes, classes_of(origin_of(source), len(source)), "the source")
    if not same_constants(like.constants, encode_constants(source.constants)):
        raise constants_error("the source")
    return fitted


def check_classes(first: Sequence[str], other: Sequence[str], where: str) -> None:
    """Raise UsageError if a number of the field `label` means different classes in the two."""
    if first != other:
        texts = [", ".join(names) if names else "none" for names in (other, first)]
        raise UsageError(
            f"{where} has the classes {texts[0]}, but {texts[1]} are expected: a label would mean several classes; "
            "convert all sources as one, or with a folder for each class, even if it is empty"
        )


def constants_error(where: str) -> UsageError:
    """Return the error of datasets, or sources, that have different constants."""
    return UsageError(
        f"{where}: what is kept once for all samples differs; `packer export` gives the samples back, to be packed "
        "without --once"
    )


def _input_texts(sources: Any) -> list[str] | None:
    """Return the paths, as text; None if `sources` are no paths."""
    if isinstance(sources, (str, os.PathLike)):
        return [os.fspath(sources)]
    if isinstance(sources, Mapping) and sources and all(isinstance(s, (str, os.PathLike)) for s in sources.values()):
        return [f"{field}={os.fspath(path)}" for field, path in sources.items()]
    if isinstance(sources, (list, tuple)) and sources and all(isinstance(s, (str, os.PathLike)) for s in sources):
        return [os.fspath(source) for source in sources]
    return None


def check_place(sources: Any, place: Place, overwrite: bool) -> None:
    """Raise UsageError if no dataset can be made at a place; called before the sources are opened."""
    check_apart(sources, place)
    check_output(place, overwrite)


def check_apart(sources: Any, place: Place) -> None:
    """Raise UsageError if a place lies within a source folder: a second run would find its own output."""
    if not isinstance(place, LocalPlace):
        return
    for text in _input_texts(sources) or []:
        for folder in (Path(text), Path(text.partition("=")[2] or text)):
            if folder.is_dir() and place.path.resolve().is_relative_to(folder.resolve()):
                raise UsageError(f"{place} lies within the source {folder}; name a folder outside of it")


def _make_note(job: Job) -> Note:
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
