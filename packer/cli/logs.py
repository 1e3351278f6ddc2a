"""What a command writes to stderr while it works: logs and progress.

On a terminal the progress is one line that is drawn again and again; in a log it is a line a minute; with --quiet there
is none. No thread draws it: worker processes are forked, and a process that is forked while another of its threads
works may hang.
"""

from __future__ import annotations

import functools
import logging
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable
from typing import Any

import click

import packer
from packer.cli.text import shorten, size_text, time_text
from packer.errors import printable
from packer.watcher import IN_BYTES, IN_SAMPLES, Watcher

#: Seconds between two drawings on a terminal, and between two lines of a log.
_REDRAW, _LINE = 0.1, 60.0
#: Commands that take less than this show no progress.
_SHORT = 0.5
_ERASE = "\r\x1b[2K"

_log = logging.getLogger(__name__)
#: Whether a line of progress stands on the terminal.
_drawn = False


def log_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --verbose and --quiet; the command itself does not see them."""

    @click.option(
        "-v",
        "--verbose",
        is_flag=True,
        help="Say more: versions, shards, times, and the traceback of an error that is a bug in packer.",
    )
    @click.option("-q", "--quiet", is_flag=True, help="Say nothing but warnings and errors.")
    @functools.wraps(command)
    def with_logging(verbose: bool, quiet: bool, **arguments: Any) -> Any:
        if verbose and quiet:
            raise click.UsageError("--verbose and --quiet exclude each other")
        set_up(logging.DEBUG if verbose else logging.WARNING if quiet else logging.INFO)
        start_time = time.perf_counter()
        _log.debug("version %s, Python %s, %s", packer.__version__, platform.python_version(), platform.platform())
        try:
            return command(**arguments)
        finally:
            _log.debug("ended after %.2f s", time.perf_counter() - start_time)

    return with_logging


class _Stderr(logging.Handler):
    """Writes to what stderr is at the time, `packer: ` before every line."""

    def emit(self, record: logging.LogRecord) -> None:
        mark = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        lines = map(printable, self.format(record).split("\n"))
        _erase()
        click.echo(f"packer: {mark}" + "\n".join(lines), err=True)


def set_up(level: int) -> None:
    """Send what the library logs to stderr, from this level on."""
    logger = logging.getLogger("packer")
    logger.handlers = [_Stderr()]
    logger.setLevel(level)


def is_quiet() -> bool:
    """Return whether the user wants to see neither progress nor summary."""
    return not logging.getLogger("packer").isEnabledFor(logging.INFO)


def say(*lines: str) -> None:
    """Print what a command has done, one line each, unless with --quiet."""
    if not is_quiet():
        click.echo("\n".join(map(printable, lines)))


class Progress:
    """Shows the progress of a command: a context manager that gives the watcher for the verb.

    At its end, the line on a terminal is erased.
    """

    def __init__(self) -> None:
        self._draws = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._open_time = self._show_time = self._step_time = time.monotonic()
        self._name = ""
        self._done = self._done_before = self._bytes = 0  # `_done_before` is what was done when the step began
        self._total: int | None = None

    def _step(self, name: str, done: int, total: int | None) -> None:
        if name != self._name or done < self._done:
            self._name, self._step_time = name, time.monotonic()
            self._done_before, self._bytes = done, 0
        self._done, self._total = done, total
        self._show()

    def _add(self, samples: int, nbytes: int) -> None:
        self._done += nbytes if self._name in IN_BYTES else samples
        self._bytes += nbytes
        self._show()

    def _show(self) -> None:
        global _drawn
        now = time.monotonic()
        if is_quiet() or now - self._open_time < _SHORT or now - self._show_time < (_REDRAW if self._draws else _LINE):
            return
        self._show_time = now
        if not self._draws:
            _log.info("%s", self._line(now))
            return
        width = shutil.get_terminal_size().columns - 1
        click.echo(_ERASE + shorten(f"packer: {self._line(now)}", width), nl=False, err=True)
        _drawn = True

    def _line(self, now: float) -> str:
        """Return what is done, how much of it, the rate, and the time left."""
        done, seconds = self._done, max(now - self._step_time, 1e-9)
        if self._total is None:
            return f"{self._name}: {self._amount(done)} so far"
        share = done / self._total if self._total else 1.0
        noun = " samples" if self._name in IN_SAMPLES else ""
        line = f"{self._name}: {self._amount(done)} of {self._amount(self._total)}{noun} ({share:.0%})"
        if self._bytes:
            line += f", {size_text(self._bytes / seconds)}/s"
        if newly_done := done - self._done_before:
            line += f", {time_text(seconds * (self._total - done) / newly_done)} left"
        return line

    def _amount(self, count: int) -> str:
        return size_text(count) if self._name in IN_BYTES else f"{count:,}"

    def __enter__(self) -> Watcher:
        return Watcher(step=self._step, done=self._add)

    def __exit__(self, *_: object) -> None:
        _erase()


def _erase() -> None:
    """Take the line of progress away, if there is one."""
    global _drawn
    if _drawn:
        click.echo(_ERASE, nl=False, err=True)
        _drawn = False
