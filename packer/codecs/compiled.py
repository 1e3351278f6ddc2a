"""Loads the loops of `loops.py` once they are worth the time that loading takes.

With them frames are decoded faster, and threads do not wait for the interpreter's lock between two frames
(docs/how/choices.md). A process that reads a few batches, or looks at one dataset, gains nothing from them. So frames
are handled one by one until that has cost as much as loading would. The worst case is twice the ideal time.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from packer.codecs.filters import DECIMAL, PHOTO

#: Seconds spent on frames one by one after which the loops are loaded.
WORTH_SECONDS = 0.5

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

    def load(self) -> ModuleType | None:
        """Return the loops, now, or None if they cannot be loaded, or another thread is about to load them."""
        if self.found is None and self.failure is None and _lock.acquire(blocking=False):
            try:
                _check_memory()
                from packer.codecs import loops

                self.found = loops
            except Exception as error:  # numba, and whoever built a codec's package, has many ways to fail
                self.failure = error
                logging.getLogger(__name__).info("frames are handled one by one: %s: %s", type(error).__name__, error)
            finally:
                _lock.release()
        return self.found


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
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


def loops() -> ModuleType | None:
    """Return the module `loops`, if it is loaded or worth it by now, or None if frames are to be handled one by one."""
    return loading.found or (loading.load() if loading.seconds > WORTH_SECONDS else None)


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
