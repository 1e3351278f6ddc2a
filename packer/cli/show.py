"""`packer show`: some samples as a picture."""

from __future__ import annotations

from pathlib import Path

import click

from packer.cli.logs import is_quiet, log_options


@click.command()
@click.argument("dataset", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), help="File to write: .png, .pdf, .html."
)
@click.option("--samples", type=click.IntRange(1, 400), default=12, show_default=True, help="How many, evenly spread.")
@click.option("--names", multiple=True, metavar="NAME", help="Show the sample of this name; may be repeated.")
@click.option("--seed", type=click.IntRange(min=0), help="Choose the samples by chance, the same for the same seed.")
@log_options
def show(dataset: Path, output: Path, samples: int, names: tuple[str, ...], seed: int | None) -> None:
    """Draw some samples of the packed dataset DATASET as a contact sheet, or as a page for a browser.

    Images of one sample stand side by side at one scale, clouds are drawn from two sides with their colours, arrays as
    images or curves, numbers and names above. A page is one file that needs no network: clouds turn with the mouse,
    samples are found by name, and a table tells of the fields, their codecs and the spread of their values.

    \b
    $ packer show div2k.packed -o sheet.png
    $ packer show div2k.packed -o sheet.png --names 0003 --names 0007
    $ packer show scans.packed -o page.html --samples 40
    """
    from packer.cli.showing.histograms import samples_measured
    from packer.cli.showing.page import write_page
    from packer.cli.showing.samples import Choice, chosen_samples
    from packer.cli.showing.sheet import write_sheet
    from packer.cli.tables import counted
    from packer.format import manifest as manifests

    manifest = manifests.read(dataset)
    found = chosen_samples(dataset, manifest, Choice(samples, names, seed))
    if output.suffix.lower() in (".html", ".htm"):
        measured = chosen_samples(dataset, manifest, Choice(samples_measured(manifest)))
        write_page(output, dataset.resolve().name, manifest, found, measured)
    else:
        write_sheet(output, manifest.fields, found)
    if not is_quiet():
        click.echo(f"{output}: {counted(len(found), 'sample')}")
