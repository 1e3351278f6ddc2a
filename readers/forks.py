"""What a process that was forked makes anew: locks that a thread of its parent may have held, and what they guard.

    class Kept:
        def __init__(self):
            self._lock = threading.Lock()
            renew_in_children(self)

Only the thread that forks goes on in the child. Another one that held a lock is not there to let go of it, and
what it was at work on stays as it was left. The child renews both before any other line of its own runs, so no thread
of it can come in between, and reading costs nothing for it.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import weakref
from pathlib import Path
from typing import Protocol


class Renewed(Protocol):
    """What cannot be used in a forked child as its parent left it."""

    def renew(self) -> None:
        """Makes new locks, and puts right what may have been left half done."""


_HOLDERS: weakref.WeakSet[Renewed] = weakref.WeakSet()

#: The flag that Linux gives a process which goes on with the program of the one that forked it.
_FORKED_NO_EXEC = 0x40


def renew_in_children(holder: Renewed) -> None:
    """Has `holder.renew()` called in every process that is forked from now on, as long as the holder lives."""
    _HOLDERS.add(holder)


def in_main_thread() -> bool:
    """Whether it is the main thread that asks; `threading` itself takes two calls more to tell."""
    return threading.get_ident() == _main_thread


def has_team() -> bool:
    """Whether the thread that asks may use torch's threads: the main one may, in a process that was not forked.

    Any other would start a team of its own; and in a forked process the team stayed behind, and OpenMP would wait for
    it for ever.
    """
    return threading.get_ident() == _with_team


def _began_by_fork() -> bool:
    """Whether this process goes on with the program of the one that forked it, from what the system says of it."""
    try:
        flags = int(Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[6])
    except (OSError, ValueError, IndexError):  # not Linux: a child that multiprocessing made can still tell
        return multiprocessing.parent_process() is not None and multiprocessing.get_start_method() == "fork"
    return bool(flags & _FORKED_NO_EXEC)


_main_thread = threading.main_thread().ident
_with_team = None if _began_by_fork() else _main_thread


def _in_child() -> None:
    global _main_thread, _with_team
    _main_thread, _with_team = threading.get_ident(), None
    for holder in list(_HOLDERS):
        holder.renew()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_in_child)
