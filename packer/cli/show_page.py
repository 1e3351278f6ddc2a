"""Writes a page of samples in one file: `show.html`, with the data of the samples put into it as JSON.

The template next to this module draws everything. This module prepares the data: pictures as PNG, points as int16,
curves as float32, in base64. Names and texts of the dataset enter the page as JSON alone, and the template sets them as
text, so none of them is ever taken for HTML.
"""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from packer.cli.info import describe, facts
from packer.cli.show_views import (
    Sample,
    SampleReader,
    View,
    chosen_numbers,
    first_matrix,
    pixels,
    real,
    size_of,
    stretched,
    value_text,
    views,
)
from packer.cli.summary import field_texts, sizes_texts
from packer.cli.text import counted, size_text
from packer.format import Field, FieldSpec, Manifest

if TYPE_CHECKING:
    from readers import PackedDataset

_TEMPLATE = Path(__file__).with_name("show.html")
#: The place of the data in the template.
_GAP = '{"the data":"of the page"}'
_HEADS = ("field", "kind", "dtype", "shape", "codec", "raw", "stored", "ratio", "min", "mean", "max", "not finite")

#: Pixels of the longer side of a picture, and of a frame of a clip: larger ones are made smaller.
_MOST_PIXELS, _MOST_CLIP_PIXELS = 1024, 160
#: Frames of a clip, steps of a curve, letters of a text: of more, evenly spread ones, or the first.
_MOST_FRAMES, _MOST_STEPS, _MOST_LETTERS = 48, 400, 20_000
#: Seconds that a clip takes to play, about, and frames a second at least and at most.
_CLIP_SECONDS, _SLOWEST, _FASTEST = 4, 2, 24
#: Points of a cloud: more take seconds and hide each other.
_MOST_POINTS = 20_000
#: Colours from low to high: viridis.
_LOW_TO_HIGH = np.array([[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]]) / 255
#: Shards that are listed.
_MOST_SHARDS = 500
_BINS = 48
#: Channels that have a spread of their own.
_MOST_CHANNELS = 8
#: Samples whose values are measured for the spreads, at most, and their raw bytes: read in a second or two.
_SAMPLES, _BYTES = 1000, 32 * 2**20


def write_page(
    path: Path, dataset: PackedDataset, numbers: Sequence[int], limit: int, advance: Callable[[int, int], None]
) -> int:
    """Write the page: one file, which asks for no other. Return how many samples it holds.

    Args:
        numbers: of the samples to show, in their order.
        limit: bytes that the samples may take in the page; if they take more, some are left out, evenly.
        advance: called with 1 and the bytes of each sample that is done.
    """
    manifest, read = dataset.manifest, SampleReader(dataset)
    mean = max(manifest.raw_bytes / max(manifest.samples, 1), 1)
    measured = [read(number) for number in chosen_numbers(dataset, min(_SAMPLES, max(1, int(_BYTES / mean))))]
    shown = views(manifest.fields, measured)
    splits = {name: set(np.intersect1d(manifest.split(name), numbers).tolist()) for name in manifest.splits}
    items: dict[int, str] = {}
    room = limit
    for place in _spread_out(len(numbers)):
        items[place] = _item(read(numbers[place]), shown, splits, len(manifest.classes))
        room -= len(items[place])
        advance(1, len(items[place]))
        if room < 0 and len(items) > 1:
            del items[place]
            break
    spreads = [spread(field, measured) for field in manifest.fields]
    # What is not finite is rare: no column of it if there is none.
    heads = _HEADS if any(one.odd for one in spreads) else _HEADS[:-1]
    rows = [_field(manifest, field, one)[: len(heads)] for field, one in zip(manifest.fields, spreads, strict=True)]
    head = {
        "title": dataset.path.resolve().name,
        "about": _about(manifest, len(items)),
        "heads": heads,
        "measured": "all samples"
        if len(measured) == manifest.samples
        else f"{counted(len(measured), 'sample')}, evenly chosen",
        "fields": [{"cells": row, "counts": one.counts} for row, one in zip(rows, spreads, strict=True)],
        "facts": facts(describe(str(dataset.path))),
        "shards": _shards(manifest),
        "splits": list(splits),
        "classes": manifest.classes,
        "views": [{"kind": view.kind, "field": view.field} for view in shown],
    }
    before, after = _TEMPLATE.read_text("utf-8").split(_GAP)
    with path.open("w", encoding="utf-8") as file:
        file.write(f'{before}{_json(head)[:-1]},"items":[')
        file.write(",".join(items[place] for place in sorted(items)))
        file.write(f"]}}{after}")
    return len(items)


def _json(document: Any) -> str:
    """Return JSON in ASCII that no parser of HTML takes for a tag."""
    return json.dumps(document, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _spread_out(count: int) -> Iterable[int]:
    """Return the numbers below `count` in an order of which every beginning is spread over all of them."""
    bits = max(count - 1, 0).bit_length()
    turned = (int(f"{number:0{bits}b}"[::-1], 2) for number in range(2**bits))
    return (number for number in turned if number < count)


def _about(manifest: Manifest, shown: int) -> str:
    size = f"{size_text(manifest.file_bytes)} for {size_text(manifest.raw_bytes)} of arrays"
    shards = counted(len(manifest.shards), "shard")
    all_of_them = "all are in this page" if shown == manifest.samples else f"{shown:,} of them are in this page"
    return f"{counted(manifest.samples, 'sample')} in {shards}, {size}; {all_of_them}"


def _shards(manifest: Manifest) -> list[list[str]]:
    rows = [[s.file, f"{s.samples:,}", size_text(s.bytes)] for s in manifest.shards[:_MOST_SHARDS]]
    more = len(manifest.shards) - len(rows)
    return [*rows, [f"... and {more:,} more", "", ""]] if more else rows


def _field(manifest: Manifest, field: Field, found: Spread) -> list[str]:
    """Return the row of a field in the table."""
    cells = [*field_texts(field), *sizes_texts(manifest.columns)[field.name]]
    if found.sizes:
        cells[3] += "; any is " + ", ".join(f"{low} to {high}" for low, high in found.sizes)
    cells += ["" if n is None else f"{n:.5g}" for n in (found.low, found.mean, found.high)]
    return [*cells, f"{found.odd:,}" if found.odd else ""]


def _item(sample: Sample, shown: Sequence[View], splits: dict[str, set[int]], classes: int) -> str:
    label = sample.values.get("label", -1)
    document = {
        "number": sample.number,
        "name": sample.name,
        "class": int(label) if classes and np.ndim(label) == 0 and 0 <= int(label) < classes else None,
        "splits": [at for at, numbers in enumerate(splits.values()) if sample.number in numbers],
        "cells": [cell(view, sample) for view in shown],
    }
    return _json(document)


def cell(view: View, sample: Sample) -> str | dict[str, Any]:
    """Return what the page draws of one view of a sample: a text for a value, else its data and a `text` of its size.

    `text` alone says that there is nothing to draw.
    """
    values = sample.values[view.field]
    if view.kind == "value":
        return value_text(values)
    if view.kind == "text":
        return {"text": size_of(view, sample), "letters": values[:_MOST_LETTERS]}
    if view.kind == "cloud":
        drawn = _cloud(view, sample)
    elif view.kind == "grid":
        drawn = _picture(first_matrix(values)[:, :, None])
    else:
        drawn = {"curves": _curves, "clip": _clip, "image": _picture}[view.kind](values)
    shape = sample.shapes.get(view.field)
    if drawn and shape and shape[0] > len(values):
        drawn["note"] = ", ".join(filter(None, [f"{len(values):,} rows of it", drawn.get("note")]))
        if view.kind == "image" or (len(shape) == 2 and "size" in drawn):
            drawn.update(size=shape[:2], exact=False)  # in its own proportions
    return {"text": size_of(view, sample), **drawn}


def _picture(values: NDArray[Any]) -> dict[str, Any]:
    if not values.size:
        return {}
    height, width, channels = values.shape
    picture = Image.fromarray(pixels(values))
    picture.thumbnail((_MOST_PIXELS, _MOST_PIXELS))
    whole = picture.size == (width, height)
    return {
        "png": _png(picture),
        "size": [height, width],
        "channels": 3 if channels > 2 else 1,
        "exact": whole and values.dtype == np.uint8,
        "note": "" if whole else f"shown as {picture.height} x {picture.width}",
    }


def _clip(values: NDArray[Any]) -> dict[str, Any]:
    """Draw frames (T, H, W, C), or slices (T, H, W), below each other in one picture, with one brightness for all."""
    if not values.size:
        return {}
    frames = values if values.ndim == 4 else values[..., None]
    steps, height, width, channels = frames.shape
    kept = np.linspace(0, steps - 1, min(steps, _MOST_FRAMES)).round().astype(np.int64)
    # Rows left out before anything else is done: a volume may be larger than all else in the page.
    stride = max(1, max(height, width) // (2 * _MOST_CLIP_PIXELS))
    some = frames[kept][:, ::stride, ::stride]
    strip = Image.fromarray(pixels(some.reshape(-1, some.shape[2], channels)))
    share = min(1.0, _MOST_CLIP_PIXELS / max(some.shape[1:3]))
    if share < 1:
        tall, wide = (max(1, round(n * share)) for n in some.shape[1:3])
        strip = strip.resize((wide, tall * len(kept)), Image.Resampling.BOX)
    whole = len(kept) == steps and stride == 1 and share == 1
    return {
        "png": _png(strip),
        "frames": len(kept),
        "speed": min(_FASTEST, max(_SLOWEST, len(kept) / _CLIP_SECONDS)),
        "note": "" if whole else f"shown as {len(kept)} frames of {strip.height // len(kept)} x {strip.width}",
    }


def _cloud(view: View, sample: Sample) -> dict[str, Any]:
    """Draw evenly spread points, the same ones whenever the page is made; points that are not finite are left out."""
    points = real(sample.values[view.field])[:, :3].astype(np.float64)
    kept = np.flatnonzero(np.isfinite(points).all(axis=1))
    if not len(kept):
        return {}
    kept = kept[np.linspace(0, len(kept) - 1, min(len(kept), _MOST_POINTS)).astype(np.int64)]
    whole, points, colour = len(kept) == len(points), points[kept], view.colour
    if colour is not None and len(sample.values[colour]) != len(sample.values[view.field]):
        colour = None  # not a value for each point of this one
    colours = _colours(points[:, 2] if colour is None else real(sample.values[colour])[kept])
    middle = (points.min(axis=0) + points.max(axis=0)) / 2
    reach = float(np.linalg.norm(points - middle, axis=1).max()) or 1.0
    places = ((points - middle) / reach * 32767).round().astype("<i2")
    by = f"coloured by {colour or 'height'}"
    return {
        "points": _base64(places.tobytes()),
        "colours": _base64((colours * 255).round().astype(np.uint8).tobytes()),
        "note": by if whole else f"{len(points):,} of them shown, {by}",
    }


def _colours(values: NDArray[Any]) -> NDArray[np.float64]:
    """Return colours within 0 to 1, (n, 3): of `values`, (n, 3) or (n, 4), themselves; of (n,), from low to high."""
    if values.ndim == 2:
        wide = np.nan_to_num(values.astype(np.float64), posinf=0.0, neginf=0.0)[:, :3]
        top = np.iinfo(values.dtype).max if values.dtype.kind in "ui" else max(1.0, float(wide.max(initial=0)))
        return np.asarray((wide / top).clip(0, 1))
    shares, steps = np.nan_to_num(stretched(values)), np.linspace(0, 1, len(_LOW_TO_HIGH))
    return np.stack([np.interp(shares, steps, tone) for tone in _LOW_TO_HIGH.T], axis=1)


def _curves(values: NDArray[Any]) -> dict[str, Any]:
    """Return shares from 0 to 1 between the least and the largest finite value, one curve for each column."""
    if not values.size:
        return {}
    columns = real(values).reshape(len(values), -1)
    finite = columns[np.isfinite(columns)]
    if not finite.size:
        return {}
    at = np.unique(np.linspace(0, len(columns) - 1, min(len(columns), _MOST_STEPS)).astype(np.int64))
    return {
        "values": _base64(stretched(columns)[at].astype("<f4").tobytes()),
        "columns": columns.shape[1],
        "low": f"{float(finite.min()):.6g}",
        "high": f"{float(finite.max()):.6g}",
    }


def _png(picture: Any) -> str:
    file = io.BytesIO()
    picture.save(file, "png", compress_level=4)
    return _base64(file.getvalue())


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


class Spread(NamedTuple):
    """The spread of the finite values of some samples; extremes and mean are None if there are none.

    Attributes:
        sizes: the least and the largest length of each ragged axis.
        odd: NaN and infinities.
        counts: for each channel, values in equal steps from `low` to `high`; a field without channels has one.
    """

    sizes: tuple[tuple[int, int], ...]
    odd: int = 0
    low: float | None = None
    high: float | None = None
    mean: float | None = None
    counts: tuple[tuple[int, ...], ...] = ()


def spread(field: FieldSpec, samples: Sequence[Sample]) -> Spread:
    """Return the spread of one field; complex numbers by their absolute values, of text the size alone."""
    values = [sample.values[field.name] for sample in samples]
    if field.kind == "text":
        lengths = [len(text.encode()) for text in values]
        return Spread(((min(lengths), max(lengths)),))
    shapes = [np.shape(value) for value in values]
    sizes = tuple((min(s[a] for s in shapes), max(s[a] for s in shapes)) for a in field.ragged_axes)
    last = field.shape[-1] if len(field.shape) > 1 else None
    channels = last if last and last <= _MOST_CHANNELS else 1
    flat = np.concatenate([real(np.asarray(value)).reshape(-1, channels) for value in values]).astype(np.float64)
    finite = np.isfinite(flat)
    odd = int(flat.size - finite.sum())
    if not finite.any():
        return Spread(sizes, odd)
    low, high = float(flat[finite].min()), float(flat[finite].max())
    mean = float(np.mean(flat[finite] / 2)) * 2
    if low == high or not math.isfinite(high - low):
        return Spread(sizes, odd, low, high, mean)
    # A bar for each of a few whole numbers.
    few = np.dtype(str(field.dtype)).kind in "uib" and high - low < _BINS
    bins, edges = (int(high - low) + 1, (low - 0.5, high + 0.5)) if few else (_BINS, (low, high))
    counts = (np.histogram(flat[finite[:, n], n], bins, edges)[0] for n in range(channels))
    return Spread(sizes, odd, low, high, mean, tuple(tuple(c.tolist()) for c in counts))
