"""A contact sheet: every sample a block of cells, several blocks side by side."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from packer.cli.showing.cells import SIDES, draw_cloud, draw_flat, value_text
from packer.cli.showing.samples import Sample
from packer.cli.showing.views import View, views
from packer.cli.tables import shortened
from packer.errors import UsageError
from packer.format.schema import FieldSpec

#: Cells in a row of the sheet, about; inches of a cell; dots an inch.
_ACROSS = 6
_WIDTH, _HEIGHT = 2.0, 2.15
_DPI = 120
#: Dots of the longer side, at most: the renderer's own limit is twice that.
_MOST_DOTS = 2**15
#: Letters that fit above a cell.
_LETTERS = 32


def write_sheet(path: Path, fields: Sequence[FieldSpec], samples: Sequence[Sample]) -> None:
    """Draws the samples, and writes the picture as the suffix of `path` says.

    Raises:
        UsageError: matplotlib is not installed, or cannot write such a file.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError("pictures need matplotlib: pip install '.[plot]' in a clone of packer") from None
    known = FigureCanvasAgg.get_supported_filetypes()
    kind = path.suffix.lower().lstrip(".")
    if kind not in known:
        raise UsageError(f"{path}: a picture cannot be written as {kind or 'a file without a suffix'}; take .png")
    figure = Figure()
    FigureCanvasAgg(figure)
    with warnings.catch_warnings():
        # A letter that the font lacks is drawn as a box.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        _draw(figure, fields, samples)
        figure.savefig(path, format=kind, dpi="figure")


def _draw(figure: Any, fields: Sequence[FieldSpec], samples: Sequence[Sample]) -> None:
    found = views(fields, samples)
    drawn = [view for view in found if view.kind != "value"]
    values = [view.field for view in found if view.kind == "value"]
    cells = max(1, sum(len(SIDES) if view.kind == "cloud" else 1 for view in drawn))
    across = min(max(1, _ACROSS // cells), len(samples))
    rows = -(-len(samples) // across)
    size = _WIDTH * cells * across, _HEIGHT * rows
    figure.set_size_inches(*size)
    figure.set_dpi(min(_DPI, _MOST_DOTS / max(size)))
    blocks = figure.subfigures(rows, across, squeeze=False)
    for block, sample in zip(blocks.flat, samples, strict=False):
        title = "   ".join([sample.title, *(f"{name} {value_text(sample.values[name])}" for name in values)])
        block.suptitle(shortened(title, _LETTERS * cells), fontsize=8, y=0.985, parse_math=False)
        _draw_block(block, drawn, sample, cells)


def _draw_block(block: Any, drawn: Sequence[View], sample: Sample, cells: int) -> None:
    # Curves have numbers at their left.
    room = 0.1 if any(view.kind == "curves" for view in drawn) else 0.0
    block.subplots_adjust(left=0.03 + room / cells, right=0.97, bottom=0.06, top=0.84, wspace=0.08 + room)
    at = 1
    for view in drawn:
        if view.kind != "cloud":
            draw_flat(block.add_subplot(1, cells, at), view, sample)
            at += 1
            continue
        for side in SIDES:
            draw_cloud(block.add_subplot(1, cells, at), view, sample, side)
            at += 1
