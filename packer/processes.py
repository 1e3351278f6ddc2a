"""Runs shard tasks in processes of their own, a bounded number at a time.

One process a shard: when it is killed or crashes, it is known which shard that was, and nothing else is lost.
Shards take seconds to minutes, a process some milliseconds to start.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import signal
import sys
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

from packer.errors import PackerError, WriteError
from packer.tasks import Progress, ShardReport, ShardTask, remove_partial, write_shard

#: Samples' progress is sent after this many raw bytes: a message costs 20 us.
_TELL_BYTES = 2**20

_STOPS = (signal.SIGINT, signal.SIGTERM)

_log = logging.getLogger(__name__)


def run_processes(tasks: Sequence[ShardTask], workers: int, progress: Progress) -> Iterator[ShardReport]:
    """Reports of all tasks, in the order in which they finish.

    Raises:
        PackerError: what a task raises; the others are stopped.
        WriteError: a process was killed or crashed.
    """
    context = _context()
    waiting = list(reversed(tasks))
    running: dict[Connection, tuple[BaseProcess, ShardTask]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                task = waiting.pop()
                here, there = context.Pipe(duplex=False)
                process = context.Process(target=_work, args=(task, there), daemon=True)  # type: ignore[attr-defined]
                # A signal between these two would leave a process behind that nobody stops, and one that met
                # the new process before it is ready would run what the parent does about it.
                with _signals_held():
                    process.start()
                    running[here] = (process, task)
                there.close()
            for connection in wait(list(running)):
                assert isinstance(connection, Connection)
                yield from _receive(connection, running, progress)
    finally:
        for connection, (process, task) in running.items():
            process.terminate()
            process.join()
            connection.close()
            remove_partial(task.path)


def _receive(
    connection: Connection, running: dict[Connection, tuple[BaseProcess, ShardTask]], progress: Progress
) -> Iterator[ShardReport]:
    process, task = running[connection]
    try:
        message = connection.recv()
    except (EOFError, ConnectionResetError):
        process.join()
        raise WriteError(
            f"the process that packed shard {task.number} died ({_how(process.exitcode)}); "
            "what is finished is kept, run the same command again to go on"
        ) from None
    if isinstance(message, tuple):
        progress(*message)
        return
    del running[connection]
    connection.close()
    process.join()
    if isinstance(message, BaseException):
        raise message
    yield message


def _work(task: ShardTask, connection: Connection) -> None:
    """What a worker process does: packs its shard and sends progress, then the report or the error."""
    # Ctrl-C reaches the whole group; the parent alone decides what it means. SIGTERM is the parent's word to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
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
        message = write_shard(task, tell)
        connection.send((samples, nbytes))
    except PackerError as error:
        message = error
    except MemoryError:
        message = WriteError(f"shard {task.number}: out of memory; take fewer --workers")
    except (BrokenPipeError, ConnectionResetError):
        return  # the parent is gone, and with it whoever could be told
    except Exception as error:
        _log.debug("shard %d", task.number, exc_info=True)
        message = WriteError(f"shard {task.number} was not packed: {type(error).__name__}: {error}")
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        connection.send(message)
    connection.close()


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """Holds Ctrl-C and SIGTERM back until the end of the block; they are lost to nobody."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _context() -> BaseContext:
    """Fork where it is safe to assume: samples made in Python need not be importable, and it is quick to start."""
    method = "fork" if sys.platform.startswith("linux") else "spawn"
    return multiprocessing.get_context(method)


def _how(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        return f"signal {signal.Signals(-exit_code).name}"
    return f"exit status {exit_code}"
