"""Draws one view of one sample into the axes that matplotlib gives."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.cli.showing.clouds import cloud_colours, drawn_points
from packer.cli.showing.pixels import pixels, real
from packer.cli.showing.samples import Sample
from packer.cli.showing.views import View
from packer.cli.tables import counted, printable, shortened

#: A cloud is drawn from these two sides: degrees around its third axis.
SIDES = (-60, 30)
_RAISED = 25
#: A matrix that is longer than this many times its width is drawn with oblong cells.
_LONGEST = 4
_SMALL = {"fontsize": 6, "parse_math": False}
_TEXT_WIDTH, _TEXT_LINES = 30, 14


def draw_flat(axes: Any, view: View, sample: Sample) -> None:
    """Draws all that needs no third dimension: images, grids, curves and text."""
    values = sample.values[view.field]
    if view.kind == "text":
        _draw_text(axes, values)
    elif view.kind == "image":
        _draw_pixels(axes, pixels(values))
    elif view.kind == "grid":
        _draw_grid(axes, values)
    else:
        _draw_curves(axes, values)
    size = counted(len(values), "letter") if view.kind == "text" else " x ".join(map(str, values.shape))
    axes.set_title(shortened(f"{view.field}  {size}", 40), pad=2, **_SMALL)


def draw_cloud(axes: Any, view: View, sample: Sample, side: int) -> None:
    """Draws a cloud as it is seen from `side` and a little from above, at one scale."""
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
    axes.set_title(
        shortened(f"{view.field}  {counted(len(sample.values[view.field]), 'point')}{also}", 40), pad=2, **_SMALL
    )


def value_text(values: Any) -> str:
    """A number, or a few of them."""
    flat = np.asarray(values).reshape(-1)
    shown = ", ".join(f"{v:.6g}" if flat.dtype.kind in "fc" else str(v) for v in flat)
    return shown if np.ndim(values) == 0 else f"({shown})"


def _draw_pixels(axes: Any, image: NDArray[np.uint8]) -> None:
    axes.set_axis_off()
    if image.size:
        axes.imshow(image, interpolation="nearest")


def _draw_grid(axes: Any, values: NDArray[Any]) -> None:
    """A matrix by colour; of more axes, the first matrix."""
    matrix = real(values)
    while matrix.ndim > 2 and len(matrix):
        matrix = matrix[0]
    axes.set_axis_off()
    if matrix.ndim == 2 and matrix.size:
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
