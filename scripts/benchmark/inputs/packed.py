"""The arrays as packed datasets, in memory as `packer warm` leaves them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmark.inputs import arrays
from benchmark.inputs.arrays import ArraySource
from benchmark.inputs.store import Store
from packer.convert import convert
from packer.warm import warm


def rows(store: Store, n: int, codec: str = "none", shards: int = 1) -> Path:
    """Rows of 33 float32 and a label."""

    def make(path: Path) -> None:
        _pack(ArraySource(arrays.rows(store, n)), path, codec, shards)

    return store.made(f"rows-{n}-{codec}-{shards}.packed", make, packed=True)


def tiny_rows(store: Store, n: int, shards: int) -> Path:
    """Rows of one float32."""

    def make(path: Path) -> None:
        _pack(ArraySource(arrays.tiny_rows(store, n)), path, "none", shards)

    return store.made(f"tiny-{n}-{shards}.packed", make, packed=True)


def pairs(store: Store, size: int, n: int, codec: str, first: int | None = None) -> Path:
    """Pairs of images: the `first` of the `n`, or all of them."""

    def make(path: Path) -> None:
        samples = {name: values[:first] for name, values in arrays.pairs(store, size, n).items()}
        _pack(ArraySource(samples), path, codec)

    return store.made(f"pairs{size}-{n}-{first or n}-{codec}.packed", make, packed=True)


def clouds(store: Store, n: int, codec: str) -> Path:
    """Clouds of points, each of another size."""

    def make(path: Path) -> None:
        fields = dict(arrays.clouds(store, n))
        offsets = fields.pop("offsets")
        _pack(ArraySource(fields, offsets), path, codec)

    return store.made(f"clouds-{n}-{codec}.packed", make, packed=True)


def splats(store: Store, n: int, grouped: bool) -> Path:
    """Scenes of 3D Gaussians."""

    def make(path: Path) -> None:
        fields = dict(arrays.splats(store, n, grouped))
        offsets = fields.pop("offsets")
        _pack(ArraySource(fields, offsets), path, "none")

    return store.made(f"splats-{n}-{'grouped' if grouped else 'apart'}.packed", make, packed=True)


def cold(store: Store, n: int) -> Path:
    """Samples of 48 kB."""

    def make(path: Path) -> None:
        _pack(ArraySource({"x": np.load(arrays.cold(store, n), mmap_mode="r")}), path, "none")

    return store.made(f"cold-{n}.packed", make, packed=True)


def _pack(source: ArraySource, path: Path, codec: str, shards: int = 1) -> None:
    total = sum(spec.fixed_bytes for spec in source.fields) * len(source)
    size = max(-(-total // shards), 4096) if shards > 1 else None
    convert(source, path, codec=codec, shard_size=size, workers=0, overwrite=True)
    warm(path)
