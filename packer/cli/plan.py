"""`packer plan`: what convert would make, and whether there is room for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from packer.cli.arguments import sources_argument
from packer.cli.logs import log_options
from packer.cli.options import conversion_options

if TYPE_CHECKING:
    from packer.convert import ConvertOptions


@click.command()
@sources_argument
@conversion_options
@click.option(
    "--workers", type=click.IntRange(min=1), help="Processes to tell the time for.  [default: as many as processors]"
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, with exact bytes.")
@log_options
def plan(sources: tuple[str, ...], options: ConvertOptions, workers: int | None, as_json: bool) -> None:
    """Say what convert would make, how large that is and how long it takes, before anything is written.

    Reads the headers of all files, and some samples to see how well and how fast they are packed. Takes the options
    of convert that change what is made; give the same ones.

    \b
    $ packer plan lr=DIV2K/LR_x4 hr=DIV2K/HR
    $ packer plan scans/ --codec zstd --json
    """
    show_plan(sources, replace(options, workers=workers), Path.cwd() / "out", as_json)


def show_plan(sources: tuple[str, ...], options: ConvertOptions, out: Path, as_json: bool) -> None:
    """Prints the plan of a conversion into `out`, and writes nothing."""
    from packer.cli.forecast import forecast, forecast_lines, json_text

    found = forecast(sources, options, out)
    click.echo(json_text(found) if as_json else "\n".join(forecast_lines(found)))
