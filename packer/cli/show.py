"""`packer show`: samples of a dataset as a page for a browser."""

from __future__ import annotations

import logging
from pathlib import Path

import click

from packer.cli.logs import Progress, log_options, say
from packer.cli.show_page import chosen_numbers, write_page
from packer.cli.text import count_text, size, size_text
from packer.errors import DatasetError, UsageError
from packer.remote import is_url, manifest_at
from packer.watcher import DRAWING

_log = logging.getLogger(__name__)
#: Bytes of a field in one sample, on average, that are read whole to be drawn.
_LARGEST = 2**29
#: Bytes of a page that nobody minds.
_SMALL = 5 * 10**6


@click.command()
@click.argument("dataset", type=click.Path())
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), help="File to write, such as page.html."
)
@click.option(
    "--samples", type=click.IntRange(min=1), default=2000, show_default=True, help="How many samples, evenly spread."
)
@click.option("--names", multiple=True, metavar="NAME", help="Show the sample of this name; may be repeated.")
@click.option(
    "--page-size",
    type=size,
    default="64MB",
    show_default=True,
    help="Limit for the samples in the page; if they take more, some are omitted at random.",
)
@log_options
def show(dataset: str, output: Path, samples: int, names: tuple[str, ...], page_size: int) -> None:
    """Draw samples of the packed dataset DATASET on a page for a browser: one file that needs no network.

    The page has thumbnails, with a search by name, split and class. A click shows a sample large: images down to
    their pixels, and pairs such as lr and hr in turn at one place; clouds that turn with the mouse; clips that play;
    texts. Tables show fields, codecs, the spread of values by channel, the shards, and facts such as splits and origin.

    DATASET may be a URL such as s3://bucket/set, from which the shards of these samples are fetched.

    Large samples are reduced in the page, which then says so: images to 1024 pixels, clips to 160 pixels and 48
    frames, clouds to 20,000 points. A field whose samples have more than 512 MiB is not drawn.

    \b
    $ packer show div2k.packed -o page.html
    $ packer show div2k.packed -o page.html --names 0003 --names 0007
    """
    if output.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"{output}: a page is written; give a name that ends in .html")
    if not output.absolute().parent.is_dir():
        raise UsageError(f"{output}: there is no folder {output.parent}; make it first, or name another")
    manifest = manifest_at(dataset)  # before torch is loaded, which takes seconds
    if not manifest.samples:
        raise DatasetError(f"{dataset}: it has no samples; there is nothing to draw")
    fields = [field.name for field in manifest.fields]
    large = [name for name in fields if manifest.columns[name].raw > _LARGEST * manifest.samples]
    too_large = f"{dataset}: samples of {', '.join(large)} have more than 512 MiB, too much to draw"
    if fields and large == fields:
        raise UsageError(f"{too_large}; there is no other field")
    if large:
        _log.warning("%s; the other fields are drawn", too_large)
    from readers import PackedDataset

    opened_dataset = PackedDataset(dataset, [name for name in fields if name not in large])
    address = dataset if is_url(dataset) else str(Path(dataset).resolve())
    numbers = chosen_numbers(opened_dataset, samples, names)
    with Progress() as watcher:
        watcher.step(DRAWING, 0, len(numbers))
        drawn = write_page(output, opened_dataset, address, numbers, page_size, watcher.done)
    drawn_of = f"{drawn:,} of " if drawn < len(opened_dataset) else ""
    nbytes = output.stat().st_size
    more = "; --page-size makes room for more" if drawn < len(numbers) else ""
    if nbytes > _SMALL and nbytes > manifest.file_bytes:
        more += "; fewer --samples make a smaller page"
    say(f"{output}: {drawn_of}{count_text(len(opened_dataset), 'sample')}, {size_text(nbytes)}{more}")
