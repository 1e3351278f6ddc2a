"""Statistics of a packed dataset's values, per field and channel, to normalise the input of a model with.

found = statistics("div2k.packed")
found["lr"].channels[0].mean
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.format import Field, FieldSpec, FieldStats, Manifest, ValueStats
from packer.format import manifest as manifests
from packer.packing import LocalPlace, changing_dataset
from packer.sources import PackedSource, Progress, block_bytes, count

#: A last axis longer than this is not taken for channels.
MAX_CHANNELS = 1024
#: Values that are summed at a time: few enough for the processor's cache.
_PIECE = 2**16

#: Count, mean and sum of squared deviations, of one set of values or of several: (channels,) each.
Moments = tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]


def statistics(
    dataset: str | os.PathLike[str], progress: Progress | None = None, fields: Sequence[str] | None = None
) -> dict[str, FieldStats]:
    """Return the statistics of every field of numbers, from one pass; text and complex numbers have none.

    Counts and extremes are exact; mean and standard deviation are as exact as float64 allows.

    Args:
        fields: names of the fields to read; all by default.
        progress: called with the samples and raw bytes done since the last call.

    Raises:
        DatasetError: there is no packed dataset, or it is damaged.
        UsageError: there is no such field.
    """
    folder = Path(dataset)
    manifest = manifests.read(folder)
    chosen = manifest.fields if fields is None else [manifest.field(name) for name in fields]
    moments_of = {field.name: _FieldMoments(field) for field in chosen if has_statistics(field)}
    for block in _blocks(folder, manifest, chosen):
        for name, moments in moments_of.items():
            moments.add(block[name])
        if progress:
            progress(count(block), block_bytes(block))
    return {name: moments.result() for name, moments in moments_of.items()}


def has_statistics(field: FieldSpec) -> bool:
    """Return whether a field has statistics: text and complex numbers have no order."""
    return field.kind != "text" and field.np_dtype.kind != "c"


def save(dataset: str | os.PathLike[str], stats: dict[str, FieldStats]) -> None:
    """Keep statistics in the manifest, in one rename.

    Raises:
        DatasetError: there is no packed dataset.
        UsageError: the dataset has changed since they were taken, or something else is changing it.
        WriteError: the folder cannot be written.
    """
    folder = Path(dataset)
    with changing_dataset(LocalPlace(folder)) as (change, manifest):
        try:
            # Which compares them with the sizes of the columns.
            with_stats = msgspec.structs.replace(manifest, stats=stats)
        except ValueError as error:
            raise UsageError(f"{folder}: the dataset has changed since its statistics were taken: {error}") from None
        change.publish(with_stats)
        change.tidy()


class _FieldMoments:
    """Counts, extremes, mean and sum of squared deviations of each channel of a field, block by block."""

    def __init__(self, field: FieldSpec) -> None:
        last = field.shape[-1] if field.shape else None
        self._has_channels = last is not None and 0 < last <= MAX_CHANNELS
        self._channels = last or 1 if self._has_channels else 1
        self._moments: Moments = (
            np.zeros(self._channels, np.int64),
            np.zeros(self._channels),
            np.zeros(self._channels),
        )
        self._nan, self._inf = np.zeros((2, self._channels), np.int64)
        self._low: list[int | float] = [math.inf] * self._channels
        self._high: list[int | float] = [-math.inf] * self._channels

    def add(self, values: NDArray[Any] | list[NDArray[Any]]) -> None:
        """Take in samples as a block holds them."""
        parts = [values] if isinstance(values, np.ndarray) else values
        if not parts:
            return
        rows = np.concatenate([part.reshape(-1, self._channels) for part in parts])
        if rows.dtype == np.bool_:
            rows = rows.view(np.uint8)
        step = max(1, _PIECE // self._channels)
        for start in range(0, len(rows), step):
            # One channel after the other: numpy sums along the last axis far faster than across three values.
            self._add_piece(np.ascontiguousarray(rows[start : start + step].T))

    def _add_piece(self, values: NDArray[Any]) -> None:
        """Take in `values`, (channels, n)."""
        x = values.astype(np.float64)
        count = np.full(len(x), x.shape[1])
        low, high = values, values
        finite = np.isfinite(x) if values.dtype.kind == "f" else None
        if finite is not None and not finite.all():
            count = np.count_nonzero(finite, axis=1)
            nan = np.count_nonzero(np.isnan(x), axis=1)
            self._nan += nan
            self._inf += x.shape[1] - count - nan
            low, high, x = (np.where(finite, values, instead) for instead in (np.inf, -np.inf, 0.0))
            x = x.astype(np.float64)
        self._low = list(map(min, self._low, low.min(axis=1).tolist()))
        self._high = list(map(max, self._high, high.max(axis=1).tolist()))
        with np.errstate(over="ignore", invalid="ignore"):
            mean = x.sum(axis=1) / np.maximum(count, 1)
            x -= mean[:, None]
            if finite is not None:
                x[~finite] = 0
            self._moments = _joined(self._moments, (count, mean, np.einsum("cn,cn->c", x, x)))

    def result(self) -> FieldStats:
        channels = [self._stats(slice(n, n + 1)) for n in range(self._channels)] if self._has_channels else []
        return FieldStats(all=self._stats(slice(None)), channels=tuple(channels))

    def _stats(self, which: slice) -> ValueStats:
        """Return the statistics of some channels together."""
        with np.errstate(over="ignore", invalid="ignore"):
            each = zip(*(part[which, None] for part in self._moments), strict=True)
            count, mean, squares = (moment.item() for moment in reduce(_joined, each))
        return ValueStats(
            count=count,
            nan=int(self._nan[which].sum()),
            inf=int(self._inf[which].sum()),
            min=min(self._low[which]) if count else None,
            max=max(self._high[which]) if count else None,
            mean=mean if count and math.isfinite(mean) else None,
            std=math.sqrt(squares / count) if count and math.isfinite(squares) else None,
        )


def _joined(one: Moments, other: Moments) -> Moments:
    """Return the moments of two sets of values together, by the update of Chan, Golub and LeVeque (1979)."""
    (n, mean, squares), (m, other_mean, other_squares) = one, other
    total = np.maximum(n + m, 1)
    delta = other_mean - mean
    # In this order: the square of a large difference may overflow, but must count 0 times if a set has no values.
    return n + m, mean + delta * (m / total), squares + other_squares + delta * (delta * (n / total * m))


def _blocks(folder: Path, manifest: Manifest, fields: Sequence[Field]) -> Iterator[dict[str, Any]]:
    """Yield all samples in blocks, shard by shard, so that memory does not grow with their number."""
    columns = [(manifest.fields.index(field), field) for field in fields]
    source = PackedSource(str(folder), manifest.shards, columns, np.arange(manifest.samples), None, {})
    first = 0
    for entry in manifest.shards:
        yield from source.part(first, first + entry.samples).read()
        first += entry.samples
