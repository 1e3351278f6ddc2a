"""Draws the rates that `packer bench` measured."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from packer.cli.bench_measuring import Report
from packer.errors import UsageError

_SUFFIXES = (".png", ".pdf", ".svg")
_WARM, _COLD = "#cc7722", "#225577"


def check_plot(path: Path) -> None:
    """Raise UsageError if the picture could not be written, before anything is measured."""
    if path.suffix.lower() not in _SUFFIXES:
        raise UsageError(f"--plot {path}: a name that ends in {', '.join(_SUFFIXES)} is expected")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--plot {path}: there is no folder {path.parent}")
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("--plot needs matplotlib: pip install '.[plot]' in a clone of packer")


def save_plot(report: Report, path: Path) -> None:
    """Write the picture: a panel for each batch size."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    sizes = sorted({speed.setting.batch_size for speed in report.speeds})
    figure, axes = plt.subplots(1, len(sizes), figsize=(4.6 * len(sizes) + 1, 4.7), squeeze=False, layout="constrained")
    for panel, size in zip(axes[0], sizes, strict=True):
        _draw_rates(panel, report, size)
    figure.suptitle(f"{Path(report.path).resolve().name}: {', '.join(report.fields)}", fontsize=11)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _draw_rates(axes: Any, report: Report, size: int) -> None:
    speeds = [speed for speed in report.speeds if speed.setting.batch_size == size]
    for offset, state, colour in ((-0.2, "warm", _WARM), (0.2, "cold", _COLD)):
        rates = [getattr(speed, state) for speed in speeds]
        if any(rates):
            places = [number + offset for number in range(len(speeds))]
            axes.barh(places, [rate.samples if rate else 0 for rate in rates], 0.38, color=colour, label=state)
    axes.set_yticks(range(len(speeds)), [speed.setting.text for speed in speeds], fontsize=8)
    axes.invert_yaxis()
    axes.set_title(f"batch {size}", fontsize=10)
    axes.set_xlabel("samples/s", fontsize=8)
    axes.tick_params(axis="x", labelsize=8)
    axes.legend(fontsize=8, frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
