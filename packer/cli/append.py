"""`packer append`: more samples for a packed dataset."""

from __future__ import annotations

import click

from packer import append as verb
from packer.cli.logs import Progress, log_options, say
from packer.cli.options import SourceCommand, conversion_options, sources_argument
from packer.cli.summary import split_lines, warn_of_skipped
from packer.cli.text import count_text
from packer.packing import ConvertOptions


@click.command(cls=SourceCommand)
@click.argument("dataset", type=click.Path())
@sources_argument()
@conversion_options("shard_size", "splits", "workers")
@log_options
def append(dataset: str, sources: tuple[str, ...], options: ConvertOptions) -> None:
    """Pack more samples, as new shards after those of DATASET. A SOURCE may be another packed dataset.

    The new samples need the fields of the dataset, and are stored with its codecs. Options of the sources that are not
    given are those that it was converted with. Readers that are open go on with the samples they had. Bad samples that
    are skipped are listed in DATASET/left-out-*.jsonl. New samples are in the splits that --split or their own dataset
    gives them, or in none. Stopped halfway? Run the same command again, but not after it has finished: samples without
    names would be added a second time.

    \b
    $ packer append div2k.packed lr=more/LR_x4 hr=more/HR
    $ packer append scans.packed other.packed
    """

    def report_done(report: verb.AppendReport) -> None:
        added_text, total_text = count_text(report.added, "sample"), count_text(report.manifest.samples, "sample")
        warn_of_skipped(report.rejected, dataset, report.manifest)
        say(f"{dataset}: {added_text} more, {total_text} in all", *split_lines(report.manifest))

    with Progress() as watcher:
        verb.append(dataset, list(sources), options, done=report_done, watcher=watcher)
