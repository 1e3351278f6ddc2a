"""`packer join`: more fields for the samples of a packed dataset."""

from __future__ import annotations

import click

from packer import join as verb
from packer.cli.logs import Progress, log_options, say
from packer.cli.options import SourceCommand, conversion_options, sources_argument
from packer.cli.text import count_text
from packer.packing import ConvertOptions


@click.command(cls=SourceCommand)
@click.argument("dataset", type=click.Path())
@sources_argument()
@conversion_options("codec", "map_limit", "workers")
@log_options
def join(dataset: str, sources: tuple[str, ...], options: ConvertOptions) -> None:
    """Add the fields of the SOURCEs to the samples of DATASET: embeddings, captions, new labels.

    Values go to the samples of their names, and rows of a table to those that one of its columns names; rows of
    arrays, which have no names, go by number. Each sample needs its
    value. A SOURCE may be another packed dataset. --on-error skip skips values whose names no sample has, and
    nothing else. Other fields are copied as they are stored. Readers that are open go on with the fields they had.
    Stopped halfway? Run the same command again.

    \b
    $ packer join photos.packed caption=captions
    $ packer join photos.packed embedding=embeddings.npy
    $ packer join photos.packed labels.csv
    """
    with Progress() as watcher:
        report = verb.join(dataset, list(sources), options, watcher=watcher)
    fields = ", ".join(f"{field.name} ({field.in_words})" for field in report.fields)
    samples, by = count_text(report.manifest.samples, "sample"), "name" if report.by_name else "number"
    say(f"{dataset}: {fields} for {samples}, by {by}")
