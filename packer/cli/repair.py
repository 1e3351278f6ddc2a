"""`packer repair`: damaged files of a packed dataset made again."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import click

from packer import repair as repairing
from packer.cli.logs import Progress, log_options, say
from packer.cli.options import SourceCommand, conversion_options, open_shown, sources_argument
from packer.cli.text import counted
from packer.convert import ConvertOptions
from packer.format import SHARD_FOLDER, ShardEntry
from packer.workers import processors

_log = logging.getLogger(__name__)


@click.command(cls=SourceCommand)
@click.argument("dataset", type=click.Path(path_type=Path))
@sources_argument("[[FIELD=]SOURCE...]", required=False)
@conversion_options()
@log_options
def repair(dataset: Path, sources: tuple[str, ...], options: ConvertOptions) -> None:
    """Repair the packed dataset DATASET: make damaged files again, and leave the rest as it is.

    Shards are packed again from the SOURCEs; give the sources and options that the dataset was made with. A lost
    manifest or table of names is made from the shards, without any source.

    \b
    $ packer repair div2k.packed
    $ packer repair div2k.packed lr=DIV2K/LR_x4 hr=DIV2K/HR
    """
    source = open_shown(sources, options) if sources else None
    with ExitStack() as shows:
        checking = shows.enter_context(Progress("checking", "bytes"))
        packing = Progress("packing")

        def damaged(shards: Sequence[ShardEntry]) -> None:
            shows.close()  # one bar at a time
            shows.enter_context(packing)
            packing.start(sum(shard.samples for shard in shards))
            _log.info("%s damaged; packing again", counted(len(shards), "shard"))

        checking.start(sum(path.stat().st_size for path in (dataset / SHARD_FOLDER).glob("*.lmdb")))
        files = repairing.repair(dataset, source, packing.advance, checking.advance, damaged, processors())
    say(*[f"{file}: made again" for file in files] or [f"{dataset}: nothing is damaged"])
