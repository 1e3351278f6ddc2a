"""`packer verify`: whether a packed dataset is unchanged since it was written."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from packer import verify as verb
from packer.checking import Comparison, Damage, compare
from packer.cli.logs import Progress, log_options
from packer.cli.options import SourceCommand, conversion_options, open_shown, sources_argument
from packer.cli.parts import part_option, parts_members, parts_text
from packer.cli.text import count_text, json_text, size_text
from packer.errors import printable
from packer.format import FileEntry, Manifest
from packer.format import manifest as manifests
from packer.machine import processors
from packer.packing import ConvertOptions, shards_left, with_usual
from packer.remote import whole

#: Damages shown to people.
_MOST = 50


@click.command(cls=SourceCommand)
@click.argument("dataset", type=click.Path())
@sources_argument("[[FIELD=]SOURCE...]", required=False)
@click.option("--against", is_flag=True, help="Compare every value and name with the SOURCEs as well.")
@conversion_options()
@part_option("Check every N-th shard, from the I-th on")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, with all damages.")
@log_options
def verify(
    dataset: str,
    sources: tuple[str, ...],
    against: bool,
    options: ConvertOptions,
    part: str | None,
    as_json: bool,
) -> int:
    """Check every byte of the packed dataset DATASET, and say which shard, field and samples are damaged.

    With --against the samples are read from the SOURCEs once more and compared bit for bit; give the sources that the
    dataset was made with, as `packer info` shows them. Options that are not given are those of that command. They are
    read by the code that packed them: what it leaves out or changes is missing on both sides, and named. Exits with 1
    if anything is damaged. DATASET may be a URL such as s3://bucket/set: files that are not in the cache are fetched,
    and compared with their digests on the way.
    Machines share the work out by --part. The call without it then reads the shards that no part has read.

    \b
    $ packer verify div2k.packed
    $ packer verify div2k.packed --part 3/400
    $ packer verify div2k.packed --against lr=DIV2K/LR_x4 hr=DIV2K/HR
    """
    if against != bool(sources):
        raise click.UsageError("give both --against and the sources to compare with, or neither")
    if part is not None and against:
        raise click.UsageError("--against compares the whole dataset; leave --part out")
    reports = None if against else verb.part_reports(dataset)

    def files_needed(manifest: Manifest) -> Sequence[FileEntry]:
        shards = [manifest.shards[number] for number in shards_left(manifest, part, reports)]
        return [*shards, *(manifest.files[len(manifest.shards) :] if part is None else [])]

    with ExitStack() as stack:
        with Progress() as watcher:
            folder = stack.enter_context(whole(dataset, watcher, files_needed))
            manifest = manifests.read(folder)
            arguments = watcher, processors(), reports
            report = verb.verify_part(folder, part, *arguments) if part else verb.verify(folder, *arguments)
        comparison = _compare(folder, sources, options) if against else None
    damages = [*report.damages, *(comparison.damages if comparison else [])]
    checked = {"files": report.files, "bytes": report.bytes, "frames": report.frames}
    parts = {"parts": parts_members(report.parts)} if part is None else {"part": part}
    compared = {"compared": _members(comparison)} if comparison else {}
    document = {"path": dataset, "good": not damages, **checked, **parts, **compared, "damages": damages}
    lines = _lines(f"{dataset}: part {part}" if part else dataset, report, damages, comparison)
    if report.parts.parts:
        lines[-1] += f"; {parts_text(report.parts, len(manifest.shards), 'checked')}"
    click.echo(json_text(document) if as_json else "\n".join(lines))
    if reports is not None and part is None:
        reports.remove()  # not before the user has what they say
    return 1 if damages else 0


def _compare(dataset: Path, sources: tuple[str, ...], options: ConvertOptions) -> Comparison:
    manifest = manifests.read(dataset)
    options = with_usual(options, manifest)
    source = open_shown(sources, options, manifest)
    with Progress() as watcher:
        return compare(dataset, source, watcher, options.limits)


def _members(comparison: Comparison) -> dict[str, Any]:
    """Return what was compared, for --json; the damages stand elsewhere."""
    return {"fields": comparison.fields, "samples": comparison.samples, "besides": comparison.besides}


def _lines(path: str, report: verb.VerifyReport, damages: Sequence[Damage], comparison: Comparison | None) -> list[str]:
    """Return a line for each damage, and for what was not compared; the last one says what was checked."""
    lines = [printable(str(damage)) for damage in damages[:_MOST]]
    if len(damages) > _MOST:
        lines.append(f"... and {len(damages) - _MOST:,} more; --json lists all")
    amount = f"{count_text(report.files, 'file')}, {size_text(report.bytes)}, {count_text(report.frames, 'frame')}"
    verdict = "no damage found"
    if comparison is not None:
        lines += [f"note: {printable(note)}" for note in comparison.besides]
        fields, samples = ", ".join(comparison.fields), count_text(comparison.samples, "sample")
        verdict += f"; {printable(fields)} of {samples} are as packer reads them from the sources"
    repair = "; run `packer repair`" if any(damage.repairable for damage in damages) else ""
    outcome = f"{count_text(len(damages), 'problem')} found{repair}" if damages else verdict
    return [*lines, f"{printable(str(path))}: {amount}: {outcome}"]
