"""Loads loops in machine code once they are worth the time that loading takes.

With those of `loops.py` frames are decoded faster, and threads do not wait for the interpreter's lock between two
frames (docs/how/choices.md). A process that reads a few batches, or looks at one dataset, gains nothing from them. So
frames are handled one by one until that has cost as much as loading would. The worst case is twice the ideal time.

Nobody waits for loops: another process compiles them (`compiling.py`), and a thread loads them, which takes 0.7 s.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any
from weakref import WeakSet

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
    """Whether a module of loops is loaded in this process.

    Args:
        module: its name. Its import compiles the loops, or loads what numba keeps of them.

    Attributes:
        found: the module, once it is loaded.
        failure: why loading failed, if it did.
        seconds: spent without the loops; whoever does their work in another way adds to it.
    """

    def __init__(self, module: str) -> None:
        self.module = module
        self.found: ModuleType | None = None
        self.failure: Exception | None = None
        self.seconds = 0.0
        self._thread: threading.Thread | None = None
        self._next_look = 0.0
        _all.add(self)

    def loops(self) -> ModuleType | None:
        """Return the module if it is loaded, or None if its work is to be done in another way.

        Once that has cost enough, a thread loads the loops.
        """
        if self.found is None and self.seconds > WORTH_SECONDS:
            self.begin()
        return self.found

    def loop(self, name: str, by_numpy: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that calls one of the loops, or `by_numpy` until they are loaded."""

        def call(*arguments: Any) -> Any:
            loops = self.loops()
            if loops is not None:
                return getattr(loops, name)(*arguments)
            began = time.perf_counter()
            try:
                return by_numpy(*arguments)
            finally:
                self.seconds += time.perf_counter() - began

        return call

    def load(self) -> ModuleType | None:
        """Return the loops, or None if they cannot be loaded. The caller waits, also while they are compiled."""
        with _lock:
            if self.found is None and self.failure is None:
                try:
                    _check_memory()
                    self.found = import_module(self.module)
                    self._leave_mark()
                except Exception as error:  # numba, and whoever built a codec's package, has many ways to fail
                    self.failure = error
                    text = "this process goes on without %s: %s: %s"
                    logging.getLogger(__name__).info(text, self.module, type(error).__name__, error)
        return self.found

    def _leave_mark(self) -> None:
        """Tell other processes that the loops are compiled, if this one had to do it."""
        if not compiling.compiled_files(self.module) and (folder := compiling.cache_folder(self.module)) is not None:
            with contextlib.suppress(OSError):
                compiling.leave_mark(self.module, folder)

    def prepare(self) -> None:
        """See that another process compiles the loops for this machine, unless they are compiled."""
        if self.found is None and not compiling.compiled_files(self.module):
            compiling.start(self.module)

    def begin(self) -> None:
        """Load the loops in a thread, once another process has compiled them; nobody waits.

        Where no process can compile for others (no folder can be written), the thread compiles.
        """
        if self.failure is not None or self._thread is not None or time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + LOOK_SECONDS
        if compiling.compiled_files(self.module) or not compiling.start(self.module):
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


#: All of this process, for what a fork must do.
_all: WeakSet[Loading] = WeakSet()

#: Of the loops over frames.
loading = Loading("packer.codecs.loops")
# A process is not forked while one of its threads loads: the child would wait for the half-finished import for ever.
_lock = threading.RLock()


def _begin_forked() -> None:
    _lock.release()
    for each in _all:
        each.forget_thread()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_begin_forked)


def prepare(codecs: Iterable[Sequence[dict[str, Any]]]) -> None:
    """See that the loops over frames are compiled for this machine if they know one of these codecs."""
    if any(number_of(codec) is not None for codec in codecs):
        loading.prepare()


def number_of(codec: Sequence[dict[str, Any]]) -> int | None:
    """Return the number in the loops of a column's codec, its filter aside; None if they do not know it."""
    ids = [config["id"] for config in codec if config["id"] not in (DECIMAL, PHOTO)]
    return CODECS.get(ids[0]) if len(ids) == 1 else None


def machine_code(signature: Any) -> Callable[[Any], Any]:
    """Return a decorator that compiles a function to run without the interpreter's lock, or loads it from a cache.

    Args:
        signature: numba's, of the function, or a list of them.

    Raises:
        ImportError: numba's compiler is switched off.
    """
    from numba import config, njit

    if config.DISABLE_JIT:  # type: ignore[attr-defined]  # numba's annotations do not know its settings
        raise ImportError("numba's compiler is switched off by NUMBA_DISABLE_JIT")

    def compile_(function: Any) -> Any:
        try:
            return njit(signature, nogil=True, cache=True)(function)
        except Exception:  # no folder for the cache, a full disk, or a damaged cache: numba raises many kinds
            return njit(signature, nogil=True)(function)

    return compile_
