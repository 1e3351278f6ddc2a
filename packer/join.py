"""Adds fields to the samples of a packed dataset: embeddings, captions, new labels.

join("photos.packed", "caption=captions")
join("rows.packed", {"embedding": "embeddings.npy"})
join("photos.packed", [{"score": score} for score in scores])

Every shard is written again. The frames of the old fields are copied; the new fields are packed after them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from packer.errors import UsageError, first_few
from packer.format import Field, Manifest, check_count
from packer.packing import (
    Contents,
    ConvertOptions,
    Job,
    Origin,
    Place,
    Shards,
    SourceFiles,
    changing_dataset,
    check_apart,
    digest_samples,
    job_of,
    make_manifest,
    make_plan,
    open_source,
    packed_folder,
    place_of,
    reading_limits,
    rewrite,
    with_fields,
)
from packer.sources import (
    TABLES,
    SampleSource,
    Source,
    TableSource,
    in_order_of,
    named_by_table,
    open_packed,
    read_names,
)


@dataclass(frozen=True)
class JoinReport:
    """The result of joining fields.

    Attributes:
        path: the folder, or the URL as it was given.
        manifest: the new manifest of the dataset.
        fields: the new fields.
        by_name: whether values went to samples by name; else by number.
    """

    path: Path | str
    manifest: Manifest
    fields: tuple[Field, ...]
    by_name: bool


def join(
    dataset: str | os.PathLike[str], sources: Any, options: ConvertOptions | None = None, **changes: Any
) -> JoinReport:
    """Add fields to the samples of a dataset. Open readers keep what they opened.

    Values go to the samples of their names. Sources without names, such as the rows of an array, go by number: they
    need as many rows as the dataset has samples; so does a table of one column. Of other tables one column has the
    names. After a crash, the same call continues.

    Args:
        dataset: its folder or URL.
        sources: as for `convert`, or another packed dataset. Text files and files of one array may stand alone here.
        options: as for `convert`; codecs are those of the new fields. With `on_error="skip"`, a value whose name
            matches no sample is skipped. A sample without a value is always an error.
        changes: single options by name, over those in `options`.

    Raises:
        DatasetError: there is no packed dataset, or a shard of it is damaged.
        UsageError: names or numbers of samples do not agree, a field is there already, or something else is changing
            the dataset.
        SourceError, WriteError, ResourceError: as `convert`.
    """
    options = replace(options or ConvertOptions(), **changes)
    if options.overwrite or options.shard_size or options.splits or options.like or options.fields:
        raise UsageError("join takes no overwrite, shard_size, splits, like or fields: samples and shards stay")
    place = place_of(dataset)
    with changing_dataset(place) as (change, old):
        check_apart(sources, place)
        packed_dataset = packed_folder(sources)
        inputs = sources if packed_dataset is None else open_packed(packed_dataset)
        source = open_source(inputs, replace(options, on_error="stop"), [], as_extra_fields=True)
        job = _plan_join(source, options, place, old)
        new_names = {spec.name for spec in source.fields}
        fields = tuple(field for field in job.plan.fields if field.name in new_names)

        def check() -> None:
            names = [field.name for field in old.fields]
            if duplicates := [field.name for field in fields if field.name in names]:
                raise UsageError(
                    f"{place} has the field {duplicates[0]} already; `packer drop {place} {duplicates[0]}` removes it "
                    "first, or name the new one otherwise"
                )

        origin = with_fields(old.origin, old.samples, dict.fromkeys(_names(fields), job.plan.origin))
        finish = partial(with_new_fields, old, job.plan.fields, origin, job.plan.file_bytes)
        command = job.command("join", shards=None, takes=old.shards, bases=[old])
        rewrite(change, command, job.makes(old), finish, check=check)
    return JoinReport(place.address, change.dataset, fields, job.source.names is not None)


def with_new_fields(
    old: Manifest, fields: tuple[Field, ...], origin: Origin, planned_bytes: int | None, shards: Shards
) -> Contents:
    """Return a dataset whose samples have got other fields.

    Args:
        fields: all fields of the new dataset.
        origin: of the new dataset.
        planned_bytes: of all its shards.
        shards: of the new dataset, in the order of the old ones.
    """
    names, pairs = _names(fields), zip(old.shards, shards.entries, strict=True)
    entries = [msgspec.structs.replace(new, rejected=entry.rejected) for entry, new in pairs]
    columns = [report.columns for report in shards.reports]
    new_manifest = make_manifest(entries, columns, fields, origin)
    return Contents(
        manifest=msgspec.structs.replace(
            old,
            tool=new_manifest.tool,
            fields=fields,
            shards=new_manifest.shards,
            columns=new_manifest.columns,
            planned_bytes=old.planned_bytes and planned_bytes,
            origin=origin,
            stats={name: stats for name, stats in old.stats.items() if name in names},
            classes=new_manifest.classes,
        )
    )


def _plan_join(source: Source, options: ConvertOptions, place: Place, old: Manifest) -> Job:
    """Plan the new fields of all samples, shard by shard."""
    in_memory = isinstance(source, SampleSource)
    names = read_names(place.local(old.name_tables), old)
    if names is not None and isinstance(source, TableSource) and source.kind == TABLES and len(source.fields) > 1:
        source = named_by_table(source, names, options.source.key)
    source = in_order_of(names, old.samples, source, drop=options.on_error == "skip")
    if source.constants:
        raise UsageError(
            f"join adds values of samples; leave out --once for {first_few(list(source.constants))}, or convert again"
        )
    limits = reading_limits(options, in_memory)
    starts = np.cumsum([0, *(entry.samples for entry in old.shards)])[:-1].tolist()
    plan = make_plan(source, options.codec, None, limits, options.watcher, starts)
    new_names = _names(plan.fields)
    fields = (*(field for field in old.fields if field.name not in new_names), *plan.fields)
    check_count(len(fields))
    shards = [
        replace(shard, file_bytes=shard.file_bytes + entry.bytes)
        for shard, entry in zip(plan.shards, old.shards, strict=True)
    ]
    plan = replace(plan, fields=fields, shards=tuple(shards))
    job = job_of(plan, replace(options, on_error="stop"), limits)
    return replace(job, files=SourceFiles(len(source), digest_samples(source))) if in_memory else job


def _names(fields: Sequence[Field]) -> list[str]:
    return [field.name for field in fields]
