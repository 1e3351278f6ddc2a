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
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import xxhash

from packer.errors import UsageError, first_few
from packer.format import Field, Manifest, check_count
from packer.jobs import (
    ConvertOptions,
    Job,
    check_apart,
    is_published,
    log_plan,
    open_source,
    pack,
    packed_folder,
    reading_limits,
)
from packer.packing import (
    Change,
    Place,
    SourceFiles,
    changing_dataset,
    classes_of,
    make_plan,
    place_of,
    source_files,
    with_fields,
)
from packer.sources import SampleSource, Source, in_order_of, open_packed, read_names


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
    need as many rows as the dataset has samples. After a crash, the same call continues.

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
        source = open_source(inputs, replace(options, on_error="stop"), [], are_beside=True)
        by_name = source.names is not None
        job = _plan_join(source, options, place, old)
        fields = tuple(field for field in job.plan.fields if field.name in {spec.name for spec in source.fields})
        if not is_published(job, change):
            names = [field.name for field in old.fields]
            if duplicates := [field.name for field in fields if field.name in names]:
                raise UsageError(
                    f"{place} has the field {duplicates[0]} already; `packer drop {place} {duplicates[0]}` removes it "
                    "first, or name the new one otherwise"
                )
            publish(job, change, with_fields(old.origin, old.samples, dict.fromkeys(_names(fields), job.plan.origin)))
        change.tidy()
    return JoinReport(place.address, change.dataset, fields, by_name)


def publish(job: Job, change: Change, origin: dict[str, Any]) -> None:
    """Write the shards of a dataset again with the fields of a job, and put its new manifest in place.

    Args:
        job: its `base` is the dataset.
        origin: of the new dataset.
    """
    old, packed = change.dataset, pack(job, change)
    shards = zip(old.shards, packed.manifest.shards, strict=True)
    names = _names(job.plan.fields)
    change.publish(
        msgspec.structs.replace(
            old,
            tool=packed.manifest.tool,
            fields=job.plan.fields,
            shards=tuple(msgspec.structs.replace(new, rejected=entry.rejected) for entry, new in shards),
            columns=packed.manifest.columns,
            planned_bytes=old.planned_bytes and job.plan.file_bytes,
            origin=origin,
            stats={name: stats for name, stats in old.stats.items() if name in names},
            classes=classes_of(origin, old.samples),
        )
    )


def _plan_join(source: Source, options: ConvertOptions, place: Place, old: Manifest) -> Job:
    """Plan the new fields of all samples, shard by shard."""
    in_memory = isinstance(source, SampleSource)
    names = read_names(place.local(old.name_tables), old)
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
    log_plan(plan)
    files, source_bytes = (SourceFiles(len(source), _digest(source)), 0) if in_memory else source_files(source.files())
    options = replace(options, on_error="stop")
    return Job(source, plan, options, files, source_bytes, limits, {}, [], "join", old)


def _names(fields: Sequence[Field]) -> list[str]:
    return [field.name for field in fields]


def _digest(source: Source) -> str:
    """Return the xxh3-128 of samples in memory, in hex: it identifies them, as sizes and times identify files."""
    digest = xxhash.xxh3_128()
    for block in source.read():
        for name, values in block.items():
            for value in values:
                data = value.encode() if isinstance(value, str) else np.ascontiguousarray(value).tobytes()
                digest.update(f"{name} {getattr(value, 'shape', None)} {len(data)} ".encode() + data)
    return digest.hexdigest()
