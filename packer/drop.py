"""Drops fields of a packed dataset.

drop("photos.packed", ["depth", "caption"])

Every shard is written again. The frames of the other fields are copied as they are.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial

import numpy as np

from packer.errors import UsageError
from packer.format import Manifest
from packer.join import with_new_fields
from packer.packing import (
    Command,
    ConvertOptions,
    Make,
    ShardPlan,
    changing_dataset,
    place_of,
    reading_limits,
    rewrite,
    with_fields,
)
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

        def check() -> None:
            for name in dropped:
                old.field(name)
            if not fields_left:
                raise UsageError(f"{place} would have no field left; remove the folder instead")

        no_samples = PackedSource(str(place), (), (), np.zeros(0, np.int64), None)
        shards = [
            Make(no_samples, ShardPlan(number, 0, 0, 0, entry.bytes, 0), base=(entry, old.fields))
            for number, entry in enumerate(old.shards)
        ]
        command = Command(
            verb="drop",
            settings={"the fields to drop": dropped},
            takes=old.shards,
            fields=fields_left,
            options=options,
            limits=reading_limits(options),
            bases=[old],
        )
        planned = sum(entry.bytes for entry in old.shards)
        origin = with_fields(old.origin, old.samples, {}, dropped, [field.name for field in fields_left])
        rewrite(change, command, shards, partial(with_new_fields, old, fields_left, origin, planned), check=check)
    return change.dataset
