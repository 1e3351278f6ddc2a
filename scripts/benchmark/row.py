"""A row of the benchmark: a function that measures, with what it is compared with and its target.

@row("rows, none", against="in-RAM x[idx]", at_least=1.2)
def rows_against_indexing(bench: Bench) -> Figures:
    return bench.race(ours, theirs)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmark.bench import Bench

#: How close to a target still counts as met: figures are shown with two or three digits.
_ROUNDING = 0.995


@dataclass(frozen=True)
class Target:
    """What a row must reach: at least, or at most, `limit` of `unit`."""

    limit: float
    unit: str = "x"
    is_floor: bool = True

    def met(self, value: float) -> bool:
        """Whether `value` reaches the target."""
        return value >= self.limit * _ROUNDING if self.is_floor else value <= self.limit / _ROUNDING

    def score(self, value: float) -> float:
        """`value` as a share of the target, 1 or more where it is met; at least a thousandth."""
        ratio = value / self.limit if self.is_floor else self.limit / max(value, self.limit / 1000)
        return max(ratio, 1e-3)


@dataclass(frozen=True)
class Figures:
    """What a row measured.

    Attributes:
        value: what the target is compared with, the median of the rounds.
        rounds: the same of every round.
        ours, theirs: medians, items a second; None where the row is no comparison of rates.
        notes: what a reader of the table must know: reading from disk, which of the others was the best.
        profile: where the time of ours goes, if that was asked for.
        seconds: how long the row took, with checking and making what it reads.
    """

    value: float
    rounds: tuple[float, ...] = ()
    ours: float | None = None
    theirs: float | None = None
    notes: tuple[str, ...] = ()
    profile: tuple[str, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True)
class Row:
    """A row: what is measured, what it is compared with, and its target."""

    name: str
    against: str
    target: Target
    measure: Callable[[Bench], Figures]

    @property
    def title(self) -> str:
        return f"{self.name} | {self.against}"


#: All rows, in the order in which their modules are imported.
ROWS: list[Row] = []

Measure = Callable[["Bench"], Figures]


def row(
    name: str, against: str = "", at_least: float | None = None, at_most: float | None = None, unit: str = "x"
) -> Callable[[Measure], Measure]:
    """Registers a function as a row, with a target that its value must reach or stay below."""
    limit = at_least if at_least is not None else at_most
    if limit is None or (at_least is not None and at_most is not None):
        raise ValueError(f"row {name!r}: either at_least or at_most is expected")
    target = Target(limit, unit, is_floor=at_least is not None)

    def register(measure: Measure) -> Measure:
        ROWS.append(Row(name, against, target, measure))
        return measure

    return register


def chosen(rows: Sequence[Row], only: Sequence[str]) -> list[Row]:
    """The rows whose title holds one of the texts in `only`; all of them where there is none."""
    return [row for row in rows if not only or any(text.lower() in row.title.lower() for text in only)]
