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
from packer.cli.text import shortened, size_text, time_text
from packer.errors import printable
from packer.packing import Plan
from packer.sources import FETCHING

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
    def with_logging(verbose: bool, quiet: bool, **given: Any) -> Any:
        if verbose and quiet:
            raise click.UsageError("--verbose and --quiet exclude each other")
        set_up(logging.DEBUG if verbose else logging.WARNING if quiet else logging.INFO)
        began = time.perf_counter()
        _log.debug("version %s, Python %s, %s", packer.__version__, platform.python_version(), platform.platform())
        try:
            return command(**given)
        finally:
            _log.debug("ended after %.2f s", time.perf_counter() - began)

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
    """Shows the progress of a command. A context manager: the line on a terminal is erased at its end.

    First come the preparations (files are fetched or found, headers read, samples looked at), then the work itself.

    Args:
        verb: what is being done once all is planned.
        unit: what the total counts: `samples` or `bytes`.
    """

    def __init__(self, verb: str = "packing", unit: str = "samples") -> None:
        self._verb, self._unit = verb, unit
        self._draws = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._opened = self._shown = self._began = time.monotonic()
        self._what = self._counted = ""
        self._done = self._before = self._bytes = 0  # `before` is what an earlier run has done
        self._total: int | None = None

    @property
    def hooks(self) -> dict[str, Any]:
        """Return the hooks of `ConvertOptions`."""
        return {
            "looking": self.look,
            "planned": self._planned,
            "resumed": self._resumed,
            "progress": self.advance,
        }

    def look(self, activity: str, done: int, total: int | None) -> None:
        """Show the progress of a step before the work itself.

        Args:
            activity: the step, such as `reading headers`; fetching is counted in bytes.
            total: None while it is not known.
        """
        if activity != self._what or done < self._done:
            self._step(activity, "bytes" if activity == FETCHING else "")
        self._done, self._total = done, total
        self._show()

    def start(self, total: int) -> None:
        """Begin the work itself.

        Args:
            total: how much there is to do, in the unit.
        """
        self._step(self._verb, self._unit)
        self._total = total
        self._show()

    def _planned(self, plan: Plan) -> None:
        for note in plan.remarks:
            _log.info("%s", note)
        for shard in plan.shards:
            size, most = size_text(shard.raw_bytes), size_text(shard.map_size)
            _log.debug("%s: samples %d to %d, %s, map of %s", shard.file, shard.start, shard.stop - 1, size, most)
        self.start(plan.samples)

    def _resumed(self, samples: int, _: int) -> None:
        _log.info("going on after an earlier run, which has packed %s samples", f"{samples:,}")
        self._done = self._before = samples

    def advance(self, samples: int, nbytes: int) -> None:
        """Show that so much more is done."""
        self._done += nbytes if self._unit == "bytes" else samples
        self._bytes += nbytes
        self._show()

    def _step(self, activity: str, counted: str) -> None:
        """Begin another step: the work itself, or one before or after it."""
        self._what, self._counted, self._began = activity, counted, time.monotonic()
        self._done = self._before = self._bytes = 0

    def _show(self) -> None:
        global _drawn
        now = time.monotonic()
        if is_quiet() or now - self._opened < _SHORT or now - self._shown < (_REDRAW if self._draws else _LINE):
            return
        self._shown = now
        if not self._draws:
            _log.info("%s", self._line(now))
            return
        width = shutil.get_terminal_size().columns - 1
        click.echo(_ERASE + shortened(f"packer: {self._line(now)}", width), nl=False, err=True)
        _drawn = True

    def _line(self, now: float) -> str:
        """Return what is done, how much of it, the rate, and the time left."""
        done, gone = self._done, max(now - self._began, 1e-9)
        if self._total is None:
            return f"{self._what}: {self._amount(done)} so far"
        share = done / self._total if self._total else 1.0
        noun = " samples" if self._counted == "samples" else ""
        line = f"{self._what}: {self._amount(done)} of {self._amount(self._total)}{noun} ({share:.0%})"
        if self._what == self._verb:
            line += f", {size_text(self._bytes / gone)}/s"
        if new := done - self._before:
            line += f", {time_text(gone * (self._total - done) / new)} left"
        return line

    def _amount(self, count: int) -> str:
        return size_text(count) if self._counted == "bytes" else f"{count:,}"

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        _erase()


def _erase() -> None:
    """Take the line of progress away, if there is one."""
    global _drawn
    if _drawn:
        click.echo(_ERASE, nl=False, err=True)
        _drawn = False
