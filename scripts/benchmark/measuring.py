"""Sides measured in turn, round after round, so that whatever else the machine does meets all alike.

Each round begins with another side, A B B A ...: one that uses all processors may be slower after one that used a
single one, while the others slept.

A ratio is the median of the ratios of the rounds, not the ratio of the medians.
"""

from __future__ import annotations

import math
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch.utils import _pytree as pytree

from packer.warm import drop_files, warm_file
from readers import Ragged

#: Values are summed as integers of their size: a sum of floats depends on their order.
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
#: Bytes a round: less than this read from disk is not reported.
_NOTABLE = 2**20
#: How close to a target still counts as met: figures are shown with two or three digits.
_ROUNDING = 0.995

Measure = TypeVar("Measure", bound=Callable[..., "Sequence[Side] | Figures"])
#: All rows, in the order in which their modules are imported.
ROWS: list[Row] = []


def disk_bytes() -> int:
    """Return the bytes that this process and its workers have read from the disk so far; 0 if nothing tells."""
    return sum(map(_disk_bytes, ["self", *(str(child.pid) for child in multiprocessing.active_children())]))


def _disk_bytes(process: str) -> int:
    try:
        lines = Path(f"/proc/{process}/io").read_text().splitlines()
    except OSError:  # not Linux, or a worker that has ended
        return 0
    return int(dict(line.split(": ") for line in lines)["read_bytes"])


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
        run: the function that is timed; returns how many items it did.
        files: read through right before each measurement.
        prepare: run before each measurement, after the files were read.
        check: run before the first round, for ours after the last too; raises WrongContentError.
    """

    name: str
    run: Callable[[], int]
    files: Sequence[Path] = ()
    prepare: Callable[[], None] = lambda: None
    check: Callable[[], None] = lambda: None


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
        before, start = disk_bytes(), time.perf_counter()
        items = self.side.run()
        self.rates.append(items / (time.perf_counter() - start))
        self.disk += max(0, disk_bytes() - before)


@dataclass(frozen=True)
class Figures:
    """What was measured.

    Attributes:
        value: what a target is compared with, the median of the rounds.
        rounds: the same of every round.
        ours, theirs: medians, items a second; None if no rates were compared.
        notes: what a reader of the value must know: reading from disk, which of the others was the best.
    """

    value: float
    rounds: tuple[float, ...] = ()
    ours: float | None = None
    theirs: float | None = None
    notes: tuple[str, ...] = ()


def measured(rounds: Rounds, sides: Sequence[Side]) -> list[Measured]:
    """Check the bytes that all sides give, then measure the sides in turn.

    Raises:
        WrongContentError: a side gives other bytes than its source holds.
    """
    found = [Measured(side) for side in sides]
    for side in sides:
        warm(side.files)  # in large pages, before checking reads them in whatever order
        side.check()
    start, done = time.perf_counter(), 0
    while not rounds.enough(done, time.perf_counter() - start):
        first = done % len(found)
        for one in found[first:] + found[:first]:
            one.measure()
        done += 1
    return found


def race(rounds: Rounds, ours: Side, *theirs: Side) -> Figures:
    """Measure all sides in turn; the value is the rate of ours over that of the best of theirs.

    Raises:
        WrongContentError: a side gives other bytes than its source holds.
    """
    first, *others = found = measured(rounds, [ours, *theirs])
    ours.check()  # once more: nothing that was read in between may have changed it
    best = max(others, key=lambda one: one.median)
    ratios = tuple(a / b for a, b in zip(first.rates, best.rates, strict=True))
    notes = [f"best: {best.side.name}"] if len(others) > 1 else []
    read = {one.side.name: one.disk / len(one.rates) for one in found}
    notes += [f"{name} read {n / 2**20:,.0f} MB a round from disk" for name, n in read.items() if n > _NOTABLE]
    return Figures(statistics.median(ratios), ratios, first.median, best.median, tuple(notes))


def repeated(rounds: Rounds, measure: Callable[[], float], *notes: str) -> Figures:
    """Return the median of the results of `measure`, for rows with no other side; the first one is not counted."""
    measure()
    values: list[float] = []
    start = time.perf_counter()
    while not rounds.enough(len(values), time.perf_counter() - start):
        values.append(measure())
    return Figures(statistics.median(values), tuple(values), notes=notes)


class Row:
    """A row: what is measured, what it is compared with, and a target that its value must reach or stay below.

    It decorates the function that measures it: called with the bench and `arguments`, that returns sides, ours first,
    or figures. A function may have several rows.

    Args:
        at_least, at_most: the target, one of the two, in `unit`.
    """

    measure: Callable[..., Any]

    def __init__(
        self,
        name: str,
        against: str = "",
        *,
        at_least: float = -math.inf,
        at_most: float = math.inf,
        unit: str = "x",
        **arguments: Any,
    ) -> None:
        self.name, self.against, self.unit, self.arguments = name, against, unit, arguments
        self.title = f"{name} | {against}"
        self.is_floor = at_most == math.inf
        self.limit = at_least if self.is_floor else at_most
        ROWS.append(self)  # here, so that rows of one function are listed as they are written

    def __call__(self, measure: Measure) -> Measure:
        self.measure = measure
        return measure

    def figures(self, bench: Any) -> Figures:
        """Measure it."""
        found: Sequence[Side] | Figures = self.measure(bench, **self.arguments)
        return found if isinstance(found, Figures) else race(bench.rounds, *found)

    def met(self, value: float) -> bool:
        """Return whether `value` reaches the target."""
        return value >= self.limit * _ROUNDING if self.is_floor else value <= self.limit / _ROUNDING


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
        expected: checksum of an epoch, from the source; None if there is nothing to compare with.
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
    buffer = bytearray(2**20)
    for path in files:
        before = disk_bytes()
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
        if path.suffix == ".lmdb" and disk_bytes() > before:
            drop_files([path])
            warm_file(path)
