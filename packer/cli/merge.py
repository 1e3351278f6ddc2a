"""`packer merge`: several packed datasets as one."""

from __future__ import annotations

from pathlib import Path

import click

from packer import merge as verb
from packer.cli.logs import Progress, log_options, say
from packer.cli.options import PACKING
from packer.cli.summary import split_lines
from packer.cli.text import count_text


@click.command()
@click.argument("datasets", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="DATASET DATASET...")
@click.argument("out", type=click.Path())
@PACKING["overwrite"]
@log_options
def merge(datasets: tuple[Path, ...], out: str, overwrite: bool) -> None:
    """Make OUT of all samples of two datasets or more, in this order, without packing them again.

    Shards are hard links if the file system has them, else copies. Fields, codecs and frames must be the same; if they
    are not, `packer append` packs the samples again. OUT may be a URL such as s3://bucket/set.

    \b
    $ packer merge day1.packed day2.packed days.packed
    """
    with Progress() as watcher:
        manifest = verb.merge(datasets, out, overwrite=overwrite, watcher=watcher)
    shards = count_text(len(manifest.shards), "shard")
    say(f"{out}: {count_text(manifest.samples, 'sample')} in {shards}", *split_lines(manifest))
