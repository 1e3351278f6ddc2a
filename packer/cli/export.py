"""`packer export`: a packed dataset back to PNG, PLY or HDF5 files."""

from __future__ import annotations

import logging
from pathlib import Path

import click

from packer.cli.logs import is_quiet, log_options
from packer.cli.progress import progress
from packer.cli.tables import counted
from packer.cli.units import size_text, time_text
from packer.export import export as run
from packer.format import manifest as manifests

_log = logging.getLogger(__name__)


@click.command()
@click.argument("dataset", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--to",
    type=click.Choice(["png", "ply", "ply-text", "hdf5"]),
    help="Kind of the files.  [default: what the dataset was packed from]",
)
@click.option("--fields", metavar="A,B", help="Export these fields alone.")
@click.option("--overwrite", is_flag=True, help="Write into a folder that holds something; files of one name go.")
@log_options
def export(dataset: Path, out: Path, to: str | None, fields: str | None, overwrite: bool) -> None:
    """Write the samples of DATASET as files into the folder OUT, by their names.

    Images become OUT/FIELD/NAME.png; clouds and meshes OUT/NAME.ply with the properties, types and comments of their
    source; rows HDF5 files with the datasets and attributes of theirs. Any dataset can go to HDF5. Every checksum is
    compared on the way.

    \b
    $ packer export div2k.packed div2k.png
    $ packer export scans.packed scans --to hdf5 --fields xyz,rgb
    """
    names = None if fields is None else [name.strip() for name in fields.split(",")]
    with progress("exporting") as shown:
        shown.start(manifests.read(dataset).samples)
        report = run(dataset, out, to=to, fields=names, overwrite=overwrite, progress=shown.advance)
    for note in report.notes:
        _log.warning("%s", note)
    if not is_quiet():
        files = f"{counted(report.files, 'file')} of {report.to}, {size_text(report.bytes)}"
        click.echo(f"{out}: {counted(report.samples, 'sample')} in {files}, {time_text(report.seconds)}")
