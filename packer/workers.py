"""Runs a function in processes of our own: items in, results out, with limits of time and memory.

    for number, result in run_in_processes(function, items, workers=2, limits=Limits(seconds=60)):
        ...

A process that crashes, hangs or takes too much memory costs its own item alone: the result of this item is a `Lost`,
and another process takes the other items. `call_guarded` keeps the order.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeVar

from packer.errors import ResourceError, SourceError, UsageError
from packer.machine import usual_memory

if sys.platform.startswith("linux"):
    import resource

Item = TypeVar("Item")
Result = TypeVar("Result")

#: Seconds between two looks at the clock. A time in which this process itself stood still (Ctrl-Z, a machine asleep)
#: counts as one tick at most.
TICK = 1.0

_NO_STEP = -1
_STOPS = (signal.SIGINT, signal.SIGTERM)
_PR_SET_PDEATHSIG = 1
#: Options of glibc's mallopt, and their new value.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 2**25


# ---------------------------------------------------------------- limits


@dataclass(frozen=True)
class Limits:
    """Limits of one step: reading a block (a sample, or samples of 8 MiB), or the headers of one HDF5 file.

    They are generous, since they guard against steps that would never end. None is no limit.

    Attributes:
        seconds: time.
        nbytes: memory, in addition to what the process holds already.
    """

    seconds: float | None = 600.0
    nbytes: int | None = field(default_factory=usual_memory)

    def __post_init__(self) -> None:
        for name, value in (("--read-timeout", self.seconds), ("--read-memory", self.nbytes)):
            if value is not None and value <= 0:
                raise UsageError(f"{name} {value}; more than 0 is expected")


@contextlib.contextmanager
def memory_within(nbytes: int | None) -> Iterator[None]:
    """Limit the memory that the process may allocate within the block to `nbytes`; more raises MemoryError.

    RLIMIT_DATA counts the memory of the process alone, and refuses memory before it is taken. RLIMIT_AS would count
    mapped files too (the shard's map is as large as the shard); watching /proc from outside comes too late. Linux alone
    keeps this limit; elsewhere there is none.
    """
    if nbytes is None or not sys.platform.startswith("linux"):
        yield
        return
    # Pages of data and stack; the kernel counts only the data, so the limit is never lower than asked for.
    resident = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    ceiling = resident + nbytes if hard == resource.RLIM_INFINITY else min(resident + nbytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (ceiling, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


# ---------------------------------------------------------------- the parent


@dataclass(frozen=True)
class Lost:
    """The result of an item whose process crashed, hung or took too much memory.

    Attributes:
        reason: what reading the item does, a verb first, such as `crashes the process (SIGSEGV)`.
        step: its number; None if the process was between steps.
    """

    reason: str
    step: int | None

    @property
    def error(self) -> SourceError:
        """Return the error of the file or sample that was being read.

        Raises:
            ResourceError: the disk could not read a page of a file that was mapped.
        """
        if signal.SIGBUS.name in self.reason:
            raise ResourceError(
                f"reading a file {self.reason}: its disk failed, or it was cut short; run the same command again once "
                "it can be read; what is finished is kept"
            )
        return SourceError(f"reading it {self.reason}")


def call_guarded(
    function: Callable[[Item], Result], items: Sequence[Item], limits: Limits | None, workers: int = 1
) -> Iterator[Result | SourceError]:
    """Yield `function` of every item in order, or the SourceError of an item that failed.

    Args:
        function: a function of a module, or a partial of one.
        limits: of one call, in a process of its own; None to call in this process, unguarded.
        workers: processes; each takes one item after another.

    Raises:
        Any other error of `function`.
    """
    if limits is None:
        yield from (_call(function, item) for item in items)
        return
    early: dict[int, Result | Lost | SourceError] = {}  # results of items behind the one that is due
    due = 0
    for number, returned in run_in_processes(partial(_call_as_step, function), items, workers, limits):
        early[number] = returned
        while due in early:
            result = early.pop(due)
            due += 1
            yield result.error if isinstance(result, Lost) else result


def _call_as_step(function: Callable[[Item], Result], item: Item, reporter: Reporter) -> Result | SourceError:
    """Call a function as one step."""
    with reporter.step(0):
        return _call(function, item)


def _call(function: Callable[[Item], Result], item: Item) -> Result | SourceError:
    try:
        return function(item)
    except SourceError as error:
        return error


def run_in_processes(
    function: Callable[[Item, Reporter], Result],
    items: Sequence[Item],
    workers: int,
    limits: Limits,
    on_report: Callable[[int, Any], None] | None = None,
) -> Generator[tuple[int, Result | Lost], None, None]:
    """Yield number and result of every item, in the order in which they are done. Closed, it stops all processes.

    Args:
        function: a function of a module, or a partial of one; called with an item and the `Reporter` of its process.
        workers: processes; each takes one item after another.
        limits: of one step of `function`.
        on_report: called with the number of an item and each value that `function` reports about it.

    Raises:
        UsageError, ResourceError: this process may not, or cannot, start others.
        Any error of `function`; all processes are stopped.
    """
    waiting = deque(range(len(items)))
    running: dict[Connection, _Worker] = {}
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                # A signal between start and entry would leave a process that nobody stops; one that reaches the child
                # before `begin` would run the parent's handler there.
                with hold_signals():
                    worker = _Worker(function, items, limits)
                    running[worker.connection] = worker
                worker.take(waiting.popleft())
            for worker in _wait_for_workers(running, limits):
                number, (kind, value) = worker.number, worker.receive()
                if kind == "error":
                    raise value
                if kind == "report":
                    if on_report:
                        on_report(number, value)
                    continue
                if waiting and worker.process.is_alive():
                    worker.take(waiting.popleft())
                else:
                    del running[worker.connection]
                    worker.stop()
                yield number, value
    finally:
        for worker in running.values():
            worker.stop()


def _wait_for_workers(running: dict[Connection, _Worker], limits: Limits) -> list[_Worker]:
    """Return the workers that have sent something, have died, or are late."""
    start_time = time.monotonic()
    ready = wait(list(running), min(TICK, limits.seconds or TICK))
    seconds = min(time.monotonic() - start_time, TICK)
    for worker in running.values():
        # All of them, ready or not: each look adds the time of one round.
        worker.check_time(seconds)
    return [worker for connection, worker in running.items() if worker.is_late or connection in ready]


class _Worker:
    """A worker process, seen from its parent. The constructor starts it.

    Attributes:
        number: of its item.
        is_late: whether its step takes longer than the limit.

    Raises:
        UsageError: as `check_may_start`.
        ResourceError: the system starts no more processes.
    """

    def __init__(self, function: Callable[[Any, Reporter], Any], items: Sequence[Any], limits: Limits) -> None:
        check_may_start()
        self._limits = limits
        self.number = 0
        self.is_late = False
        self._last_step, self._step_seconds = _NO_STEP, 0.0
        try:
            self.connection, other_end = process_context().Pipe()
            # In shared memory, since a message a step would cost more than a small sample.
            self._step: Any = process_context().RawValue("q", _NO_STEP)
            args = (function, items, Reporter(limits, self._step, other_end))
            self.process: BaseProcess = process_context().Process(target=_serve, args=args, daemon=True)  # type: ignore[attr-defined]
            self.process.start()
        except OSError as error:
            raise ResourceError(
                f"no process can be started: {error.strerror}; take fewer --workers, or 0 to do all in this one"
            ) from None
        other_end.close()

    def take(self, number: int) -> None:
        """Send it the next item. If it has died, the next `receive` reports that."""
        self.number, self._last_step = number, _NO_STEP
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send(number)

    def check_time(self, seconds: float) -> None:
        """Add `seconds` to the time of its step, and set `is_late`."""
        step = self._step.value
        self._step_seconds = self._step_seconds + seconds if step == self._last_step != _NO_STEP else 0.0
        self._last_step = step
        self.is_late = self._limits.seconds is not None and self._step_seconds >= self._limits.seconds

    def receive(self) -> tuple[str, Any]:
        """Return kind and value of its next message; if it died or is late, a `Lost` as its result."""
        seconds, nbytes = self._limits.seconds, self._limits.nbytes
        if self.is_late and not self.connection.poll():
            self.process.kill()
            self.process.join()
            return "result", self._make_lost(
                f"takes more than {seconds:g} s; raise --read-timeout if the file is merely slow"
            )
        try:
            kind, value = self.connection.recv()
        except (EOFError, ConnectionResetError):
            self.process.join()
            code = self.process.exitcode or 0
            ending = signal.Signals(-code).name if code < 0 else f"exit status {code}"
            return "result", self._make_lost(f"crashes the process ({ending})")
        if kind == "memory":
            amount = f"more than {nbytes:,} bytes of memory" if nbytes else "more memory than there is"
            return "result", self._make_lost(f"takes {amount}; raise --read-memory if the file is merely large")
        return kind, value

    def _make_lost(self, reason: str) -> Lost:
        step, self._step.value = self._step.value, _NO_STEP
        return Lost(reason, None if step == _NO_STEP else step)

    def stop(self) -> None:
        """End the process at once."""
        self.process.kill()
        self.process.join()
        self.connection.close()


def process_context() -> BaseContext:
    """Return the way to start processes: fork on Linux, which is quick and needs no importable samples; else spawn."""
    return multiprocessing.get_context("fork" if sys.platform.startswith("linux") else "spawn")


def check_may_start() -> None:
    """Raise UsageError if this process may not start others: it is a daemon, such as a worker of a Pool."""
    if multiprocessing.current_process().daemon:
        raise UsageError(
            "this process is a daemon, as workers of multiprocessing.Pool are, and cannot start processes; "
            "give workers=0 to read and pack in this one, or call it from another process"
        )


@contextlib.contextmanager
def hold_signals() -> Iterator[None]:
    """Hold Ctrl-C and SIGTERM back until the end of the block."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)


# ---------------------------------------------------------------- the process


class Reporter:
    """What a function in a worker process calls: it marks its steps, and reports to the parent."""

    def __init__(self, limits: Limits, step: Any, connection: Connection) -> None:
        self._limits, self._step, self.connection = limits, step, connection

    @contextlib.contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Do one step, within the limits.

        Raises:
            MemoryError: it took too much memory. The parent reads the number of the step from shared memory.
        """
        self._step.value = number
        try:
            with memory_within(self._limits.nbytes):
                yield
        except MemoryError:
            raise
        except BaseException:
            self._step.value = _NO_STEP
            raise
        self._step.value = _NO_STEP

    def report(self, value: Any) -> None:
        """Send the parent a value about the current item."""
        self.connection.send(("report", value))


def _serve(function: Callable[[Any, Reporter], Any], items: Sequence[Any], reporter: Reporter) -> None:
    """Work at one item after another, until the process is stopped."""
    begin()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError, EOFError):  # nobody waits for it any longer
        while True:
            number = reporter.connection.recv()
            try:
                message = ("result", function(items[number], reporter))
            except MemoryError:
                message = ("memory", None)
            except (BrokenPipeError, ConnectionResetError):
                raise
            except Exception as error:
                message = ("error", error)
            reporter.connection.send(message)


def begin() -> None:
    """Prepare a worker process: it ignores Ctrl-C, dies with its parent, and keeps freed memory for the next sample."""
    # Ctrl-C reaches the whole group; the parent alone decides what it means. SIGTERM ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    keep_memory()
    parent = multiprocessing.parent_process()
    if parent is not None and os.getppid() != parent.pid:
        os._exit(1)  # the parent died before the call of prctl


@cache
def keep_memory() -> None:
    """Let this process keep the memory of one sample for the next: given back, it is mapped page by page again.

    glibc comes to such thresholds by itself in a process that has freed a larger array.
    """
    if sys.platform.startswith("linux") and hasattr(libc := ctypes.CDLL(None), "mallopt"):  # musl has no such call
        libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        libc.mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES)
