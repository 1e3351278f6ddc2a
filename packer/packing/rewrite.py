"""The one recipe by which verbs make and change datasets: a note, shards, tables, the manifest, and tidying at the end.

    with changing_dataset(place) as (change, old):
        rewrite(change, command, [Keep(entry) for entry in old.shards] + [Make(...), ...], finish)

A verb says what it makes (`Command`), what the shards of the new dataset are, and what its manifest says (`finish`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import xxhash

import packer
from packer.errors import DamagedError
from packer.format import (
    Field,
    FileEntry,
    Manifest,
    NamesEntry,
    ShardEntry,
    check_file,
    clear_errors,
)
from packer.packing.commit import Change
from packer.packing.manifest import shards_digest
from packer.packing.note import Note, shard_file
from packer.packing.options import ConvertOptions, process_count
from packer.packing.places import LocalPlace, Place
from packer.packing.rejected import Rejected
from packer.packing.running import run_tasks
from packer.packing.source_files import SourceFiles
from packer.packing.tasks import Make, ShardReport, ShardTask, digest_samples
from packer.watcher import MERGING, PACKING
from packer.workers import Limits

_log = logging.getLogger(__name__)


#: The source files of a command that reads nothing but shards of datasets.
SHARDS_ALONE = SourceFiles(1, "shards")


@dataclass(frozen=True)
class Keep:
    """A shard of the dataset that stays as it is."""

    entry: ShardEntry


@dataclass(frozen=True)
class Link:
    """A shard of another dataset: a hard link, or a copy where there are none."""

    place: Place
    entry: ShardEntry


@dataclass(frozen=True, kw_only=True)
class Command:
    """What a verb makes of which samples.

    Attributes:
        verb: its name.
        settings: all else that decides the bytes of the shards, by name, as a message may call it.
        files: the source files; `SHARDS_ALONE` if the shards of datasets are all there is, none for samples in memory.
        shards: how many there will be; None if the shards of the dataset decide it.
        takes: the shards of the dataset that the new ones are made from.
        fields: how every field of packed shards is stored.
        options: how to pack.
        limits: of reading in other processes; None to pack in this one.
        overwrite: whether a dataset, or an unfinished run, may be replaced; None if the dataset is changed.
        bases: the datasets whose samples are in the new one.
        is_idempotent: whether the same command again changes nothing, though it does not find its first run.
    """

    verb: str
    settings: dict[str, Any] = field(default_factory=dict)
    files: SourceFiles = SHARDS_ALONE
    shards: int | None = None
    takes: Sequence[ShardEntry] = ()
    fields: tuple[Field, ...] = ()
    options: ConvertOptions = field(default_factory=ConvertOptions)
    limits: Limits | None = None
    overwrite: bool | None = None
    bases: Sequence[Manifest] = ()
    is_idempotent: bool = False

    @property
    def note(self) -> Note:
        """Return the note of the command, but for where it starts from."""
        settings = {"the version of packer": packer.__version__, "the command": self.verb, **self.settings}
        return Note(shards=self.shards, settings=settings, files=self.files, takes=shards_digest(self.takes))


@dataclass(frozen=True)
class Shards:
    """The shards of a new dataset, all finished.

    Attributes:
        entries: in order.
        reports: of those that were packed, in order.
        kept: how many of these an earlier run had finished.
    """

    entries: tuple[ShardEntry, ...]
    reports: list[ShardReport]
    kept: int = 0


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What a verb says of the new dataset.

    Attributes:
        manifest: with the tables, lists and statistics that it takes over.
        names: of the samples of a new table; iterated over twice. None for no new table.
        kept_tables: tables of names that stay before the new one.
        rejected: the new list of what was skipped; None if that of the manifest holds.
        constants: encoded, for a new file of them.
        kept_files: files of the old dataset that stay until the next run, for readers that are open.
    """

    manifest: Manifest
    names: Iterable[str | bytes] | None = None
    kept_tables: Sequence[NamesEntry] = ()
    rejected: Sequence[Rejected] | None = None
    constants: bytes = b""
    kept_files: Sequence[FileEntry | None] = ()


def rewrite(
    change: Change,
    command: Command,
    shards: Sequence[Keep | Link | Make],
    finish: Callable[[Shards], Contents],
    *,
    check: Callable[[], object] = lambda: None,
    when_done: Callable[[], object] = lambda: None,
) -> Shards | None:
    """Make or change a dataset. Killed at any instant, the same command goes on, and changes nothing twice.

    Args:
        shards: of the new dataset, in order.
        finish: returns what else is in it, once all shards are finished.
        check: raises if that cannot be done; not called if an earlier run has done it.
        when_done: called when all is done, before the last trace of the run is gone: until then, the same command again
            says that it is done.

    Returns:
        the shards; None if an earlier run had published the dataset.

    Raises:
        UsageError: a dataset or an unfinished run is there that may not be replaced.
        ChangedMeanwhileError: another command was first.
        SourceError, WriteError, ResourceError, DatasetError: as `convert`.
    """
    makes = [shard for shard in shards if isinstance(shard, Make)]

    def digest_all() -> str:
        return "" if command.files.are_there else _join([digest_samples(make.source, make.skip) for make in makes])

    if change.find_published(command.note, digest_all):
        change.tidy((), when_done)
        return None
    check()
    change.begin(command.note, command.overwrite)
    made = _finish_shards(change, command, shards)
    contents = finish(made)
    digest: str | None = "" if command.files.are_there else _join([report.samples_digest for report in made.reports])
    if command.is_idempotent:
        digest = None
    conclude(change, contents, command.bases, digest, when_done)
    return made


def conclude(
    change: Change,
    contents: Contents,
    bases: Sequence[Manifest] = (),
    digest: str | None = None,
    when_done: Callable[[], object] = lambda: None,
) -> None:
    """Write the tables of a dataset whose shards are there, publish its manifest, and tidy up.

    Args:
        bases: as in `Command`.
        digest: of samples in memory, empty for those of files; None if the same command again changes nothing.
        when_done: as for `rewrite`.
    """
    manifest = contents.manifest
    if contents.names is not None:
        table, kept = change.files.write_names(contents.names), contents.kept_tables
        more: tuple[NamesEntry, ...] = ()
        if kept:
            count = manifest.samples - sum(entry.samples for entry in kept)
            more = (*kept[1:], NamesEntry(**msgspec.structs.asdict(table), samples=count))
            table = msgspec.convert(kept[0], FileEntry, from_attributes=True)
        manifest = msgspec.structs.replace(manifest, names=table, more_names=more)
    if contents.rejected is not None:
        manifest = msgspec.structs.replace(manifest, left_out=change.files.write_list(contents.rejected))
    if contents.constants:
        manifest = msgspec.structs.replace(manifest, constants=change.files.write_constants(contents.constants))
    lost_stats = {name for base in bases for name in base.stats} & manifest.columns.keys() - manifest.stats.keys()
    change.publish(manifest, digest, continues=any(base is change.manifest for base in bases))
    if lost_stats:
        _log.warning(
            "%s: its statistics, which are of other samples or values, are dropped; `packer stats --save` makes them "
            "again",
            change.place,
        )
    change.tidy(contents.kept_files, when_done)


def _finish_shards(change: Change, command: Command, shards: Sequence[Keep | Link | Make]) -> Shards:
    """Link and pack the shards that no earlier run has finished."""
    makes = [shard for shard in shards if isinstance(shard, Make)]
    links = {number: shard for number, shard in enumerate(shards) if isinstance(shard, Link)}
    watcher = command.options.watcher
    finished = change.files.reports(ShardReport, {make.file_number for make in makes}) if makes else {}
    if not command.files.are_there:
        finished = {number: finished[number] for number in _find_same(change, makes, finished)}
    todo = [make for make in makes if make.file_number not in finished]
    _warn_of_full_disk(change.place, sum(make.shard.file_bytes for make in todo))
    if links:
        watcher.step(MERGING, 0, sum(link.entry.samples for link in links.values()))
    sizes = change.place.files() if links else {}
    linked = {}
    for number, link in links.items():
        linked[number] = _take_shard(change, link, number, sizes)
        watcher.done(link.entry.samples, link.entry.bytes)
    if makes:
        begin_packing(command, finished.values(), sum(make.samples for make in makes))
    with contextlib.closing(pack_shards(change, command, todo)) as packed:  # stopped, no worker goes on
        reports = finished | {report.number: report for report in packed}
    entries = tuple(
        reports[shard.file_number].entry if isinstance(shard, Make) else linked.get(number, shard.entry)
        for number, shard in enumerate(shards)
    )
    return Shards(entries, [reports[make.file_number] for make in makes], len(finished))


def begin_packing(command: Command, finished: Iterable[ShardReport], samples: int) -> None:
    """Begin the step that packs so many samples, those of finished shards included."""
    finished_samples = sum(report.entry.samples for report in finished)
    if finished_samples:
        _log.info("%s samples are packed already; going on with the others", f"{finished_samples:,}")
    command.options.watcher.step(PACKING, finished_samples, samples)


def pack_shards(change: Change, command: Command, makes: Sequence[Make]) -> Generator[ShardReport]:
    """Pack some shards, in this process or in others; yield their reports, each when its shard is finished."""
    options, place = command.options, change.place
    # Workers of an executor may have another working directory.
    output = LocalPlace(place.path.absolute()) if options.executor and isinstance(place, LocalPlace) else place
    tasks = [
        ShardTask(make, output, change.run, command.fields, options.map_limit, is_digested=not command.files.are_there)
        for make in makes
    ]
    workers = 0 if command.limits is None else process_count(options)
    return run_tasks(tasks, options.watcher, workers, command.limits, options.executor)


def _find_same(change: Change, makes: Sequence[Make], finished: dict[int, ShardReport]) -> Iterator[int]:
    """Yield the numbers of finished shards whose samples in memory are those at hand."""
    for make in makes:
        if (report := finished.get(make.file_number)) is not None:
            is_same = report.samples_digest == digest_samples(make.source, make.skip)
            problem = "" if is_same else "differs from the source"
            try:
                check_file(change.place.local([report.entry]) / report.entry.file, report.entry, whole=True)
            except DamagedError as error:
                problem = str(error)
            change.place.release([report.entry])
            if problem:
                _log.warning("%s: %s; it is packed again", report.entry.file, problem)
            else:
                yield make.file_number


def _take_shard(change: Change, link: Link, number: int, sizes: dict[str, int]) -> ShardEntry:
    """Put a shard of another dataset under a name of this one, unless it is there; return its entry.

    Raises:
        DamagedError: the shard is missing or has another size than its manifest says.
        WriteError: it cannot be copied.
    """
    place, entry = change.place, msgspec.structs.replace(link.entry, file=shard_file(change.run, number))
    if sizes.get(entry.file) == entry.bytes:
        return entry
    source = link.place.local([link.entry]) / link.entry.file
    check_file(source, entry)
    with place.drafted(entry.file) as draft, clear_errors(draft):
        try:
            draft.hardlink_to(source.resolve())  # not of a symbolic link, which could dangle
        except OSError:  # another file system, or one without hard links
            shutil.copyfile(source, draft)
            with draft.open("rb+") as copy:
                os.fsync(copy.fileno())
    return entry


def _warn_of_full_disk(place: Place, needed: int) -> None:
    if needed and isinstance(place, LocalPlace):
        free = shutil.disk_usage(place.path).free
        if needed > free:
            amounts = f"{needed:,} more bytes, but {free:,} are free; `packer plan` says how many are likely"
            _log.warning("%s may need up to %s", place.path, amounts)


def _join(digests: Sequence[str]) -> str:
    return xxhash.xxh3_128_hexdigest(" ".join(digests).encode())
