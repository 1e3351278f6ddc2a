"""Statistics of a packed dataset's values, per field and channel, to normalise the input of a model with.

stats = statistics("div2k.packed")
stats["lr"].channels[0].mean

To share the work among machines, each calls `statistics_part("div2k.packed", "3/400")`, which writes a report into
the dataset. Then `statistics("div2k.packed", reports=part_reports("div2k.packed"))` joins the reports, and reads the
shards that have none.
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

from packer.errors import ChangedMeanwhileError, UsageError
from packer.format import Field, FieldSpec, FieldStats, Manifest, ValueStats
from packer.format import manifest as manifests
from packer.packing import Contents, PartReports, changing_dataset, conclude, part_shards, place_of, utc_now
from packer.sources import PackedSource, block_bytes, count
from packer.watcher import NOBODY, READING, Watcher

#: A last axis longer than this is not taken for channels.
MAX_CHANNELS = 1024
#: Values that are summed at a time: few enough for the processor's cache.
_PIECE_VALUES = 2**16

#: Count, mean and sum of squared deviations, of one set of values or of several: (channels,) each.
_Sums = tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]


class Moments(msgspec.Struct, frozen=True):
    """Statistics of the values of a field in one shard. Each attribute is a list with an entry for each channel.

    Attributes:
        count, mean, squares: of the finite values; `squares` is the sum of their squared deviations from the mean.
        nan, inf: how many values are NaN, and how many are infinite.
        low, high: extremes; infinite if there is no finite value.
    """

    count: list[int]
    mean: list[float]
    squares: list[float]
    nan: list[int]
    inf: list[int]
    low: list[int | float]
    high: list[int | float]


def part_reports(dataset: str | os.PathLike[str]) -> PartReports:
    """Return the reports of parts that lie in a packed dataset, which may be at a URL."""
    return PartReports(place_of(dataset), "stats", dict[str, Moments])


def statistics_part(
    dataset: str | os.PathLike[str],
    part: str,
    watcher: Watcher = NOBODY,
    fields: Sequence[str] | None = None,
    reports: PartReports | None = None,
) -> None:
    """Read every n-th shard, and write a report of its values.

    Args:
        dataset: a folder that holds at least the shards of the part.
        part: "3/400" reads the third of each 400 shards; "0/400" is the last of them, for jobs that count from 0.
        watcher, fields: as for `statistics`, which is to be called with the same fields.
        reports: where the report goes; by default into the dataset.

    Raises:
        UsageError: there is no such field or part.
        WriteError: the report cannot be written.
        DatasetError: there is no packed dataset, or it is damaged.
    """
    folder, start_time = Path(dataset), utc_now()
    reports = reports or part_reports(folder)
    reports.begin()
    manifest = manifests.read(folder)
    chosen_fields = _choose_fields(manifest, fields)
    numbers = part_shards(part, len(manifest.shards))
    watcher.step(READING, 0, sum(manifest.shards[number].samples for number in numbers))
    moments = {number: _shard_moments(folder, manifest, number, chosen_fields, watcher) for number in numbers}
    reports.write(manifest, part, start_time, moments)


def statistics(
    dataset: str | os.PathLike[str],
    watcher: Watcher = NOBODY,
    fields: Sequence[str] | None = None,
    reports: PartReports | None = None,
) -> dict[str, FieldStats]:
    """Return the statistics of every field of numbers, from one pass; text and complex numbers have none.

    Counts and extremes are exact; mean and standard deviation are as exact as float64 allows.

    Args:
        fields: names of the fields to read; all by default.
        watcher: its step is `reading`, in samples.
        reports: of parts that read the same fields. Shards that have a report are not read again, so `dataset` need
            not hold them. The result is the same.

    Raises:
        DatasetError: there is no packed dataset, or it is damaged.
        UsageError: there is no such field, or parts read other fields.
    """
    folder = Path(dataset)
    manifest = manifests.read(folder)
    chosen_fields = _choose_fields(manifest, fields)
    part_results = {} if reports is None else reports.join(manifest).results
    totals = {field.name: _FieldMoments(field) for field in chosen_fields}
    samples_left = [entry.samples for number, entry in enumerate(manifest.shards) if number not in part_results]
    watcher.step(READING, 0, sum(samples_left))
    for number in range(len(manifest.shards)):
        moments = part_results.get(number) or _shard_moments(folder, manifest, number, chosen_fields, watcher)
        if lacking := totals.keys() - moments.keys():
            raise UsageError(
                f"{folder}: parts have read only {', '.join(moments)}, and not {min(lacking)}; give all calls the same "
                "--fields, or run the parts again"
            )
        for name, total in totals.items():
            total.join(moments[name])
    return {name: total.result() for name, total in totals.items()}


def _choose_fields(manifest: Manifest, fields: Sequence[str] | None) -> list[Field]:
    """Return the fields of these names that have statistics; None stands for all names."""
    chosen = manifest.fields if fields is None else [manifest.field(name) for name in fields]
    return [field for field in chosen if has_statistics(field)]


def _shard_moments(
    folder: Path, manifest: Manifest, number: int, fields: Sequence[Field], watcher: Watcher
) -> dict[str, Moments]:
    """Return the statistics of each field in one shard. It is read in blocks, so that memory does not grow."""
    entry = manifest.shards[number]
    columns = [(manifest.fields.index(field), field) for field in fields]
    source = PackedSource(str(folder), [entry], columns, np.arange(entry.samples), None, {})
    totals = {field.name: _FieldMoments(field) for field in fields}
    blocks: Iterator[dict[str, Any]] = source.read() if fields else iter(())
    for block in blocks:
        for name, total in totals.items():
            total.add(block[name])
        watcher.done(count(block), block_bytes(block))
    return {name: total.moments() for name, total in totals.items()}


def has_statistics(field: FieldSpec) -> bool:
    """Return whether a field has statistics: text and complex numbers have no order."""
    return field.kind != "text" and field.np_dtype.kind != "c"


def save(dataset: str | os.PathLike[str], stats: dict[str, FieldStats], manifest_read: Manifest | None = None) -> None:
    """Keep statistics in the manifest of a dataset, which may be at a URL, in one rename.

    Args:
        manifest_read: the manifest of the dataset that the statistics are of; None for whatever is there now.

    Raises:
        DatasetError: there is no packed dataset.
        ChangedMeanwhileError: the dataset has changed since its statistics were computed.
        UsageError: these cannot be its statistics, or another process is changing it.
        WriteError: the folder cannot be written.
    """
    place = place_of(dataset)
    with changing_dataset(place) as (change, manifest):
        if manifest_read not in (None, manifest):
            raise ChangedMeanwhileError.at(place)
        try:
            # The manifest compares the statistics with the sizes of its columns.
            with_stats = msgspec.structs.replace(manifest, stats=stats)
        except ValueError as error:
            raise UsageError(f"{place}: the dataset has changed since its statistics were taken: {error}") from None
        conclude(change, Contents(manifest=with_stats), [manifest])


class _FieldMoments:
    """Counts, extremes, mean and sum of squared deviations of each channel of a field, block by block."""

    def __init__(self, field: FieldSpec) -> None:
        last_axis = field.shape[-1] if field.shape else None
        self._has_channels = last_axis is not None and 0 < last_axis <= MAX_CHANNELS
        self._channels = last_axis or 1 if self._has_channels else 1
        self._sums: _Sums = (
            np.zeros(self._channels, np.int64),
            np.zeros(self._channels),
            np.zeros(self._channels),
        )
        self._nan, self._inf = np.zeros((2, self._channels), np.int64)
        self._low: list[int | float] = [math.inf] * self._channels
        self._high: list[int | float] = [-math.inf] * self._channels

    def add(self, values: NDArray[Any] | list[NDArray[Any]]) -> None:
        """Add the samples of a block."""
        parts = [values] if isinstance(values, np.ndarray) else values
        if not parts:
            return
        rows = np.concatenate([part.reshape(-1, self._channels) for part in parts])
        if rows.dtype == np.bool_:
            rows = rows.view(np.uint8)
        step = max(1, _PIECE_VALUES // self._channels)
        for start in range(0, len(rows), step):
            # One channel after the other: numpy sums along the last axis far faster than across three values.
            self._add_piece(np.ascontiguousarray(rows[start : start + step].T))

    def _add_piece(self, values: NDArray[Any]) -> None:
        """Add `values`, (channels, n)."""
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
            self._sums = _join_sums(self._sums, (count, mean, np.einsum("cn,cn->c", x, x)))

    def moments(self) -> Moments:
        """Return the statistics of all values added so far."""
        count, mean, squares, nan, inf = (array.tolist() for array in (*self._sums, self._nan, self._inf))
        return Moments(count, mean, squares, nan, inf, self._low, self._high)

    def join(self, other: Moments) -> None:
        """Add the statistics of a shard."""
        count, mean, squares = (np.array(sums) for sums in (other.count, other.mean, other.squares))
        with np.errstate(over="ignore", invalid="ignore"):
            self._sums = _join_sums(self._sums, (count, mean, squares))
        self._nan += other.nan
        self._inf += other.inf
        self._low, self._high = list(map(min, self._low, other.low)), list(map(max, self._high, other.high))

    def result(self) -> FieldStats:
        channels = [self._stats(slice(n, n + 1)) for n in range(self._channels)] if self._has_channels else []
        return FieldStats(all=self._stats(slice(None)), channels=tuple(channels))

    def _stats(self, channels: slice) -> ValueStats:
        """Return the statistics of some channels together."""
        with np.errstate(over="ignore", invalid="ignore"):
            sums = zip(*(part[channels, None] for part in self._sums), strict=True)
            count, mean, squares = (moment.item() for moment in reduce(_join_sums, sums))
        return ValueStats(
            count=count,
            nan=int(self._nan[channels].sum()),
            inf=int(self._inf[channels].sum()),
            min=min(self._low[channels]) if count else None,
            max=max(self._high[channels]) if count else None,
            mean=mean if count and math.isfinite(mean) else None,
            std=math.sqrt(squares / count) if count and math.isfinite(squares) else None,
        )


def _join_sums(first: _Sums, other: _Sums) -> _Sums:
    """Return the sums of two sets of values together, by the update of Chan, Golub and LeVeque (1979)."""
    (n, mean, squares), (m, other_mean, other_squares) = first, other
    total = np.maximum(n + m, 1)
    delta = other_mean - mean
    # In this order: the square of a large difference may overflow, but must count 0 times if a set has no values.
    return n + m, mean + delta * (m / total), squares + other_squares + delta * (delta * (n / total * m))
