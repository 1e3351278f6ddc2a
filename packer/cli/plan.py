"""`packer plan`: what convert would make, and whether there is room for it."""

from __future__ import annotations

import glob
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import msgspec

from packer.cli.logs import Progress, log_options
from packer.cli.options import SourceCommand, conversion_options, sources_argument
from packer.cli.summary import field_table, shards_text
from packer.cli.text import count_text, json_text, listing, size_text, time_text
from packer.codecs import codec_name
from packer.errors import first_few
from packer.format import MANIFEST
from packer.packing import (
    ConvertOptions,
    Estimate,
    FieldEstimate,
    Plan,
    Rejected,
    codec_by_field,
    estimate,
    make_plan,
    open_source,
    plan_splits,
    process_count,
    reading_limits,
    split_text,
)
from packer.remote import is_url

#: About how fast whole samples of each codec of `auto` are read, as a share of uncompressed ones; see
#: docs/how/choices.md. Of `jpeg` the plan itself has a remark.
_SPEEDS = {
    "lz4": 0.6,
    "shuffle+lz4": 0.6,
    "bitshuffle": 0.6,
    "decimal+lz4": 0.5,
    "photo+lz4": 0.4,
    "shuffle+zstd": 0.3,
    "decimal+zstd": 0.3,
    "zstd": 0.25,
    "photo+zstd": 0.2,
}


@click.command(cls=SourceCommand)
@sources_argument()
@conversion_options("codec", "shard_size", "map_limit", "like", "splits", "workers")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, with exact bytes.")
@log_options
def plan(sources: tuple[str, ...], options: ConvertOptions, as_json: bool) -> None:
    """Say what convert would make, how large that is and how long it takes, before anything is written.

    It reads the headers of all files, and packs some samples to see how small they get and how long it takes. Give it
    the same options as convert, as far as they change the dataset.

    \b
    $ packer plan lr=DIV2K/LR_x4 hr=DIV2K/HR
    $ packer plan scans/ --codec zstd --json
    """
    last = sources[-1]
    is_missing = not glob.glob(last) and not is_url(last)
    if len(sources) > 1 and "=" not in last and (is_missing or Path(last, MANIFEST).exists()):
        raise click.UsageError(f"plan writes nothing, and takes no OUT: leave {last} out")
    show_plan(sources, options, Path.cwd() / "out", as_json)


def show_plan(sources: Sequence[str], options: ConvertOptions, out: Path, as_json: bool) -> None:
    """Print the plan of a conversion into `out`, and write nothing.

    Raises:
        UsageError, SourceError: as `convert` does before it writes.
    """
    rejected: list[Rejected] = []
    limits = reading_limits(options)
    with Progress() as watcher:
        source = open_source(list(sources), replace(options, watcher=watcher), rejected)
        plan = make_plan(source, options.codec, options.shard_size, limits, watcher)
        splits = plan_splits(plan, options, lenient=bool(rejected))
        likely = estimate(plan, limits, watcher)
    workers = max(process_count(options), 1)
    existing_folder = next(folder for folder in out.absolute().parents if folder.is_dir())
    facts = {
        "disk_free": shutil.disk_usage(existing_folder).free,
        "workers": workers,
        "seconds": likely.seconds / min(workers, len(plan.shards)),
        "splits": splits,
        "rejected": rejected,
        "choices": _choices(plan, likely, options),
    }
    click.echo(json_text(_document(plan, likely) | facts) if as_json else "\n".join(_lines(plan, likely, facts)))


def _lines(plan: Plan, likely: Estimate, facts: dict[str, Any]) -> list[str]:
    """Return the plan for people.

    Args:
        facts: bytes free on the disk, processes and seconds, splits, the files that --on-error skip skips, and
            what the codecs that `auto` chose save and cost.
    """
    free = facts["disk_free"]
    exactly = f"{size_text(likely.file_bytes)}, exactly {likely.file_bytes:,} bytes and the manifest"
    pairs = [
        ("source", plan.source.kind),
        ("samples", f"{plan.samples:,}"),
        ("shards", f"{shards_text([shard.raw_bytes for shard in plan.shards])} as arrays"),
        ("maps", f"of {size_text(max(shard.map_size for shard in plan.shards))} at most"),
        (
            "size",
            exactly if likely.exact else f"about {size_text(likely.file_bytes)}, at most {size_text(likely.most)}",
        ),
        ("disk", f"{size_text(likely.most)} {'needed' if likely.exact else 'enough'}, {size_text(free)} free"),
        ("time", _time(likely, min(facts["workers"], len(plan.shards)), facts["seconds"])),
    ]
    if facts["splits"]:
        pairs.append(("splits", split_text(facts["splits"], plan.samples)))
    for choice in facts["choices"]:
        names = choice["fields"]
        bytes_text = f"{choice['codec']} takes {choice['share']:.2f} of the bytes of none"
        speed = f"is read at about {choice['speed']:g} of its speed; --codec {names[0]}=none for speed"
        pairs.append(("choice", f"{first_few(names)}: {bytes_text} and {speed}"))
    if likely.most > free:
        pairs.append(("warning", "the disk may be too small"))
    pairs += [("note", note) for note in plan.remarks]
    # A reason of several lines is wrapped as any other.
    pairs += [("skipped", " ".join(f"{bad.file}: {bad.reason}".split("\n"))) for bad in facts["rejected"]]
    table = field_table(plan.fields, {name: _size_texts(field_size) for name, field_size in likely.fields.items()})
    return [*table, "", *listing(pairs)]


def _choices(plan: Plan, likely: Estimate, options: ConvertOptions) -> list[dict[str, Any]]:
    """Return, for each codec that `auto` chose, its fields, and bytes and speed as shares of `none`."""
    codecs = codec_by_field(options.codec, {field.name: "auto" for field in plan.fields})
    by_codec: dict[str, list[str]] = {}
    for field in plan.fields:
        if field.codec and codecs[field.name] == "auto":
            by_codec.setdefault(codec_name(field.codec), []).append(field.name)
    return [
        {
            "codec": codec,
            "fields": names,
            "share": sum(likely.fields[n].stored for n in names) / max(sum(likely.fields[n].raw for n in names), 1),
            "speed": _SPEEDS[codec],
        }
        for codec, names in by_codec.items()
        if codec in _SPEEDS
    ]


def _size_texts(size: FieldEstimate) -> list[str]:
    """Return raw and stored bytes of a field and the ratio."""
    mark = "" if size.raw == size.stored else "~"
    return [size_text(size.raw), f"{mark}{size_text(size.stored)}", f"{mark}{size.ratio:.2f}"]


def _time(likely: Estimate, processes: int, seconds: float) -> str:
    if not likely.samples:
        return "not known: no sample that was tried can be read"
    processes_text, samples_text = count_text(processes, "process"), count_text(likely.samples, "sample")
    return f"about {time_text(max(seconds, 0.1))} in {processes_text}, and what writing takes; {samples_text} tried"


def _document(plan: Plan, likely: Estimate) -> dict[str, Any]:
    """Return the plan for machines."""
    return {
        "kind": plan.source.kind,
        "samples": plan.samples,
        "fields": [
            {
                **msgspec.to_builtins(field),
                "codec_name": codec_name(field.codec),
                "raw_bytes": field_size.raw,
                "stored_bytes": field_size.stored,
                "ratio": field_size.ratio,
            }
            for field, field_size in zip(plan.fields, likely.fields.values(), strict=True)
        ],
        "shards": [
            {
                "number": shard.number,
                "samples": shard.samples,
                "raw_bytes": shard.raw_bytes,
                "most_bytes": shard.file_bytes,
                "map_size": shard.map_size,
            }
            for shard in plan.shards
        ],
        "exact": likely.exact,
        "file_bytes": likely.file_bytes,
        "most_bytes": likely.most,
        "samples_tried": likely.samples,
        "notes": plan.remarks,
    }
