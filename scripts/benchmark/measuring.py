"""Sides measured in turn, round after round, so that whatever else the machine does meets all alike.

Each round begins with another side, A B B A ...: one that uses all processors may be slower after one that used a
single one, while the others slept.

A ratio is the median of the ratios of the rounds, not the ratio of the medians.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch.utils import _pytree as pytree

from benchmark.store import Store
from packer.warm import disk_bytes, read_files, warm_file
from packer.warm import drop_files as drop
from readers import Ragged

#: How close to a target still counts as met: figures are shown with two or three digits.
_ROUNDING = 0.995


#: All rows, in the order in which their modules are imported.
ROWS: list[Row] = []
#: Words are summed as integers of their own size: floats have no sum that is free of their order.
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
__all__ = ["disk_bytes", "drop", "files_of", "warm"]
#: Less than this read from disk during a whole row is not worth a word.
NOTABLE_BYTES = 2**20


@dataclass(frozen=True)
class Figures:
    """What a row measured.

    Attributes:
        value: what the target is compared with, the median of the rounds.
        rounds: the same of every round.
        ours, theirs: medians, items a second; None if the row is no comparison of rates.
        notes: what a reader of the table must know: reading from disk, which of the others was the best.
        seconds: how long the row took, with checking and making what it reads.
    """

    value: float
    rounds: tuple[float, ...] = ()
    ours: float | None = None
    theirs: float | None = None
    notes: tuple[str, ...] = ()
    seconds: float = 0.0


@dataclass
class Row:
    """A row: what is measured, what it is compared with, and its target.

    Attributes:
        limit: what the value must reach, or stay below, in `unit`.
        measure: called with the bench and `arguments`.
    """

    name: str
    against: str
    limit: float
    unit: str
    is_floor: bool
    arguments: dict[str, Any]
    measure: Callable[..., Figures] | None = None

    @property
    def title(self) -> str:
        return f"{self.name} | {self.against}"

    def figures(self, bench: Bench) -> Figures:
        """Measure it."""
        assert self.measure
        start = time.perf_counter()
        return replace(self.measure(bench, **self.arguments), seconds=time.perf_counter() - start)

    def met(self, value: float) -> bool:
        """Return whether `value` reaches the target."""
        return value >= self.limit * _ROUNDING if self.is_floor else value <= self.limit / _ROUNDING


Measure = TypeVar("Measure", bound=Callable[..., Figures])


def row(
    name: str,
    against: str = "",
    at_least: float | None = None,
    at_most: float | None = None,
    unit: str = "x",
    **arguments: Any,
) -> Callable[[Measure], Measure]:
    """Register a function as a row, with a target that its value must reach or stay below.

    Args:
        arguments: what the function is called with after the bench; so one function can have several rows.
    """
    if (at_least is None) == (at_most is None):
        raise ValueError(f"row {name!r}: either at_least or at_most is expected")
    limit = at_most if at_least is None else at_least
    registered = Row(name, against, limit or 0.0, unit, at_least is not None, arguments)
    ROWS.append(registered)  # here, so that rows of one function are listed as they are written

    def register(measure: Measure) -> Measure:
        registered.measure = measure
        return measure

    return register


def chosen(rows: Sequence[Row], only: Sequence[str]) -> list[Row]:
    """Return the rows whose title holds one of the texts in `only`; all of them if there is none."""
    return [row for row in rows if not only or any(text.lower() in row.title.lower() for text in only)]


def checksum(batch: Any) -> int:
    """Return the sum of the words of all tensors and arrays in `batch`; offsets of ragged samples are left out."""
    leaves = pytree.tree_leaves(batch, is_leaf=lambda node: isinstance(node, Ragged))
    values = [leaf.values if isinstance(leaf, Ragged) else leaf for leaf in leaves]
    return sum(_sum(torch.as_tensor(value)) for value in values if isinstance(value, (torch.Tensor, np.ndarray)))


def _sum(values: torch.Tensor) -> int:
    if values.dim() == 4 and not values.is_contiguous():
        values = values.permute(0, 2, 3, 1)  # channels_last: summed as it lies in memory
    return int(values.contiguous().view(_WORDS[values.element_size()]).sum(dtype=torch.int64))


def files_of(path: Path) -> list[Path]:
    """Return the file `path`, or all files under it."""
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]


def warm(files: Sequence[Path]) -> None:
    """Read files through, so that they are in memory; shards that were not, as `packer warm` does."""
    for path in files:
        before = disk_bytes()
        read_files([path])
        if path.suffix == ".lmdb" and disk_bytes() > before:
            warm_file(path)


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
        may_read: whether reading from disk is part of the matter, so that a note says how much it is.
    """

    name: str
    run: Callable[[], int]
    files: Sequence[Path] = ()
    prepare: Callable[[], None] = lambda: None
    check: Callable[[], None] = lambda: None
    may_read: bool = False


@dataclass
class Measured:
    """A side and what was measured of it: items a second of every round, and bytes read from disk in all."""

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
    """Return a side that reads an epoch.

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
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # sums of small batches gain nothing from more, and lose much on a busy machine
        found = sum(checksum(batch) for batch in batches())
        torch.set_num_threads(threads)
        if expected is not None and found != expected:
            raise WrongContentError(f"{name}: an epoch sums up to {found}, the source to {expected}")

    return Side(name, run, files, check=check)


class Bench(Store):
    """Passed to every row: makes inputs and keeps them, and measures.

    Args:
        rounds: how often is measured.
    """

    def __init__(self, folder: Path, rounds: Rounds, scale: float = 1.0) -> None:
        super().__init__(folder, scale)
        self.rounds = rounds

    def measured(self, sides: Sequence[Side]) -> list[Measured]:
        """Check what all sides give, then measure them in turn.

        Raises:
            WrongContentError: a side gives other bytes than its source holds.
        """
        measured = [Measured(side) for side in sides]
        for one in measured:
            warm(one.side.files)  # in large pages, before checking reads them in whatever order
            one.side.check()
        start, done = time.perf_counter(), 0
        while not self.rounds.enough(done, time.perf_counter() - start):
            first = done % len(measured)
            for one in measured[first:] + measured[:first]:
                one.measure()
            done += 1
        return measured

    def race(self, ours: Side, *theirs: Side) -> Figures:
        """Measure all sides in turn; the value is the rate of ours over that of the best of theirs.

        Raises:
            WrongContentError: a side gives other bytes than its source holds.
        """
        measured = self.measured([ours, *theirs])
        ours.check()  # once more: nothing that was read in between may have changed it
        best = max(measured[1:], key=lambda one: one.median)
        ratios = tuple(a / b for a, b in zip(measured[0].rates, best.rates, strict=True))
        notes = [f"best: {best.side.name}"] if len(theirs) > 1 else []
        for one in measured:
            if one.side.may_read:
                notes.append(f"{one.side.name} read {one.disk / len(one.rates) / 2**20:.0f} MB a round")
            else:
                notes += _read_from_disk(one.disk, one.side.name + " ")
        return Figures(statistics.median(ratios), ratios, measured[0].median, best.median, tuple(notes))

    def repeated(self, measure: Callable[[], float], *notes: str) -> Figures:
        """Return the median of what `measure` gives, for rows with no other side; its first result is not counted."""
        measure()
        before, start = disk_bytes(), time.perf_counter()
        values: list[float] = []
        while not self.rounds.enough(len(values), time.perf_counter() - start):
            values.append(measure())
        read = _read_from_disk(disk_bytes() - before)
        return Figures(statistics.median(values), tuple(values), notes=(*notes, *read))


def _read_from_disk(nbytes: int, who: str = "") -> list[str]:
    """Return a note if that is worth a word."""
    return [f"{who}read {nbytes / 2**20:,.0f} MB from disk"] if nbytes > NOTABLE_BYTES else []
