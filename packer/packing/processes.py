"""Runs shard tasks in processes of their own, a bounded number at a time.

One process a shard: when it is killed or crashes, it is known which shard that was, and nothing else is lost.
Shards take seconds to minutes, a process some milliseconds to start. A sample whose reading ends the process is found
and treated as any bad one: it stops the conversion, or the shard is packed anew without it.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from packer.errors import PackerError, WriteError
from packer.packing.progress import Progress
from packer.packing.rejected import Rejected
from packer.packing.tasks import ShardReport, ShardTask, remove_partial, write_shard
from packer.packing.watch import Watch, culprit
from packer.sources import child
from packer.sources.apart import TICK
from packer.sources.limits import Limits

#: Samples' progress is sent after this many raw bytes: a message costs 20 us.
_TELL_BYTES = 2**20

_log = logging.getLogger(__name__)


def run_processes(
    tasks: Sequence[ShardTask], workers: int, progress: Progress, limits: Limits | None = None
) -> Iterator[ShardReport]:
    """Reports of all tasks, in the order in which they finish.

    Args:
        limits: what reading a sample may take; None for the usual ones.

    Raises:
        PackerError: what a task raises; the others are stopped.
        SourceError: reading a sample crashes, hangs or takes too much memory, and such samples are not skipped.
        WriteError: a process was killed or crashed.
    """
    limits = limits or Limits()
    waiting = list(reversed(tasks))
    running: dict[Connection, _Worker] = {}
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                worker = _Worker.of(waiting.pop(), limits)
                # A signal between these two lines would leave a process that nobody stops; one that reaches the
                # child before `begin` would run the parent's handler there.
                with child.signals_held():
                    worker.process.start()
                    running[worker.connection] = worker
                worker.other_end.close()
            for worker in _heard(running, limits):
                report = _receive(worker, progress)
                if isinstance(report, ShardTask):
                    waiting.append(report)
                elif report is not None:
                    yield report
                if worker.is_done:
                    del running[worker.connection]
    finally:
        for worker in running.values():
            worker.stop()


@dataclass
class _Worker:
    """A process that packs one shard.

    Attributes:
        told: samples and raw bytes of progress passed on so far.
        is_late: whether it reads one block for longer than it may.
    """

    process: BaseProcess
    task: ShardTask
    watch: Watch
    connection: Connection
    other_end: Connection
    told: tuple[int, int] = (0, 0)
    is_late: bool = False
    is_done: bool = False

    @classmethod
    def of(cls, task: ShardTask, limits: Limits) -> _Worker:
        here, there = child.context().Pipe(duplex=False)
        watch = Watch(limits)
        return cls(child.new_process(_work, task, watch, there), task, watch, here, there)

    def end(self) -> None:
        """Waits until the process is gone."""
        self.process.join()
        self.connection.close()
        self.is_done = True

    def stop(self) -> None:
        """Ends the process, at whatever it is, and removes what it has half written."""
        if self.is_done:
            return
        self.process.kill()
        self.end()
        remove_partial(self.task.path)


def _heard(running: dict[Connection, _Worker], limits: Limits) -> list[_Worker]:
    """Workers that have something to say, or have died, or are late."""
    began = time.monotonic()
    ready = wait(list(running), None if limits.seconds is None else min(TICK, limits.seconds))
    seconds = time.monotonic() - began
    heard = []
    for connection, worker in running.items():
        # All are asked, so that none's time is measured over more than one round.
        worker.is_late = worker.watch.is_late(seconds)
        if worker.is_late or connection in ready:
            heard.append(worker)
    return heard


def _receive(worker: _Worker, progress: Progress) -> ShardReport | ShardTask | None:
    """What came of a shard, or the task to do again, or None where it is still being packed."""
    message: Any = None
    if worker.is_late:
        worker.process.kill()
    else:
        with contextlib.suppress(EOFError, ConnectionResetError):
            message = worker.connection.recv()
    if isinstance(message, tuple):
        samples, nbytes = message
        worker.told = worker.told[0] + samples, worker.told[1] + nbytes
        progress(samples, nbytes)
        return None
    worker.end()
    if message is None:
        return _without_culprit(worker, progress)
    if isinstance(message, BaseException):
        raise message
    assert isinstance(message, ShardReport)
    return message


def _without_culprit(worker: _Worker, progress: Progress) -> ShardTask:
    """The task of a worker that has died, without the sample whose reading was the reason.

    Raises:
        SourceError: there is such a sample, and bad ones are not skipped.
        WriteError: there is none.
    """
    task, at = worker.task, worker.watch.at
    remove_partial(task.path)
    found = None if at is None else culprit(task, at, worker.watch.limits)
    if found is None:
        how = "read for too long" if worker.is_late else f"died ({child.how_it_ended(worker.process)})"
        raise WriteError(
            f"the process that packed shard {task.number} {how}; "
            "what is finished is kept, run the same command again to go on"
        )
    number, error = found
    if not task.skip:
        raise error
    _log.warning("%s; the shard is packed anew without it", error)
    progress(-worker.told[0], -worker.told[1])
    return replace(task, crashing={**task.crashing, number: Rejected.of(error, task.source.kind)})


def _work(task: ShardTask, watch: Watch, connection: Connection) -> None:
    """What a worker process does: packs its shard and sends progress, then the report or the error."""
    child.begin()
    samples = nbytes = 0

    def tell(more_samples: int, more_bytes: int) -> None:
        nonlocal samples, nbytes
        samples += more_samples
        nbytes += more_bytes
        if nbytes >= _TELL_BYTES:
            connection.send((samples, nbytes))
            samples = nbytes = 0

    message: Any
    try:
        message = write_shard(task, tell, watch.over)
        connection.send((samples, nbytes))
    except PackerError as error:
        message = error
    except MemoryError:
        if watch.at is not None:
            return  # to the parent this is a death while reading: it finds the sample
        message = WriteError(f"shard {task.number}: out of memory; take fewer --workers")
    except (BrokenPipeError, ConnectionResetError):
        return  # the parent is gone, and with it whoever could be told
    except Exception as error:
        _log.debug("shard %d", task.number, exc_info=True)
        message = WriteError(f"shard {task.number} was not packed: {type(error).__name__}: {error}")
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        connection.send(message)
    connection.close()
