"""`packer repair`: damaged files of a packed dataset made again."""

from __future__ import annotations

import click

from packer import repair as verb
from packer.cli.logs import Progress, log_options, say
from packer.cli.options import SourceCommand, conversion_options, open_shown, sources_argument
from packer.machine import processors
from packer.packing import ConvertOptions, with_usual


@click.command(cls=SourceCommand)
@click.argument("dataset", type=click.Path())
@sources_argument("[[FIELD=]SOURCE...]", required=False)
@conversion_options()
@log_options
def repair(dataset: str, sources: tuple[str, ...], options: ConvertOptions) -> None:
    """Repair the packed dataset DATASET: make damaged files again, and leave the rest as it is.

    Shards are packed again from the SOURCEs; give those that the dataset was made with, as `packer info` shows them.
    Options that are not given are those of that command. A lost manifest or table of names is made from the shards,
    without any source.

    \b
    $ packer repair div2k.packed
    $ packer repair div2k.packed lr=DIV2K/LR_x4 hr=DIV2K/HR
    """
    manifest, _ = verb.read_manifest_or_copy(dataset)
    options = with_usual(options, manifest)
    source = open_shown(sources, options, manifest) if sources else None
    with Progress() as watcher:
        files = verb.repair(dataset, source, watcher, processors(), options.limits)
    say(*[f"{file}: made again" for file in files] or [f"{dataset}: nothing is damaged"])
