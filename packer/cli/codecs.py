"""`packer codecs`: what each codec would do with the user's own data."""

from __future__ import annotations

from collections.abc import Sequence

import click

from packer.cli.logs import log_options
from packer.cli.options import conversion_options, sources_argument
from packer.cli.progress import open_shown, progress
from packer.cli.summary import shape_text
from packer.cli.text import counted, indented, shortened, size_text, table, terminal_width
from packer.codec_report import FieldReport, codec_report
from packer.convert import ConvertOptions, guard
from packer.packing.framing import LEAST_RECORD, LEAST_SHARE
from packer.sources.base import watched

_HEADS = ("codec", "ratio", "packing", "reading")


@click.command()
@sources_argument()
@conversion_options()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, with speeds in bytes a second.")
@log_options
def codecs(sources: tuple[str, ...], options: ConvertOptions, as_json: bool) -> None:
    """Try every codec on some samples of the SOURCEs: ratio, speed of packing and of reading, for each field.

    Speeds count raw bytes, on one processor of this machine. What `auto` takes is marked with a star; it goes by the
    ratios alone, so that it is the same on every machine. `packer convert --codec FIELD=CODEC` takes another.

    \b
    $ packer codecs lr=DIV2K/LR_x4 hr=DIV2K/HR
    $ packer codecs scans/ --json
    """
    source = open_shown(sources, options)
    with progress("trying codecs") as shown:
        reports = codec_report(source, guard(options, in_memory=False))
        found = list(watched(reports, "trying codecs on fields", shown.look, len(source.fields)))
    click.echo(indented({"fields": found}) if as_json else "\n".join(_lines(found)))


def _lines(found: Sequence[FieldReport]) -> list[str]:
    """Return a heading and a table for each field."""
    lines: list[str] = []
    for field in found:
        seen = f"{counted(field.samples, 'sample')}, {size_text(field.raw_bytes)}"
        what = f"{field.spec.name}: {field.spec.dtype}, {shape_text(field.spec)}; {seen} looked at"
        rows = [
            [
                f"{'*' if trial.codec == field.auto else ' '} {trial.codec}",
                f"{trial.ratio:.2f}",
                f"{size_text(trial.encode)}/s",
                f"{size_text(trial.decode)}/s",
            ]
            for trial in field.trials
        ]
        lines += ["", shortened(what, terminal_width()), *table(_HEADS, rows, _HEADS[1:]), *_remark(field)]
    return [*lines[1:], "", "* what `auto` takes"]


def _remark(field: FieldReport) -> list[str]:
    """Say why `auto` keeps a field raw though a codec would shrink it, if the ratios do not tell."""
    if field.auto != "none" or not field.trials:
        return []
    if field.share < LEAST_SHARE:
        return [f"auto keeps it raw: it is less than {LEAST_SHARE:.0%} of all bytes"]
    if not field.spec.is_ragged and field.spec.fixed_bytes < LEAST_RECORD:
        return [f"auto keeps it raw: samples under {LEAST_RECORD:,} bytes are read fastest raw"]
    return []
