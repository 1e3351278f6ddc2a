"""A packed dataset as a source: in its own order or in another, to be packed again or exported.

    source = open_packed("div2k.packed", seed=7)

Every frame's checksum is compared before its samples are handed out, so that damage is never packed anew.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.format import manifest as manifests
from packer.format.manifest import Manifest, ShardEntry
from packer.format.schema import Field, FieldSpec
from packer.format.shard import Shard
from packer.sources.base import Block, Source
from packer.sources.packed.shards import PackedShards

#: Raw bytes that a block holds at most, unless one sample is larger.
BLOCK_BYTES = 8 * 2**20


def open_packed(
    dataset: str | os.PathLike[str], fields: Sequence[str] | None = None, seed: int | None = None
) -> PackedSource:
    """The samples of a packed dataset.

    Args:
        fields: names of the fields to read, in order; None for all.
        seed: shuffles the samples; None keeps their order.

    Raises:
        DatasetError: there is no packed dataset, or it is damaged.
        UsageError: it has no such field.
    """
    folder = Path(dataset)
    manifest = manifests.read(folder)
    names = read_names(folder, manifest)
    numbers: range | NDArray[np.int64] = range(manifest.samples)
    origin = manifest.origin
    if seed is not None:
        numbers = shuffled_order(manifest.samples, seed)
        names = None if names is None else [names[number] for number in numbers.tolist()]
        origin = {"kind": origin.get("kind", "packed"), "shuffled": seed, "origin": origin}
    return PackedSource(str(folder), manifest.shards, _chosen(manifest, fields), numbers, names, origin)


def shuffled_order(samples: int, seed: int) -> NDArray[np.int64]:
    """Numbers of the samples in the order that `seed` gives, (samples,).

    Sorted by raw 64-bit numbers: numpy keeps those the same for ever, which it does not promise of `permutation`.
    """
    return np.argsort(np.random.PCG64(seed).random_raw(samples), kind="stable")


def read_names(folder: Path, manifest: Manifest) -> list[str] | None:
    """Name of every sample, as the shards have them; None where samples have none.

    Raises:
        DamagedError: a shard cannot be read.
    """
    if manifest.names is None:
        return None
    names: list[str] = []
    for entry in manifest.shards:
        with Shard(folder / entry.file, entry.bytes) as shard:
            names += [name.decode() for name in shard.names(entry.samples)]
    return names


class PackedSource(Source):
    """Some samples of a packed dataset; made by `open_packed`.

    Args:
        folder: the dataset.
        shards: all its shards.
        columns: position in the dataset's schema, and the field, of every field to read.
        numbers: numbers of the samples in the dataset.
        names: their names.
        origin: where the dataset came from.
    """

    kind = "packed"

    def __init__(
        self,
        folder: str,
        shards: Sequence[ShardEntry],
        columns: Sequence[tuple[int, Field]],
        numbers: range | NDArray[np.int64],
        names: Sequence[str] | None,
        origin: dict[str, Any],
    ) -> None:
        self.folder = folder
        self.shards = tuple(shards)
        self.columns = tuple(columns)
        self.fields: tuple[FieldSpec, ...] = tuple(field.spec for _, field in columns)
        self.numbers = numbers
        self.names = names
        self.origin = origin

    def __len__(self) -> int:
        return len(self.numbers)

    def shapes(self, field: str) -> NDArray[np.int64] | None:
        position, stored = next((p, f) for p, f in self.columns if f.name == field)
        with PackedShards(self.folder, self.shards) as shards:
            return shards.shapes(position, stored, self._numbers(0, len(self)))

    def part(self, start: int, stop: int) -> PackedSource:
        names = None if self.names is None else self.names[start:stop]
        return PackedSource(self.folder, self.shards, self.columns, self.numbers[start:stop], names, {})

    def read(self) -> Iterator[Block]:
        """See `Source.read`.

        Raises:
            DamagedError: a frame is not what it was when it was written.
        """
        with PackedShards(self.folder, self.shards) as shards:
            for start, stop in self._runs(shards):
                numbers = self._numbers(start, stop)
                yield {f.name: _values(f, shards.take(position, f, numbers)) for position, f in self.columns}

    def files(self) -> list[str]:
        return [str(Path(self.folder) / entry.file) for entry in self.shards]

    def provenance(self) -> dict[str, Any]:
        return self.origin

    def _numbers(self, start: int, stop: int) -> NDArray[np.int64]:
        some = self.numbers[start:stop]
        return np.arange(some.start, some.stop) if isinstance(some, range) else some

    def _runs(self, shards: PackedShards) -> Iterator[tuple[int, int]]:
        """Samples start..stop of every block."""
        numbers = self._numbers(0, len(self))
        sizes = np.zeros(len(self), np.int64)
        for position, field in self.columns:
            sizes += shards.shapes(position, field, numbers).prod(axis=1, dtype=np.int64) * field.itemsize
        ends = np.cumsum(sizes)
        start = 0
        while start < len(self):
            before = int(ends[start - 1]) if start else 0
            stop = max(start + 1, int(ends.searchsorted(before + BLOCK_BYTES, side="right")))
            yield start, stop
            start = stop


def _values(field: Field, values: NDArray[Any] | list[NDArray[Any]]) -> Any:
    """What a block holds: text as str, all else as it is."""
    return [value.tobytes().decode() for value in values] if field.kind == "text" else values


def _chosen(manifest: Manifest, fields: Sequence[str] | None) -> list[tuple[int, Field]]:
    held = {field.name: (position, field) for position, field in enumerate(manifest.fields)}
    unknown = [name for name in fields or () if name not in held]
    if unknown:
        raise UsageError(f"the dataset has no field {unknown[0]!r}; it has {', '.join(held)}")
    return list(held.values()) if fields is None else [held[name] for name in fields]
