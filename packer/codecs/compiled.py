"""Loads the loops of `loops.py` once they are worth the time that loading takes.

With them frames are decoded faster, and threads do not wait for the interpreter's lock between two frames
(docs/how/choices.md). A process that reads a few batches, or looks at one dataset, gains nothing from them. So frames
are handled one by one until that has cost as much as loading would. The worst case is twice the ideal time.

Nobody waits for them: another process compiles them (`compiling.py`), and a thread loads them, which takes 0.7 s.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from packer.codecs import compiling
from packer.codecs.filters import DECIMAL, PHOTO

#: Seconds spent on frames one by one after which the loops are loaded.
WORTH_SECONDS = 0.5

#: Seconds between two looks for the loops that another process compiles.
LOOK_SECONDS = 0.2

#: Bytes that a process must be free to take before the loops are loaded.
LEAST_MEMORY = 2**29

#: The number of a codec in the loops, by the id of its only stage.
CODECS = {"lz4": 0, "lz4hc": 0, "blosc": 1, "zstd": 2}


class Loading:
    """Whether the loops are loaded in this process.

    Attributes:
        found: the module, once it is loaded.
        failure: why loading failed, if it did.
        seconds: spent on frames one by one; whoever handles frames this way adds to it.
    """

    def __init__(self) -> None:
        self.found: ModuleType | None = None
        self.failure: Exception | None = None
        self.seconds = 0.0
        self._thread: threading.Thread | None = None
        self._next_look = 0.0

    def load(self) -> ModuleType | None:
        """Return the loops, or None if they cannot be loaded. The caller waits, also while they are compiled."""
        with _lock:
            if self.found is None and self.failure is None:
                try:
                    _check_memory()
                    from packer.codecs import loops

                    self.found = loops
                    self._leave_mark()
                except Exception as error:  # numba, and whoever built a codec's package, has many ways to fail
                    self.failure = error
                    text = "frames are handled one by one: %s: %s"
                    logging.getLogger(__name__).info(text, type(error).__name__, error)
        return self.found

    def _leave_mark(self) -> None:
        """Tell other processes that the loops are compiled, if this one had to do it."""
        if not compiling.compiled_files() and (folder := compiling.cache_folder()) is not None:
            with contextlib.suppress(OSError):
                compiling.leave_mark(folder)

    def begin(self) -> None:
        """Load the loops in a thread, once another process has compiled them; nobody waits.

        Where no process can compile for others (no folder can be written), the thread compiles.
        """
        if self.failure is not None or self._thread is not None or time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + LOOK_SECONDS
        if compiling.compiled_files() or not compiling.start():
            thread = threading.Thread(target=self.load, name="packer loops")
            with contextlib.suppress(RuntimeError):  # the system gives no thread now, or the process is ending
                thread.start()
                self._thread = thread

    def forget_thread(self) -> None:
        """Note that this process was forked, so that its parent's thread is not here."""
        self._thread = None


def _check_memory() -> None:
    """Raise MemoryError if a limit leaves too little memory for the compiler: LLVM would end the process."""
    try:
        import resource

        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except (ImportError, OSError):  # another system
        return
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY and limit - taken < LEAST_MEMORY:
        raise MemoryError(f"a limit leaves this process {max(limit - taken, 0):,} bytes of memory")


loading = Loading()
# A process is not forked while one of its threads loads: the child would wait for the half-finished import for ever.
_lock = threading.RLock()


def _begin_forked() -> None:
    _lock.release()
    loading.forget_thread()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_begin_forked)


def loops() -> ModuleType | None:
    """Return the module `loops` if it is loaded, or None if frames are to be handled one by one.

    Once that has cost enough, the loops are loaded by a thread.
    """
    if loading.found is None and loading.seconds > WORTH_SECONDS:
        loading.begin()
    return loading.found


def prepare(codecs: Iterable[Sequence[dict[str, Any]]]) -> None:
    """See that the loops are compiled for this machine if they know one of these codecs, by another process."""
    is_known = any(number_of(codec) is not None for codec in codecs)
    if loading.found is None and is_known and not compiling.compiled_files():
        compiling.start()


def number_of(codec: Sequence[dict[str, Any]]) -> int | None:
    """Return the number in the loops of a column's codec, its filter aside; None if they do not know it."""
    ids = [config["id"] for config in codec if config["id"] not in (DECIMAL, PHOTO)]
    return CODECS.get(ids[0]) if len(ids) == 1 else None


def machine_code(signature: Any) -> Callable[[Any], Any]:
    """Return a decorator that compiles a function to run without the interpreter's lock, or loads it from a cache.

    Args:
        signature: numba's, of the function.
    """
    from numba import njit

    def compile_(function: Any) -> Any:
        try:
            return njit(signature, nogil=True, cache=True)(function)
        except Exception:  # no folder for the cache, a full disk, or a damaged cache: numba raises many kinds
            return njit(signature, nogil=True)(function)

    return compile_


class Loop:
    """A function that fills arrays: by numpy, until a thread has compiled it. Nobody waits for that.

    Args:
        by_numpy: takes the same arguments, and gives the same as `function`.
        function: is compiled to run without the interpreter's lock, or loaded from numba's cache, once calls have
            cost as much as that does. If it cannot be compiled, numpy goes on.
        signature: returns numba's signature of `function`, given `numba.types`.
    """

    def __init__(
        self, by_numpy: Callable[..., Any], function: Callable[..., Any], signature: Callable[[Any], Any]
    ) -> None:
        self._by_numpy, self._function, self._signature = by_numpy, function, signature
        self._compiled: Callable[..., Any] | None = None
        self._seconds = 0.0
        self._process = 0

    def __call__(self, *arguments: Any) -> Any:
        """Return what the function returns for some arguments."""
        if self._compiled is not None:
            return self._compiled(*arguments)
        began = time.perf_counter()
        try:
            return self._by_numpy(*arguments)
        finally:
            self._seconds += time.perf_counter() - began
            # A forked process has not its parent's thread.
            if self._seconds > WORTH_SECONDS and self._process != os.getpid():
                self._process = os.getpid()
                with contextlib.suppress(RuntimeError):  # as in `begin`
                    threading.Thread(target=self.compile, name="packer loop").start()

    def compile(self) -> None:
        """Compile the function. The caller waits."""
        with _lock:
            try:
                _check_memory()
                from numba import types

                self._compiled = machine_code(self._signature(types))(self._function)
            except Exception as error:  # numba is missing, or does not fit numpy
                text = "%s stays with numpy: %s: %s"
                logging.getLogger(__name__).info(text, self._function.__qualname__, type(error).__name__, error)
