"""`packer show`: samples as a page for a browser, or as a contact sheet, on which every sample is a block of cells."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from packer.cli.logs import log_options, say
from packer.cli.options import size
from packer.cli.progress import progress
from packer.cli.show_views import (
    Sample,
    SampleReader,
    View,
    chosen_numbers,
    drawn_cloud,
    first_matrix,
    pixels,
    real,
    size_of,
    value_text,
    views,
)
from packer.cli.text import counted, printable, shortened
from packer.errors import UsageError
from packer.format import manifest as manifests
from packer.format.schema import FieldSpec

#: Samples shown if nobody says how many, and the most that a sheet is drawn of.
_ON_A_PAGE, _ON_A_SHEET = 2000, 12
_MOST_ON_A_SHEET = 400
#: Cells in a row of the sheet, about; inches of a cell; dots an inch.
_ACROSS = 6
_WIDTH, _HEIGHT = 2.0, 2.15
_DPI = 120
#: Dots of the longer side, at most: the renderer's own limit is twice that.
_MOST_DOTS = 2**15
#: Letters that fit above a cell.
_LETTERS = 32
#: A cloud is drawn from these two sides: degrees around its third axis.
_SIDES = (-60, 30)
_RAISED = 25
#: A matrix that is longer than this many times its width is drawn with oblong cells.
_LONGEST = 4
_SMALL = {"fontsize": 6, "parse_math": False}
_TEXT_WIDTH, _TEXT_LINES = 30, 14


@click.command()
@click.argument("dataset", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), help="File to write: .html, .png, .pdf."
)
@click.option(
    "--samples",
    type=click.IntRange(min=1),
    help="How many samples, evenly spread.  [default: 12 on a sheet; 2000 on a page, or as many as fit]",
)
@click.option("--names", multiple=True, metavar="NAME", help="Show the sample of this name; may be repeated.")
@click.option(
    "--seed", type=click.IntRange(min=0), help="Choose the samples at random; the same ones for the same seed."
)
@click.option(
    "--page-size",
    type=size,
    default="64MB",
    show_default=True,
    help="How much the samples of a page may take; of those that do not fit, some are left out, evenly.",
)
@log_options
def show(
    dataset: Path, output: Path, samples: int | None, names: tuple[str, ...], seed: int | None, page_size: int
) -> None:
    """Draw samples of the packed dataset DATASET: a page for a browser (.html), or a contact sheet (.png, .pdf).

    A page is one file that needs no network. It has up to 2000 samples, as many as fit into --page-size, in pages of
    thumbnails with a search by name, split and class. A click shows a sample large: pictures down to their pixels, and
    pairs such as lr and hr in turn at one place; clouds that turn with the mouse; clips that play; texts. Tables tell
    of fields, codecs, the spread of values by channel, the plan and the shards. What is large is reduced in the page,
    which then says so: pictures to 1024 pixels, clips to 160 pixels and 48 frames, clouds to 20,000 points, and any
    array of more than 64 MiB to some of its rows.

    On a sheet, the images of a sample are next to one another at one scale, clouds are drawn from two sides with their
    colours, arrays as images or curves, numbers and names above.

    \b
    $ packer show div2k.packed -o page.html
    $ packer show div2k.packed -o sheet.png
    $ packer show div2k.packed -o sheet.png --names 0003 --names 0007
    """
    manifests.read(dataset)  # told before torch is loaded, which takes seconds, if it is not a dataset
    from readers import PackedDataset

    opened = PackedDataset(dataset)
    if output.suffix.lower() in (".html", ".htm"):
        numbers = chosen_numbers(opened, samples or _ON_A_PAGE, names, seed)
        from packer.cli.show_page import write_page

        with progress("drawing") as bar:
            bar.start(len(numbers))
            shown = write_page(output, opened, numbers, page_size, bar.advance)
    else:
        wanted = samples or _ON_A_SHEET
        if max(wanted, len(names)) > _MOST_ON_A_SHEET:
            raise click.UsageError(f"a sheet has {_MOST_ON_A_SHEET} samples at most; a page, -o page.html, has more")
        numbers = chosen_numbers(opened, wanted, names, seed)
        _write_sheet(output, opened.manifest.fields, list(map(SampleReader(opened), numbers)))
        shown = len(numbers)
    left_out = f" of {len(numbers):,}; --page-size makes room for more" if shown < len(numbers) else ""
    say(f"{output}: {counted(shown, 'sample')}{left_out}")


def _write_sheet(path: Path, fields: Sequence[FieldSpec], samples: Sequence[Sample]) -> None:
    """Draw the samples, and write the picture as the suffix of `path` says.

    Raises:
        UsageError: matplotlib is not installed, or cannot write such a file.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError("pictures need matplotlib: pip install '.[plot]' in a clone of packer") from None
    figure = Figure()
    kind = path.suffix.lower().lstrip(".")
    if kind not in figure.canvas.get_supported_filetypes():
        raise UsageError(f"{path}: a picture cannot be written as {kind or 'a file without a suffix'}; take .png")
    found = views(fields, samples)
    singles = [view.field for view in found if view.kind == "value"]
    drawn = [
        (view, side)
        for view in found
        if view.kind != "value"
        for side in (_SIDES if view.kind == "cloud" else _SIDES[:1])
    ]
    cells = max(1, len(drawn))
    across = min(max(1, _ACROSS // cells), len(samples))
    rows = -(-len(samples) // across)
    inches = _WIDTH * cells * across, _HEIGHT * rows
    figure.set_size_inches(*inches)
    figure.set_dpi(min(_DPI, _MOST_DOTS / max(inches)))
    # Curves have numbers at their left.
    room = 0.1 if any(view.kind == "curves" for view, _ in drawn) else 0.0
    with warnings.catch_warnings():
        # A letter that the font lacks is drawn as a box.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        blocks = figure.subfigures(rows, across, squeeze=False)
        for block, sample in zip(blocks.flat, samples, strict=False):
            title = "   ".join([sample.title, *(f"{name} {value_text(sample.values[name])}" for name in singles)])
            block.suptitle(shortened(title, _LETTERS * cells), fontsize=8, y=0.985, parse_math=False)
            block.subplots_adjust(left=0.03 + room / cells, right=0.97, bottom=0.06, top=0.84, wspace=0.08 + room)
            for at, (view, side) in enumerate(drawn, 1):
                _draw(block.add_subplot(1, cells, at), view, sample, side)
        figure.savefig(path, format=kind, dpi="figure")


def _draw(axes: Any, view: View, sample: Sample, side: int) -> None:
    """Draw one view of a sample into its cell; a cloud as it is seen from `side`."""
    values = sample.values[view.field]
    if view.kind == "curves":
        axes.tick_params(labelsize=5, length=2, pad=1)
        if len(values):
            axes.plot(np.ma.masked_invalid(real(values).astype(np.float64)), linewidth=0.7)
    else:
        axes.set_axis_off()
    if view.kind == "cloud":
        _draw_cloud(axes, view, sample, side)
    elif view.kind == "text":
        lines = [line for part in values.splitlines() for line in textwrap.wrap(printable(part), _TEXT_WIDTH) or [""]]
        lines = lines[:_TEXT_LINES] + (["..."] if len(lines) > _TEXT_LINES else [])
        axes.text(0, 1, "\n".join(lines), va="top", transform=axes.transAxes, **_SMALL)
    elif view.kind == "image" or (view.kind == "clip" and values.ndim == 4):
        image = values if view.kind == "image" or not len(values) else values[0]
        if image.size:
            axes.imshow(pixels(image), interpolation="nearest")
    elif view.kind in ("clip", "grid"):
        matrix = first_matrix(values)
        if matrix.size:
            rows, columns = matrix.shape
            aspect = "equal" if 1 / _LONGEST <= rows / columns <= _LONGEST else "auto"
            axes.imshow(np.ma.masked_invalid(matrix.astype(np.float64)), interpolation="nearest", aspect=aspect)
    also = f" with {', '.join(view.others)}" if view.others else ""
    axes.set_title(shortened(f"{view.field}  {size_of(view, sample)}{also}", 40), pad=2, **_SMALL)


def _draw_cloud(axes: Any, view: View, sample: Sample, side: int) -> None:
    """Draw a cloud as it is seen from `side` and a little from above, at one scale."""
    points, colours, _ = drawn_cloud(view, sample)
    turn, rise = np.radians((side, _RAISED))
    right = np.array([-np.sin(turn), np.cos(turn), 0.0])
    up = np.array([-np.sin(rise) * np.cos(turn), -np.sin(rise) * np.sin(turn), np.cos(rise)])
    order = np.argsort(points @ np.cross(right, up), kind="stable")  # what is near is drawn over what is far
    axes.set_aspect("equal", adjustable="datalim")
    if len(points):
        size = np.clip(4000 / len(points), 0.5, 12)
        axes.scatter((points @ right)[order], (points @ up)[order], s=size, c=colours[order], linewidths=0)
