"""Work done in processes of their own: items in, results out, with limits of time and memory.

    for number, result in run(function, items, workers=2, limits=Limits(seconds=60)):
        ...

A process that crashes, hangs or takes too much memory takes nothing else down: what became of its item comes as a
`Lost`, another process goes on with the others. `each` is the same for one process and results in order.
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
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal, TypeVar

from packer.errors import SourceError, UsageError

if sys.platform.startswith("linux"):
    import resource

Item = TypeVar("Item")
Result = TypeVar("Result")

GIB = 2**30
#: Seconds between two looks at the clock. Time in which this process stood still itself (Ctrl-Z, a machine asleep)
#: counts as one of them at most.
TICK = 1.0

_NOWHERE = -1
_STOPS = (signal.SIGINT, signal.SIGTERM)
_PR_SET_PDEATHSIG = 1
#: Options of glibc's mallopt, and what they are set to.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 2**25


# ---------------------------------------------------------------- limits


def usual_memory() -> int:
    """Return the usual limit of memory: an eighth of the machine's, 1 GiB at least."""
    if not hasattr(os, "sysconf"):
        return GIB
    return max(GIB, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 8)


@dataclass(frozen=True)
class Limits:
    """What one step may take: reading a block (a sample, or samples of 8 MiB), or the headers of one HDF5 file.

    Generous, since they are there for what would never end: None is no limit.

    Attributes:
        seconds: how long.
        nbytes: memory beyond what the process holds already.
    """

    seconds: float | None = 600.0
    nbytes: int | None = field(default_factory=usual_memory)

    def __post_init__(self) -> None:
        for name, value in (("--read-timeout", self.seconds), ("--read-memory", self.nbytes)):
            if value is not None and value <= 0:
                raise UsageError(f"{name} {value}; more than 0 is expected")


@contextlib.contextmanager
def memory_within(nbytes: int | None) -> Iterator[None]:
    """Let the process take no more than `nbytes` further bytes of memory within the block; more is a MemoryError.

    RLIMIT_DATA counts the memory of the process alone, and what it refuses was never taken. RLIMIT_AS would count
    files that are mapped too (the shard's map is as large as the shard); watching /proc from outside comes too
    late. Linux alone keeps this limit; elsewhere there is none.
    """
    if nbytes is None or not sys.platform.startswith("linux"):
        yield
        return
    # Pages of data and stack; the kernel compares the first alone, so the limit is no lower than asked for.
    held = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    ceiling = held + nbytes if hard == resource.RLIM_INFINITY else min(held + nbytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (ceiling, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


# ---------------------------------------------------------------- the parent


@dataclass(frozen=True)
class Lost:
    """What is known of an item whose process crashed, hung or took too much memory.

    Attributes:
        kind: which of the three.
        ending: how the process ended, such as `SIGSEGV` or `exit status 3`; empty if it did not by itself.
        at: number of the step it was at; None if it was between steps.
        limits: what a step was allowed.
    """

    kind: Literal["crash", "time", "memory"]
    ending: str
    at: int | None
    limits: Limits

    @property
    def error(self) -> SourceError:
        """The error of whatever was being read."""
        seconds, nbytes = self.limits.seconds, self.limits.nbytes
        if self.kind == "crash":
            return SourceError(f"reading it crashes the process ({self.ending})")
        if self.kind == "time":
            return SourceError(
                f"reading it takes more than {seconds:g} s; raise --read-timeout if the file is merely slow"
            )
        much = f"more than {nbytes:,} bytes of memory" if nbytes else "more memory than there is"
        return SourceError(f"reading it takes {much}; raise --read-memory if the file is merely large")


def each(
    function: Callable[[Item], Result], items: Sequence[Item], limits: Limits | None
) -> Iterator[Result | SourceError]:
    """Yield `function` of every item in order, or the SourceError that it raised or came to.

    Args:
        function: a function of a module, or a partial of one.
        limits: what a call may take, in a process of its own; None to call in this process, unguarded.

    Raises:
        What else `function` raises.
    """
    if limits is None:
        yield from (_called(function, item) for item in items)
        return
    for _, result in run(partial(_whole, function), items, 1, limits):
        yield result.error if isinstance(result, Lost) else result


def _whole(function: Callable[[Item], Result], item: Item, here: Here) -> Result | SourceError:
    """Call a function as one step."""
    with here.step(0):
        return _called(function, item)


def _called(function: Callable[[Item], Result], item: Item) -> Result | SourceError:
    try:
        return function(item)
    except SourceError as error:
        return error


def run(
    function: Callable[[Item, Here], Result],
    items: Sequence[Item],
    workers: int,
    limits: Limits,
    told: Callable[[int, Any], None] | None = None,
) -> Generator[tuple[int, Result | Lost], None, None]:
    """Yield number and result of every item, in the order in which they are done. Closed, it stops all processes.

    Args:
        function: a function of a module, or a partial of one; called with an item and the `Here` of its process.
        workers: processes; each takes one item after another.
        limits: what one step of `function` may take.
        told: called with the number of an item and what `function` tells of it.

    Raises:
        UsageError: this process may start no others.
        What `function` raises; the others are stopped.
    """
    waiting = deque(range(len(items)))
    running: dict[Connection, _Worker] = {}
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                worker = _Worker(function, items, limits)
                # A signal between these two lines would leave a process that nobody stops; one that reaches the
                # child before `begin` would run the parent's handler there.
                with signals_held():
                    worker.process.start()
                    running[worker.connection] = worker
                worker.other_end.close()
                worker.take(waiting.popleft())
            for worker in _heard(running, limits):
                number, (kind, value) = worker.number, worker.receive()
                if kind == "error":
                    raise value
                if kind == "told":
                    if told:
                        told(number, value)
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


def _heard(running: dict[Connection, _Worker], limits: Limits) -> list[_Worker]:
    """Return the workers that have something to say, or have died, or are late."""
    began = time.monotonic()
    ready = wait(list(running), min(TICK, limits.seconds or TICK))
    seconds = time.monotonic() - began
    for worker in running.values():
        # All are asked, so that none's time is measured over more than one round.
        worker.look(seconds)
    return [worker for connection, worker in running.items() if worker.is_late or connection in ready]


class _Worker:
    """A process, and what its parent knows of it.

    Attributes:
        number: of the item it works at.
        is_late: whether it is at one step for longer than it may.

    Raises:
        UsageError: as `check_may_start`.
    """

    def __init__(self, function: Callable[[Any, Here], Any], items: Sequence[Any], limits: Limits) -> None:
        check_may_start()
        self._limits = limits
        self.connection, self.other_end = context().Pipe()
        # In memory that both share, since a message a step would cost more than a small sample.
        self._at: Any = context().RawValue("q", _NOWHERE)
        args = (function, items, limits, self._at, self.other_end)
        self.process: BaseProcess = context().Process(target=_serve, args=args, daemon=True)  # type: ignore[attr-defined]
        self.number = 0
        self.is_late = False
        self._seen, self._waited = _NOWHERE, 0.0

    def take(self, number: int) -> None:
        """Give it the next item; a process that has died says so when it is heard."""
        self.number, self._seen = number, _NOWHERE
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send(number)

    def look(self, seconds: float) -> None:
        """Note whether it is late, `seconds` after the last look."""
        at = self._at.value
        self._waited = self._waited + min(seconds, TICK) if at == self._seen != _NOWHERE else 0.0
        self._seen = at
        self.is_late = self._limits.seconds is not None and self._waited >= self._limits.seconds

    def receive(self) -> tuple[str, Any]:
        """Return what it says, or what has become of it."""
        try:
            if not self.is_late or self.connection.poll():
                kind, value = self.connection.recv()
                return ("result", self._lost("memory")) if kind == "memory" else (kind, value)
        except (EOFError, ConnectionResetError):
            pass
        if self.is_late:
            self.process.kill()
        self.process.join()
        code = self.process.exitcode or 0
        ending = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        return "result", self._lost("time" if self.is_late else "crash", ending)

    def _lost(self, kind: Literal["crash", "time", "memory"], ending: str = "") -> Lost:
        at, self._at.value = self._at.value, _NOWHERE
        return Lost(kind, ending, None if at == _NOWHERE else at, self._limits)

    def stop(self) -> None:
        """End the process, at whatever it is."""
        self.process.kill()
        self.process.join()
        self.connection.close()


def context() -> BaseContext:
    """Fork if it is safe to assume: samples made in Python need not be importable, and it is quick to start."""
    return multiprocessing.get_context("fork" if sys.platform.startswith("linux") else "spawn")


def check_may_start() -> None:
    """Raise UsageError if this process may have no children: it is a daemon, as those of a Pool are."""
    if multiprocessing.current_process().daemon:
        raise UsageError(
            "this process is a daemon, as workers of multiprocessing.Pool are, and cannot start processes; "
            "give workers=0 to read and pack in this one, or call it from another process"
        )


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Hold Ctrl-C and SIGTERM back until the end of the block; they are lost to nobody."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# ---------------------------------------------------------------- the process


class Here:
    """What a function knows of the process it is called in: how to say at which step it is, and to tell something."""

    def __init__(self, limits: Limits, at: Any, connection: Connection) -> None:
        self._limits, self._at, self._connection = limits, at, connection

    @contextlib.contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Do within the block what may take no more than the limits.

        Raises:
            MemoryError: it took too much; which step that was is known to the parent then.
        """
        self._at.value = number
        try:
            with memory_within(self._limits.nbytes):
                yield
        except MemoryError:
            raise
        except BaseException:
            self._at.value = _NOWHERE
            raise
        self._at.value = _NOWHERE

    def tell(self, value: Any) -> None:
        """Tell the parent something of the item that is being worked at."""
        self._connection.send(("told", value))


def _serve(
    function: Callable[[Any, Here], Any], items: Sequence[Any], limits: Limits, at: Any, connection: Connection
) -> None:
    """Work at one item after another, until the process is stopped."""
    begin()
    here = Here(limits, at, connection)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError, EOFError):  # nobody waits for it any longer
        while True:
            number = connection.recv()
            try:
                message = ("result", function(items[number], here))
            except MemoryError:
                message = ("memory", None)
            except (BrokenPipeError, ConnectionResetError):
                raise
            except Exception as error:
                message = ("error", error)
            connection.send(message)


def begin() -> None:
    """Do what a process of ours does first. It is killed when its parent is: nobody would stop it, or want its work."""
    # Ctrl-C reaches the whole group; the parent alone decides what it means. SIGTERM is the parent's word to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
    if sys.platform.startswith("linux"):
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if hasattr(libc, "mallopt"):  # musl has no such call
            # Memory that reading one sample took serves the next one: given back, it is mapped page by page again.
            libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
            libc.mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES)
    parent = multiprocessing.parent_process()
    if parent is not None and os.getppid() != parent.pid:
        os._exit(1)  # it was killed before the line above
