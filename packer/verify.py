"""Checks a packed dataset: manifest, files, LMDB structure, every frame's checksum, every sample's shape.

report = verify("div2k.packed")
report.damages      # what is damaged: shard, field, sample numbers and names
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from packer.checking.shard_check import (
    SHOWN_NAMES,
    Checked,
    Damage,
    ShardCheck,
    check_shard,
    check_shards,
    of_file,
)
from packer.errors import DamagedError, DatasetError
from packer.format import manifest as manifests
from packer.format.manifest import (
    MANIFEST,
    SHARD_FOLDER,
    UNFINISHED,
    FileEntry,
    Manifest,
    check_file,
    total_of,
)
from packer.format.names import Names
from packer.packing.output import beside
from packer.packing.rejected import RejectedList
from packer.sources.base import Progress, no_progress


@dataclass(frozen=True)
class VerifyReport:
    """What was checked, and what is wrong with it."""

    damages: tuple[Damage, ...]
    files: int
    bytes: int
    frames: int

    @property
    def damaged_shards(self) -> tuple[str, ...]:
        """Files of the shards that are damaged, each once."""
        return tuple(sorted({d.file for d in self.damages if d.file.startswith(SHARD_FOLDER)}))


class _Checker:
    """Checks the files of one dataset; collects what is wrong."""

    def __init__(self, folder: Path, manifest: Manifest, progress: Progress) -> None:
        self.folder = folder
        self.manifest = manifest
        self.progress = progress
        self.damages: list[Damage] = []
        self.bytes = 0
        self.frames = 0
        self._names = self._check_names()
        self._check_left_out()
        if not isinstance(manifest.constants, msgspec.UnsetType) and self._is_whole(manifest.constants):
            self.bytes += manifest.constants.bytes

    def check_shards(self, workers: int) -> None:
        """Checks all shards; what is wrong comes in their order."""
        entries = self.manifest.shards
        checks = [ShardCheck(self.folder, entry, self.manifest.fields) for entry in entries]
        found: dict[int, Checked] = {}
        if workers:
            for number, checked in check_shards(checks, workers):
                found[number] = checked
                self.progress(0, entries[number].bytes)
        else:
            found = {number: check_shard(check, self.progress) for number, check in enumerate(checks)}
        first = 0
        for number, entry in enumerate(entries):
            checked = found[number]
            self.bytes += checked.nbytes
            self.frames += checked.frames
            self.damages += [self._in_dataset(damage, first) for damage in checked.damages]
            first += entry.samples
        self._check_totals([found[number] for number in range(len(entries))])
        self._check_same_names([found[number].names for number in range(len(entries))])

    def _check_same_names(self, names: Sequence[Sequence[bytes]]) -> None:
        """Compares the first names of each shard with the table, which no digest does; if nothing else is wrong."""
        if self._names is None or self.manifest.names is None or self.damages:
            return
        expected, first = 2 * self.manifest.samples, 0
        wrong = None
        if self._names.entries != expected:
            wrong = f"it has {self._names.entries:,} entries, {expected:,} expected: two for each sample"
        for entry, some in zip(self.manifest.shards, names, strict=True):
            wrong = wrong or self._names.difference(first, some)
            first += entry.samples
        if wrong:
            self._add(self.manifest.names, wrong)

    def _check_totals(self, checked: Sequence[Checked]) -> None:
        """Compares the bytes that the manifest says of each column with what all shards hold, if all could be read."""
        for field in self.manifest.fields:
            held = [shard.totals.get(field.name) for shard in checked]
            if None in held:
                continue
            total, said = total_of(one for one in held if one), self.manifest.columns[field.name]
            if total != said:
                what = f"it says {said.raw:,} bytes as arrays and {said.stored:,} stored"
                what += f", the shards hold {total.raw:,} and {total.stored:,}"
                self.damages.append(Damage(MANIFEST, what, field.name))

    def check_strangers(self) -> None:
        """Finds files that the manifest does not know; those of an append, or of a tidying, to go on are no damage."""
        if beside(self.folder, "appending").exists() or (self.folder / UNFINISHED).exists():
            return
        folder = self.folder / SHARD_FOLDER
        found = {f"{SHARD_FOLDER}/{path.name}" for path in folder.iterdir()} if folder.is_dir() else set()
        strangers = found - {entry.file for entry in self.manifest.shards}
        if strangers:
            # Read once more: what was appended while all else was checked is none.
            strangers -= {entry.file for entry in manifests.read(self.folder).shards}
        for name in sorted(strangers):
            self.damages.append(Damage(name, "the manifest does not know this file; remove it", repairable=False))

    def _in_dataset(self, damage: Damage, first: int) -> Damage:
        """Return a damage of a shard with numbers in the dataset and names; its first sample has the number `first`."""
        if damage.samples is None:
            return damage
        start, stop = (first + number for number in damage.samples)
        names = tuple(self._names.name(i) for i in range(start, stop)[:SHOWN_NAMES]) if self._names else ()
        return replace(damage, samples=(start, stop), names=names)

    def _check_left_out(self) -> None:
        """Checks the list of what was left out; an append may have lengthened it, but for that it is as it was."""
        entry = self.manifest.left_out
        if isinstance(entry, msgspec.UnsetType):
            return
        path = self.folder / entry.file
        try:
            self.bytes += len(RejectedList.of_dataset(self.folder, self.manifest).lines)
            held = path.stat().st_size
        except (DamagedError, OSError) as error:
            self._add(entry, of_file(str(error), path, self.folder))
            return
        if held == entry.bytes or beside(self.folder, "appending").exists():
            return
        # Read once more, after that: what was appended in between is no damage.
        if manifests.read(self.folder).left_out == entry:
            self._add(entry, f"{held:,} bytes, {entry.bytes:,} expected")

    def _add(self, entry: FileEntry, what: str) -> None:
        self.damages.append(Damage(entry.file, what))

    def _check_names(self) -> Names | None:
        """Return the table of names, if there is one and it is as it was written."""
        entry = self.manifest.names
        if entry is None:
            return None
        if not self._is_whole(entry):
            return None
        path = self.folder / entry.file
        try:
            self.bytes += entry.bytes
            return Names(path, entry)
        except DamagedError as error:
            self._add(entry, of_file(str(error), path, self.folder))
        return None

    def _is_whole(self, entry: FileEntry) -> bool:
        """Return whether a file is as it was written; a damage is noted."""
        path = self.folder / entry.file
        try:
            check_file(path, entry)
            if manifests.file_digest(path) != entry.digest:
                raise DamagedError("its digest is wrong: it was changed after it was written")
        except DamagedError as error:
            self._add(entry, of_file(str(error), path, self.folder))
            return False
        except OSError as error:
            if error.errno != errno.EIO:  # no permission, too many open files: that says nothing of what it holds
                raise DatasetError(f"{path}: cannot be opened: {error.strerror}") from None
            self._add(entry, "it cannot be read: the disk has an error")
            return False
        return True


def verify(dataset: str | os.PathLike[str], progress: Progress | None = None, workers: int = 0) -> VerifyReport:
    """Checks every byte of a packed dataset.

    Args:
        progress: called with 0 and the bytes done since the last call.
        workers: processes that check shards; 0 checks in this one, which the system ends (SIGBUS) where the disk cannot
            read a page of a file, or a file is cut short meanwhile.

    Raises:
        DatasetError: there is no packed dataset, or its manifest is wrong, so that nothing else can be checked; or a
            file of it may not be read.
    """
    folder = Path(dataset)
    manifest = manifests.read(folder)
    checker = _Checker(folder, manifest, progress or no_progress)
    checker.check_shards(workers)
    checker.check_strangers()
    has_list = not isinstance(manifest.left_out, msgspec.UnsetType)
    files = 1 + len(manifest.shards) + len(manifest.tables) + has_list
    return VerifyReport(tuple(checker.damages), files, checker.bytes, checker.frames)
