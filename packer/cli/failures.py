"""What is said when a command fails, and the exit status it ends with."""

from __future__ import annotations

import contextlib
import logging
import re
import traceback

import click

from packer.cli.interruption import Interrupted
from packer.cli.tables import printable
from packer.errors import PackerError

_DATA_BAD = 1
_WRONG_USAGE = 2
_CTRL_C = 130

#: A listing of so many lines stands in the line of its message; of a longer one so many lines are shown.
_IN_LINE = 3
_SHOWN = 10
_MORE = re.compile(r" +and ([\d,]+) more")


def report(error: BaseException) -> int | str | None:
    """Says on stderr why a command failed; returns the exit status."""
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
    if type(error).__name__ == "NoArgsIsHelpError":  # older versions of click have no such class
        _say(error.format_message())
        return _WRONG_USAGE
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
    _say("packer: error: " + "\n".join(_lines(text)))


def _lines(text: str) -> list[str]:
    """One line, since a message of several is one that a log takes apart; a listing at its end has lines of its own."""
    lines = [printable(line) for line in text.rstrip().split("\n")]
    head = list(lines)
    while len(head) > 1 and head[-1].startswith("  "):
        head.pop()
    listed = lines[len(head) :]
    if len(listed) <= _IN_LINE:
        return [" ".join(line.strip() for line in lines)]
    return [" ".join(line.strip() for line in head), *_cut(listed)]


def _cut(listed: list[str]) -> list[str]:
    """The first lines of a listing, which may have been cut already, and how many more there are."""
    more = _MORE.fullmatch(listed[-1])
    whole, left = (listed[:-1], int(more[1].replace(",", ""))) if more else (listed, 0)
    left += max(len(whole) - _SHOWN, 0)
    return [*whole[:_SHOWN], *([f"  and {left:,} more"] if left else [])]


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # stderr is closed: there is nobody to tell
        click.echo(text, err=True)
