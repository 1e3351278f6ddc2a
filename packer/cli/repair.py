"""`packer repair`: what is damaged is made again."""

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
from packer.convert import ConvertOptions, processors
from packer.format import CONSTANTS_FILE, REJECTED_FILE, SHARD_FOLDER, ShardEntry
from packer.repair import RepairReport

_log = logging.getLogger(__name__)


@click.command(cls=SourceCommand)
@click.argument("dataset", type=click.Path(path_type=Path))
@sources_argument("[[FIELD=]SOURCE...]", required=False)
@conversion_options()
@log_options
def repair(dataset: Path, sources: tuple[str, ...], options: ConvertOptions) -> None:
    """Repair the packed dataset DATASET: make what is damaged again, and leave the rest as it is.

    Shards are packed again from the SOURCEs; give those, and the options, that the dataset was made with. A lost
    manifest or table of names is made from the shards, without any source.

    \b
    $ packer repair div2k.packed
    $ packer repair div2k.packed lr=DIV2K/LR_x4 hr=DIV2K/HR
    """
    report = _repaired(dataset, sources, options)
    if report.manifest:
        _log.warning(
            "statistics and splits that the manifest may have kept are gone; "
            "`packer stats --save` and `packer split` make them again"
        )
    say(*_lines(report) or [f"{dataset}: nothing is damaged"])


def _repaired(dataset: Path, sources: tuple[str, ...], options: ConvertOptions) -> RepairReport:
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
        return repairing.repair(dataset, source, packing.advance, checking.advance, damaged, processors())


def _lines(report: RepairReport) -> list[str]:
    """Return a line for each thing that was made again."""
    made = []
    if report.manifest:
        made.append("manifest.json: made again from the shards")
    if report.names:
        made.append("names.lmdb: made again from the shards")
    if report.constants:
        made.append(f"{CONSTANTS_FILE}: made again from the sources")
    if report.left_out is not None:
        lines = f"cut back to its {counted(report.left_out, 'line')}" if report.left_out else "lost"
        made.append(f"{REJECTED_FILE}: {lines}; `packer info` tells how many samples were left out")
    return made + [f"{file}: packed again" for file in report.shards]
