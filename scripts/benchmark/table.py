"""The table of results: a line a row, printed as rows finish."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmark.row import Figures, Row, Target

_NAME, _AGAINST = 54, 36


def header() -> str:
    """The line above the rows."""
    return f"{'row':{_NAME}} {'against':{_AGAINST}} {'ours/s':>10} {'theirs/s':>10} {'result':>9} {'target':>9}"


def line(row: Row, figures: Figures) -> str:
    """One row: rates, result, target, whether it falls short, notes; below it, where the time of ours goes."""
    rates = f"{_rate(figures.ours):>10} {_rate(figures.theirs):>10}"
    result = f"{amount(figures.value, row.target):>9} {bound(row.target):>9}"
    verdict = "" if row.target.met(figures.value) else "  FALLS SHORT"
    notes = f"  ({'; '.join(figures.notes)})" if figures.notes else ""
    first = f"{row.name:{_NAME}} {row.against:{_AGAINST}} {rates} {result}{verdict}{notes}"
    return "\n    ".join([first, *figures.profile])


def summary(results: Sequence[tuple[Row, Figures]]) -> str:
    """How many rows fall short, and which."""
    short = [row for row, figures in results if not row.target.met(figures.value)]
    if not short:
        return "the row meets its target" if len(results) == 1 else f"all {len(results)} rows meet their targets"
    return "\n".join([f"{len(short)} of {len(results)} rows fall short:", *(f"  {row.title}" for row in short)])


def as_json(row: Row, figures: Figures) -> dict[str, Any]:
    """A row for machines."""
    return {
        "row": row.name,
        "against": row.against,
        "value": figures.value,
        "unit": row.target.unit,
        "target": row.target.limit,
        "is_floor": row.target.is_floor,
        "met": row.target.met(figures.value),
        "ours_per_second": figures.ours,
        "theirs_per_second": figures.theirs,
        "rounds": list(figures.rounds),
        "notes": list(figures.notes),
        "profile": list(figures.profile),
        "seconds": figures.seconds,
    }


def amount(value: float, target: Target) -> str:
    """A value with its unit."""
    digits = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:.{digits}f} {target.unit}"


def bound(target: Target) -> str:
    """The target with its direction."""
    return f"{'>=' if target.is_floor else '<='} {target.limit:g}"


def _rate(rate: float | None) -> str:
    if rate is None:
        return ""
    return f"{rate:,.0f}" if rate < 1e7 else f"{rate / 1e6:,.0f} M"
