"""How far a command is: a bar on a terminal, a line now and then in a log, nothing where that is wanted.

No thread draws the bar: worker processes are forked, and a fork in the middle of another thread's work is how
programs come to hang.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from types import TracebackType
from typing import Any

from packer.cli.logs import is_quiet
from packer.cli.units import size_text, time_text
from packer.packing.prepare import Prepared

#: Seconds between two drawings of the bar, and between two lines of a log.
_REDRAW = 0.1
_LINE = 5.0

_log = logging.getLogger(__name__)


class Progress:
    """Shows nothing. A context manager: what the others show is taken away at the end of the block.

    `begin`, `resume` and `advance` are the hooks of `ConvertOptions`.

    Args:
        verb: what is being done.
        unit: what the total counts: `samples` or `bytes`.
    """

    def __init__(self, verb: str = "packing", unit: str = "samples") -> None:
        self._verb = verb
        self._in_bytes = unit == "bytes"

    def begin(self, prepared: Prepared) -> None:
        """Learns how much there is to pack."""
        self.start(prepared.plan.samples)

    def start(self, total: int) -> None:
        """Learns how much there is to do, in the unit."""

    def resume(self, samples: int, nbytes: int) -> None:
        """Learns how much an earlier run has done."""

    def advance(self, samples: int, nbytes: int) -> None:
        """Learns how much more is done."""

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        pass


class LineProgress(Progress):
    """A line every few seconds: how much is done, rate, time left."""

    def __init__(self, verb: str = "packing", unit: str = "samples") -> None:
        super().__init__(verb, unit)
        self._done = self._bytes = self._resumed = 0

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
            _log.info("%s", self._line(now - self._began))

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
    """A bar that is drawn from the hooks themselves, at most ten times a second."""

    def __init__(self, verb: str = "packing", unit: str = "samples") -> None:
        super().__init__(verb, unit)
        import rich.progress as rich  # here: it takes a tenth of a second, and a log needs none
        from rich.console import Console

        self._bar = rich.Progress(
            rich.TextColumn(verb),
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
        self._task: Any = None
        self._drawn = self._began = 0.0
        self._bytes = 0

    def start(self, total: int) -> None:
        self._began = time.monotonic()
        self._task = self._bar.add_task("", total=total, amount="")
        self._bar.start()

    def resume(self, samples: int, nbytes: int) -> None:
        # Not `advance`: what was done before tells nothing about the rate.
        self._bar.reset(self._task, completed=nbytes if self._in_bytes else samples)

    def advance(self, samples: int, nbytes: int) -> None:
        self._bytes += nbytes
        now = time.monotonic()
        rate = size_text(self._bytes / max(now - self._began, 1e-9))
        more = nbytes if self._in_bytes else samples
        self._bar.update(self._task, advance=more, amount=f"{size_text(self._bytes)}, {rate}/s")
        if now - self._drawn >= _REDRAW:
            self._drawn = now
            self._bar.refresh()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._bar.stop()


def progress(verb: str = "packing", unit: str = "samples") -> Progress:
    """What suits stderr: a bar on a terminal, lines elsewhere, nothing with --quiet."""
    if is_quiet():
        return Progress(verb, unit)
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        return BarProgress(verb, unit)
    return LineProgress(verb, unit)
