"""The last steps of making a dataset: names, rejected samples, and the manifest, which publishes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

import packer
from packer.errors import SourceError, WriteError
from packer.format import manifest as manifests
from packer.format.manifest import NAMES_FILE, FileEntry, Manifest, total_of
from packer.format.names import write_names
from packer.format.schema import Field
from packer.format.shard import Shard
from packer.format.sync import sync_folder
from packer.packing.output import OutputFolder
from packer.packing.rejected import ListEntry, Rejected, RejectedList
from packer.packing.tasks import ShardReport


@dataclass(frozen=True)
class Made:
    """What the manifest says beside the shards themselves.

    Attributes:
        named: whether samples have names.
        planned_bytes: bytes of all shards as planned; None where there was no plan.
        table: file of the table of names.
        left_out: the list of samples that were left out.
    """

    fields: tuple[Field, ...]
    origin: dict[str, Any]
    named: bool
    planned_bytes: int | None = None
    table: str = NAMES_FILE
    left_out: ListEntry = msgspec.UNSET


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
    manifest = Manifest(
        tool=f"packer {packer.__version__}",
        samples=sum(report.entry.samples for report in reports),
        fields=made.fields,
        shards=tuple(report.entry for report in reports),
        names=write_table(folder, made.table, ShardNames(folder, reports)) if made.named else None,
        columns={field.name: total_of(report.columns[field.name] for report in reports) for field in made.fields},
        origin=made.origin,
        planned_bytes=made.planned_bytes,
        left_out=made.left_out,
    )
    manifests.write(folder, manifest)
    sync_folder(folder)
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

    def __init__(self, folder: Path, reports: Sequence[ShardReport]) -> None:
        self._folder = folder
        self._reports = reports

    def __iter__(self) -> Iterator[bytes]:
        for report in self._reports:
            with Shard(self._folder / report.entry.file) as shard:
                yield from shard.names(report.entry.samples)
