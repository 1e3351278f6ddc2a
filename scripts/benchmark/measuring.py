"""Sides measured in turn, round after round, so that whatever else the machine does meets all alike.

Each round begins with another side, A B B A ...: one that uses all processors may be slower behind one that used a
single one, while the others slept (pairs of 13 kB in batches of 128: 0.78 and 0.81 of the limit, 0.82 and 0.81 so).

A ratio is the median of the ratios of the rounds, not the ratio of the medians.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmark.checksum import checksum
from benchmark.page_cache import disk_bytes, warm
from benchmark.row import Figures

#: Less than this read from disk during a whole row is not worth a word.
NOTABLE_BYTES = 2**20


class WrongContentError(Exception):
    """A side gave other bytes than its source holds."""


@dataclass(frozen=True)
class Rounds:
    """How many rounds: at least `least`, more until `seconds` have gone by, at most `most`."""

    least: int = 5
    most: int = 15
    seconds: float = 2.0

    def enough(self, done: int, spent: float) -> bool:
        return done >= self.most or (done >= self.least and spent >= self.seconds)


@dataclass(frozen=True)
class Side:
    """One of the things compared.

    Attributes:
        run: what is timed; returns how many items it did.
        files: read through right before each measurement.
        prepare: run before each measurement, after the files were read.
        check: run before the first round, for ours after the last too; raises WrongContentError.
        apart: whether another process does the work, so that a profile of this one shows nothing.
        may_read: whether reading from disk is part of the matter, so that it needs no note.
    """

    name: str
    run: Callable[[], int]
    files: Sequence[Path] = ()
    prepare: Callable[[], None] = lambda: None
    check: Callable[[], None] = lambda: None
    apart: bool = False
    may_read: bool = False


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Takes one of torch's threads for as long as it lasts."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass
class _Measured:
    side: Side
    rates: list[float] = field(default_factory=list)
    disk: int = 0

    @property
    def median(self) -> float:
        return statistics.median(self.rates)

    def measure(self) -> None:
        warm(self.side.files)
        self.side.prepare()
        before = disk_bytes()
        start = time.perf_counter()
        items = self.side.run()
        seconds = time.perf_counter() - start
        self.disk += max(0, disk_bytes() - before)
        self.rates.append(items / seconds)


def epochs(
    name: str,
    batches: Callable[[], Iterable[Any]],
    samples: int,
    expected: int | None = None,
    files: Sequence[Path] = (),
) -> Side:
    """A side that reads an epoch.

    Args:
        batches: begins an epoch; making its order is part of it.
        samples: of an epoch.
        expected: checksum of an epoch, from the source.
        files: read through before each epoch.
    """

    def run() -> int:
        for _ in batches():
            pass
        return samples

    def check() -> None:
        with one_thread():  # sums of small batches gain nothing from more, and lose much on a busy machine
            found = sum(checksum(batch) for batch in batches())
        if expected is not None and found != expected:
            raise WrongContentError(f"{name}: an epoch sums up to {found}, the source to {expected}")

    return Side(name, run, files, check=check)


def race(ours: Side, theirs: Sequence[Side], rounds: Rounds) -> Figures:
    """Measures all sides in turn; the value is ours over the best of theirs.

    Raises:
        WrongContentError: a side gives other bytes than its source holds.
    """
    measured = [_Measured(side) for side in (ours, *theirs)]
    for one in measured:
        warm(one.side.files)  # in large pages, before checking reads them in whatever order
        one.side.check()
    start, done = time.perf_counter(), 0
    while not rounds.enough(done, time.perf_counter() - start):
        first = done % len(measured)
        for one in measured[first:] + measured[:first]:
            one.measure()
        done += 1
    ours.check()  # once more: nothing that was read in between may have changed it
    return _compared(measured[0], measured[1:])


def _compared(ours: _Measured, theirs: Sequence[_Measured]) -> Figures:
    best = max(theirs, key=lambda one: one.median)
    ratios = tuple(a / b for a, b in zip(ours.rates, best.rates, strict=True))
    notes = [f"best: {best.side.name}"] if len(theirs) > 1 else []
    notes += [
        f"{one.side.name} read {one.disk / 2**20:,.0f} MB from disk"
        for one in (ours, *theirs)
        if one.disk > NOTABLE_BYTES and not one.side.may_read
    ]
    return Figures(statistics.median(ratios), ratios, ours.median, best.median, tuple(notes))


def repeated(measure: Callable[[], float], rounds: Rounds, notes: Sequence[str] = ()) -> Figures:
    """The median of what `measure` gives, for rows with no other side; its first result is not counted."""
    measure()
    before, start = disk_bytes(), time.perf_counter()
    values: list[float] = []
    while not rounds.enough(len(values), time.perf_counter() - start):
        values.append(measure())
    disk = disk_bytes() - before
    read = [f"read {disk / 2**20:,.0f} MB from disk"] if disk > NOTABLE_BYTES else []
    return Figures(statistics.median(values), tuple(values), notes=(*notes, *read))
