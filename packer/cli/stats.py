"""`packer stats`: what the values of a packed dataset lie between, and how they spread."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from packer.cli.logs import log_options

if TYPE_CHECKING:
    from packer.format.manifest import Manifest
    from packer.format.statistics import FieldStats


@click.command()
@click.argument("dataset", type=click.Path(path_type=Path))
@click.option("--save", is_flag=True, help="Keep the statistics in the manifest, where the next call finds them.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@log_options
def stats(dataset: Path, save: bool, as_json: bool) -> None:
    """Count, minimum, maximum, mean and standard deviation of each field of DATASET, and of its channels.

    Channels are those of images, and the columns of clouds and tables. NaN and infinities are counted, and left out of
    all else. Text and complex numbers have no statistics. Reads the whole dataset once, unless its manifest has
    kept the statistics.

    \b
    $ packer stats div2k.packed
    $ packer stats rows.packed --save --json
    """
    from packer.cli.statistics_table import json_text, statistics_lines
    from packer.format import manifest as manifests
    from packer.stats import kept_statistics
    from packer.stats import save as keep

    manifest = manifests.read(dataset)
    found = kept_statistics(manifest)
    if found is None:
        found = _measured(dataset, manifest)
        if save:
            keep(dataset, found)
    click.echo(json_text(dataset, manifest, found) if as_json else "\n".join(statistics_lines(manifest, found)))


def _measured(dataset: Path, manifest: Manifest) -> dict[str, FieldStats]:
    from packer.cli.progress import progress
    from packer.stats import statistics

    with progress("reading") as shown:
        shown.start(manifest.samples)
        return statistics(dataset, shown.advance)
