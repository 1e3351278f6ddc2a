"""`packer bench`: how fast a dataset is read in every setting, and which setting to take."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from packer.cli.logs import log_options
from packer.cli.options import names_in
from packer.cli.progress import progress
from packer.cli.text import counted, indented, size_text, table, wrapped
from packer.errors import UsageError
from packer.format import manifest as manifests

if TYPE_CHECKING:
    from packer.cli.bench_measuring import Advice, Rate, Report

_WAY = "way, workers"
_HEADS = ("batch", _WAY, "warm/s", "MB/s", "cold/s", "MB/s ", "disk/sample")
#: Less than this from the disk while measuring warm is not worth a word.
_NOTABLE = 2**20

#: Suffixes of the picture, and its colours.
_PLOTS = (".png", ".pdf", ".svg")
_WARM_COLOUR, _COLD_COLOUR = "#cc7722", "#225577"


@click.command()
@click.argument("dataset", type=click.Path(path_type=Path))
@click.option(
    "--batch-size",
    "batch_sizes",
    multiple=True,
    type=click.IntRange(min=1),
    default=(8, 32, 128),
    show_default=True,
    help="Samples in a batch, no more than there are; may be repeated.",
)
@click.option(
    "--workers",
    multiple=True,
    type=click.IntRange(0, 256),
    default=(0, 2, 4),
    show_default=True,
    help="Processes of a DataLoader and threads of a Loader; may be repeated.",
)
@click.option("--fields", metavar="A,B", help="Read only these fields.  [default: all]")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True, max=86400),
    default=45.0,
    show_default=True,
    help="About how long to measure, in all.",
)
@click.option("--plot", type=click.Path(path_type=Path), help="Draw the rates: .png, .pdf, .svg.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, in seconds and bytes.")
@log_options
def bench(
    dataset: Path,
    batch_sizes: tuple[int, ...],
    workers: tuple[int, ...],
    fields: str | None,
    seconds: float,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Measure how fast the packed dataset DATASET is read on this machine, and say which setting to take.

    Batches of random samples are read by `ds[indices]`, by Loader and by DataLoader, with several batch sizes and
    numbers of workers; warm, with the files in memory, and cold, after they were dropped from it. Starting workers is
    not counted.

    \b
    $ packer bench div2k.packed
    $ packer bench div2k.packed --batch-size 64 --workers 0 --workers 8 --plot bench.png
    $ packer bench scans.packed --fields xyz --seconds 120 --json
    """
    # Told before torch is loaded, which takes seconds, if it is not a dataset.
    most = max(manifests.read(dataset).samples, 1)
    if plot is not None:
        _check_plot(plot)
    from packer.cli.bench_measuring import Bench, advice

    chosen = names_in(fields)
    sizes = sorted({min(size, most) for size in batch_sizes})
    with progress("measuring") as shown:
        report = Bench(dataset, chosen, seconds, shown.look).measure(sizes, sorted(set(workers)))
    best = advice(report)
    document = {**msgspec.to_builtins(report), "advice": best}
    click.echo(indented(document) if as_json else "\n".join(_report_lines(report, best)))
    if plot is not None:
        _save_plot(report, plot)


def _report_lines(report: Report, advice: Advice | None) -> list[str]:
    """Return the rates, and the setting to start from, for people."""
    intro = (
        f"{counted(report.samples, 'sample')} of {', '.join(report.fields)}, {size_text(report.sample_bytes)} each. "
        "Samples and MB of values a second; workers are processes of a DataLoader, threads of a Loader."
    )
    rows = [
        [
            str(speed.setting.batch_size),
            speed.setting.text,
            *_rate(speed.warm),
            *_rate(speed.cold),
            "-" if speed.cold is None else size_text(speed.cold.disk_bytes_per_sample),
        ]
        for speed in report.speeds
    ]
    lines = [*wrapped(intro), "", *table(_HEADS, rows, [head for head in _HEADS if head != _WAY])]
    cold, warm = (
        sum(rate.disk_bytes for rate in rates if rate)
        for rates in zip(*((speed.cold, speed.warm) for speed in report.speeds), strict=True)
    )
    if report.cold_failure:
        disk = f"cold could not be measured: {report.cold_failure}"
    else:
        disk = f"cold: the files had been dropped from memory; {size_text(cold)} were read from the disk"
        disk += f"; while measuring warm, {size_text(warm)}" if warm > _NOTABLE else ""
    lines += wrapped(disk)
    failures: dict[str, list[str]] = {}
    for speed in report.speeds:
        if speed.failure:
            failures.setdefault(speed.failure, []).append(f"{speed.setting.text}, batch {speed.setting.batch_size}")
    for reason, which in failures.items():
        lines += wrapped(f"! {'; '.join(which)}: {reason}")
    if advice is None:
        return [*lines, "", "No setting was measured: nothing can be recommended."]
    lines += ["", f"Start from  {advice.code}"]
    for reason in advice.reasons:
        lines += wrapped(reason, "  ")
    return lines


def _rate(rate: Rate | None) -> list[str]:
    return ["-", "-"] if rate is None else [f"{rate.samples:,.0f}", f"{rate.bytes / 1e6:,.4g}"]


def _check_plot(path: Path) -> None:
    """Raise UsageError if the picture could not be written, before anything is measured."""
    if path.suffix.lower() not in _PLOTS:
        raise UsageError(f"--plot {path}: a name that ends in {', '.join(_PLOTS)} is expected")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--plot {path}: there is no folder {path.parent}")
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("--plot needs matplotlib: pip install '.[plot]' in a clone of packer")


def _save_plot(report: Report, path: Path) -> None:
    """Write the picture: a panel for each batch size."""
    from matplotlib.figure import Figure

    sizes = sorted({speed.setting.batch_size for speed in report.speeds})
    figure = Figure(figsize=(4.6 * len(sizes) + 1, 4.7), layout="constrained")
    for panel, size in zip(figure.subplots(1, len(sizes), squeeze=False)[0], sizes, strict=True):
        _draw_rates(panel, report, size)
    figure.suptitle(f"{Path(report.path).resolve().name}: {', '.join(report.fields)}", fontsize=11)
    figure.savefig(path, dpi=130)


def _draw_rates(axes: Any, report: Report, size: int) -> None:
    speeds = [speed for speed in report.speeds if speed.setting.batch_size == size]
    for offset, state, colour in ((-0.2, "warm", _WARM_COLOUR), (0.2, "cold", _COLD_COLOUR)):
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
    axes.spines[["top", "right"]].set_visible(False)
