"""One view of one sample as HTML: pictures as PNG within the page, clouds as points for its script."""

from __future__ import annotations

import base64
import io
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.cli.showing.clouds import cloud_colours, drawn_points
from packer.cli.showing.pixels import pixels, real
from packer.cli.showing.samples import Sample
from packer.cli.showing.views import View
from packer.cli.tables import counted

#: Pixels of the longer side of a picture in the page: larger ones are made smaller.
_MOST_PIXELS = 256
#: Points of a curve.
_MOST_STEPS = 400
_CURVE_WIDTH, _CURVE_HEIGHT = 220, 140
_COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f")


def cell_html(view: View, sample: Sample) -> str:
    """A figure with its caption."""
    values = sample.values[view.field]
    if view.kind == "text":
        body, size = f"<pre>{escape(values)}</pre>", counted(len(values), "letter")
    elif view.kind == "cloud":
        body, size = _cloud(view, sample), counted(len(values), "point")
    else:
        body = _curves(values) if view.kind == "curves" else _picture(view, values)
        size = " x ".join(map(str, values.shape))
    return f"<figure>{body}<figcaption>{escape(view.field)} {size}</figcaption></figure>"


def _picture(view: View, values: NDArray[Any]) -> str:
    from PIL import Image

    if view.kind == "grid":
        values = real(values)
        while values.ndim > 2 and len(values):
            values = values[0]
        values = values[:, :, None] if values.ndim == 2 else np.zeros((0, 0, 1))
    shown = pixels(values)
    if not shown.size:
        return "empty"
    picture = Image.fromarray(shown)
    picture.thumbnail((_MOST_PIXELS, _MOST_PIXELS))
    file = io.BytesIO()
    picture.save(file, "png")
    return f'<img alt="{escape(view.field)}" src="data:image/png;base64,{_base64(file.getvalue())}">'


def _cloud(view: View, sample: Sample) -> str:
    kept, points = drawn_points(view, sample)
    if not len(points):
        return "empty"
    middle = (points.min(axis=0) + points.max(axis=0)) / 2
    reach = float(np.linalg.norm(points - middle, axis=1).max()) or 1.0
    colours = cloud_colours(view, sample, kept, points)
    shown = (((points - middle) / reach).astype("<f4").tobytes(), (colours * 255).round().astype(np.uint8).tobytes())
    data = f'data-points="{_base64(shown[0])}" data-colours="{_base64(shown[1])}"'
    return f'<canvas width="220" height="220" {data}></canvas>'


def _curves(values: NDArray[Any]) -> str:
    """One line for each column; lines break at values that are not finite."""
    columns = real(values).reshape(len(values), -1).astype(np.float64)
    finite = np.isfinite(columns)
    if not finite.any():
        return "empty"
    at = np.unique(np.linspace(0, len(columns) - 1, min(len(columns), _MOST_STEPS)).astype(np.int64))
    low, high = columns[finite].min() / 2, columns[finite].max() / 2
    x = at / max(len(columns) - 1, 1) * _CURVE_WIDTH
    lines = []
    for number in range(columns.shape[1]):
        y = (1 - (columns[at, number] / 2 - low) / ((high - low) or 1.0)) * _CURVE_HEIGHT
        path, pen = "", "M"
        for a, b, good in zip(x, y, finite[at, number], strict=True):
            path += f"{pen}{a:.1f} {b:.1f}" if good else ""
            pen = "L" if good else "M"
        lines.append(f'<path d="{path}" fill="none" stroke="{_COLOURS[number % len(_COLOURS)]}"/>')
    return f'<svg width="{_CURVE_WIDTH}" height="{_CURVE_HEIGHT}">{"".join(lines)}</svg>'


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
