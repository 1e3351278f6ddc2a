"""`packer show`: samples as a page for a browser, or as a picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from packer.cli.logs import is_quiet, log_options
from packer.cli.options import size
from packer.cli.progress import progress
from packer.cli.text import counted

if TYPE_CHECKING:
    from packer.cli.show_views import Sample
    from readers import PackedDataset

#: Samples shown where nobody says how many, and the most that a sheet is drawn of.
_ON_A_PAGE, _ON_A_SHEET = 2000, 12
_MOST_ON_A_SHEET = 400
#: Bytes of an array that is read whole.
_WHOLE = 2**26


@click.command()
@click.argument("dataset", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), help="File to write: .html, .png, .pdf."
)
@click.option(
    "--samples",
    type=click.IntRange(min=1),
    help="How many, evenly spread.  [default: 12 on a sheet; 2000 on a page, or all that fit]",
)
@click.option("--names", multiple=True, metavar="NAME", help="Show the sample of this name; may be repeated.")
@click.option("--seed", type=click.IntRange(min=0), help="Choose the samples by chance, the same for the same seed.")
@click.option(
    "--page-size",
    type=size,
    default="64MB",
    show_default=True,
    help="What the samples of a page may take: samples that do not fit are left out, evenly.",
)
@log_options
def show(
    dataset: Path, output: Path, samples: int | None, names: tuple[str, ...], seed: int | None, page_size: int
) -> None:
    """Draw samples of the packed dataset DATASET: a page for a browser (.html), or a contact sheet (.png, .pdf).

    A page is one file that needs no network. It has all samples, or as many as fit into --page-size, in pages of
    thumbnails with a search by name, split and class. A click shows a sample large: pictures down to their pixels, and
    in turn at one place, such as lr and hr; clouds that turn with the mouse; clips that play; texts. Tables tell of
    fields, codecs, the spread of values by channel, the plan and the shards. What is large is reduced in the page, and
    says so: pictures to 1024 pixels, clips to 160 pixels and 48 frames, clouds to 20,000 points, and any array of more
    than 64 MiB to some of its rows.

    On a sheet, images of one sample stand side by side at one scale, clouds are drawn from two sides with their
    colours, arrays as images or curves, numbers and names above.

    \b
    $ packer show div2k.packed -o page.html
    $ packer show div2k.packed -o sheet.png
    $ packer show div2k.packed -o sheet.png --names 0003 --names 0007
    """
    from packer.format import manifest as manifests

    manifests.read(dataset)  # what is no dataset is told of before torch is loaded, which takes seconds
    from readers import PackedDataset

    opened = PackedDataset(dataset)
    if output.suffix.lower() in (".html", ".htm"):
        numbers = chosen_numbers(opened, samples or _ON_A_PAGE, names, seed)
        shown = _write_page(output, opened, numbers, page_size)
    else:
        from packer.cli.show_sheet import write_sheet

        wanted = samples or _ON_A_SHEET
        if max(wanted, len(names)) > _MOST_ON_A_SHEET:
            raise click.UsageError(f"a sheet has {_MOST_ON_A_SHEET} samples at most; a page, -o page.html, has more")
        numbers = chosen_numbers(opened, wanted, names, seed)
        write_sheet(output, opened.manifest.fields, list(map(SampleReader(opened), numbers)))
        shown = len(numbers)
    if not is_quiet():
        left_out = f" of {len(numbers):,}; --page-size makes room for more" if shown < len(numbers) else ""
        click.echo(f"{output}: {counted(shown, 'sample')}{left_out}")


def _write_page(output: Path, dataset: PackedDataset, numbers: Sequence[int], limit: int) -> int:
    from packer.cli.info import describe
    from packer.cli.show_page import samples_measured, write_page

    read = SampleReader(dataset)
    with progress("drawing") as shown:
        shown.start(len(numbers))
        measured = [read(number) for number in chosen_numbers(dataset, samples_measured(dataset.manifest))]
        return write_page(output, describe(dataset.path), measured, numbers, read, limit, shown.advance)


def chosen_numbers(dataset: PackedDataset, count: int, names: Sequence[str] = (), seed: int | None = None) -> list[int]:
    """Return the numbers of the samples of these names, or else of `count`, by chance (with a seed) or evenly spread.

    Raises:
        UsageError: names are asked for, and samples have none.
        MissingNameError: no sample has one of the names.
        DamagedError: the table of names cannot be read.
    """
    import numpy as np

    from packer.errors import UsageError

    count = min(count, len(dataset))
    if names:
        if dataset.names is None:
            raise UsageError("the samples have no names, so that --names finds none; take --samples and --seed")
        numbers = dataset.numbers(names)
    elif seed is None:
        numbers = np.linspace(0, len(dataset) - 1, count).round().astype(np.int64)
    else:
        numbers = np.sort(np.random.default_rng(seed).choice(len(dataset), count, replace=False))
    return [int(number) for number in numbers]


class SampleReader:
    """Reads samples as they are drawn: of an array that is larger than `_WHOLE` some rows alone, evenly spread."""

    def __init__(self, dataset: PackedDataset) -> None:
        self._dataset = dataset
        arrays = [field for field in dataset.fields.values() if field.kind == "array" and field.shape]
        some_large = any(dataset.manifest.columns[field.name].raw > _WHOLE for field in arrays)
        self._shapes = {field.name: dataset.shapes(field.name) for field in arrays} if some_large else {}

    def __call__(self, number: int) -> Sample:
        """Return the sample of a number.

        Raises:
            DamagedError: a shard or the table of names cannot be read.
        """
        from packer.cli.show_views import Sample

        dataset = self._dataset
        shapes = {name: tuple(shape[number].tolist()) for name, shape in self._shapes.items()}
        steps = self._steps(shapes)
        if steps:
            every = {name: slice(None, None, steps[shape[0]]) for name, shape in shapes.items() if shape[0] in steps}
            found = {name: dataset.read(number, name, rows=every.get(name)) for name in dataset.fields}
        else:
            shapes, found = {}, dataset[number]
        values = {name: _array(value, dataset.fields[name].kind) for name, value in found.items()}
        return Sample(number, None if dataset.names is None else dataset.names[number], values, shapes)

    def _steps(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[int, int]:
        """Return which of its rows to read, one in so many, by their number: what belongs to a row stays together."""
        steps: dict[int, int] = {}
        for name, shape in shapes.items():
            step = -(-self._dataset.fields[name].itemsize * math.prod(shape) // _WHOLE)
            if step > 1:
                steps[shape[0]] = max(step, steps.get(shape[0], 1))
        return steps


def _array(value: Any, kind: str) -> Any:
    """Return the numpy array of a value, images as (H, W, C); text as it is."""
    if kind == "text":
        return value
    return value.permute(1, 2, 0).numpy() if kind == "image" else value.numpy()
