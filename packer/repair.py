"""Repairs a packed dataset: packs damaged shards again from the sources, and takes a damaged manifest from its copy.

A file that is made again gets a new name, and one rename of the manifest puts all of them in place. Open readers keep
the files that they opened.
"""

from __future__ import annotations

import contextlib
import logging
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from packer.checking import check_same_schema
from packer.errors import DamagedError, DatasetError, ManifestError, SourceError, UnfinishedError, UsageError
from packer.format import (
    MANIFEST,
    MANIFEST_COPY,
    FileEntry,
    Manifest,
    ShardEntry,
    ShardNames,
    encode_constants,
    same_constants,
)
from packer.format import manifest as manifests
from packer.packing import (
    Change,
    Command,
    Contents,
    ConvertOptions,
    Keep,
    LocalPlace,
    Make,
    Rejected,
    Shards,
    SourceFiles,
    changing,
    field_sizes,
    make_report,
    matching_parts,
    plan_shards,
    read_examples,
    read_rejected,
    rewrite,
    skipped_samples,
    source_files,
    totals,
)
from packer.remote import is_url
from packer.sources import Source
from packer.verify import verify
from packer.watcher import NOBODY, Watcher
from packer.workers import Limits

_log = logging.getLogger(__name__)


def repair(
    dataset: str | os.PathLike[str],
    source: Source | None = None,
    watcher: Watcher = NOBODY,
    workers: int = 0,
    limits: Limits | None = None,
) -> tuple[str, ...]:
    """Repair a packed dataset; files without damage are not touched.

    Args:
        source: opened with the options of the conversion; needed if a shard or the constants are damaged. For a dataset
            that was merged or appended to: the source of one part, or of all parts in their order.
        watcher: its steps are `checking`, in bytes, and `packing`, in samples.
        workers: processes that check shards, see `verify`. If there are any, shards are packed in a process too, so
            that a sample that crashes it is an error. What the conversion has skipped is not read.
        limits: of reading a sample there; None for the usual ones.

    Returns:
        the files that were made again. A warning says what is lost.

    Raises:
        DatasetError: a shard or the constants are damaged and no source was given; or too much is lost.
        SourceError: the source no longer has the values that were packed.
        UsageError: the source does not fit the dataset, or something else is changing the dataset.
        WriteError: the folder cannot be written.
    """
    read_manifest_or_copy(dataset)
    folder = Path(dataset)
    limits = limits or Limits() if workers else None
    with changing(LocalPlace(folder)) as change:
        manifest, files_made = read_manifest_or_copy(folder)
        if files_made:
            change.publish(manifest)
        damaged = _Damaged(
            folder, manifest, frozenset(damage.file for damage in verify(folder, watcher, workers).damages)
        )
        damaged.check_source(source)
        if not damaged.files:
            change.tidy()
            return files_made
        constants = damaged.constants_of(source)
        makes: dict[ShardEntry, Make] = {}
        source_paths = SourceFiles(len(damaged.files), "damaged")
        if source is not None and damaged.shards:
            makes = _plan_again(change, damaged, source, limits)
            source_paths, _ = source_files(source.files())
        command = Command(
            verb="repair",
            settings={"the damaged files": damaged.files},
            files=source_paths,
            shards=len(damaged.shards),
            fields=manifest.fields,
            options=ConvertOptions(workers=min(1, workers), watcher=watcher),
            limits=limits,
            bases=[manifest],
            is_idempotent=True,
        )
        shards = [makes.get(entry, Keep(entry)) for entry in manifest.shards]
        rewrite(change, command, shards, partial(_repaired, damaged, constants))
    return (*files_made, *damaged.files)


@dataclass(frozen=True)
class _Damaged:
    """A dataset, and which of its files are damaged: paths within it, and any other that was found."""

    folder: Path
    manifest: Manifest
    found: frozenset[str]

    @property
    def shards(self) -> list[ShardEntry]:
        """Return the shards that are to be packed again."""
        return [entry for entry in self.manifest.shards if entry.file in self.found]

    @property
    def files(self) -> list[str]:
        """Return the files that are to be made again."""
        manifest = self.manifest
        files = [entry.file for entry in (*manifest.tables, manifest.left_out, *self.shards) if entry]
        return [file for file in (MANIFEST, *files) if file in self.found]

    def has(self, entry: FileEntry | None) -> bool:
        """Return whether a file, which there may be, is damaged."""
        return entry is not None and entry.file in self.found

    def check_source(self, source: Source | None) -> None:
        """Raise DatasetError if there is no source, and a shard or the constants need one."""
        for entry in (*self.shards, self.manifest.constants):
            if source is None and entry is not None and entry.file in self.found:
                raise DatasetError(f"{self.folder}: {entry.file} is damaged; name the sources it was made from")

    def constants_of(self, source: Source | None) -> bytes:
        """Return the constants of the source, if those of the dataset are damaged.

        Raises:
            SourceError: they are others.
        """
        if source is None or not self.has(self.manifest.constants):
            return b""
        constants = encode_constants(source.constants)
        if constants and not same_constants(self.manifest.constants, constants):
            raise SourceError("the source has other constants than were packed; give it as it was")
        return constants


def _repaired(damaged: _Damaged, constants: bytes, shards: Shards) -> Contents:
    """Return the dataset with the shards that were made again.

    Raises:
        SourceError: one has other bytes than it had.
    """
    folder, manifest = damaged.folder, damaged.manifest
    for entry, new in zip(manifest.shards, shards.entries, strict=True):
        if entry.digest != new.digest:
            raise SourceError(
                f"the sources do not give the bytes that were packed into {entry.file}: a source has changed, "
                "or the library of a codec; give the sources as they were, or convert them again"
            )
    entries = tuple(
        msgspec.structs.replace(entry, file=new.file)
        for entry, new in zip(manifest.shards, shards.entries, strict=True)
    )
    changes: dict[str, Any] = {"shards": entries}
    if MANIFEST in damaged.found:
        reports = [make_report(folder / entry.file, manifest.fields, entry.file) for entry in entries]
        changes |= {"columns": totals([report.columns for report in reports]), "stats": {}}
    return Contents(
        manifest=msgspec.structs.replace(manifest, **changes),
        names=ShardNames(folder, entries) if any(map(damaged.has, manifest.name_tables)) else None,
        rejected=_read_what_is_left(folder, manifest) if damaged.has(manifest.left_out) else None,
        constants=constants,
    )


def read_manifest_or_copy(dataset: str | os.PathLike[str]) -> tuple[Manifest, tuple[str, ...]]:
    """Return the manifest, or its copy, and which of the two are damaged.

    Raises:
        DatasetError: there is no dataset, or neither can be read.
        UsageError: it is at a URL.
    """
    if is_url(dataset):
        raise UsageError(
            f"{dataset}: a dataset is repaired in a folder only; copy it to one, repair it there, and copy what was "
            "made again back, its manifest.json last"
        )
    folder = Path(dataset)
    copy = folder / MANIFEST_COPY
    try:
        manifest = manifests.read(folder)
    except UnfinishedError:
        raise
    except ManifestError as error:
        if not copy.exists():
            raise ManifestError(f"{error}, but there is none; convert the sources again") from None
        try:
            return manifests.read(folder, MANIFEST_COPY), (MANIFEST,)
        except ManifestError:
            raise ManifestError(
                f"{folder}: {MANIFEST} and its copy are both damaged; convert the sources again"
            ) from None
    if copy.exists():
        try:
            manifests.read(folder, MANIFEST_COPY)
        except ManifestError:
            return manifest, (MANIFEST_COPY,)
    return manifest, ()


def _read_what_is_left(folder: Path, manifest: Manifest) -> list[Rejected]:
    """Return the list of what was skipped, if its lines can be read; say so if they cannot."""
    rejected: list[Rejected] = []
    with contextlib.suppress(DamagedError):  # a file that is only too long is cut back to the lines that count
        rejected = read_rejected(folder, manifest)
    outcome = f"cut back to its {len(rejected):,} lines" if rejected else "lost"
    file = manifest.left_out and manifest.left_out.file
    _log.warning("%s is %s; `packer info` says how many samples were skipped", file, outcome)
    return rejected


def _plan_again(change: Change, damaged: _Damaged, source: Source, limits: Limits | None) -> dict[ShardEntry, Make]:
    """Return how damaged shards are packed again, by their entries."""
    manifest, bad_shards = damaged.manifest, damaged.shards
    check_same_schema(manifest, source)
    _log.info("%s damaged; packing again", "1 shard" if len(bad_shards) == 1 else f"{len(bad_shards):,} shards")
    rejected = [] if damaged.has(manifest.left_out) else read_rejected(damaged.folder, manifest)
    skipped = skipped_samples(rejected, manifest.shards)
    numbers = {entry: number for number, entry in enumerate(manifest.shards)}
    makes = {}
    for conversion, samples in matching_parts(change.place.local([]), manifest, source):
        if {"joined", "dropped"} & conversion.origin.keys():
            raise DatasetError(
                f"{change.place}: {bad_shards[0].file} cannot be made again, since fields were joined or dropped after "
                "its samples were packed; convert the sources of all fields again"
            )
        # Planned again, since a shard holds its map size.
        sizes = field_sizes(samples, partial(read_examples, samples, limits))
        plan = plan_shards(samples, manifest.fields, sizes, conversion.edges()[:-1])
        for (entry, part, _), shard in zip(conversion.parts(samples), plan, strict=True):
            number = numbers[entry]
            known_bad = skipped.get(number, {})
            makes[entry] = Make(part, shard, number not in skipped, number=number, known_bad=known_bad)
    if missing := [entry for entry in bad_shards if entry not in makes]:
        words = ("is damaged too", "those as well") if makes else ("is damaged", "those")
        raise DatasetError(
            f"{change.place}: {missing[0].file} {words[0]}, and was made from other sources; give {words[1]}"
        )
    return {entry: makes[entry] for entry in bad_shards}
