"""`packer verify`: whether a packed dataset is what it was when it was written."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from packer.cli.arguments import dataset_first, more_sources_argument
from packer.cli.logs import log_options
from packer.cli.options import source_options

if TYPE_CHECKING:
    from packer.convert import ConvertOptions
    from packer.verify import Damage, VerifyReport


_WITH_SOURCES = "packer verify DATASET --against [FIELD=]SOURCE..."


@click.command()
@click.argument("dataset", type=click.Path())
@more_sources_argument
@click.option("--against", is_flag=True, help="Compare every value and name with the SOURCEs as well.")
@source_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, with all damages.")
@log_options
def verify(dataset: str, sources: tuple[str, ...], against: bool, options: ConvertOptions, as_json: bool) -> int:
    """Check every byte of the packed dataset DATASET, and say which shard, field and samples are damaged.

    With --against the samples are read from the SOURCEs once more and compared to the bit; give the sources and
    options that the dataset was made with. Exits with 1 where anything is damaged. DATASET may be a URL such as
    s3://bucket/set: what is not in the cache is fetched, and compared with its digest on the way.

    \b
    $ packer verify div2k.packed
    $ packer verify div2k.packed --against lr=DIV2K/LR_x4 hr=DIV2K/HR
    """
    if against != bool(sources):
        raise click.UsageError("--against and the sources to compare with belong together")
    from packer.cli.damage_list import damage_lines, json_text
    from packer.remote.mirror import whole

    with whole(dataset) as folder:
        with dataset_first(_WITH_SOURCES) if against else nullcontext():
            report = _verified(folder)
        damages = [*report.damages, *(_compared(folder, sources, options) if against else [])]
    if as_json:
        click.echo(json_text(dataset, report, damages))
    else:
        click.echo("\n".join(damage_lines(dataset, report, damages, against)))
    return 1 if damages else 0


def _verified(dataset: Path) -> VerifyReport:
    from packer import verify as checking
    from packer.cli.progress import progress
    from packer.convert import processors
    from packer.format import manifest as manifests

    with progress("checking", "bytes") as shown:
        shown.start(sum(shard.bytes for shard in manifests.read(dataset).shards))
        return checking.verify(dataset, shown.advance, processors())


def _compared(dataset: Path, sources: tuple[str, ...], options: ConvertOptions) -> list[Damage]:
    from packer.checking.against import compare
    from packer.cli.progress import open_shown, progress

    source = open_shown(sources, options)
    with progress("comparing") as shown:
        shown.start(len(source))
        return compare(dataset, source, shown.advance, guarded=True)
