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
from typing import TYPE_CHECKING, Any

from packer.cli import logs
from packer.cli.text import size_text, time_text
from packer.sources.base import FETCHING, UPLOADING

if TYPE_CHECKING:
    from packer.convert import ConvertOptions
    from packer.packing.plan import Plan
    from packer.sources.base import Source

#: Seconds between two drawings of the bar, and between two lines of a log.
_REDRAW = 0.1
_LINE = 60.0
#: A preparation that takes less than this is not shown.
_SHORT = 0.5

_log = logging.getLogger(__name__)


class Progress:
    """Knows how far a command is, and shows nothing. A context manager: what others show is taken away at its end.

    Args:
        verb: what is being done once all is planned.
        unit: what the total counts: `samples` or `bytes`.
    """

    def __init__(self, verb: str = "packing", unit: str = "samples") -> None:
        self._verb, self._counts_bytes = verb, unit == "bytes"
        self._opened = self._began = self._shown = time.monotonic()
        self._what, self._works = "", False
        self._done, self._before, self._bytes = 0, 0, 0  # `before` is what an earlier run has done
        self._total: int | None = None

    @property
    def hooks(self) -> dict[str, Any]:
        """Return the hooks of `ConvertOptions`."""
        return {"looking": self.look, "planned": self.begin, "resumed": self.resume, "progress": self.advance}

    def look(self, what: str, done: int, total: int | None) -> None:
        """Learn that what is done before the work, or after it, is at `what`, and how far.

        Args:
            what: what is being done, such as `reading headers`; fetching and uploading are counted in bytes.
            total: None while nobody knows it.
        """
        if what != self._what or done < self._done:
            self._step(what, works=False)
        self._done, self._total = done, total
        self._show()

    def begin(self, plan: Plan) -> None:
        """Learn how much there is to pack."""
        self.start(plan.samples)

    def start(self, total: int) -> None:
        """Learn how much there is to do, in the unit."""
        self._step(self._verb, works=True)
        self._total = total
        self._show()

    def resume(self, samples: int, nbytes: int) -> None:
        """Learn how much an earlier run has done."""
        self._done = self._before = nbytes if self._counts_bytes else samples

    def advance(self, samples: int, nbytes: int) -> None:
        """Learn how much more is done."""
        self._done += nbytes if self._counts_bytes else samples
        self._bytes += nbytes
        self._show()

    def _step(self, what: str, works: bool) -> None:
        """Begin another step: the work itself, or what comes before or after it."""
        self._what, self._works, self._began = what, works, time.monotonic()
        self._done = self._before = self._bytes = 0

    def _show(self) -> None:
        """Show what is known now."""

    @property
    def _in_bytes(self) -> bool:
        return self._counts_bytes if self._works else self._what in (FETCHING, UPLOADING)

    def _amount(self, count: int) -> str:
        return size_text(count) if self._in_bytes else f"{count:,}"

    @property
    def _rate(self) -> str:
        return f"{size_text(self._bytes / max(time.monotonic() - self._began, 1e-9))}/s"

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        pass


class LineProgress(Progress):
    """Writes a line a minute: how much is done, rate, time left."""

    def _show(self) -> None:
        now = time.monotonic()
        if now - self._shown < _LINE:
            return
        self._shown = now
        if self._total is None:
            _log.info("%s: %s so far", self._what, self._amount(self._done))
            return
        unit = " samples" if self._works and not self._in_bytes else ""
        share = self._done / self._total if self._total else 1.0
        line = f"{self._amount(self._done)} of {self._amount(self._total)}{unit} ({share:.0%})"
        if self._works:
            line += f", {self._rate}"
        if new := self._done - self._before:
            line += f", {time_text((now - self._began) * (self._total - self._done) / new)} left"
        _log.info("%s: %s", self._what, line)


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
        self._task = self._bar.add_task("", total=None, amount="")
        self._shown = 0.0

    def _step(self, what: str, works: bool) -> None:
        super()._step(what, works)
        self._bar.reset(self._task, description=what, amount="")

    def resume(self, samples: int, nbytes: int) -> None:
        super().resume(samples, nbytes)
        # Not `update`: what was done before tells nothing about the rate.
        self._bar.reset(self._task, completed=self._done)

    def _show(self) -> None:
        now = time.monotonic()
        if now - self._shown < _REDRAW or (not self._works and now - self._opened < _SHORT):
            return
        self._shown = now
        amount = f"{size_text(self._bytes)}, {self._rate}" if self._works else self._amount(self._done)
        self._bar.update(self._task, completed=self._done, total=self._total, amount=amount)
        logs.before_line = self._bar.stop  # a line of the log takes the bar away, the next drawing brings it back
        self._bar.start()
        self._bar.refresh()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._bar.stop()
        logs.before_line = logs.nothing_drawn


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
