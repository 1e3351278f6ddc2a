"""Writes a page of samples in one file: fields with codecs and spreads, pictures, clouds to turn, search by name."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
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
    value_text,
    views,
)
from packer.cli.summary import ratio_text, shape_text
from packer.cli.tables import counted
from packer.cli.units import size_text
from packer.codecs.configs import codec_name
from packer.format.manifest import Manifest
from packer.format.schema import Field, FieldSpec

_HEADS = ("field", "kind", "dtype", "shape", "codec", "raw", "stored", "ratio", "min", "mean", "max", "not finite")
_BAR, _TALL = 4, 40


#: Pixels of the longer side of a picture in the page: larger ones are made smaller.
_MOST_PIXELS = 256
#: Points of a curve.
_MOST_STEPS = 400
_CURVE_WIDTH, _CURVE_HEIGHT = 220, 140
_COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f")
_BINS = 48
#: Samples that spreads are of, at most, and their raw bytes: what is read in a second or two.
_SAMPLES, _BYTES = 1000, 128 * 2**20


def write_page(
    path: Path, title: str, manifest: Manifest, samples: Sequence[Sample], measured: Sequence[Sample]
) -> None:
    """Write the page: one file, which asks for no other. Spreads are of the samples `measured`."""
    head = f"<title>{escape(title)}</title><style>{STYLE}</style>"
    shards, size = counted(len(manifest.shards), "shard"), size_text(manifest.file_bytes)
    body = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{counted(manifest.samples, 'sample')} in {shards}, {size}; {counted(len(samples), 'sample')} shown, ",
        f"spreads of {_share(len(measured), manifest.samples)}.</p>",
        _fields(manifest, measured),
        '<p><input id="search" type="search" placeholder="name"> ',
        f'<span id="found">{len(samples)} shown</span></p>',
        f'<div id="samples">{"".join(_samples(manifest, samples))}</div>',
        f"<script>{SCRIPT}</script>",
    ]
    start = f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">{head}</head>'
    # What is no text in a name or caption would stop the whole page from being written.
    text = f"{start}<body>{''.join(body)}</body></html>\n"
    path.write_text(text.encode(errors="backslashreplace").decode(), encoding="utf-8")


def _share(count: int, of: int) -> str:
    return "all samples" if count == of else f"{count:,} samples, evenly chosen (`packer stats` has all)"


def _fields(manifest: Manifest, samples: Sequence[Sample]) -> str:
    """Return the table of fields."""
    heads = "".join(f"<th>{head}</th>" for head in (*_HEADS, "spread"))
    rows = "".join(_field(manifest, field, spread(field, samples)) for field in manifest.fields)
    return f"<table><tr>{heads}</tr>{rows}</table>"


def _field(manifest: Manifest, field: Field, found: Spread) -> str:
    totals = manifest.columns[field.name]
    words = [field.name, field.kind, str(field.dtype), _shape(field, found), codec_name(field.codec)]
    numbers = [size_text(totals.raw), size_text(totals.stored), ratio_text(totals)]
    numbers += ["" if n is None else f"{n:.5g}" for n in (found.low, found.mean, found.high)]
    numbers.append(f"{found.odd:,}" if found.odd else "")
    cells = [f"<td>{escape(word)}</td>" for word in words]
    cells += [f'<td class="number">{number}</td>' for number in numbers]
    return f"<tr>{''.join(cells)}<td>{_bars(found)}</td></tr>"


def _shape(field: Field, found: Spread) -> str:
    sizes = ", ".join(f"{low} to {high}" for low, high in found.sizes)
    return f"{shape_text(field)} (any: {sizes})" if sizes else shape_text(field)


def _bars(found: Spread) -> str:
    most = max(found.counts, default=0)
    if not most:
        return ""
    bars = []
    for number, count in enumerate(found.counts):
        tall = count / most * _TALL
        bars.append(f'<rect x="{number * _BAR}" y="{_TALL - tall:.1f}" width="{_BAR - 1}" height="{tall:.1f}"/>')
    return f'<svg width="{len(bars) * _BAR}" height="{_TALL}" fill="#4477aa">{"".join(bars)}</svg>'


def _samples(manifest: Manifest, samples: Sequence[Sample]) -> list[str]:
    found = views(manifest.fields, samples)
    cards = []
    for sample in samples:
        values = [f"{v.field} {value_text(sample.values[v.field])}" for v in found if v.kind == "value"]
        cells = "".join(cell_html(view, sample) for view in found if view.kind != "value")
        title = escape("   ".join([sample.title, *values]))
        name = escape(sample.title)
        cards.append(f'<div class="sample" data-name="{name}"><h3>{title}</h3><div class="cells">{cells}</div></div>')
    return cards


def cell_html(view: View, sample: Sample) -> str:
    """Return a figure with its caption."""
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

    shown = pixels(first_matrix(values)[:, :, None] if view.kind == "grid" else values)
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


@dataclass(frozen=True)
class Spread:
    """Of the finite values of some samples; extremes and mean are None where there is none.

    Attributes:
        counts: values in each of `_BINS` equal steps from `low` to `high`.
        odd: NaN and infinities.
        sizes: the least and the largest length of each ragged axis.
    """

    counts: tuple[int, ...]
    low: float | None
    high: float | None
    mean: float | None
    odd: int
    sizes: tuple[tuple[int, int], ...]


def samples_measured(manifest: Manifest) -> int:
    """How many samples the spreads of a dataset are of."""
    raw = sum(column.raw for column in manifest.columns.values())
    mean = max(raw / max(manifest.samples, 1), 1)
    return min(manifest.samples, _SAMPLES, max(1, int(_BYTES / mean)))


def spread(field: FieldSpec, samples: Sequence[Sample]) -> Spread:
    """Return the spread of one field; complex numbers by their absolute values, of text the size alone."""
    values = [sample.values[field.name] for sample in samples]
    if field.kind == "text":
        lengths = [len(text.encode()) for text in values]
        return Spread((), None, None, None, 0, ((min(lengths), max(lengths)),))
    shapes = [np.shape(value) for value in values]
    sizes = tuple((min(s[a] for s in shapes), max(s[a] for s in shapes)) for a in field.ragged_axes)
    flat = np.concatenate([real(np.asarray(value)).reshape(-1).astype(np.float64) for value in values])
    finite = flat[np.isfinite(flat)]
    odd = len(flat) - len(finite)
    if not len(finite):
        return Spread((), None, None, None, odd, sizes)
    low, high = float(finite.min()), float(finite.max())
    mean = float(np.mean(finite / 2)) * 2
    if low == high or not math.isfinite(high - low):
        return Spread((), low, high, mean, odd, sizes)
    counts, _ = np.histogram(finite, _BINS, (low, high))
    return Spread(tuple(counts.tolist()), low, high, mean, odd, sizes)


STYLE = """
body { font: 14px system-ui, sans-serif; margin: 2em; color: #222; background: #fff; }
table { border-collapse: collapse; margin: 1em 0; }
td, th { padding: .2em .8em .2em 0; text-align: left; border-bottom: 1px solid #ddd; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
input { font: inherit; padding: .3em; width: 20em; }
#samples { display: flex; flex-wrap: wrap; gap: 1em; margin-top: 1em; }
.sample { border: 1px solid #ddd; border-radius: 6px; padding: .6em; }
.sample h3 { margin: 0 0 .5em; font-size: 14px; max-width: 30em; overflow-wrap: anywhere; }
.cells { display: flex; gap: .6em; align-items: flex-end; flex-wrap: wrap; }
figure { margin: 0; }
figcaption { color: #666; font-size: 11px; }
img { height: 140px; image-rendering: pixelated; display: block; }
canvas { border: 1px solid #eee; cursor: grab; touch-action: none; display: block; }
pre { max-width: 24em; max-height: 140px; overflow: auto; margin: 0; white-space: pre-wrap; font-size: 12px; }
svg { display: block; }
.hidden { display: none; }
"""

SCRIPT = """
"use strict";
function bytes(text) { return Uint8Array.from(atob(text), c => c.charCodeAt(0)); }
function draw(canvas) {
  const { points, colours, count, turn, rise } = canvas.cloud, size = canvas.width;
  const context = canvas.getContext("2d"), image = context.createImageData(size, size);
  image.data.fill(255);
  const depths = new Float32Array(size * size).fill(-Infinity);
  const st = Math.sin(turn), ct = Math.cos(turn), sr = Math.sin(rise), cr = Math.cos(rise);
  const dot = count < 6000 ? 2 : 1;
  for (let i = 0; i < count; i++) {
    const x = points[3 * i], y = points[3 * i + 1], z = points[3 * i + 2];
    const right = -st * x + ct * y, up = -sr * (ct * x + st * y) + cr * z, near = cr * (ct * x + st * y) + sr * z;
    const u = Math.round((right * 0.48 + 0.5) * (size - 1)), v = Math.round((0.5 - up * 0.48) * (size - 1));
    for (let a = u; a < u + dot; a++) for (let b = v; b < v + dot; b++) {
      if (a < 0 || b < 0 || a >= size || b >= size || near < depths[b * size + a]) continue;
      depths[b * size + a] = near;
      for (let c = 0; c < 3; c++) image.data[4 * (b * size + a) + c] = colours[3 * i + c];
    }
  }
  context.putImageData(image, 0, 0);
}
for (const canvas of document.querySelectorAll("canvas")) {
  const points = new Float32Array(bytes(canvas.dataset.points).buffer);
  canvas.cloud = { points, colours: bytes(canvas.dataset.colours), count: points.length / 3, turn: -1, rise: 0.45 };
  draw(canvas);
  let held = null;
  canvas.addEventListener("pointerdown", e => {
    held = [e.clientX, e.clientY];
    canvas.setPointerCapture(e.pointerId);
  });
  canvas.addEventListener("pointerup", () => { held = null; });
  canvas.addEventListener("pointermove", e => {
    if (!held) return;
    canvas.cloud.turn -= (e.clientX - held[0]) / 80;
    canvas.cloud.rise = Math.max(-1.57, Math.min(1.57, canvas.cloud.rise + (e.clientY - held[1]) / 80));
    held = [e.clientX, e.clientY];
    draw(canvas);
  });
}
const search = document.getElementById("search");
search.addEventListener("input", () => {
  const wanted = search.value.toLowerCase();
  let shown = 0;
  for (const sample of document.querySelectorAll(".sample")) {
    const hide = !sample.dataset.name.toLowerCase().includes(wanted);
    sample.classList.toggle("hidden", hide);
    shown += !hide;
  }
  document.getElementById("found").textContent = shown + " shown";
});
"""
