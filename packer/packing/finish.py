"""The last steps of making a dataset: names, the list of what was left out, and the manifest, which publishes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import packer
from packer.errors import SourceError, WriteError
from packer.format import manifest as manifests
from packer.format.manifest import NAMES_FILE, FileEntry, Manifest, ShardEntry, total_of
from packer.format.names import write_names
from packer.format.schema import Field
from packer.format.shard import Shard
from packer.packing.origin import Origin, classes_of
from packer.packing.output import OutputFolder
from packer.packing.rejected import Rejected, RejectedList
from packer.packing.tasks import ShardReport


def finish(
    output: OutputFolder,
    reports: Sequence[ShardReport],
    fields: Sequence[Field],
    origin: Origin,
    *,
    named: bool,
    rejected: Sequence[Rejected] = (),
    **members: Any,
) -> Manifest:
    """Write names.lmdb, rejected.jsonl and the manifest, and publish the dataset.

    Args:
        named: whether samples have names.
        members: other members of the manifest, such as its splits.

    Raises:
        SourceError: no sample was good, or two have one name.
        WriteError: a file cannot be written.
    """
    if not any(report.entry.samples for report in reports):
        reason = f"none could be packed; {rejected[0].file}: {rejected[0].reason}" if rejected else "none was given"
        raise SourceError(f"{output.path} would hold no sample: {reason}")
    try:
        left_out = RejectedList(rejected).write(output.work)
        table = NAMES_FILE if named else None
        manifest = write_manifest(output.work, reports, fields, origin, table, left_out=left_out, **members)
    except OSError as error:
        raise WriteError(f"{output.path}: {error}") from None
    output.publish()
    return manifest


def write_manifest(
    folder: Path,
    reports: Sequence[ShardReport],
    fields: Sequence[Field],
    origin: Origin,
    table: str | None,
    **members: Any,
) -> Manifest:
    """Write the table of names, then the manifest, for shards that are in place.

    Args:
        table: file of the table of names; None if samples have none.
        members: other members of the manifest.

    Raises:
        SourceError: two samples have one name.
    """
    shards = tuple(report.entry for report in reports)
    samples = sum(shard.samples for shard in shards)
    manifest = Manifest(
        tool=f"packer {packer.__version__}",
        samples=samples,
        fields=tuple(fields),
        shards=shards,
        names=write_table(folder, table, ShardNames(folder, shards)) if table else None,
        columns={field.name: total_of(report.columns[field.name] for report in reports) for field in fields},
        origin=origin,
        classes=classes_of(origin, samples),
        **members,
    )
    manifests.write(folder, manifest)
    return manifest


def write_table(folder: Path, file: str, names: Iterable[bytes]) -> FileEntry:
    """Write the table of names of a dataset as `file` in its folder, under a temporary name first.

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
