"""`packer repack`: the samples of a packed dataset with another codec, size of shards, or order."""

from __future__ import annotations

from pathlib import Path

import click

from packer import repack as verb
from packer.cli.logs import Progress, log_options, say
from packer.cli.options import conversion_options
from packer.cli.summary import summary
from packer.packing import ConvertOptions


@click.command()
@click.argument("dataset", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path())
@click.option(
    "--codec",
    "codecs",
    multiple=True,
    metavar="[FIELD=]CODEC",
    help="As for convert; fields that are not named keep theirs.",
)
@conversion_options("shard_size", "map_limit", "workers", "overwrite", sources=False)
@click.option("--shuffle", type=click.IntRange(min=0), metavar="SEED", help="Put the samples into a random order.")
@log_options
def repack(dataset: Path, out: str, options: ConvertOptions, codecs: tuple[str, ...], shuffle: int | None) -> None:
    """Pack the samples of DATASET into OUT, with another codec, size of shards, or order.

    OUT may be a URL such as s3://bucket/set. Names, kinds of fields and the origin are kept. Every checksum is compared
    on the way, so that damage is never packed again. Stopped halfway? Run the same command again.

    \b
    $ packer repack div2k.packed small.packed --codec photo+zstd
    $ packer repack rows.packed shuffled.packed --shuffle 7 --shard-size 256MiB
    """
    with Progress() as watcher:
        report = verb.repack(dataset, out, options, codec=",".join(codecs) or None, seed=shuffle, watcher=watcher)
    say(*summary(report))
