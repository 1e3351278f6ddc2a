"""Adds samples to a packed dataset, as new shards.

append("div2k.packed", ["lr=more/LR", "hr=more/HR"])
append("rows.packed", "other.packed")
append("s3://bucket/rows.packed", "more.h5")

The new samples are packed as `convert` packs them, beside the shards that are there. One rename puts the new manifest
in place. Open readers keep the samples that they opened.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from packer.errors import UsageError
from packer.format import Manifest, Names, NamesEntry
from packer.merge import check_names, joined_manifest
from packer.packing import (
    Contents,
    ConvertOptions,
    Keep,
    LocalPlace,
    Packed,
    Rejected,
    Shards,
    changing_dataset,
    check_apart,
    commands_of,
    explain_changes,
    fetch_rejected,
    fit_source,
    open_source,
    packed_folder,
    place_of,
    plan_job,
    read_manifest,
    rewrite,
    usual_options,
)
from packer.sources import Source, names_of, open_packed


@dataclass(frozen=True)
class AppendReport:
    """The result of appending.

    Attributes:
        path: the folder, or the URL as it was given.
        manifest: the new manifest of the dataset.
        added: number of new samples.
        rejected: samples that were skipped.
    """

    path: Path | str
    manifest: Manifest
    added: int
    rejected: tuple[Rejected, ...]
    seconds: float


def append(
    dataset: str | os.PathLike[str],
    sources: Any,
    options: ConvertOptions | None = None,
    *,
    done: Callable[[AppendReport], None] | None = None,
    **changes: Any,
) -> AppendReport:
    """Pack `sources` like the samples of the dataset, and add them at its end. Open readers keep what they opened.

    After a crash, the same call continues. Once it has returned, calling it again adds the samples a second time,
    unless they have names.

    Args:
        dataset: its folder or URL.
        sources: as for `convert`, or another packed dataset.
        options: as for `convert`; codecs are those of the dataset, and so are options of sources that are not given.
        done: called with the report, to print it. If the process is killed before this call ends, the same append can
            still be repeated without adding anything twice.
        changes: single options by name, over those in `options`.

    Raises:
        DatasetError: there is no packed dataset, or its list of what was skipped is damaged.
        UsageError: the sources do not fit it (the message names the difference) or share a name with it, or something
            else is changing it.
        SourceError, WriteError, ResourceError: as `convert`.
    """
    start_time = time.perf_counter()
    options = replace(options or ConvertOptions(), **changes)
    if options.codec != "auto" or options.overwrite or options.fields is not None or options.like is not None:
        raise UsageError(
            "append takes no codec, fields, like or overwrite: new samples are packed like those that are there"
        )
    place = place_of(dataset)
    rejected: list[Rejected] = []
    folder = packed_folder(sources)
    other = None if folder is None else LocalPlace(Path(folder))
    read = [] if other is None else [(other, read_manifest(other))]
    with changing_dataset(place) as (change, old), explain_changes(read):
        check_apart(sources, place)
        job = plan_job(_open(sources, options, rejected, old), options, rejected)
        job = replace(job, commands=commands_of("append", sources, options))
        old_rejected, tables = fetch_rejected(place, old), place.local(old.name_tables)

        def report() -> AppendReport:
            new, shards = change.dataset, change.new_shards
            added = sum(new.shards[number].samples for number in shards)
            skipped = [entry for entry in fetch_rejected(place, new) if entry.shard in shards]
            return AppendReport(place.address, new, added, (*rejected, *skipped), time.perf_counter() - start_time)

        rewrite(
            change,
            job.command("append", bases=[old]),
            [*map(Keep, old.shards), *job.makes()],
            lambda shards: _extended(old, old_rejected, tables, job.packed(shards), shards),
            check=lambda: check_names(
                [(str(place), _find_taken_names(tables, old, job.source)), ("the source", job.source.names)]
            ),
            when_done=lambda: done and done(report()),
        )
        return report()


def _extended(old: Manifest, old_rejected: list[Rejected], tables: Path, packed: Packed, shards: Shards) -> Contents:
    """Return the dataset with new samples behind those it had; `tables` is the folder of its tables of names."""
    kept_tables, names = _split_tables(tables, old, packed.names)
    return Contents(
        manifest=joined_manifest([old, packed.manifest], shards.entries),
        names=names,
        kept_tables=kept_tables,
        rejected=old_rejected + [entry.moved(len(old.shards)) for entry in packed.rejected],
        # Readers that are open may look up names, and `verify` may be at work.
        kept_files=[*old.name_tables, old.left_out],
    )


def _find_taken_names(folder: Path, manifest: Manifest, source: Source) -> list[str] | None:
    """Return the names of a source that the dataset has already; None if the dataset has no names."""
    if manifest.names is None:
        return None
    with closing(Names(folder, manifest)) as names:
        return names.taken(source.names or ())


def _split_tables(
    folder: Path, manifest: Manifest, new_names: Sequence[str] | None
) -> tuple[Sequence[NamesEntry], Sequence[str] | None]:
    """Return the tables of names that stay, and the names of the new table; None if there are no names.

    The new table takes over the names of the last tables, as long as they are less than twice as large. So each table
    is at least twice as large as the next, and a thousand appends leave ten tables.
    """
    kept_tables, samples = list(manifest.name_tables), len(new_names or ())
    while kept_tables and kept_tables[-1].samples < 2 * samples:
        samples += kept_tables.pop().samples
    return kept_tables, None if new_names is None else [
        *names_of(folder, manifest.name_tables[len(kept_tables) :]),
        *new_names,
    ]


def _open(sources: Any, options: ConvertOptions, rejected: list[Rejected], manifest: Manifest) -> Source:
    """Return the samples to add, with the fields of the dataset."""
    folder = packed_folder(sources)
    if folder is not None:
        return fit_source(open_source(open_packed(folder), options, rejected), manifest)
    # Samples in memory are looked at with the dataset's schema, not with one of their own.
    options, usual = replace(options, fields=manifest.fields), usual_options(manifest, "append")
    return fit_source(open_source(sources, options, rejected, usual=usual), manifest)
