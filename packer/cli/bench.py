"""`packer bench`: how fast a dataset is read in every setting, and which setting to take."""

from __future__ import annotations

import logging
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from packer.cli.logs import log_options
from packer.cli.tables import counted, indented, printable, table, terminal_width
from packer.cli.units import size_text

if TYPE_CHECKING:
    from packer.cli.bench_advice import Advice
    from packer.cli.bench_measuring import Rate, Report, Speed

_WAY = "way, workers"
_HEADS = ("batch", _WAY, "warm/s", "MB/s", "cold/s", "MB/s ", "disk/sample")
#: Less than this from the disk while measuring warm is not worth a word.
_NOTABLE = 2**20

Told = Callable[[float, int], None]


@click.command()
@click.argument("dataset", type=click.Path(path_type=Path))
@click.option(
    "--batch-size",
    "batch_sizes",
    multiple=True,
    type=click.IntRange(min=1),
    default=(8, 32, 128),
    show_default=True,
    help="Samples of a batch, no more than there are; may be repeated.",
)
@click.option(
    "--workers",
    multiple=True,
    type=click.IntRange(0, 256),
    default=(0, 2, 4),
    show_default=True,
    help="Processes of a DataLoader and threads of a Loader; may be repeated.",
)
@click.option("--fields", metavar="A,B", help="Read these fields alone.  [default: all]")
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
    from packer.cli.bench_plot import check_plot, save_plot
    from packer.format import manifest as manifests

    # What is no dataset is told before torch is loaded, which takes seconds.
    most = max(manifests.read(dataset).samples, 1)
    if plot is not None:
        check_plot(plot)
    from packer.cli.bench_advice import advice
    from packer.cli.bench_measuring import Choice, measure

    chosen = tuple(fields.split(",")) if fields else None
    sizes = sorted({min(size, most) for size in batch_sizes})
    choice = Choice(chosen, tuple(sizes), tuple(sorted(set(workers))), seconds)
    with _shown(seconds) as told:
        report = measure(dataset, choice, told)
    best = advice(report)
    document = {**msgspec.to_builtins(report), "advice": best}
    click.echo(indented(document) if as_json else "\n".join(_report_lines(report, best)))
    if plot is not None:
        save_plot(report, plot)


@contextmanager
def _shown(seconds: float) -> Iterator[Told]:
    """Show a bar of the time gone by, on a terminal; a log has the lines that tell what is being measured."""
    from packer.cli.progress import LineProgress, Progress, progress

    shown = progress("measuring")
    if isinstance(shown, LineProgress):
        shown = Progress()
    else:
        logging.getLogger("packer.cli.bench_measuring").setLevel(logging.WARNING)
    before = 0

    def told(gone: float, nbytes: int) -> None:
        nonlocal before
        done = min(round(1000 * gone), round(1000 * seconds))
        shown.advance(done - before, nbytes)
        before = done

    with shown:
        shown.start(round(1000 * seconds))
        yield told


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
    rates = table(_HEADS, rows, terminal_width(), [head for head in _HEADS if head != _WAY])
    return [*_wrapped(intro), "", *rates, *_failures(report), "", *_advice(advice)]


def _rate(rate: Rate | None) -> list[str]:
    return ["-", "-"] if rate is None else [f"{rate.samples:,.0f}", f"{rate.bytes / 1e6:,.4g}"]


def _failures(report: Report) -> Iterator[str]:
    cold = f"cold could not be measured: {report.cold_failure}" if report.cold_failure else _disk_line(report.speeds)
    yield from _wrapped(cold)
    settings: dict[str, list[str]] = {}
    for speed in report.speeds:
        if speed.failure:
            settings.setdefault(speed.failure, []).append(f"{speed.setting.text}, batch {speed.setting.batch_size}")
    for reason, which in settings.items():
        yield from _wrapped(f"! {'; '.join(which)}: {reason}")


def _disk_line(speeds: Sequence[Speed]) -> str:
    cold = sum(speed.cold.disk_bytes for speed in speeds if speed.cold)
    warm = sum(speed.warm.disk_bytes for speed in speeds if speed.warm)
    text = f"cold: the files had been dropped from memory; {size_text(cold)} were read from the disk"
    return f"{text}; while measuring warm, {size_text(warm)}" if warm > _NOTABLE else text


def _advice(advice: Advice | None) -> Iterator[str]:
    if advice is None:
        yield "No setting was measured: nothing can be recommended."
        return
    yield f"Start from  {advice.code}"
    for reason in advice.reasons:
        yield from _wrapped(reason, "  ")


def _wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(
        printable(text), max(terminal_width(), 40), initial_indent=indent, subsequent_indent=indent or "  "
    )
