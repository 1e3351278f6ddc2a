"""`packer export`: a packed dataset back to files."""

from __future__ import annotations

import logging
from pathlib import Path

import click

from packer import export as verb
from packer.cli.logs import Progress, log_options, say
from packer.cli.options import fields_option
from packer.cli.text import count_text, size_text, time_text
from packer.sources import all_kinds

_log = logging.getLogger(__name__)


_HELP = """Write the samples of DATASET as files into the folder OUT. Every checksum is compared on the way.

\b
{kinds}

For BasicSR, frames of clips have the keys of REDS, such as 000/00000000.

\b
$ packer export div2k.packed div2k.png
$ packer export scans.packed scans --to hdf5 --fields xyz,rgb
$ packer export div2k.packed valid --samples valid
$ packer export div2k.packed some --samples 0003,0007
$ packer export div2k.packed hr.lmdb --to basicsr-lmdb --fields hr --values bmp
"""
_LINES = "\n".join(f"--to {name:13} {kind.writes}" for name, kind in verb.KINDS.items())
_SOURCES = {to: [kind.name for kind in all_kinds().values() if kind.exports == to] for to in verb.KINDS}
_USUAL = ", ".join(f"{to} from {' and '.join(kinds)}" for to, kinds in _SOURCES.items() if kinds)


@click.command(help=_HELP.format(kinds=_LINES))
@click.argument("dataset", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--to",
    type=click.Choice(list(verb.KINDS)),
    help=f"Kind of the files.  [default: {_USUAL}; else png if all fields are images, or hdf5, which holds all]",
)
@fields_option("Export only these fields.")
@click.option(
    "--samples",
    metavar="SPLIT|NAME,...",
    help="Export only the samples of this split, or of these names (numbers, if samples have no names).",
)
@click.option("--values", type=click.Choice(verb.VALUES), help="basicsr-lmdb: what each value is.  [default: png]")
@click.option(
    "--overwrite", is_flag=True, help="Write into a folder that is not empty; files of the same names are replaced."
)
@log_options
def export(
    dataset: Path,
    out: Path,
    to: str | None,
    fields: tuple[str, ...] | None,
    samples: str | None,
    values: str | None,
    overwrite: bool,
) -> None:
    """Parse, export and say how many files there are."""
    with Progress() as watcher:
        options = verb.ExportOptions(
            to=to, fields=fields, samples=samples, values=values, overwrite=overwrite, watcher=watcher
        )
        report = verb.export(dataset, out, options)
    for note in report.notes:
        _log.warning("%s", note)
    kind = "" if report.to == "files" else f" of {report.to}"
    files = f"{count_text(report.files, 'file')}{kind}, {size_text(report.bytes)}"
    say(f"{out}: {count_text(report.samples, 'sample')} in {files}, {time_text(report.seconds)}")
