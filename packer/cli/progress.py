"""Shows how far a command is: a bar on a terminal, a line a minute in a log, nothing with --quiet.

First come the preparations (files are fetched or found, headers read, samples looked at), then the work itself, and
last an upload, if there is one.

No thread draws the bar: worker processes are forked, and a fork in the middle of another thread's work is how
programs come to hang.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING

from packer.cli import logs
from packer.cli.units import size_text, time_text
from packer.sources.base import FETCHING, UPLOADING

if TYPE_CHECKING:
    from packer.convert import ConvertOptions
    from packer.packing.plan import Prepared
    from packer.sources.base import Source

#: Seconds between two drawings of the bar, and between two lines of a log.
_REDRAW = 0.1
_LINE = 60.0
#: A preparation that takes less than this is not shown.
_SHORT = 0.5

_log = logging.getLogger(__name__)


class Progress:
    """Shows nothing. A context manager: what the others show is taken away at the end of the block.

    `look`, `begin`, `resume` and `advance` are the hooks of `ConvertOptions`.

    Args:
        verb: what is being done once all is planned.
        unit: what the total counts: `samples` or `bytes`.
    """

    def __init__(self, verb: str = "packing", unit: str = "samples") -> None:
        self._verb = verb
        self._in_bytes = unit == "bytes"
        self._opened = time.monotonic()

    def look(self, what: str, done: int, total: int | None) -> None:
        """Learn that what is done before the work, or after it, is at `what`, and how far.

        Args:
            what: what is being done, such as `reading headers`; fetching and uploading are counted in bytes.
            total: None while nobody knows it.
        """

    def begin(self, prepared: Prepared) -> None:
        """Learn how much there is to pack."""
        self.start(prepared.plan.samples)

    def start(self, total: int) -> None:
        """Learn how much there is to do, in the unit."""

    def resume(self, samples: int, nbytes: int) -> None:
        """Learn how much an earlier run has done."""

    def advance(self, samples: int, nbytes: int) -> None:
        """Learn how much more is done."""

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        pass


class LineProgress(Progress):
    """Writes a line a minute: how much is done, rate, time left."""

    def __init__(self, verb: str = "packing", unit: str = "samples") -> None:
        super().__init__(verb, unit)
        self._done = self._bytes = self._resumed = 0
        self._told = self._step_began = self._opened
        self._step = ("", 0)

    def look(self, what: str, done: int, total: int | None) -> None:
        now = time.monotonic()
        if what != self._step[0] or done < self._step[1]:
            self._step_began = now
        self._step = (what, done)
        if now - self._told >= _LINE:
            self._told = now
            amount = _amount(what, done)
            logged = (
                f"{amount} so far"
                if total is None
                else f"{amount} of {_amount(what, total)} ({done / max(total, 1):.0%})"
            )
            seconds = now - self._step_began
            left = f", {time_text(seconds * (total - done) / done)} left" if total and done and seconds else ""
            _log.info("%s: %s", what, logged + left)

    def start(self, total: int) -> None:
        self._total = total
        self._began = self._told = time.monotonic()

    def resume(self, samples: int, nbytes: int) -> None:
        self._resumed = nbytes if self._in_bytes else samples
        self._done += self._resumed

    def advance(self, samples: int, nbytes: int) -> None:
        self._done += nbytes if self._in_bytes else samples
        self._bytes += nbytes
        now = time.monotonic()
        if now - self._told >= _LINE:
            self._told = now
            _log.info("%s: %s", self._verb, self._line(now - self._began))

    def _line(self, seconds: float) -> str:
        new = self._done - self._resumed
        left = seconds * (self._total - self._done) / new if new else 0.0
        share = f"{self._done / self._total:.0%}" if self._total else "100%"
        rate = f"{size_text(self._bytes / seconds)}/s"
        if self._in_bytes:
            amount = f"{size_text(self._done)} of {size_text(self._total)}"
        else:
            amount = f"{self._done:,} of {self._total:,} samples"
        return f"{amount} ({share}), {rate}, {time_text(left)} left"


class BarProgress(Progress):
    """Draws a bar from the hooks themselves, at most ten times a second."""

    def __init__(self, verb: str = "packing", unit: str = "samples") -> None:
        super().__init__(verb, unit)
        import rich.progress as rich  # here: it takes a tenth of a second, and a log needs none
        from rich.console import Console

        self._bar = rich.Progress(
            rich.TextColumn("{task.description}"),
            rich.BarColumn(),
            rich.TaskProgressColumn(),
            rich.TextColumn("{task.fields[amount]}"),
            rich.TimeRemainingColumn(),
            console=Console(stderr=True),
            auto_refresh=False,
            transient=True,
            # Workers would inherit what rich puts in the place of the two.
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = self._bar.add_task("", total=None, amount="", visible=False)
        self._step = ("", 0)
        self._drawn = self._began = 0.0
        self._bytes = 0

    def look(self, what: str, done: int, total: int | None) -> None:
        if what != self._step[0] or done < self._step[1]:
            self._bar.reset(self._task, description=what)
        self._step = (what, done)
        if time.monotonic() - self._opened >= _SHORT:
            self._bar.update(self._task, completed=done, total=total, amount=_amount(what, done), visible=True)
            self._draw()

    def start(self, total: int) -> None:
        self._began = time.monotonic()
        self._bar.reset(self._task, description=self._verb, total=total, amount="", visible=True)
        self._draw()

    def resume(self, samples: int, nbytes: int) -> None:
        # Not `advance`: what was done before tells nothing about the rate.
        self._bar.reset(self._task, completed=nbytes if self._in_bytes else samples)

    def advance(self, samples: int, nbytes: int) -> None:
        self._bytes += nbytes
        rate = size_text(self._bytes / max(time.monotonic() - self._began, 1e-9))
        more = nbytes if self._in_bytes else samples
        self._bar.update(self._task, advance=more, amount=f"{size_text(self._bytes)}, {rate}/s")
        self._draw()

    def _draw(self) -> None:
        now = time.monotonic()
        if now - self._drawn >= _REDRAW:
            self._drawn = now
            logs.before_line = self._bar.stop  # a line of the log takes the bar away, the next drawing brings it back
            self._bar.start()
            self._bar.refresh()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._bar.stop()
        logs.before_line = logs.nothing_drawn


def _amount(what: str, done: int) -> str:
    return size_text(done) if what in (FETCHING, UPLOADING) else f"{done:,}"


def open_shown(sources: Sequence[str], options: ConvertOptions) -> Source:
    """Open the sources named on the command line, and show how far finding files and reading headers is."""
    from packer.convert import open_source

    with progress("planning") as shown:
        return open_source(list(sources), replace(options, looking=shown.look), None)


def progress(verb: str = "packing", unit: str = "samples") -> Progress:
    """Return what suits stderr: a bar on a terminal, lines elsewhere, nothing with --quiet."""
    if logs.is_quiet():
        return Progress(verb, unit)
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        return BarProgress(verb, unit)
    return LineProgress(verb, unit)
