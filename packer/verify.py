"""Checks a packed dataset: manifest, files, LMDB structure, every frame's checksum, every sample's shape.

report = verify("div2k.packed")
report.damages      # what is damaged: shard, field, sample numbers and names
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import xxhash

from packer.checking import SHOWN_NAMES, Damage
from packer.errors import DamagedError
from packer.format import (
    MANIFEST,
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
    read_constants,
    total_of,
)
from packer.format import manifest as manifests
from packer.packing import next_to, rejected_of
from packer.sources import Progress, no_progress
from packer.workers import Here, Limits, Lost, run

#: Names of each shard that are compared with the table of names: its digest finds what was changed, and who writes one
#: wrong writes many wrong.
_COMPARED = 10

Found = TypeVar("Found")


@dataclass(frozen=True)
class VerifyReport:
    """What was checked, and what is wrong with it."""

    damages: tuple[Damage, ...]
    files: int
    bytes: int
    frames: int

    @property
    def damaged_shards(self) -> tuple[str, ...]:
        """Return the files of the shards that are damaged, each once."""
        return tuple(sorted({d.file for d in self.damages if d.file.startswith(SHARD_FOLDER)}))


def verify(dataset: str | os.PathLike[str], progress: Progress | None = None, workers: int = 0) -> VerifyReport:
    """Check every byte of a packed dataset.

    Args:
        progress: called with 0 and the bytes done since the last call.
        workers: processes that check shards; 0 checks in this one, which the system ends (SIGBUS) if the disk cannot
            read a page of a file, or a file is cut short meanwhile.

    Raises:
        DatasetError: there is no packed dataset, or its manifest is wrong, so that nothing else can be checked; or a
            file of it may not be read.
    """
    folder = Path(dataset)
    manifest = manifests.read(folder)
    damages: list[Damage] = []
    names = _checked_file(folder, manifest.names, _table, damages)
    _checked_file(folder, manifest.left_out, partial(_rejected_list, folder, manifest), damages)
    _checked_file(folder, manifest.constants, read_constants, damages)
    tables = [entry for entry in (manifest.names, manifest.left_out, manifest.constants) if entry]
    good = [entry for entry in tables if entry.file not in {damage.file for damage in damages}]
    shards = _checked_shards(folder, manifest, progress or no_progress, workers)
    first = 0
    for entry, shard in zip(manifest.shards, shards, strict=True):
        damages += [_in_dataset(damage, first, names) for damage in shard.damages]
        first += entry.samples
    damages += _false_totals(manifest, shards)
    if names is not None and not damages:
        damages += _false_names(manifest, names, shards)
    damages += _strangers(folder, manifest)
    return VerifyReport(
        tuple(damages),
        files=1 + len(manifest.shards) + len(tables),
        bytes=sum(entry.bytes for entry in good) + sum(shard.nbytes for shard in shards),
        frames=sum(shard.frames for shard in shards),
    )


# ---------------------------------------------------------------- files next to the shards


def _checked_file(
    folder: Path,
    entry: FileEntry | None,
    read: Callable[[Path, FileEntry], Found],
    damages: list[Damage],
) -> Found | None:
    """Return what `read` makes of a file; None if there is no such file, or it is damaged, which is noted.

    Raises:
        DatasetError: it cannot be opened, for want of permission or of room for open files, which says nothing of it.
    """
    if entry is None:
        return None
    path = folder / entry.file
    try:
        return read(path, entry)
    except DamagedError as error:
        damages.append(Damage.of(error, folder, entry.file))
    return None


def _table(path: Path, entry: FileEntry) -> Names:
    """Return the table of names."""
    check_file(path, entry, whole=True)
    return Names(path, entry)


def _rejected_list(folder: Path, manifest: Manifest, path: Path, entry: FileEntry) -> None:
    """Raise DamagedError if the list of what was left out is wrong; an append may have lengthened it."""
    rejected_of(folder, manifest)
    held = path.stat().st_size
    # The manifest is read once more, after that: what was appended in between is no damage.
    if held != entry.bytes and not next_to(folder, "appending").exists() and manifests.read(folder).left_out == entry:
        raise DamagedError(f"{held:,} bytes, {entry.bytes:,} expected")


def _strangers(folder: Path, manifest: Manifest) -> Iterator[Damage]:
    """Yield the files that the manifest does not know; those of an append, or of a tidying, to go on are no damage."""
    if next_to(folder, "appending").exists() or (folder / UNFINISHED).exists():
        return
    shards = folder / SHARD_FOLDER
    found = {f"{SHARD_FOLDER}/{path.name}" for path in shards.iterdir()} if shards.is_dir() else set()
    strangers = found - {entry.file for entry in manifest.shards}
    if strangers:
        # Read once more: what was appended while all else was checked is none.
        strangers -= {entry.file for entry in manifests.read(folder).shards}
    for name in sorted(strangers):
        yield Damage(name, "the manifest does not know this file; remove it", repairable=False)


# ---------------------------------------------------------------- shards


@dataclass
class _Checked:
    """What was checked of a shard, and what is wrong with it; its samples are counted from the shard's first one."""

    damages: list[Damage] = field(default_factory=list)
    nbytes: int = 0
    frames: int = 0
    #: Of the first samples; none if it could not be read, or its samples have no names.
    names: list[bytes] = field(default_factory=list)
    #: Bytes of each column, by field; absent if the shard could not be read so far.
    totals: dict[str, ColumnTotals] = field(default_factory=dict)


def _checked_shards(folder: Path, manifest: Manifest, progress: Progress, workers: int) -> list[_Checked]:
    """Return what was found in each shard, in their order.

    A disk that cannot read a page of a map ends the process that asked for it: by that the shard is found damaged, and
    the others are checked all the same.
    """
    entries = manifest.shards
    if not workers:
        return [_check_shard(folder, manifest.fields, entry, progress) for entry in entries]
    found: dict[int, _Checked] = {}
    for number, result in run(partial(_check_apart, folder, manifest.fields), entries, workers, Limits(None, None)):
        if isinstance(result, Lost):
            result = _Checked([Damage(entries[number].file, f"reading it {result.reason}: check the disk")])
        found[number] = result
        progress(0, entries[number].bytes)
    return [found[number] for number in range(len(entries))]


def _check_apart(folder: Path, fields: tuple[Field, ...], entry: ShardEntry, here: Here) -> _Checked:
    return _check_shard(folder, fields, entry, no_progress)


def _check_shard(folder: Path, fields: tuple[Field, ...], entry: ShardEntry, progress: Progress) -> _Checked:
    """Check every byte of a shard: header, index, frames, names, and the digest of the file.

    Raises:
        DatasetError: it cannot be opened, for want of permission or of room for open files, which says nothing of it.
    """
    checked = _Checked()
    try:
        with Shard(folder / entry.file, entry.bytes) as shard:
            header = shard.check_header(fields, entry.samples)
            columns = [shard.column(position, each, entry.samples) for position, each in enumerate(fields)]
            for column in columns:
                column.check_samples()
                checked.totals[column.field.name] = column.index.totals
            _check_bytes(shard, entry, columns, checked, progress)
            if checked.damages:
                return checked
            shard.check_index(entry.index)
            if header.named:
                checked.names = list(itertools.islice(shard.names(entry.samples), _COMPARED))
    except DamagedError as error:
        checked.damages.append(Damage.of(error, folder, entry.file))
    return checked


def _check_bytes(shard: Shard, entry: ShardEntry, columns: list[Column], checked: _Checked, progress: Progress) -> None:
    """Hash the file, and its frames one by one."""
    done = 0
    with ThreadPoolExecutor(1) as pool:
        # By another thread: hashing does not hold the interpreter's lock.
        digest = pool.submit(xxhash.xxh3_128_hexdigest, shard.bytes)
        for column in columns:
            checked.frames += column.index.frames
            for nbytes, wrong in column.check_frames():
                for frame, samples in zip(wrong.tolist(), column.index.samples_of(wrong).tolist(), strict=True):
                    what = f"the checksum of frame {frame} is wrong"
                    checked.damages.append(Damage(entry.file, what, column.field.name, tuple(samples)))
                done += nbytes
                progress(0, nbytes)
        good = digest.result() == entry.digest
    progress(0, entry.bytes - done)
    checked.nbytes += entry.bytes
    if not good and not checked.damages:
        what = "its digest is wrong, though all frames are right: an index, a page or the padding changed"
        checked.damages.append(Damage(entry.file, what))


# ---------------------------------------------------------------- shards and the rest of the dataset


def _in_dataset(damage: Damage, first: int, names: Names | None) -> Damage:
    """Return a damage of a shard with numbers in the dataset and names; its first sample has the number `first`."""
    if damage.samples is None:
        return damage
    start, stop = (first + number for number in damage.samples)
    shown = tuple(names.name(number) for number in range(start, stop)[:SHOWN_NAMES]) if names else ()
    return replace(damage, samples=(start, stop), names=shown)


def _false_totals(manifest: Manifest, shards: Sequence[_Checked]) -> Iterator[Damage]:
    """Compare the bytes that the manifest says of each column with what all shards hold, if all could be read."""
    for each in manifest.fields:
        held = [shard.totals[each.name] for shard in shards if each.name in shard.totals]
        total, said = total_of(held), manifest.columns[each.name]
        if len(held) == len(shards) and total != said:
            what = f"it says {said.raw:,} bytes as arrays and {said.stored:,} stored"
            what += f", the shards hold {total.raw:,} and {total.stored:,}"
            yield Damage(MANIFEST, what, each.name)


def _false_names(manifest: Manifest, names: Names, shards: Sequence[_Checked]) -> Iterator[Damage]:
    """Compare the first names of each shard with the table, which no digest does."""
    expected, first = 2 * manifest.samples, 0
    wrong = None
    if names.entries != expected:
        wrong = f"it has {names.entries:,} entries, {expected:,} expected: two for each sample"
    for entry, shard in zip(manifest.shards, shards, strict=True):
        wrong = wrong or names.difference(first, shard.names)
        first += entry.samples
    if wrong and manifest.names:
        yield Damage(manifest.names.file, wrong)
