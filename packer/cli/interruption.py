"""Ctrl-C and SIGTERM as an exception, so that every `with` and `finally` on the way out is run."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

_STOPS = (signal.SIGINT, signal.SIGTERM)
#: Seconds until a signal that got lost is sent once more.
_AGAIN = 0.05


class Interrupted(BaseException):
    """The user, or the system, wants the program to stop.

    Attributes:
        exit_status: 128 and the number of the signal, as shells have it.
        advice: how to go on later, where that can be said.
    """

    def __init__(self, number: int, advice: str = "") -> None:
        super().__init__(number)
        self.number = number
        self.exit_status = 128 + number
        self.advice = advice


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Raises Interrupted within the block where a signal asks to stop; a signal that was ignored stays so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    hook = sys.unraisablehook
    signals = _Signals(hook)
    before = {number: signal.getsignal(number) for number in _STOPS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, signals.stop)
    sys.unraisablehook = signals.lost
    try:
        yield
    finally:
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, handler)


class _Signals:
    """Raises for the first signal; while that is on its way out, workers are stopped and files removed, and a second
    Ctrl-C must not cut it short."""

    def __init__(self, hook: Callable[[UnraisableHookArgs], object]) -> None:
        self._hook = hook
        self._raised: weakref.ref[Interrupted] | None = None

    def stop(self, number: int, frame: FrameType | None) -> None:
        if self._raised is None or self._raised() is None:
            error = Interrupted(number)
            self._raised = weakref.ref(error)
            raise error

    def lost(self, what: UnraisableHookArgs) -> None:
        """Python drops what is raised while an object is taken apart, or a process forked: the signal comes again."""
        if isinstance(what.exc_value, Interrupted):
            self._raised = None
            again = threading.Timer(_AGAIN, os.kill, (os.getpid(), what.exc_value.number))
            again.daemon = True
            again.start()
        else:
            self._hook(what)
