"""Drops fields of a packed dataset.

drop("photos.packed", ["depth", "caption"])

Every shard is written again. The frames of the other fields are copied as they are.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from packer.errors import UsageError
from packer.format import Manifest
from packer.jobs import ConvertOptions, Job, is_published, reading_limits
from packer.join import publish
from packer.packing import Plan, ShardPlan, SourceFiles, changing_dataset, place_of, with_fields
from packer.sources import PackedSource
from packer.watcher import NOBODY, Watcher


def drop(
    dataset: str | os.PathLike[str],
    fields: Sequence[str],
    *,
    workers: int | None = None,
    watcher: Watcher = NOBODY,
) -> Manifest:
    """Remove fields of a dataset. Open readers keep what they opened. After a crash, the same call continues.

    Args:
        dataset: its folder or URL.
        fields: their names.
        workers: processes, as for `convert`.
        watcher: its step is `packing`, in samples and the bytes of their shards.

    Returns:
        the new manifest.

    Raises:
        DatasetError: there is no packed dataset, or a shard of it is damaged.
        UsageError: there is no such field, no field would be left, or something else is changing the dataset.
        WriteError: the place cannot be written.
    """
    options = ConvertOptions(workers=workers, watcher=watcher)
    dropped = list(dict.fromkeys([fields] if isinstance(fields, str) else fields))
    place = place_of(dataset)
    with changing_dataset(place) as (change, old):
        fields_left = tuple(field for field in old.fields if field.name not in dropped)
        no_samples = PackedSource(str(place), (), (), np.zeros(0, np.int64), None)
        shards = tuple(
            ShardPlan(number, start=0, stop=0, raw_bytes=0, file_bytes=entry.bytes, slack_bytes=0)
            for number, entry in enumerate(old.shards)
        )
        plan = Plan(no_samples, {"dropped": dropped}, fields_left, shards, {}, exact=False)
        job = Job(
            no_samples,
            plan,
            options,
            files=SourceFiles(len(old.shards), "shards"),
            source_bytes=0,
            limits=reading_limits(options, in_memory=False),
            splits={},
            rejected=[],
            verb="drop",
            base=old,
        )
        if not is_published(job, change):
            for name in dropped:
                old.field(name)
            if not fields_left:
                raise UsageError(f"{place} would have no field left; remove the folder instead")
            publish(job, change, with_fields(old.origin, old.samples, {}, dropped))
        change.tidy()
    return change.dataset
