"""Calls made in a process of their own, so that a crash, a hang or hunger for memory there is an error here."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from packer.errors import SourceError
from packer.sources import child
from packer.sources.limits import Limits, memory_within

Item = TypeVar("Item")
Result = TypeVar("Result")

#: Seconds between two looks at the clock. Time in which this process stood still itself (Ctrl-Z, a machine asleep)
#: counts as one of them at most.
TICK = 1.0


def each(
    function: Callable[[Item], Result], items: Sequence[Item], limits: Limits | None
) -> Iterator[Result | SourceError]:
    """`function` of every item in order, or the SourceError that it raised or came to.

    One process serves all items until it dies; 10 ms to start, however many there are.

    Args:
        function: a function of a module, or a partial of one.
        limits: what a call may take; None to call in this process, unguarded.

    Raises:
        what else `function` raises.
    """
    if limits is None:
        yield from (_called(function, item) for item in items)
        return
    done = 0
    while done < len(items):
        with serving(function, items[done:], limits) as (process, connection):
            for result in _received(process, connection, limits):
                done += 1
                yield result


@contextlib.contextmanager
def serving(
    function: Callable[[Any], Any], items: Sequence[Any], limits: Limits
) -> Iterator[tuple[BaseProcess, Connection]]:
    """A process that calls `function` with every item, and what it sends over: for each item `("result", value)`.

    The value is a SourceError where `function` raised one, or took more memory than it may. What else it raises comes
    as `("error", exception)`; behind the last item comes `("end", None)`. The process is killed with the block.
    """
    here, there = child.context().Pipe(duplex=False)
    process = child.new_process(_serve, function, items, limits, there)
    started = False
    try:
        with child.signals_held():
            process.start()
            started = True
        there.close()
        yield process, here
    finally:
        if started:
            process.kill()
            process.join()
        here.close()


def _received(process: BaseProcess, connection: Connection, limits: Limits) -> Iterator[Any]:
    """Results as they come; where the process ends before its time, why that is as the last one."""
    while True:
        if not _has_come(connection, limits.seconds):
            yield limits.overtime()
            return
        try:
            kind, value = connection.recv()
        except (EOFError, ConnectionResetError):
            process.join()
            yield SourceError(f"reading it crashes the process that does ({child.how_it_ended(process)})")
            return
        if kind == "end":
            return
        if kind == "error":
            raise value
        yield value


def _has_come(connection: Connection, seconds: float | None) -> bool:
    if seconds is None:
        return True  # what receives will wait
    left = seconds
    while left > 0:
        began = time.monotonic()
        if connection.poll(min(TICK, left)):
            return True
        left -= min(time.monotonic() - began, TICK)
    return False


def _serve(function: Callable[[Any], Any], items: Sequence[Any], limits: Limits, connection: Connection) -> None:
    """What the process does."""
    child.begin()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # nobody waits for it any longer
        _send_all(function, items, limits, connection)


def _send_all(function: Callable[[Any], Any], items: Sequence[Any], limits: Limits, connection: Connection) -> None:
    for item in items:
        try:
            with memory_within(limits.nbytes):
                message = ("result", _called(function, item))
        except MemoryError:
            message = ("result", limits.overrun())
        except Exception as error:
            message = ("error", error)
        connection.send(message)
    connection.send(("end", None))


def _called(function: Callable[[Item], Result], item: Item) -> Result | SourceError:
    try:
        return function(item)
    except SourceError as error:
        return error
