"""Says why a command failed or was stopped, and gives the exit status it ends with."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import traceback
from collections.abc import Iterator
from types import FrameType

import click

from packer.cli.text import printable
from packer.errors import PackerError


def report(error: BaseException) -> int | str | None:
    """Say on stderr why a command failed; return the exit status."""
    if isinstance(error, SystemExit):
        return error.code
    if isinstance(error, (Interrupted, click.Abort, KeyboardInterrupt)):
        _say("packer: stopped; run the same command again to go on")
        return (error if isinstance(error, Interrupted) else Interrupted(signal.SIGINT)).exit_status
    text, status = str(error), 1
    if isinstance(error, click.ClickException):
        text, status = error.format_message().rstrip("."), error.exit_code
        if isinstance(error, click.UsageError) and error.ctx is not None:
            text += f" (see `{error.ctx.command_path} --help`)"
    elif isinstance(error, PackerError):
        status = error.exit_status
    else:
        if logging.getLogger("packer").isEnabledFor(logging.DEBUG):
            _say("".join(traceback.format_exception(error)).rstrip())
        text = _sentence(error)
    _say("packer: error: " + "\n".join(map(printable, text.rstrip().split("\n"))))
    return status


def _sentence(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return "out of memory; take fewer --workers, or a smaller --shard-size"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    what = f"{type(error).__name__}: {error}".rstrip(": ")
    return f"{what} (this should not happen; please report it with what --verbose shows)"


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # stderr is closed: there is nobody to tell
        click.echo(text, err=True)


class Interrupted(BaseException):
    """The user, or the system, wants the program to stop.

    Attributes:
        exit_status: 128 and the number of the signal, as shells have it.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_status = 128 + number


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Raise Interrupted within the block if Ctrl-C or SIGTERM asks to stop; a signal that was ignored stays ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, _: FrameType | None) -> None:
        raise Interrupted(number)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
