"""Bars of the comparison, for README and book: readable on a light and on a dark page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

#: Read on white and on black alike.
TEXT, OTHERS, OURS = "#7d8590", "#a5adb8", "#2f81f7"
COLUMNS = 2


def draw(results: dict[str, Any], path: Path, names: Sequence[str]) -> None:
    """Draw samples a second as bars, a panel for each workload and batch size.

    Args:
        names: which systems, from top to bottom; those that were not measured are left out.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    measured = results["reading"]
    shown = [name for name in names if any(name in found for found in measured.values())]
    rows = -(-len(measured) // COLUMNS)
    with mpl.rc_context({"svg.hashsalt": "compare", "svg.fonttype": "none", "font.size": 9, "text.color": TEXT}):
        figure = Figure(figsize=(8.3, rows * (0.55 + 0.2 * len(shown))), layout="constrained")
        panels = figure.subplots(rows, COLUMNS, squeeze=False).flat
        for panel, (title, found) in zip(panels, measured.items(), strict=False):
            rates = [found[name]["samples_a_second"] / 1e3 if name in found else 0.0 for name in shown]
            colours = [OURS if name.startswith("packer") else OTHERS for name in shown]
            bars = panel.barh(range(len(shown)), rates, color=colours, height=0.72)
            labels = [f"{rate:,.{0 if rate >= 10 else 1}f}" if rate else "fixed shapes only" for rate in rates]
            panel.bar_label(bars, labels, padding=3, fontsize=8)
            panel.set_title(f"{title}", loc="left", color=TEXT, fontsize=9, fontweight="bold")
            panel.set_yticks(range(len(shown)), shown)
            panel.tick_params(axis="y", length=0, colors=TEXT)
            panel.invert_yaxis()
            panel.set_xlim(0, max(rates) * 1.2)
            panel.xaxis.set_visible(False)
            panel.spines[:].set_visible(False)
        for panel in list(figure.axes)[len(measured) :]:
            panel.set_visible(False)
        figure.suptitle("Thousand samples a second, shuffled, files in memory: longer is better", fontsize=9)
        figure.savefig(path, transparent=True, metadata={"Date": None})
