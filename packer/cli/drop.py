"""`packer drop`: fewer fields in a packed dataset."""

from __future__ import annotations

import click

from packer import drop as verb
from packer.cli.logs import Progress, log_options, say
from packer.cli.options import conversion_options
from packer.packing import ConvertOptions


@click.command()
@click.argument("dataset", type=click.Path())
@click.argument("names", nargs=-1, required=True, metavar="FIELD...")
@conversion_options("workers", sources=False)
@log_options
def drop(dataset: str, names: tuple[str, ...], options: ConvertOptions) -> None:
    """Remove the FIELDs from DATASET. The others are copied as they are stored.

    Readers that are open go on with the fields they had. Stopped halfway? Run the same command again.

    \b
    $ packer drop photos.packed depth caption
    """
    with Progress() as watcher:
        manifest = verb.drop(dataset, names, workers=options.workers, watcher=watcher)
    say(f"{dataset}: {', '.join(field.name for field in manifest.fields)} left, {len(names)} dropped")
