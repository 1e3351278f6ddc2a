"""Bytes under way: what several threads move together is counted, and can be stopped at once."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any, TypeVar

import msgspec

from packer.errors import RemoteError
from packer.watcher import FETCHING, NOBODY, Watcher

Item = TypeVar("Item")
Value = TypeVar("Value")

#: Requests under way at one time: a server answers many at once faster than one.
STREAMS = 8
#: Seconds between two reports of a transfer.
_WORD = 0.1


class Transfer:
    """Moves files by several threads. The thread that waits for them reports how many bytes are done.

    Large files are fetched in blocks, several at a time, by threads that all files share: the blocks of the file that
    was begun first come first. End a transfer with `stop`.

    Args:
        total: bytes to move.
        watcher: its `step` is called several times a second with the bytes moved so far, and the total.
    """

    def __init__(self, total: int, watcher: Watcher = NOBODY) -> None:
        self.total = total
        self._watcher = watcher
        self._lock = threading.Lock()
        self._done = 0
        self._stopped = threading.Event()
        self._requests: set[Future[Any]] = set()
        self._blocks: SimpleQueue[tuple[Future[None], Callable[[], None]] | None] = SimpleQueue()
        # Not a ThreadPoolExecutor: at the end of the process that would first do all that is waiting.
        self._threads: list[threading.Thread] = []

    @property
    def is_stopped(self) -> bool:
        """Return whether nothing more is to be moved."""
        return self._stopped.is_set()

    def stop(self) -> None:
        """Give up what is under way, at once: requests are cancelled where the file system can, and pauses end."""
        with self._lock:
            self._stopped.set()
            requests = list(self._requests)
        for request in requests:
            request.cancel()
        for _ in self._threads:
            self._blocks.put(None)
        for thread in self._threads:
            thread.join()

    def stops_within(self, seconds: float) -> bool:
        """Wait; return whether the transfer is stopped."""
        return self._stopped.wait(seconds)

    def pause(self, seconds: float) -> None:
        """Wait; raises RemoteError if the transfer is stopped."""
        if self.stops_within(seconds):
            raise RemoteError("fetching was stopped")

    def add(self, nbytes: int) -> None:
        """Count bytes that were moved; below 0 if they have to be moved again."""
        with self._lock:
            self._done += nbytes

    def wait_for(self, request: Future[Value]) -> Value:
        """Return the result of a request, which `stop` cancels."""
        with self._lock:
            self._requests.add(request)
        try:
            self.pause(0)
            return request.result()
        finally:
            request.cancel()
            with self._lock:
                self._requests.discard(request)
            del request  # it has the error, which refers to this frame and those of all callers

    def call_together(self, actions: Sequence[Callable[[], None]]) -> None:
        """Call functions in several threads, and return when all are done; raises the error of one that failed."""
        futures: list[Future[None]] = [Future() for _ in actions]
        with self._lock:
            if self.is_stopped:
                raise RemoteError("fetching was stopped")
            for task in zip(futures, actions, strict=True):
                self._blocks.put(task)
            while len(self._threads) < min(STREAMS, len(actions)):
                self._threads.append(threading.Thread(target=self._work, daemon=True))
                self._threads[-1].start()
        try:
            for future in futures:
                future.result()
        finally:
            for future in futures:
                future.cancel()
            wait(futures)

    def _work(self) -> None:
        while (task := self._blocks.get()) is not None:
            future, action = task
            if future.set_running_or_notify_cancel():
                try:
                    self.pause(0)
                    future.set_result(action())
                except BaseException as error:  # raised where it is waited for
                    future.set_exception(error)
            del task, future, action

    def each(self, action: Callable[[Item], Value], items: Sequence[Item], threads: int) -> Iterator[Value]:
        """Yield the result of `action` for each item, in order; raise the error of the first that failed.

        If one fails, or the caller stops, the others give up before their next block.
        """
        last_word = 0.0
        with ThreadPoolExecutor(threads) as pool:
            futures = [pool.submit(action, item) for item in items]
            try:
                for future in futures:
                    is_done = False
                    while not is_done:
                        is_done = bool(wait([future], _WORD).done)
                        if (now := time.monotonic()) - last_word >= _WORD:
                            last_word = now
                            self._watcher.step(FETCHING, self._done, self.total)
                    yield future.result()
            finally:
                self.stop()
                pool.shutdown(cancel_futures=True)
        if self.total:
            self._watcher.step(FETCHING, self._done, self.total)


def noted(path: Path) -> dict[str, tuple[Any, ...]]:
    """Return what earlier runs noted of each file with `note`; a line that a kill cut short is skipped."""
    moved = {}
    for line in path.read_bytes().splitlines() if path.exists() else ():
        with contextlib.suppress(msgspec.DecodeError):
            name, *values = msgspec.json.decode(line, type=list[str | int])
            moved[str(name)] = tuple(values)
    return moved


def note(file: IO[bytes], name: str, *values: str | int) -> None:
    """Note that a file was moved: one line, flushed to the system."""
    file.write(msgspec.json.encode((name, *values)) + b"\n")
    file.flush()
