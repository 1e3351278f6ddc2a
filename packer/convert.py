"""Converts sources into a packed dataset: source and plan to shards to manifest.

from packer.convert import convert
report = convert(["lr=DIV2K/LR", "hr=DIV2K/HR"], "div2k.packed", workers=8)
report = convert(my_torch_dataset, "mine.packed", codec="lz4")
"""

from __future__ import annotations

import logging
import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

import packer
from packer.checking import compare_shard
from packer.codecs import codec_name, parse_codec
from packer.errors import DamagedError, SourceError, UsageError
from packer.format import NAMES_FILE, FieldSpec, Manifest, ShardNames, Splits, write_constants
from packer.packing import (
    Note,
    OutputFolder,
    Plan,
    Rejected,
    Rule,
    Samples,
    ShardReport,
    ShardTask,
    check_output,
    codec_texts,
    make_manifest,
    make_plan,
    parsed,
    remote_output,
    report_of,
    run_tasks,
    source_files,
    splits_of,
)
from packer.remote import is_url, local_inputs
from packer.sources import (
    FETCHING,
    UPLOADING,
    Looking,
    Progress,
    SampleSource,
    Source,
    SourceOptions,
    no_progress,
    not_looking,
    open_sources,
)
from packer.workers import Limits, check_may_start, processors, usual_memory

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
        on_error: Stop at the first bad file or sample, or leave it out. In Python `stop` or `skip`; what is left out is
            listed in rejected.jsonl.
        overwrite: Replace a dataset that is there, once the new one is done.
        map_limit: The LMDB map of a shard must not get larger than this.
        fields: schema of samples in memory; None infers it.
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
        progress: called with the samples and raw bytes done since the last call.
        planned: called with the source and its plan before anything is written.
        looking: called up to ten times a second while files are found, headers are read and samples are looked at, and
            while bytes come from a URL or go to one. Its arguments: the step (such as `reading headers`), how many are
            done, and of how many (None if not known yet).
        resumed: called once, with the samples and raw bytes that an earlier run had finished, if any.
    """

    codec: str | Mapping[str, str] = "auto"
    shard_size: int | None = None
    workers: int | None = None
    on_error: str = "stop"
    overwrite: bool = False
    map_limit: int | None = None
    fields: Sequence[FieldSpec] | None = None
    splits: Mapping[str, Rule] | None = None
    source: SourceOptions = field(default_factory=SourceOptions)
    read_seconds: float | None = Limits.seconds
    read_bytes: int | None = field(default_factory=usual_memory)
    executor: Executor | None = None
    progress: Progress | None = None
    looking: Looking | None = None
    planned: Callable[[Plan], None] | None = None
    resumed: Progress | None = None

    def __post_init__(self) -> None:
        if self.on_error not in ("stop", "skip"):
            raise UsageError(f"on_error is {self.on_error!r}; stop or skip are expected")
        if self.workers is not None and self.workers < 0:
            raise UsageError(f"{self.workers} workers; 0 or more are expected")
        if self.map_limit is not None and self.map_limit < 1:
            raise UsageError(f"a map of {self.map_limit} bytes; 1 or more are expected")
        _ = self.limits, parsed(self.splits or {})  # checks them
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


def guard(options: ConvertOptions, in_memory: bool) -> Limits | None:
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
            finished shards stay, and samples they left out stay listed; `on_error`, `map_limit` and the limits of
            reading may differ. For samples in memory, finished shards are compared with the samples, and packed again
            if they differ. Or a URL, as text: the dataset is packed in the cache and uploaded, its manifest last.
        options: how to convert.
        changes: single options by name, over those in `options`.

    Raises:
        UsageError: what is asked for cannot be done.
        SourceError: a source file is bad, and `on_error` is `stop`; or no sample is left.
        WriteError: the output cannot be written.
        ResourceError: the system gives no more open files, memory or processes.
        DatasetError: a packed dataset that is the source is damaged.
    """
    options = replace(options or ConvertOptions(), **changes)
    began = time.perf_counter()
    if is_url(out):
        # Overwrite: nobody misses what another call left unfinished in the cache.
        with (
            remote_output(out, options.overwrite) as staged,
            packing(sources, staged.folder, replace(options, overwrite=True)) as (_, report),
        ):
            staged.upload(report.manifest, partial(options.looking or not_looking, UPLOADING))
        report = replace(report, path=staged.url)
    else:
        with packing(sources, Path(out), options) as (folder, report):
            folder.publish(report.manifest)
    return replace(report, seconds=time.perf_counter() - began)


@contextmanager
def packing(sources: Any, path: Path, options: ConvertOptions) -> Iterator[tuple[OutputFolder, Report]]:
    """Pack `sources` into the folder `path`; the block may publish it with the manifest of the report.

    Until then the folder is unfinished: the same call goes on there, and finds all shards.
    """
    began = time.perf_counter()
    rejected: list[Rejected] = []
    check_place(sources, path, options.overwrite)
    source = open_source(sources, options, rejected)
    in_memory = isinstance(source, SampleSource)
    if options.fields is not None and not in_memory:
        raise UsageError("fields is the schema of samples in memory, and files have their own; leave it out")
    limits = guard(options, in_memory)
    if limits is not None and options.executor is None:
        check_may_start()  # before the folder is claimed
    plan = make_plan(source, options.codec, options.shard_size, limits, options.looking or not_looking)
    if options.planned:
        options.planned(plan)
    files = source_files(source.files())
    splits = planned_splits(plan, options, lenient=bool(rejected))
    with OutputFolder(path, _note_of(plan, options, files), options.overwrite, plan.file_bytes) as folder:
        # Workers of an executor may have another working directory.
        work = folder.work if options.executor is None else folder.work.absolute()
        how = plan.fields, plan.origin, options.on_error == "skip", options.map_limit
        tasks = [ShardTask(source.part(shard.start, shard.stop), work, shard, *how) for shard in plan.shards]
        reports = _finished(tasks, compared=not files)
        kept = len(reports)
        if reports and options.resumed:
            options.resumed(sum(each.entry.samples for each in reports), sum(each.raw_bytes for each in reports))
        todo = [task for task in tasks if not task.path.exists()]
        workers = 0 if limits is None else options.workers or processors()
        reports += run_tasks(todo, options.progress or no_progress, workers, limits, options.executor)
        reports.sort(key=lambda report: report.entry.file)
        rejected += [bad for report in reports for bad in report.rejected]
        shards = [report.entry for report in reports]
        if splits and any(shard.rejected for shard in shards):
            names = None if source.names is None else [name.decode() for name in ShardNames(folder.work, shards)]
            left = Samples(sum(shard.samples for shard in shards), names, plan.origin)
            splits = splits_of(left, options.splits, source.splits, lenient=True)
        manifest = make_manifest(
            folder.work,
            shards,
            [report.columns for report in reports],
            plan.fields,
            plan.origin,
            None if source.names is None else NAMES_FILE,
            rejected,
            planned_bytes=plan.file_bytes,
            splits=splits,
            constants=write_constants(folder.work, source.constants) if source.constants else None,
        )
        source_bytes = sum(size for _, size, _ in files)
        yield folder, Report(path, manifest, tuple(rejected), source_bytes, kept, time.perf_counter() - began)


def planned_splits(plan: Plan, options: ConvertOptions, lenient: bool) -> Splits:
    """Return the splits that the samples of a source will be in, if none of them is left out.

    Args:
        lenient: whether lists may name samples that are not there.

    Raises:
        UsageError: the rules cannot be followed.
    """
    source = plan.source
    samples = Samples(len(source), source.names, plan.origin, shifting=options.on_error == "skip")
    return splits_of(samples, options.splits, source.splits, lenient=lenient)


def open_source(sources: Any, options: ConvertOptions, rejected: list[Rejected] | None) -> Source:
    """Return the source that `sources` stand for.

    Args:
        rejected: bad files are added here if they are skipped. None if nothing will be packed; bad samples that are
            found early then raise no error.

    Raises:
        UsageError, SourceError, ResourceError: as `convert`.
    """

    def on_bad(error: SourceError) -> None:
        is_early = error.sample is not None  # it comes again when the sample is read
        if options.on_error == "stop" and not (is_early and rejected is None):
            raise error
        if rejected is not None and not is_early:
            rejected.append(Rejected.of(error))

    if isinstance(sources, Source):
        return sources
    inputs = _inputs(sources)
    if inputs is not None:
        fetched = partial(options.looking or not_looking, FETCHING)
        inputs, leases = local_inputs(inputs, fetched)
        limits = guard(options, in_memory=False)
        source = open_sources(inputs, options.source, on_bad, limits, options.looking or not_looking)
        weakref.finalize(source, leases.clear)  # what was fetched stays in the cache as long as the source lives
        return source
    if isinstance(sources, Mapping) or not (hasattr(sources, "__len__") and hasattr(sources, "__getitem__")):
        what = f"an object of type {type(sources).__name__}"
        raise UsageError(f"cannot pack {what}; paths or a sequence of dicts are expected")
    if options.source != SourceOptions():
        raise UsageError("SourceOptions are for files, and these are samples in memory; leave them out")
    return SampleSource(sources, options.fields)


def _inputs(sources: Any) -> list[str] | None:
    """Return the paths, as text; None if `sources` are no paths."""
    if isinstance(sources, (str, os.PathLike)):
        return [os.fspath(sources)]
    if isinstance(sources, Mapping) and sources and all(isinstance(s, (str, os.PathLike)) for s in sources.values()):
        return [f"{field}={os.fspath(path)}" for field, path in sources.items()]
    if isinstance(sources, (list, tuple)) and sources and all(isinstance(s, (str, os.PathLike)) for s in sources):
        return [os.fspath(source) for source in sources]
    return None


def check_place(sources: Any, out: Path, overwrite: bool) -> None:
    """Raise UsageError if there can be no dataset at `out`; called before the sources are looked at."""
    check_apart(sources, out)
    check_output(out, overwrite)


def check_apart(sources: Any, out: Path) -> None:
    """Raise UsageError if `out` lies within a source folder: a second run would find its own output."""
    for text in _inputs(sources) or []:
        for place in (Path(text), Path(text.partition("=")[2] or text)):
            if place.is_dir() and out.resolve().is_relative_to(place.resolve()):
                raise UsageError(f"{out} lies within the source {place}; name a folder outside of it")


def _note_of(plan: Plan, options: ConvertOptions, files: list[tuple[str, int, int]]) -> Note:
    """Return the note of a conversion: everything that decides the bytes of its shards.

    The origin holds the options of the sources, except those that leave bad samples out.

    Args:
        files: path, size and time of change of every source file.
    """
    settings: dict[str, Any] = {
        "the version of packer": packer.__version__,
        "--shard-size": options.shard_size or "chosen by the size of the data",
        "the number of samples": plan.samples,
    }
    settings["the list of fields"] = ", ".join(each.name for each in plan.fields)
    for each in plan.fields:
        settings[f"the codec of {each.name}"] = codec_name(each.codec)
        settings |= {f"the digits of {each.name}": c["digits"] for c in each.codec if c["id"] == "decimal"}
        settings[f"the type of {each.name}"] = each.in_words
        settings[f"the frames of {each.name}"] = msgspec.to_builtins(each.frame)
    settings["the source"] = plan.origin
    settings["the first sample of each shard"] = [shard.start for shard in plan.shards]
    return Note(shards=len(plan.shards), settings=settings, files=files)


def _finished(tasks: Sequence[ShardTask], compared: bool) -> list[ShardReport]:
    """Return the reports of the shards that are done; a shard that is damaged, or holds other samples, is removed.

    Args:
        compared: whether to compare shards with their samples: no files identify samples in memory.
    """
    reports = []
    for task in tasks:
        if not task.path.exists():
            continue
        try:
            report = report_of(task.path, task.fields)
            shard = (report.entry, task.source, task.shard.start)
            wrong: Sequence[object] = compare_shard(task.folder, task.fields, shard) if compared else ()
        except DamagedError as error:
            wrong = (str(error),)  # the error itself would keep the shard open
        if wrong:
            _log.warning("%s; it is packed again", wrong[0])
            task.path.unlink()
        else:
            reports.append(report)
    return reports
