"""Writes a page of samples in one file: `show.html`, with the data of the samples put into it as JSON.

The template next to this module draws everything. Names and texts of the dataset enter the page as JSON alone, and the
template sets them as text, so none of them is ever taken for HTML.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from packer.cli.info import describe, facts
from packer.cli.show_views import Values, View, choose_views, draw_cell, real
from packer.cli.summary import field_texts, sizes_texts
from packer.cli.text import count_text, size_text
from packer.errors import UsageError
from packer.format import Field, FieldSpec, Manifest

if TYPE_CHECKING:
    from readers import PackedDataset

_TEMPLATE = Path(__file__).with_name("show.html")
#: The place of the data in the template.
_GAP = '{"the data":"of the page"}'
_HEADS = ("field", "kind", "dtype", "shape", "codec", "raw", "stored", "ratio", "min", "mean", "max", "not finite")
_BINS = 48
#: Fields of up to this many channels have a spread for each.
_MOST_CHANNELS = 8
#: Samples whose values are measured for the spreads, at most, and their raw bytes: read in a second or two.
_SAMPLES, _BYTES = 1000, 32 * 2**20
#: Values of one sample that are measured: of more, evenly spread ones.
_MOST_VALUES = 2**24


def chosen_numbers(dataset: PackedDataset, count: int, names: Sequence[str] = ()) -> list[int]:
    """Return the numbers of the samples of these names, or else of `count`, evenly spread.

    Raises:
        UsageError: names are asked for, and samples have none.
        MissingNameError: no sample has one of the names.
        DamagedError: the table of names cannot be read.
    """
    if names and dataset.names is None:
        raise UsageError("the samples have no names, so --names finds none; take --samples")
    count = min(count, len(dataset))
    numbers = dataset.numbers(names) if names else np.linspace(0, len(dataset) - 1, count).round()
    return [int(number) for number in numbers]


def write_page(
    path: Path,
    dataset: PackedDataset,
    address: str,
    numbers: Sequence[int],
    limit: int,
    advance: Callable[[int, int], None],
) -> int:
    """Write the page: one file, which asks for no other. Return how many samples it holds.

    Args:
        address: where the dataset is: its folder or URL.
        numbers: of the samples to show, in their order.
        limit: bytes that the samples may take in the page; if they take more, some are omitted at random.
        advance: called with 1 and the bytes of each sample that is done.
    """
    manifest = dataset.manifest
    mean_bytes = max(manifest.raw_bytes / max(manifest.samples, 1), 1)
    measured_numbers = chosen_numbers(dataset, min(_SAMPLES, int(_BYTES / mean_bytes) or 1))
    measured_samples = [_read(dataset, number) for number in measured_numbers]
    all_views = choose_views(list(dataset.fields.values()), measured_samples)
    items = _items(dataset, numbers, all_views, limit, advance)
    are_all = len(measured_samples) == manifest.samples
    document = {
        "title": address.rstrip("/").rpartition("/")[2],
        "about": _about(dataset, len(items)),
        "measured": "all samples" if are_all else f"{count_text(len(measured_samples), 'sample')}, evenly chosen",
        **_field_table(dataset, measured_samples),
        "facts": facts(describe(address)),
        "shards": [[shard.file, f"{shard.samples:,}", size_text(shard.bytes)] for shard in manifest.shards],
        "splits": list(manifest.splits),
        "classes": manifest.classes,
        "views": [{"kind": view.kind, "field": view.field} for view in all_views],
    }
    before, after = _TEMPLATE.read_text("utf-8").split(_GAP)
    with path.open("w", encoding="utf-8") as file:
        file.write(f'{before}{_json(document)[:-1]},"items":[')
        file.write(",".join(items))
        file.write(f"]}}{after}")
    return len(items)


def _items(
    dataset: PackedDataset,
    numbers: Sequence[int],
    all_views: Sequence[View],
    limit: int,
    advance: Callable[[int, int], None],
) -> list[str]:
    """Return what the page has of each sample, in their order; `limit` and `advance` as for `write_page`."""
    manifest = dataset.manifest
    splits = [set(np.intersect1d(manifest.split(name), numbers).tolist()) for name in manifest.splits]
    items: dict[int, str] = {}
    bytes_left = limit
    for index in np.random.default_rng(0).permutation(len(numbers)).tolist():
        number = numbers[index]
        item = _item(dataset, number, all_views, [n for n, members in enumerate(splits) if number in members])
        bytes_left -= len(item)
        if bytes_left < 0 and items:
            break
        items[index] = item
        advance(1, len(item))
    return [items[index] for index in sorted(items)]


def _read(dataset: PackedDataset, number: int) -> Values:
    """Return the values of a sample by field: images as (H, W, C), text as str."""
    sample = dict(dataset[number])
    for name, field in dataset.fields.items():
        if field.kind != "text":
            sample[name] = (sample[name].permute(1, 2, 0) if field.kind == "image" else sample[name]).numpy()
    return sample


def _json(document: Any) -> str:
    """Return JSON in ASCII that no parser of HTML takes for a tag."""
    return json.dumps(document, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _item(dataset: PackedDataset, number: int, all_views: Sequence[View], splits: Sequence[int]) -> str:
    """Return what the page has of a sample; `splits` are the places of its splits among all."""
    values = _read(dataset, number)
    classes, label = len(dataset.manifest.classes), values.get("label", -1)
    is_class = classes > 0 and np.ndim(label) == 0 and 0 <= int(label) < classes
    document = {
        "number": number,
        "name": None if dataset.names is None else dataset.names[number],
        "class": int(label) if is_class else None,
        "splits": splits,
        "cells": [draw_cell(view, values) for view in all_views],
    }
    return _json(document)


def _about(dataset: PackedDataset, samples: int) -> str:
    manifest = dataset.manifest
    size = f"{size_text(manifest.file_bytes)} for {size_text(manifest.raw_bytes)} of arrays"
    shards = count_text(len(manifest.shards), "shard")
    all_of_them = "all are in this page" if samples == manifest.samples else f"{samples:,} of them are in this page"
    large = [field.name for field in manifest.fields if field.name not in dataset.fields]
    omitted = f"; too large to draw: {', '.join(large)}" if large else ""
    return f"{count_text(manifest.samples, 'sample')} in {shards}, {size}; {all_of_them}{omitted}"


def _field_table(dataset: PackedDataset, samples: Sequence[Values]) -> dict[str, Any]:
    """Return the table of fields: its heads, and for each field its cells and the spread of some samples."""
    fields = list(dataset.fields.values())
    spreads = [measure_spread(field, samples) for field in fields]
    # NaN and infinities are rare: without any, their column is omitted.
    heads = _HEADS if any(spread.not_finite for spread in spreads) else _HEADS[:-1]
    rows = [
        {"cells": _row(dataset.manifest, field, spread)[: len(heads)], "counts": spread.counts}
        for field, spread in zip(fields, spreads, strict=True)
    ]
    return {"heads": heads, "fields": rows}


def _row(manifest: Manifest, field: Field, field_spread: Spread) -> list[str]:
    """Return the row of a field in the table."""
    cells = [*field_texts(field), *sizes_texts(manifest.columns)[field.name]]
    if field_spread.sizes:
        cells[3] += "; any is " + ", ".join(f"{low} to {high}" for low, high in field_spread.sizes)
    cells += ["" if n is None else f"{n:.5g}" for n in (field_spread.low, field_spread.mean, field_spread.high)]
    return [*cells, f"{field_spread.not_finite:,}" if field_spread.not_finite else ""]


class Spread(NamedTuple):
    """The spread of the finite values of some samples; extremes and mean are None if there are none.

    Attributes:
        sizes: the least and the largest length of each ragged axis.
        not_finite: NaN and infinities.
        counts: for each channel, values in equal steps from `low` to `high`; a field without channels has one.
    """

    sizes: tuple[tuple[int, int], ...]
    not_finite: int = 0
    low: float | None = None
    high: float | None = None
    mean: float | None = None
    counts: tuple[tuple[int, ...], ...] = ()


def measure_spread(field: FieldSpec, samples: Sequence[Values]) -> Spread:
    """Return the spread of one field; complex numbers by their absolute values, of text the size alone."""
    values = [sample[field.name] for sample in samples]
    if field.kind == "text":
        lengths = [len(text.encode()) for text in values]
        return Spread(((min(lengths), max(lengths)),))
    shapes = [np.shape(value) for value in values]
    sizes = tuple((min(s[a] for s in shapes), max(s[a] for s in shapes)) for a in field.ragged_axes)
    last = field.shape[-1] if len(field.shape) > 1 else None
    channels = last if last and last <= _MOST_CHANNELS else 1
    rows = [real(np.asarray(value)).reshape(-1, channels) for value in values]
    values_by_channel = np.concatenate([part[:: 1 + part.size // _MOST_VALUES] for part in rows]).astype(np.float64)
    finite = np.isfinite(values_by_channel)
    not_finite = int(values_by_channel.size - finite.sum())
    if not finite.any():
        return Spread(sizes, not_finite)
    low, high = float(values_by_channel[finite].min()), float(values_by_channel[finite].max())
    mean = float(np.mean(values_by_channel[finite] / 2)) * 2
    if low == high or not math.isfinite(high - low):
        return Spread(sizes, not_finite, low, high, mean)
    # A bar for each of a few whole numbers.
    is_few = np.dtype(str(field.dtype)).kind in "uib" and high - low < _BINS
    bins, edges = (int(high - low) + 1, (low - 0.5, high + 0.5)) if is_few else (_BINS, (low, high))
    counts = (np.histogram(values_by_channel[finite[:, n], n], bins, edges)[0] for n in range(channels))
    return Spread(sizes, not_finite, low, high, mean, tuple(tuple(c.tolist()) for c in counts))
