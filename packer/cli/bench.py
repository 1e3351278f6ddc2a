"""`packer bench`: how fast a dataset is read in every setting, where the time goes, and which setting to take."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from packer.cli.logs import log_options

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
    help="Measure for about so long, in all.",
)
@click.option("--plot", type=click.Path(path_type=Path), help="Draw the rates and the times: .png, .pdf, .svg.")
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
    not counted. The time of a batch is taken apart into reading the stored bytes, decoding, gathering, handing over
    to the thread or process that asked, and copying to the GPU where there is one.

    \b
    $ packer bench div2k.packed
    $ packer bench div2k.packed --batch-size 64 --workers 0 --workers 8 --plot bench.png
    $ packer bench scans.packed --fields xyz --seconds 120 --json
    """
    from packer.cli.benching.plot import check_plot, save_plot
    from packer.cli.benching.settings import Choice
    from packer.format import manifest as manifests

    # What is no dataset is told before torch is loaded, which takes seconds.
    most = max(manifests.read(dataset).samples, 1)
    if plot is not None:
        check_plot(plot)
    from packer.cli.benching.measuring import measure
    from packer.cli.benching.text import json_text, report_lines

    chosen = tuple(fields.split(",")) if fields else None
    sizes = sorted({min(size, most) for size in batch_sizes})
    choice = Choice(chosen, tuple(sizes), tuple(sorted(set(workers))), seconds)
    with _shown(seconds) as told:
        report = measure(dataset, choice, told)
    click.echo(json_text(report) if as_json else "\n".join(report_lines(report)))
    if plot is not None:
        save_plot(report, plot)


@contextmanager
def _shown(seconds: float) -> Iterator[Told]:
    """A bar of the time gone by, on a terminal; a log has the lines that tell what is being measured."""
    from packer.cli.progress import LineProgress, Progress, progress

    shown = progress("measuring")
    if isinstance(shown, LineProgress):
        shown = Progress()
    else:
        logging.getLogger("packer.cli.benching").setLevel(logging.WARNING)
    before = 0

    def told(gone: float, nbytes: int) -> None:
        nonlocal before
        done = min(round(1000 * gone), round(1000 * seconds))
        shown.advance(done - before, nbytes)
        before = done

    with shown:
        shown.start(round(1000 * seconds))
        yield told
