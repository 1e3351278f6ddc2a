"""What an earlier run of a conversion has finished, and the next one keeps."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from packer.against import compare_shard
from packer.errors import DamagedError, UsageError
from packer.tasks import ShardReport, ShardTask, report_of

_log = logging.getLogger(__name__)


def finished(tasks: Sequence[ShardTask], compared: Path | None, overwrite: bool) -> list[ShardReport]:
    """Reports of the shards that need not be packed again. What is damaged, or holds other samples, is removed.

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
    """How a finished shard differs from the samples of its task, in words; None where it does not."""
    differences = compare_shard(task.folder, task.fields, report.entry, task.source, task.first)
    return str(differences[0]) if differences else None
