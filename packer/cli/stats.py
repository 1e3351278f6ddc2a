"""`packer stats`: range, mean and deviation of the values of a packed dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from packer import stats as verb
from packer.cli.logs import Progress, log_options
from packer.cli.options import fields_option
from packer.cli.parts import part_option, parts_members, parts_text
from packer.cli.text import count_text, json_text, table
from packer.format import Field, FieldStats, Manifest, ShardEntry, ValueStats
from packer.format import manifest as manifests
from packer.packing import JoinedParts, shards_left
from packer.remote import whole

#: Arrays of this many axes, such as volumes and clips, or of more channels than this have one line.
_AXES, _MOST_CHANNELS = 3, 256
_NUMBERS = ("count", "min", "max", "mean", "std", "nan", "inf")


@click.command()
@click.argument("dataset", type=click.Path())
@fields_option("Read only these fields.")
@click.option("--save", is_flag=True, help="Keep the statistics in the manifest, where the next call finds them.")
@part_option("Read every N-th shard, from the I-th on")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@log_options
def stats(dataset: str, fields: tuple[str, ...] | None, save: bool, part: str | None, as_json: bool) -> None:
    """Say count, minimum, maximum, mean and standard deviation of each field of DATASET, and of its channels.

    Channels are those of images, and the columns of clouds and tables. Arrays of three axes and more, and of more than
    256 columns, have one line; --json has each index of their last axis. NaN and infinities are counted, and excluded
    from all other figures. Text and complex numbers have no statistics. The whole dataset is read once, unless its
    manifest holds the statistics. DATASET may be a URL such as s3://bucket/set: shards that are not in the cache are
    fetched. Machines share the work out by --part. The call without it then reads the shards that no part has read.

    \b
    $ packer stats div2k.packed
    $ packer stats div2k.packed --fields lr
    $ packer stats rows.packed --save --json
    $ packer stats rows.packed --part 3/400
    """
    if save and fields is not None:
        raise click.UsageError("--save keeps the statistics of all fields; leave --fields out")
    if save and part is not None:
        raise click.UsageError("--save keeps the statistics of the whole dataset; leave --part out")
    reports = verb.part_reports(dataset)

    def shards_needed(manifest: Manifest) -> Sequence[ShardEntry]:
        for name in fields or ():
            manifest.field(name)  # before anything is fetched
        return [] if manifest.stats else [manifest.shards[n] for n in shards_left(manifest, part, reports)]

    with Progress() as watcher, whole(dataset, watcher, shards_needed) as folder:
        manifest = manifests.read(folder)
        chosen = manifest.fields if fields is None else tuple(manifest.field(name) for name in fields)
        statistics_of = {field.name: manifest.stats[field.name] for field in chosen if field.name in manifest.stats}
        shards = shards_needed(manifest)
        if not manifest.stats and part is None:
            statistics_of = verb.statistics(folder, watcher, fields, reports)
        elif not manifest.stats and part is not None:
            verb.statistics_part(folder, part, watcher, fields, reports)
    document: dict[str, Any] = {"path": dataset, "samples": manifest.samples}
    if part is not None:
        document |= {"part": part, "shards": len(shards)}
        reason = "; the manifest holds the statistics" if manifest.stats else ""
        line = f"{dataset}: part {part}: {len(shards):,} of {count_text(len(manifest.shards), 'shard')} read{reason}"
        click.echo(json_text(document) if as_json else line)
        return
    if save and not manifest.stats:
        verb.save(dataset, statistics_of, manifest)
    joined = JoinedParts({}) if manifest.stats else reports.join(manifest)
    document |= {"fields": statistics_of, "parts": parts_members(joined)}
    lines = _lines(chosen, statistics_of)
    if joined.parts:
        lines.append(parts_text(joined, len(manifest.shards), "read"))
    click.echo(json_text(document) if as_json else "\n".join(lines))
    reports.remove()  # not before the user has what they say


def _lines(fields: Sequence[Field], statistics_of: Mapping[str, FieldStats]) -> list[str]:
    """Return a table with a line for each field, and one for each channel if there are several."""
    heads = ["field", "channel", *_NUMBERS]
    if not any(stats.all.nan or stats.all.inf for stats in statistics_of.values()):
        heads = heads[:-2]
    rows = []
    axes = {field.name: len(field.shape) for field in fields if field.kind == "array"}
    for name, stats in statistics_of.items():
        rows.append([name, "all", *_cells(stats.all)])
        if axes.get(name, 0) < _AXES and 1 < len(stats.channels) <= _MOST_CHANNELS:
            rows += [["", str(n), *_cells(channel)] for n, channel in enumerate(stats.channels)]
    lines = table(heads, [row[: len(heads)] for row in rows], heads[2:]) if rows else []
    lacking = [field.name for field in fields if field.name not in statistics_of]
    if lacking:
        lines.append(f"no statistics of text and complex numbers: {', '.join(lacking)}")
    return lines


def _cells(stats: ValueStats) -> list[str]:
    numbers = map(_number, (stats.min, stats.max, stats.mean, stats.std))
    return [f"{stats.count:,}", *numbers, f"{stats.nan:,}", f"{stats.inf:,}"]


def _number(value: float | None) -> str:
    """Return whole numbers with all their digits, others with six."""
    return "-" if value is None else str(value) if isinstance(value, int) else f"{value:.6g}"
