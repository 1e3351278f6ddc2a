"""Ctrl-C and SIGTERM as an exception, so that every `with` and `finally` on the way out is run."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

_STOPS = (signal.SIGINT, signal.SIGTERM)


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
    before = {number: signal.getsignal(number) for number in _STOPS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    # From here on workers are stopped and files removed; a second Ctrl-C must not cut that short.
    for other in _STOPS:
        signal.signal(other, signal.SIG_IGN)
    raise Interrupted(number)
