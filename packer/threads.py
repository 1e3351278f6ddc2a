"""Calls that wait for a disk, several at once: looking at files, listing folders, reading headers."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

#: Threads that call if one item waits longer than so many seconds, and how many items each gets at a time. A disk
#: serves many requests at once, but threads that never wait for it only hinder each other.
THREADS, SLOW_SECONDS, ITEMS_AT_ONCE = 16, 2e-4, 64


def in_threads(function: Callable[[Item], Result], items: Iterable[Item]) -> Generator[Result, None, None]:
    """Yield `function` of every item, in order; items are taken shortly before they are needed.

    One thread calls as long as files lie in memory; once it has to wait for the disk, several threads call. Computing
    does not count as waiting: a garbage collection takes as long as a slow disk.

    Raises:
        What `function` raises, at the place of its item.
    """
    parts = _in_parts(iter(items))
    for part in parts:
        began, computed = time.perf_counter(), time.thread_time()
        results = _call_all(function, part)
        waited = time.perf_counter() - began - (time.thread_time() - computed)
        yield from results
        if waited > len(part) * SLOW_SECONDS:
            break
    else:
        return
    pool = ThreadPoolExecutor(THREADS, "packer-files")
    try:
        waiting = [pool.submit(_call_all, function, part) for part in islice(parts, 2 * THREADS)]
        while waiting:
            results = waiting.pop(0).result()
            waiting += [pool.submit(_call_all, function, part) for part in islice(parts, 1)]
            yield from results
    finally:
        pool.shutdown(cancel_futures=True)


def _in_parts(items: Iterator[Item]) -> Iterator[list[Item]]:
    while part := list(islice(items, ITEMS_AT_ONCE)):
        yield part


def _call_all(function: Callable[[Item], Result], part: list[Item]) -> list[Result]:
    return [function(item) for item in part]
