"""Going on with a conversion: by what it is told from another, and which of its shards are finished."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import xxhash

import packer
from packer.checking.against import compare_shard
from packer.codecs.configs import codec_name
from packer.errors import DamagedError, UsageError
from packer.format.manifest import Splits
from packer.format.schema import Field
from packer.packing.output import State
from packer.packing.plan import Prepared
from packer.packing.splits import split_text
from packer.packing.tasks import ShardReport, ShardTask, report_of

_log = logging.getLogger(__name__)


def state_of(
    prepared: Prepared,
    asked: Mapping[str, Any],
    shard_size: int | None,
    splits: Splits,
    files: list[tuple[str, int, int]],
) -> State:
    """Return what tells a conversion from any other.

    Args:
        asked: options that say how samples are packed, by the names of the command line. Those of sources stand in what
            is said of the source.
        files: path, size and time of change of every source file.
    """
    plan = prepared.plan
    in_memory = {} if files else {"the number of bytes of all samples": sum(plan.raw_bytes.values())}
    settings = {
        "the version of packer": packer.__version__,
        "the number of samples": plan.samples,
        **in_memory,  # before what follows from it, such as the frames of a field
        **asked,
        **({"--split": xxhash.xxh3_128_hexdigest(msgspec.json.encode(splits))} if splits else {}),
        **_field_settings(plan.fields),
        "--shard-size": [shard.start for shard in plan.shards],
        "the source": msgspec.to_builtins(prepared.origin),
    }
    return State(
        shards=len(plan.shards),
        # Through JSON, so that it compares equal to what is read back.
        settings=msgspec.json.decode(msgspec.json.encode(settings)),
        files=files,
        shown={
            "--shard-size": f"{shard_size or 'chosen by the size of the data'}",
            "--split": split_text(splits, plan.samples),
        },
        tells_all=bool(files),
    )


def _field_settings(fields: Sequence[Field]) -> dict[str, Any]:
    """Return the schema, so that what differs is named field by field."""
    settings: dict[str, Any] = {"the list of fields": ", ".join(field.name for field in fields)}
    for field in fields:
        told = msgspec.to_builtins(field)
        settings[f"the codec of {field.name}"] = codec_name(field.codec)
        settings |= {f"the {what} of {field.name}": value for what, value in told.items() if what != "codec"}
        settings[f"the settings of the codec of {field.name}"] = told["codec"]
    return settings


def finished(tasks: Sequence[ShardTask], compared: Path | None, overwrite: bool) -> list[ShardReport]:
    """Return the reports of the shards that are done. What is damaged, or holds other samples, is removed.

    Args:
        compared: the dataset, where its samples are in memory: no note of files tells whether they are the same, so
            that they are compared. None where they are not.
        overwrite: whether shards of other samples may be dropped.

    Raises:
        UsageError: a shard holds other samples, and nothing may be overwritten.
    """
    reports = []
    for task in tasks:
        if not task.path.exists():
            continue
        try:
            report = report_of(task.path, task.fields)
            difference = _difference(task, report) if compared else None
        except DamagedError as error:
            _log.warning("%s; it is packed again", error)
            task.path.unlink()
            continue
        if difference is None:
            reports.append(report)
        elif overwrite:
            task.path.unlink()
        else:
            raise UsageError(
                f"{compared} holds an unfinished conversion of other samples: {difference}; "
                "give the same samples to go on with it, or overwrite=True to begin anew"
            )
    return reports


def _difference(task: ShardTask, report: ShardReport) -> str | None:
    """Return how a finished shard differs from the samples of its task, in words; None where it does not."""
    differences = compare_shard(task.folder, task.fields, report.entry, task.source, task.first)
    return str(differences[0]) if differences else None
