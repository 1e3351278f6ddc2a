"""`packer codecs`: what each codec would do with the user's own data."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from packer.cli.arguments import sources_argument
from packer.cli.logs import log_options
from packer.cli.options import source_options

if TYPE_CHECKING:
    from packer.convert import ConvertOptions


@click.command()
@sources_argument
@source_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, with speeds in bytes a second.")
@log_options
def codecs(sources: tuple[str, ...], options: ConvertOptions, as_json: bool) -> None:
    """Try every codec on a sample of the SOURCEs: ratio, speed of packing and of reading, for each field.

    Speeds are of raw bytes, on one processor of this machine. What `auto` takes is marked with a star; it goes by the
    ratios alone, so that it is the same on every machine. `packer convert --codec FIELD=CODEC` takes another.

    \b
    $ packer codecs lr=DIV2K/LR_x4 hr=DIV2K/HR
    $ packer codecs scans/ --json
    """
    from packer.cli.codec_table import codec_lines, json_text
    from packer.cli.progress import open_shown
    from packer.codec_report import codec_report
    from packer.convert import guard

    source = open_shown(sources, options)
    found = list(codec_report(source, guard(options, in_memory=False)))
    click.echo(json_text(found) if as_json else "\n".join(codec_lines(found)))
