"""The headers of many files are read: in threads where the disk is slow, or in processes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from packer.errors import SourceError
from packer.threads import in_threads
from packer.watcher import HEADERS, Watcher
from packer.workers import Limits, call_guarded

Item = TypeVar("Item")
Header = TypeVar("Header")

#: Files that have to be read whole are read one at a time if they have more bytes: many of them fill the memory.
_LARGE_BYTES = 2**22
_large_file = threading.Lock()
#: Processes that read headers, but each must have so many files to be worth its start.
PROCESSES, ITEMS_A_PROCESS = 8, 64


def read_headers(
    read: Callable[[Item], Header],
    items: Sequence[Item],
    watcher: Watcher,
    headers_in: str = "threads",
    limits: Limits | None = None,
) -> Iterator[Header | SourceError]:
    """Yield what `read` returns of every item, in order, or the SourceError that it raises.

    Several threads read where the disk is slow.

    Args:
        read: with `limits` a function of a module, or a partial of one.
        watcher: its `step` is called.
        headers_in: as in `Kind`.
        limits: of one item in a process of its own; None reads in this one.

    Raises:
        Any other error of `read`.
    """
    if headers_in != "threads":
        limits = limits if headers_in == "processes" else None
        workers = min(PROCESSES, -(-len(items) // ITEMS_A_PROCESS))
        yield from watcher.watch(call_guarded(read, items, limits, workers), HEADERS, len(items))
        return
    with contextlib.closing(in_threads(partial(_read, read), items)) as results:
        yield from watcher.watch(results, HEADERS, len(items))


def _read(read: Callable[[Item], Header], item: Item) -> Header | SourceError:
    try:
        return read(item)
    except SourceError as error:
        return error


def wait_if_large(nbytes: int) -> contextlib.AbstractContextManager[Any]:
    """Let no other thread be in such a block if a file of `nbytes` that is read whole in it is a large one."""
    return _large_file if nbytes > _LARGE_BYTES else contextlib.nullcontext()
