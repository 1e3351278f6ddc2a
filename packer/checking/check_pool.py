"""Shards checked in processes of their own, several at a time.

A disk that cannot read a page of a map ends the process that asked for it. That is what the shard is found damaged
by, and the others are checked all the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from packer.checking.shard_check import Checked, Fault, ShardCheck, check_shard
from packer.sources import child
from packer.sources.apart import serving
from packer.sources.limits import Limits

_NO_LIMITS = Limits(None, None)


def check_shards(checks: Sequence[ShardCheck], workers: int) -> Iterator[tuple[int, Checked]]:
    """Number and result of every check, in the order in which they are done.

    Args:
        workers: processes; the k-th checks the shards k, k + workers, ...
    """
    with ExitStack() as stack:
        running: dict[Connection, tuple[BaseProcess, deque[int]]] = {}

        def start(numbers: Sequence[int]) -> None:
            if numbers:
                process, connection = stack.enter_context(
                    serving(check_shard, [checks[n] for n in numbers], _NO_LIMITS)
                )
                running[connection] = (process, deque(numbers))

        for first in range(workers):
            start(range(first, len(checks), workers))
        while running:
            for connection in wait(list(running)):
                assert isinstance(connection, Connection)
                process, left = running[connection]
                try:
                    kind, value = connection.recv()
                except (EOFError, ConnectionResetError):
                    del running[connection]
                    process.join()
                    what = f"reading it ended the process that did ({child.how_it_ended(process)}): see to the disk"
                    yield left.popleft(), Checked([Fault(what)])
                    start(left)
                    continue
                if kind == "end":
                    del running[connection]
                elif kind == "error":
                    raise value
                else:
                    yield left.popleft(), value
