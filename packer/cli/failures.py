"""Says why a command failed or was stopped, and gives the exit status it ends with."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import signal
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING

import click

from packer.cli.text import printable
from packer.errors import PackerError

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

_DATA_BAD = 1
_WRONG_USAGE = 2
_CTRL_C = 130

#: A listing of so many lines stands in the line of its message.
_IN_LINE = 3
_STOPS = (signal.SIGINT, signal.SIGTERM)
#: Seconds until a signal that got lost is sent once more.
_AGAIN = 0.05


def report(error: BaseException) -> int | str | None:
    """Say on stderr why a command failed; return the exit status."""
    if isinstance(error, SystemExit):
        return error.code
    if isinstance(error, Interrupted):
        _say(f"packer: stopped; {error.advice}" if error.advice else "packer: stopped")
        return error.exit_status
    if isinstance(error, (click.Abort, KeyboardInterrupt)):
        _say("packer: stopped")
        return _CTRL_C
    if isinstance(error, click.ClickException):
        return _of_click(error)
    if isinstance(error, PackerError):
        _say_error(str(error))
        return error.exit_status
    if logging.getLogger("packer").isEnabledFor(logging.DEBUG):
        _say("".join(traceback.format_exception(error)).rstrip())
    _say_error(_sentence(error))
    return _DATA_BAD


def _of_click(error: click.ClickException) -> int:
    advice = ""
    if isinstance(error, click.UsageError) and error.ctx is not None:
        advice = f" (see `{error.ctx.command_path} --help`)"
    _say_error(error.format_message().rstrip(".") + advice)
    return error.exit_code


def _sentence(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return "out of memory; take fewer --workers, or a smaller --shard-size"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    what = f"{type(error).__name__}: {error}".rstrip(": ")
    return f"{what} (this should not happen; please report it with what --verbose shows)"


def _say_error(text: str) -> None:
    """Write a message as one line, since a log takes several apart; a long listing at its end has lines of its own."""
    lines = [printable(line) for line in text.rstrip().split("\n")]
    listed = len(list(itertools.takewhile(lambda line: line.startswith("  "), reversed(lines[1:]))))
    end = len(lines) - listed if listed > _IN_LINE else len(lines)
    head = " ".join(line.strip() for line in lines[:end])
    _say("\n".join([f"packer: error: {head}", *lines[end:]]))


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # stderr is closed: there is nobody to tell
        click.echo(text, err=True)


class Interrupted(BaseException):
    """The user, or the system, wants the program to stop.

    Attributes:
        exit_status: 128 and the number of the signal, as shells have it.
        advice: how to go on later, if that can be said.
    """

    def __init__(self, number: int, advice: str = "") -> None:
        super().__init__(number)
        self.number = number
        self.exit_status = 128 + number
        self.advice = advice


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Raise Interrupted within the block if a signal asks to stop; a signal that was ignored stays ignored."""
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
        """Send a signal again whose error Python dropped, since an object was taken apart or a process forked."""
        if isinstance(what.exc_value, Interrupted):
            self._raised = None
            again = threading.Timer(_AGAIN, os.kill, (os.getpid(), what.exc_value.number))
            again.daemon = True
            again.start()
        else:
            self._hook(what)
