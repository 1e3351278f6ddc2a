"""The last steps of making a dataset: names, rejected samples, and the manifest, which publishes it.

Appending and merging take shards over as they are, with one manifest and one table of names for all.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

import packer
from packer.errors import SourceError, UsageError, WriteError
from packer.format import manifest as manifests
from packer.format.manifest import (
    CONSTANTS_FILE,
    NAMES_FILE,
    FileEntry,
    Manifest,
    ShardEntry,
    Splits,
    check_file,
    total_of,
)
from packer.format.names import write_names
from packer.format.schema import Field
from packer.format.shard import Shard
from packer.packing.origin import classes_of, joined
from packer.packing.output import OutputFolder
from packer.packing.rejected import ListEntry, Rejected, RejectedList
from packer.packing.splits import joined_splits
from packer.packing.tasks import ShardReport
from packer.sources.derived import described

#: What a manifest says of its classes.
Classes = tuple[str, ...] | msgspec.UnsetType


@dataclass(frozen=True)
class Made:
    """What the manifest says besides the shards themselves.

    Attributes:
        named: whether samples have names.
        planned_bytes: bytes of all shards as planned; None where there was no plan.
        table: file of the table of names.
        left_out: the list of samples that were left out.
        splits, constants: UNSET if there are none.
    """

    fields: tuple[Field, ...]
    origin: dict[str, Any]
    named: bool
    planned_bytes: int | None = None
    table: str = NAMES_FILE
    left_out: ListEntry = msgspec.UNSET
    splits: Splits | msgspec.UnsetType = msgspec.UNSET
    constants: FileEntry | msgspec.UnsetType = msgspec.UNSET


def finish(
    folder: OutputFolder, made: Made, reports: Sequence[ShardReport], rejected: Sequence[Rejected] = ()
) -> Manifest:
    """Writes names.lmdb, rejected.jsonl and the manifest, and publishes the dataset.

    Raises:
        SourceError: no sample was good, or two have one name.
        WriteError: a file cannot be written.
    """
    samples = sum(report.entry.samples for report in reports)
    if not samples:
        reason = f"none could be packed; {rejected[0].file}: {rejected[0].reason}" if rejected else "none was given"
        raise SourceError(f"{folder.path} would hold no sample: {reason}")
    try:
        made = replace(made, left_out=RejectedList(rejected).write(folder.work))
        manifest = write_manifest(folder.work, made, reports)
        folder.publish()
    except OSError as error:
        raise WriteError(f"{folder.path}: {error}") from None
    return manifest


def write_manifest(folder: Path, made: Made, reports: Sequence[ShardReport]) -> Manifest:
    """Writes names.lmdb, then the manifest, for shards that are in place.

    Raises:
        SourceError: two samples have one name.
    """
    samples = sum(report.entry.samples for report in reports)
    shards = tuple(report.entry for report in reports)
    manifest = Manifest(
        tool=f"packer {packer.__version__}",
        samples=samples,
        fields=made.fields,
        shards=shards,
        names=write_table(folder, made.table, ShardNames(folder, shards)) if made.named else None,
        columns={field.name: total_of(report.columns[field.name] for report in reports) for field in made.fields},
        origin=made.origin,
        planned_bytes=made.planned_bytes,
        left_out=made.left_out,
        classes=classes_of(made.origin, samples),
        splits=made.splits,
        constants=made.constants,
    )
    manifests.write(folder, manifest)
    return manifest


def write_table(folder: Path, file: str, names: Iterable[bytes]) -> FileEntry:
    """Writes the table of names of a dataset as `file` in its folder, under a temporary name first.

    Raises:
        SourceError: two samples have one name, or a name is too long.
    """
    partial = folder / (file + ".partial")
    write_names(partial, names)
    path = partial.replace(folder / file)
    return FileEntry(file=file, bytes=path.stat().st_size, digest=manifests.file_digest(path))


class ShardNames:
    """The names of all samples of some shards, read from these each time they are gone through."""

    def __init__(self, folder: Path, shards: Sequence[ShardEntry]) -> None:
        self._folder = folder
        self._shards = shards

    def __iter__(self) -> Iterator[bytes]:
        for entry in self._shards:
            with Shard(self._folder / entry.file) as shard:
                yield from shard.names(entry.samples)


def take_shard(folder: Path, entry: ShardEntry, target: Path) -> ShardEntry:
    """Puts a shard of the dataset in `folder` at `target` as well: a hard link where that can be, else a copy.

    Returns:
        its entry in the manifest of the dataset that `target` belongs to.

    Raises:
        DamagedError: the shard is missing or has another size than its manifest says.
        WriteError: it cannot be copied.
    """
    source = folder / entry.file
    check_file(source, entry)
    partial = target.with_suffix(".lmdb.partial")
    try:
        partial.unlink(missing_ok=True)
        _link_or_copy(source, partial)
        partial.replace(target)
        partial.unlink(missing_ok=True)  # of two links to one file, left by an earlier call, a rename removes none
    except OSError as error:
        raise WriteError(f"{target}: {error.strerror}; free some space or choose another folder") from None
    return msgspec.structs.replace(entry, file=f"{target.parent.name}/{target.name}")


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source.resolve())  # of a symbolic link it would be one more, to be left dangling
    except OSError:  # another file system, or one without hard links
        with source.open("rb") as reading, target.open("wb") as writing:
            shutil.copyfileobj(reading, writing, 2**24)
            writing.flush()
            os.fsync(writing.fileno())


def check_alike(first: Sequence[Field], other: Sequence[Field], where: str) -> None:
    """Raises UsageError where shards of the schema `other` cannot stand with those of `first`; says what differs."""
    if tuple(first) == tuple(other):
        return
    names, others = [field.name for field in first], [field.name for field in other]
    if names != others:
        raise UsageError(
            f"{where} has the fields {', '.join(others)}, where {', '.join(names)} are expected, in this order"
        )
    for a, b in zip(first, other, strict=True):
        if a.spec != b.spec:
            raise UsageError(f"{where}: field {a.name!r} is {described(b)}, {described(a)} is expected")
        if a != b:
            what = "another codec" if a.codec != b.codec else "frames of another size"
            raise UsageError(
                f"{where}: field {a.name!r} is stored with {what}; "
                "`packer append` packs its samples anew, so that they are stored alike"
            )


def check_classes(first: Classes, other: Classes, where: str) -> None:
    """Raises UsageError where the numbers of the field `label` do not stand for the same in both."""
    if first != other:
        texts = [", ".join(names) if names else "none that are known" for names in (other, first)]
        raise UsageError(
            f"{where} has the classes {texts[0]}, where {texts[1]} are expected: one number would stand for several; "
            "convert all sources as one, or with a folder for each class, which may be empty"
        )


def joined_manifest(
    manifests: Sequence[Manifest], shards: Sequence[ShardEntry], names: FileEntry | None, left_out: ListEntry
) -> Manifest:
    """Return the manifest of the samples of several datasets, one after another, in `shards`."""
    first = manifests[0]
    planned = [manifest.planned_bytes for manifest in manifests]
    return Manifest(
        tool=f"packer {packer.__version__}",
        samples=sum(manifest.samples for manifest in manifests),
        fields=first.fields,
        shards=tuple(shards),
        names=names,
        columns={
            field.name: total_of(manifest.columns[field.name] for manifest in manifests) for field in first.fields
        },
        origin=joined([(manifest.samples, manifest.origin) for manifest in manifests]),
        planned_bytes=None if None in planned else sum(filter(None, planned)),
        left_out=left_out,
        classes=first.classes,
        splits=joined_splits(manifests),
        constants=first.constants,
    )


def check_constants(first: Manifest, other: Manifest, where: str) -> None:
    """Raise UsageError if samples of a dataset do not have the constants of those that they are to stand with."""
    ours, theirs = (
        None if isinstance(manifest.constants, msgspec.UnsetType) else manifest.constants.digest
        for manifest in (first, other)
    )
    if ours != theirs:
        raise UsageError(
            f"{where}: what is kept once for all samples ({CONSTANTS_FILE}) differs; `packer export` gives the samples "
            "back, to be packed without --once"
        )


def check_names(sets: Sequence[tuple[str, Sequence[str] | None]]) -> list[str] | None:
    """Return the names of all samples, from those of each dataset; None where none has names.

    Raises:
        UsageError: some have names and others none, or two samples have one name.
    """
    first, held = sets[0]
    seen = set(held or ())
    for where, names in sets[1:]:
        if (names is None) != (held is None):
            named, bare = (first, where) if names is None else (where, first)
            raise UsageError(f"samples of {named} have names, those of {bare} have none; they cannot be joined")
        twice = seen.intersection(names or ())
        if twice:
            raise UsageError(f"{where} has a sample named {min(twice)!r}, which is there already; names must differ")
        seen.update(names or ())
    return None if held is None else [name for _, names in sets for name in names or ()]
