"""Checks a packed dataset: manifest, files, LMDB structure, every frame's checksum, every sample's shape.

report = verify("div2k.packed")
report.damages      # what is damaged: shard, field, sample numbers and names

Machines share it out by `verify_part("div2k.packed", "3/400")`, which writes a report into the dataset;
`verify("div2k.packed", reports=part_reports("div2k.packed"))` takes what the reports say, and checks the rest.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import xxhash

from packer.checking import SHOWN_NAMES, Damage
from packer.codecs import compiled
from packer.errors import DamagedError, DatasetError, ManifestError
from packer.format import (
    MANIFEST,
    MANIFEST_COPY,
    SHARD_FOLDER,
    UNFINISHED,
    Column,
    ColumnTotals,
    Field,
    FileEntry,
    Manifest,
    Names,
    Shard,
    ShardEntry,
    check_file,
    list_folder,
    read_constants,
    shard_totals,
)
from packer.format import manifest as manifests
from packer.packing import JoinedParts, PartReports, part_shards, place_of, read_rejected, shards_left, totals, utc_now
from packer.watcher import CHECKING, NOBODY, Watcher
from packer.workers import Limits, Lost, Reporter, run_in_processes

#: How many names of each shard are compared with the table. A digest finds later changes; a writer's bug would show in
#: the first few.
_COMPARED = 10


@dataclass(frozen=True)
class VerifyReport:
    """What was checked, and what is wrong with it.

    Attributes:
        parts: which shards parts had checked before.
    """

    damages: tuple[Damage, ...]
    files: int
    bytes: int
    frames: int
    parts: JoinedParts = field(default_factory=lambda: JoinedParts({}))


def part_reports(dataset: str | os.PathLike[str]) -> PartReports:
    """Return the reports of parts that lie in a packed dataset, which may be at a URL."""
    return PartReports(place_of(dataset), "verify", _ShardResult)


def verify_part(
    dataset: str | os.PathLike[str],
    part: str,
    watcher: Watcher = NOBODY,
    workers: int = 0,
    reports: PartReports | None = None,
) -> VerifyReport:
    """Check every n-th shard, and write a report that says so.

    The manifest, the tables and the constants are left to `verify`.

    Args:
        dataset: a folder that holds at least the shards of the part.
        part: "3/400" checks the third of each 400 shards; "0/400" is the last of them, for jobs that count from 0.
        watcher, workers: as for `verify`.
        reports: where the report goes; by default into the dataset.

    Returns:
        what was checked. Damages give the numbers of samples without their names.

    Raises:
        UsageError: there is no such part.
        WriteError: the report cannot be written.
        DatasetError, ResourceError: as `verify`.
    """
    folder, start_time = Path(dataset), utc_now()
    reports = reports or part_reports(folder)
    reports.begin()
    manifest = manifests.read(folder)
    numbers = part_shards(part, len(manifest.shards))
    results = _check_shards(folder, manifest, numbers, watcher, workers)
    damages = _order_damages(manifest, results, None)
    _check_unchanged(folder, manifest, damages)
    reports.write(manifest, part, start_time, results)
    shards = results.values()
    nbytes, frames = sum(shard.nbytes for shard in shards), sum(shard.frames for shard in shards)
    return VerifyReport(tuple(damages), len(numbers), nbytes, frames)


def verify(
    dataset: str | os.PathLike[str],
    watcher: Watcher = NOBODY,
    workers: int = 0,
    reports: PartReports | None = None,
) -> VerifyReport:
    """Check every byte of a packed dataset.

    Args:
        watcher: its step is `checking`, in bytes.
        workers: processes that check shards; 0 checks in this one. The system kills a process (SIGBUS) if the disk
            cannot read a page of a file, or if another program cuts the file short.
        reports: of parts. Shards that have a report are not read again, so `dataset` need not hold them.

    Raises:
        DatasetError: there is no packed dataset, or its manifest is wrong, so that nothing else can be checked; or a
            file of it may not be read.
        UsageError, ResourceError: this process may not, or cannot, start others.
    """
    folder = Path(dataset)
    manifest = manifests.read(folder)
    damages: list[Damage] = []
    names: Names | None = None
    for table in manifest.name_tables:
        with _collect_damages(damages, folder, table.file):
            check_file(folder / table.file, table, whole=True)
    if manifest.names is not None and not damages:
        with _collect_damages(damages, folder, manifest.names.file):
            names = Names(folder, manifest)
    if manifest.left_out is not None:
        with _collect_damages(damages, folder, manifest.left_out.file):
            read_rejected(folder, manifest)
    if manifest.constants is not None:
        with _collect_damages(damages, folder, manifest.constants.file):
            read_constants(folder / manifest.constants.file, manifest.constants)
    if (folder / MANIFEST_COPY).exists():
        with _collect_damages(damages, folder, MANIFEST_COPY):
            manifests.read(folder, MANIFEST_COPY)
    tables = manifest.files[len(manifest.shards) :]
    good_tables = [entry for entry in tables if entry.file not in {damage.file for damage in damages}]
    joined = JoinedParts({}) if reports is None else reports.join(manifest)
    numbers_left = shards_left(manifest, None, reports)
    results = {**joined.results, **_check_shards(folder, manifest, numbers_left, watcher, workers)}
    shards = [results[number] for number in range(len(manifest.shards))]
    damages += _order_damages(manifest, results, names)
    damages += _check_totals(manifest, shards)
    if names is not None and not damages:
        damages += _check_names(manifest, names, shards)
    damages += _find_unknown_files(folder, manifest, good_tables)
    _check_unchanged(folder, manifest, damages)
    return VerifyReport(
        tuple(damages),
        files=1 + len(manifest.shards) + len(tables),
        bytes=sum(entry.bytes for entry in good_tables) + sum(shard.nbytes for shard in shards),
        frames=sum(shard.frames for shard in shards),
        parts=joined,
    )


def _check_unchanged(folder: Path, manifest: Manifest, damages: Sequence[Damage]) -> None:
    """Raise DatasetError if there are damages, and shards that were checked are no longer part of the dataset."""
    if damages and not set(manifest.shards) <= set(manifests.read(folder).shards):
        raise DatasetError(f"{folder}: it was changed while it was checked; verify it again")


@contextlib.contextmanager
def _collect_damages(damages: list[Damage], folder: Path, file: str) -> Iterator[None]:
    """Collect the damage of a file instead of raising it.

    Raises:
        DatasetError: the file cannot be opened: no permission, or too many open files. This is no damage.
    """
    try:
        yield
    except (DamagedError, ManifestError) as error:
        damages.append(Damage.of(error, folder, file))


def _find_unknown_files(folder: Path, manifest: Manifest, good: Sequence[FileEntry]) -> list[Damage]:
    """Return shards, and lines in the list of skipped samples, that the manifest does not name.

    The result is empty while a run is under way or was stopped, and if the dataset changed during the check.
    """
    files = {f"{SHARD_FOLDER}/{entry.name}" for entry in list_folder(folder / SHARD_FOLDER)}
    unknown_files = sorted(files - {entry.file for entry in manifest.shards})
    damages = []
    if manifest.left_out is not None and manifest.left_out in good:
        nbytes, expected = (folder / manifest.left_out.file).stat().st_size, manifest.left_out.bytes
        if nbytes != expected:
            damages.append(Damage(manifest.left_out.file, f"{nbytes:,} bytes, {expected:,} expected"))
    reason = "the manifest does not know this file; remove it"
    damages += [Damage(name, reason, repairable=False) for name in unknown_files]
    if not damages or any((folder / UNFINISHED).glob("*.json*")):
        return []
    current = manifests.read(folder)
    return damages if (current.shards, current.left_out) == (manifest.shards, manifest.left_out) else []


# ---------------------------------------------------------------- shards


@dataclass
class _ShardResult:
    """What was checked of a shard, and what is wrong with it. Samples are numbered from the shard's first one."""

    damages: list[Damage] = field(default_factory=list)
    nbytes: int = 0
    frames: int = 0
    #: Names of the first samples; empty if the shard could not be read, or its samples have no names.
    names: list[bytes] = field(default_factory=list)
    #: Bytes of each column that could be read, by field.
    totals: dict[str, ColumnTotals] = field(default_factory=dict)


def _check_shards(
    folder: Path, manifest: Manifest, numbers: Sequence[int], watcher: Watcher, workers: int
) -> dict[int, _ShardResult]:
    """Return what was found in shards, by their numbers.

    If the disk cannot read a page of a map, the system kills the process that asked for it. Its shard is then reported
    as damaged, and the others are still checked.
    """
    entries = [manifest.shards[number] for number in numbers]
    watcher.step(CHECKING, 0, sum(entry.bytes for entry in entries))
    compiled.prepare(field.codec for field in manifest.fields)
    if not workers:
        shards = [_check_shard(folder, manifest.fields, watcher, entry) for entry in entries]
        return dict(zip(numbers, shards, strict=True))
    results: dict[int, _ShardResult] = {}
    check = partial(_check_shard, folder, manifest.fields, NOBODY)
    for index, result in run_in_processes(check, entries, workers, Limits(None, None)):
        if isinstance(result, Lost):
            result = _ShardResult([Damage(entries[index].file, f"reading it {result.reason}: check the disk")])
        results[numbers[index]] = result
        watcher.done(0, entries[index].bytes)
    return results


def _check_shard(
    folder: Path, fields: tuple[Field, ...], watcher: Watcher, entry: ShardEntry, reporter: Reporter | None = None
) -> _ShardResult:
    """Check every byte of a shard: header, index, frames, names, and the digest of the file.

    Args:
        reporter: the process, if it is one of `run_in_processes`.

    Raises:
        DatasetError: the file cannot be opened: no permission, or too many open files. This is no damage.
    """
    result = _ShardResult()
    with _collect_damages(result.damages, folder, entry.file), Shard(folder / entry.file, entry.bytes) as shard:
        header = shard.check_header(fields, entry.samples)
        columns = [shard.column(number, field, entry.samples) for number, field in enumerate(fields)]
        for column in columns:
            column.check_samples()
        result.totals = shard_totals([column.index for column in columns])
        _check_bytes(shard, entry, columns, result, watcher)
        if not result.damages:
            shard.check_index(entry.index)
            if header.named:
                result.names = list(itertools.islice(shard.names(entry.samples), _COMPARED))
    return result


def _check_bytes(
    shard: Shard, entry: ShardEntry, columns: list[Column], result: _ShardResult, watcher: Watcher
) -> None:
    """Hash the file, and its frames one by one."""
    bytes_done = 0
    with ThreadPoolExecutor(1) as pool:
        # In another thread: hashing does not hold the interpreter's lock.
        digest = pool.submit(xxhash.xxh3_128_hexdigest, shard.bytes)
        for column in columns:
            result.frames += column.index.frames
            for nbytes, bad_frames in column.check_frames():
                samples = column.index.samples_of(np.array([*bad_frames], np.int64)).tolist()
                for reason, held in zip(bad_frames.values(), samples, strict=True):
                    result.damages.append(Damage(entry.file, reason, column.field.name, tuple(held)))
                bytes_done += nbytes
                watcher.done(0, nbytes)
        is_good = digest.result() == entry.digest
    watcher.done(0, entry.bytes - bytes_done)
    result.nbytes += entry.bytes
    if not is_good and not result.damages:
        reason = "its digest is wrong, though all frames are right: an index, a page or the padding changed"
        result.damages.append(Damage(entry.file, reason))


# ---------------------------------------------------------------- shards and the rest of the dataset


def _order_damages(manifest: Manifest, results: Mapping[int, _ShardResult], names: Names | None) -> list[Damage]:
    """Return the damages of shards, given by their numbers, in the order of the dataset."""
    damages, first = [], 0
    for number, entry in enumerate(manifest.shards):
        if number in results:
            damages += [_place_in_dataset(damage, first, names) for damage in results[number].damages]
        first += entry.samples
    return damages


def _place_in_dataset(damage: Damage, first: int, names: Names | None) -> Damage:
    """Return a damage with names, and sample numbers in the dataset, where the shard's first sample is `first`."""
    if damage.samples is None:
        return damage
    start, stop = (first + number for number in damage.samples)
    first_names = tuple(names.name(number) for number in range(start, stop)[:SHOWN_NAMES]) if names else ()
    return replace(damage, samples=(start, stop), names=first_names)


def _check_names(manifest: Manifest, names: Names, shards: Sequence[_ShardResult]) -> Iterator[Damage]:
    """Compare the tables of names with the first names of each shard."""
    first = 0
    for entry, shard in zip(manifest.shards, shards, strict=True):
        if difference := names.difference(first, shard.names):
            yield Damage(names.table_of(first).path.name, difference)
        first += entry.samples
    for table, table_entry in zip(names.tables, manifest.name_tables, strict=True):
        if table.entries != 2 * table_entry.samples:
            reason = f"it has {table.entries:,} entries, {2 * table_entry.samples:,} expected: two for each sample"
            yield Damage(table_entry.file, reason)


def _check_totals(manifest: Manifest, shards: Sequence[_ShardResult]) -> Iterator[Damage]:
    """Compare the totals of each column in the manifest with those of the shards, if all shards could be read."""
    if not all(shard.totals for shard in shards):
        return
    nothing = dict.fromkeys(manifest.columns, ColumnTotals(raw=0, stored=0))
    for name, total in totals([shard.totals for shard in shards] or [nothing]).items():
        expected = manifest.columns[name]
        if (total.raw, total.stored) != (expected.raw, expected.stored):
            reason = f"it says {expected.raw:,} bytes as arrays and {expected.stored:,} stored"
            reason += f", the shards hold {total.raw:,} and {total.stored:,}"
            yield Damage(MANIFEST, reason, name)
        if expected.scale not in (None, total.scale):
            yield Damage(
                MANIFEST, f"it says that all samples have the shapes {expected.scale}, which they have not", name
            )
