"""Shards packed by an executor of somebody else's: a pool, a Dask cluster, MPI."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future, as_completed
from functools import partial

from packer.errors import PackerError, WriteError
from packer.packing.progress import Progress
from packer.packing.supervisor import write_shard_guarded
from packer.packing.tasks import ShardReport, ShardTask, remove_partial, write_shard
from packer.sources.limits import Limits


def run_executor(
    tasks: Sequence[ShardTask], executor: Executor, progress: Progress, limits: Limits | None
) -> Iterator[ShardReport]:
    """Reports of the tasks, in any order. Those that are still waiting are cancelled when the caller stops.

    Args:
        limits: what reading one source may take; each shard is then packed in an interpreter of its own.

    Raises:
        PackerError: of a task.
        WriteError: a task was lost.
    """
    pack = write_shard if limits is None else partial(write_shard_guarded, limits=limits)
    futures: dict[Future[ShardReport], ShardTask] = {}
    try:
        for task in tasks:
            try:
                futures[executor.submit(pack, task)] = task
            except RuntimeError as error:  # it was shut down
                raise WriteError(f"the executor takes no shards: {error}") from error
        for future in as_completed(futures):
            try:
                report = future.result()
            except PackerError:
                raise
            except Exception as error:
                number = futures[future].number
                raise WriteError(f"shard {number} was not packed: {type(error).__name__}: {error}") from error
            remove_partial(futures[future].path)  # of a worker that was lost, so that another did its work
            progress(report.entry.samples, report.raw_bytes)
            yield report
    finally:
        for future in futures:
            future.cancel()
