"""A picture of the results: how far each row is from its target."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmark.row import Figures, Row
from benchmark.table import amount, bound

_MET, _SHORT = "#2a7f62", "#c8553d"


def save_plot(results: Sequence[tuple[Row, Figures]], path: Path) -> None:
    """Writes bars of result over target, on a logarithmic axis where the target is 1; further right is better."""
    import matplotlib as mpl  # here, because only --plot needs it: half a second

    mpl.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    scores = [row.target.score(figures.value) for row, figures in results]
    colours = [_MET if row.target.met(figures.value) else _SHORT for row, figures in results]
    figure, axes = plt.subplots(figsize=(12, 1.2 + 0.42 * len(results)), layout="constrained")
    # Bars grow from the target's line, to the right where it is met.
    axes.barh(range(len(results)), [score - 1 for score in scores], left=1, color=colours, height=0.66)
    axes.set_xscale("log", base=2)
    axes.set_xlim(min(0.5, *scores) / 2.2, max(2.0, *scores) * 2.2)  # with room for the figures beside the bars
    axes.set_ylim(len(results) - 0.3, -0.7)
    axes.xaxis.set_major_locator(LogLocator(base=2))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.axvline(1, color="black", linewidth=1)
    axes.set_yticks(range(len(results)), [_label(row) for row, _ in results], fontsize=8)
    axes.set_xlabel("result over target (right of 1: met)")
    for place, ((row, figures), score) in enumerate(zip(results, scores, strict=True)):
        text = f" {amount(figures.value, row.target)} ({bound(row.target)}) "
        axes.text(score, place, text, va="center", ha="left" if score >= 1 else "right", fontsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _label(row: Row) -> str:
    return f"{row.name}\nagainst {row.against}" if row.against else row.name
