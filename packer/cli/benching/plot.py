"""A picture of the report: the rate of every setting, and where the time of a batch goes."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from packer.cli.benching.results import Report, Split
from packer.errors import UsageError

_SUFFIXES = (".png", ".pdf", ".svg")
_COLOURS = {
    "reading": "#4477aa",
    "decoding": "#ee6677",
    "gathering": "#228833",
    "handing over": "#ccbb44",
    "rest": "#bbbbbb",
    "copying": "#aa3377",
}
_WARM, _COLD = "#cc7722", "#225577"


def check_plot(path: Path) -> None:
    """Raises UsageError where the picture could not be written, before anything is measured."""
    if path.suffix.lower() not in _SUFFIXES:
        raise UsageError(f"--plot {path}: a name that ends in {', '.join(_SUFFIXES)} is expected")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--plot {path}: there is no folder {path.parent}")
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("--plot needs matplotlib: pip install '.[plot]' in a clone of packer")


def save_plot(report: Report, path: Path) -> None:
    """Writes the picture: rates above, times below, a panel for each batch size."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    sizes = sorted({speed.setting.batch_size for speed in report.speeds})
    states = [state for state in ("warm", "cold") if any(split.state == state for split in report.splits)]
    figure, axes = plt.subplots(
        1 + len(states),
        len(sizes),
        figsize=(4.6 * len(sizes) + 1, 2.5 + 2.2 * (1 + len(states))),
        squeeze=False,
        layout="constrained",
    )
    for column, size in enumerate(sizes):
        _draw_rates(axes[0][column], report, size)
        for row, state in enumerate(states, start=1):
            _draw_parts(axes[row][column], [s for s in report.splits if s.state == state], size, state)
    handles, labels = axes[-1][0].get_legend_handles_labels()
    if states:
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=8)
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
    _bare(axes)


def _draw_parts(axes: Any, splits: list[Split], size: int, state: str) -> None:
    mine = [split for split in splits if split.setting.batch_size == size]
    left = [0.0] * len(mine)
    for name, colour in _COLOURS.items():
        widths = [1e3 * _part(split, name) for split in mine]
        if name == "copying" and all(split.copying is None for split in mine):
            continue
        axes.barh(range(len(mine)), widths, 0.7, left=left, color=colour, label=name)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.set_yticks(range(len(mine)), [split.setting.text for split in mine], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel(f"ms a batch, {state}, one at a time", fontsize=8)
    axes.tick_params(axis="x", labelsize=8)
    _bare(axes)


def _part(split: Split, name: str) -> float:
    return max((split.copying or 0.0) if name == "copying" else split.parts[name], 0.0)


def _bare(axes: Any) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
