"""Draws a contact sheet: every sample a block of cells, several blocks side by side."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.cli.show_views import (
    Sample,
    View,
    cloud_colours,
    drawn_points,
    first_matrix,
    pixels,
    real,
    size_of,
    value_text,
    views,
)
from packer.cli.text import printable, shortened
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
#: A cloud is drawn from these two sides: degrees around its third axis.
SIDES = (-60, 30)
_RAISED = 25
#: A matrix that is longer than this many times its width is drawn with oblong cells.
_LONGEST = 4
_SMALL = {"fontsize": 6, "parse_math": False}
_TEXT_WIDTH, _TEXT_LINES = 30, 14


def write_sheet(path: Path, fields: Sequence[FieldSpec], samples: Sequence[Sample]) -> None:
    """Draw the samples, and writes the picture as the suffix of `path` says.

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


def draw_flat(axes: Any, view: View, sample: Sample) -> None:
    """Draw all that needs no third dimension: images, grids, curves and text."""
    values = sample.values[view.field]
    if view.kind == "text":
        _draw_text(axes, values)
    elif view.kind == "image":
        _draw_pixels(axes, pixels(values))
    elif view.kind == "clip" and values.ndim == 4:
        _draw_pixels(axes, pixels(values[0]) if len(values) else values)
    elif view.kind in ("clip", "grid"):
        _draw_grid(axes, values)
    else:
        _draw_curves(axes, values)
    axes.set_title(shortened(f"{view.field}  {size_of(view, sample)}", 40), pad=2, **_SMALL)


def draw_cloud(axes: Any, view: View, sample: Sample, side: int) -> None:
    """Draw a cloud as it is seen from `side` and a little from above, at one scale."""
    kept, points = drawn_points(view, sample)
    across, up, towards = (points @ axis for axis in _view_axes(side))
    order = np.argsort(towards, kind="stable")  # what is near is drawn over what is far
    axes.set_axis_off()
    axes.set_aspect("equal", adjustable="datalim")
    if len(points):
        size = np.clip(4000 / len(points), 0.5, 12)
        colours = cloud_colours(view, sample, kept, points)[order]
        axes.scatter(across[order], up[order], s=size, c=colours, linewidths=0)
    also = f" with {', '.join(view.others)}" if view.others else ""
    axes.set_title(shortened(f"{view.field}  {size_of(view, sample)}{also}", 40), pad=2, **_SMALL)


def _draw_pixels(axes: Any, image: NDArray[np.uint8]) -> None:
    axes.set_axis_off()
    if image.size:
        axes.imshow(image, interpolation="nearest")


def _draw_grid(axes: Any, values: NDArray[Any]) -> None:
    """Draw a matrix by colour; of more axes, the first matrix."""
    matrix = first_matrix(values)
    axes.set_axis_off()
    if matrix.size:
        rows, columns = matrix.shape
        square = 1 / _LONGEST <= rows / columns <= _LONGEST
        shown = np.ma.masked_invalid(matrix.astype(np.float64))
        axes.imshow(shown, interpolation="nearest", aspect="equal" if square else "auto")


def _draw_curves(axes: Any, values: NDArray[Any]) -> None:
    axes.tick_params(labelsize=5, length=2, pad=1)
    if len(values):
        axes.plot(np.ma.masked_invalid(real(values).astype(np.float64)), linewidth=0.7)


def _draw_text(axes: Any, text: str) -> None:
    axes.set_axis_off()
    lines = [line for part in text.splitlines() for line in textwrap.wrap(printable(part), _TEXT_WIDTH) or [""]]
    shown = lines[:_TEXT_LINES] + (["..."] if len(lines) > _TEXT_LINES else [])
    axes.text(0, 1, "\n".join(shown), va="top", transform=axes.transAxes, **_SMALL)


def _view_axes(side: int) -> NDArray[np.float64]:
    """Unit vectors to the right, upwards and towards the viewer, (3, 3)."""
    turn, rise = np.radians((side, _RAISED))
    right = [-np.sin(turn), np.cos(turn), 0.0]
    up = [-np.sin(rise) * np.cos(turn), -np.sin(rise) * np.sin(turn), np.cos(rise)]
    return np.array([right, up, np.cross(right, up)])
