"""Statistics of a packed dataset's values, per field and channel: what a model's input is normalised with.

found = statistics("div2k.packed")
found["lr"].channels[0].mean
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError, WriteError
from packer.format import manifest as manifests
from packer.format.manifest import Manifest
from packer.format.schema import FieldSpec
from packer.format.statistics import FieldStats
from packer.moments import PIECE, Moments, moments
from packer.packing.dataset_lock import dataset_lock
from packer.packing.progress import Progress
from packer.sources.base import block_bytes, count
from packer.sources.packed.source import PackedSource

#: A last axis that is longer is no list of channels.
MAX_CHANNELS = 1024


def statistics(dataset: str | os.PathLike[str], progress: Progress | None = None) -> dict[str, FieldStats]:
    """Statistics of every field of numbers, from one pass over the dataset; text and complex numbers have none.

    Whole numbers are exact but for the last rounding of mean and standard deviation; the mean of floating-point
    ones is off by about the rounding of one number of float64.

    Args:
        progress: called with the samples and raw bytes done since the last call.

    Raises:
        DatasetError: there is no packed dataset, or it is damaged.
    """
    folder = Path(dataset)
    manifest = manifests.read(folder)
    found = {field.name: _FieldMoments(field) for field in manifest.fields if is_measured(field)}
    for block in _blocks(folder, manifest):
        for name, measured in found.items():
            measured.add(block[name])
        if progress:
            progress(count(block), block_bytes(block))
    return {name: measured.result() for name, measured in found.items()}


def save(dataset: str | os.PathLike[str], stats: dict[str, FieldStats]) -> None:
    """Keeps statistics in the manifest, in one rename.

    Raises:
        UsageError: they are not those of the dataset as it is now, or something else is changing it.
        WriteError: the folder cannot be written.
    """
    folder = Path(dataset)
    manifests.read(folder)  # where there is no dataset, no lock is made
    with dataset_lock(folder):
        _save(folder, manifests.read(folder), stats)


def _save(folder: Path, manifest: Manifest, stats: dict[str, FieldStats]) -> None:
    try:
        # By the constructor, which compares them with the sizes of the columns.
        kept = Manifest(**{**{n: getattr(manifest, n) for n in manifest.__struct_fields__}, "stats": stats})
    except ValueError as error:
        raise UsageError(f"{folder}: the dataset has changed since its statistics were taken: {error}") from None
    try:
        manifests.write(folder, kept)
    except OSError as error:
        raise WriteError(f"{folder}: cannot be written: {error.strerror or error}") from None


def kept_statistics(manifest: Manifest) -> dict[str, FieldStats] | None:
    """The statistics that a manifest keeps; None where it keeps none."""
    return None if isinstance(manifest.stats, msgspec.UnsetType) else manifest.stats


def is_measured(field: FieldSpec) -> bool:
    """Whether a field has statistics: it holds numbers that have an order."""
    return field.kind != "text" and field.np_dtype.kind != "c"


class _FieldMoments:
    """What is known of one field so far."""

    def __init__(self, field: FieldSpec) -> None:
        last = field.shape[-1] if field.shape else None
        self._has_channels = last is not None and 0 < last <= MAX_CHANNELS
        self._channels = last or 1 if self._has_channels else 1
        self._moments: Moments = moments(field.np_dtype, self._channels)

    def add(self, values: NDArray[Any] | list[NDArray[Any]]) -> None:
        """Takes in samples as a block holds them."""
        parts = [values] if isinstance(values, np.ndarray) else values
        if not parts:
            return
        rows = np.concatenate([part.reshape(-1, self._channels) for part in parts])
        if rows.dtype == np.bool_:
            rows = rows.view(np.uint8)
        step = max(1, PIECE // self._channels)
        for start in range(0, len(rows), step):
            # A channel behind the other: numpy sums along the last axis ten times faster than across three values.
            self._moments.add(np.ascontiguousarray(rows[start : start + step].T))

    def result(self) -> FieldStats:
        channels = range(self._channels if self._has_channels else 0)
        return FieldStats(all=self._moments.all(), channels=tuple(self._moments.channel(n) for n in channels))


def _blocks(folder: Path, manifest: Manifest) -> Iterator[dict[str, Any]]:
    """All samples in blocks, shard by shard, so that memory does not grow with their number."""
    columns = list(enumerate(manifest.fields))
    source = PackedSource(str(folder), manifest.shards, columns, range(manifest.samples), None, {})
    first = 0
    for entry in manifest.shards:
        yield from source.part(first, first + entry.samples).read()
        first += entry.samples
