"""`packer show`: some samples as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from packer.cli.logs import is_quiet, log_options
from packer.cli.tables import counted

if TYPE_CHECKING:
    from packer.cli.show_views import Sample
    from readers import PackedDataset


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
    from packer.cli.show_page import samples_measured, write_page
    from packer.cli.show_sheet import write_sheet
    from packer.format import manifest as manifests

    manifests.read(dataset)  # what is no dataset is told of before torch is loaded, which takes seconds
    from readers import PackedDataset

    opened = PackedDataset(dataset)
    found = chosen_samples(opened, samples, names, seed)
    if output.suffix.lower() in (".html", ".htm"):
        measured = chosen_samples(opened, samples_measured(opened.manifest))
        write_page(output, dataset.resolve().name, opened.manifest, found, measured)
    else:
        write_sheet(output, opened.manifest.fields, found)
    if not is_quiet():
        click.echo(f"{output}: {counted(len(found), 'sample')}")


def chosen_samples(
    dataset: PackedDataset, count: int, names: Sequence[str] = (), seed: int | None = None
) -> list[Sample]:
    """Return the samples of these names in their order, or else `count`, by chance (with a seed) or evenly spread.

    Raises:
        UsageError: names are asked for, and samples have none.
        MissingNameError: no sample has one of the names.
        DamagedError: a shard or the table of names cannot be read.
    """
    import numpy as np

    from packer.cli.show_views import Sample
    from packer.errors import UsageError

    if names:
        if dataset.names is None:
            raise UsageError("the samples have no names, so that --names finds none; take --samples and --seed")
        numbers = dataset.numbers(names).tolist()
    elif seed is None:
        numbers = np.linspace(0, len(dataset) - 1, min(count, len(dataset))).round().astype(int).tolist()
    else:
        chance = np.random.default_rng(seed)
        numbers = sorted(chance.choice(len(dataset), min(count, len(dataset)), replace=False).tolist())

    def values(number: int) -> dict[str, Any]:
        return {name: _array(value, dataset.fields[name].kind) for name, value in dataset[number].items()}

    return [Sample(n, None if dataset.names is None else dataset.names[n], values(n)) for n in numbers]


def _array(value: Any, kind: str) -> Any:
    """Return the numpy array of a value, images as (H, W, C); text as it is."""
    if kind == "text":
        return value
    return value.permute(1, 2, 0).numpy() if kind == "image" else value.numpy()
