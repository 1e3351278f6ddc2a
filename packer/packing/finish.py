"""Takes the last steps before a dataset is published: table of names, list of what was left out, manifest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import packer
from packer.errors import SourceError
from packer.format import (
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
from packer.packing.output import Rejected, write_list


def make_manifest(
    folder: Path,
    shards: Sequence[ShardEntry],
    columns: Sequence[Mapping[str, ColumnTotals]],
    fields: Sequence[Field],
    origin: Origin,
    table: str | None,
    rejected: Sequence[Rejected] = (),
    **members: Any,
) -> Manifest:
    """Write the list of what was left out and the table of names, and return the manifest, of shards that are in place.

    Args:
        columns: bytes of every column, by field: of each shard, or of several together.
        table: file of the table of names; None if samples have none.
        members: other members of the manifest, such as its splits.

    Raises:
        SourceError: no sample was good, or two have one name.
        WriteError: a file cannot be written.
    """
    samples = sum(shard.samples for shard in shards)
    if not samples:
        reason = f"none could be packed; {rejected[0].file}: {rejected[0].reason}" if rejected else "none was given"
        raise SourceError(f"the dataset would hold no sample: {reason}")
    left_out = write_list(folder / REJECTED_FILE, rejected)
    return Manifest(
        tool=f"packer {packer.__version__}",
        samples=samples,
        fields=tuple(fields),
        shards=tuple(shards),
        names=write_table(folder, table, shards) if table else None,
        columns=totals(columns),
        origin=origin,
        left_out=left_out,
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
