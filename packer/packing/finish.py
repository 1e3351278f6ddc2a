"""Takes the last steps before a dataset is published: table of names, list of what was left out, manifest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import packer
from packer.errors import SourceError
from packer.format import (
    NAMES_FILE,
    REJECTED_FILE,
    ColumnTotals,
    Field,
    FileEntry,
    Manifest,
    ShardEntry,
    ShardNames,
    clear_errors,
    file_digest,
    total_of,
    write_names,
)
from packer.packing.origin import Origin, classes_of
from packer.packing.output import OutputFolder, Rejected, write_list


def finish(
    output: OutputFolder,
    shards: Sequence[ShardEntry],
    columns: Sequence[Mapping[str, ColumnTotals]],
    fields: Sequence[Field],
    origin: Origin,
    *,
    named: bool,
    rejected: Sequence[Rejected] = (),
    **members: Any,
) -> Manifest:
    """Write names.lmdb and rejected.jsonl, and return the manifest with which the dataset can be published.

    Args:
        named: whether samples have names.
        columns, members: see `make_manifest`.

    Raises:
        SourceError: no sample was good, or two have one name.
        WriteError: a file cannot be written.
    """
    if not any(shard.samples for shard in shards):
        reason = f"none could be packed; {rejected[0].file}: {rejected[0].reason}" if rejected else "none was given"
        raise SourceError(f"{output.path} would hold no sample: {reason}")
    left_out = write_list(output.work / REJECTED_FILE, rejected)
    table = NAMES_FILE if named else None
    return make_manifest(output.work, shards, columns, fields, origin, table, left_out=left_out, **members)


def make_manifest(
    folder: Path,
    shards: Sequence[ShardEntry],
    columns: Sequence[Mapping[str, ColumnTotals]],
    fields: Sequence[Field],
    origin: Origin,
    table: str | None,
    **members: Any,
) -> Manifest:
    """Write the table of names, and return the manifest, of shards that are in place.

    Args:
        columns: bytes of every column, by field: of each shard, or of several together.
        table: file of the table of names; None if samples have none.
        members: other members of the manifest, such as its splits.

    Raises:
        SourceError: two samples have one name.
        WriteError: the table cannot be written.
    """
    samples = sum(shard.samples for shard in shards)
    return Manifest(
        tool=f"packer {packer.__version__}",
        samples=samples,
        fields=tuple(fields),
        shards=tuple(shards),
        names=write_table(folder, table, shards) if table else None,
        columns=totals(columns),
        origin=origin,
        classes=classes_of(origin, samples),
        **members,
    )


def totals(columns: Sequence[Mapping[str, ColumnTotals]]) -> dict[str, ColumnTotals]:
    """Return the bytes of every column, by field, of several shards or datasets together."""
    return {name: total_of(each[name] for each in columns) for name in columns[0]}


def write_table(folder: Path, table: str, shards: Sequence[ShardEntry]) -> FileEntry:
    """Write the table of names of shards that are in place, under a temporary name first.

    Raises:
        SourceError: two samples have one name.
        WriteError: it cannot be written.
    """
    path, partial = folder / table, folder / f"{table}.partial"
    write_names(partial, ShardNames(folder, shards))
    with clear_errors(path):
        partial.replace(path)
        return FileEntry(file=path.name, bytes=path.stat().st_size, digest=file_digest(path))
