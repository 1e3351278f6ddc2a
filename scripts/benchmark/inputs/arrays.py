"""Makes the samples as arrays in memory, from seeds and shipped data, and hands arrays to packer as sources."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from inputs.pictures import SCALE, photographs
from numpy.typing import NDArray

from benchmark.inputs.store import Store
from packer.format.schema import FieldSpec, Kind
from packer.sources.base import Block, Source

COLUMNS = 33
COLD_BYTES = 48_000
#: A walk of this step looks like a slowly changing measurement: bitshuffle gains a few percent on it.
_STEP = 0.01
#: Metres. Points of a scanner lie on no grid; with this, bitshuffle makes them 1.3 times smaller, without it 2.5.
_NOISE = np.float32(0.05)

Arrays = dict[str, NDArray[Any]]


#: Raw bytes of a block, about.
_BLOCK_BYTES = 8 * 2**20


def rows(store: Store, n: int) -> Arrays:
    """`x` (n, 33) float32, a random walk a column; `y` (n,) int64, their numbers."""

    def make() -> Arrays:
        x = np.random.default_rng(0).standard_normal((n, COLUMNS), dtype=np.float32)
        x *= _STEP
        return {"x": np.cumsum(x, axis=0, out=x), "y": np.arange(n, dtype=np.int64)}

    return _kept(store, f"rows-{n}", make)


def tiny_rows(store: Store, n: int) -> Arrays:
    """`x` (n,) float32: rows so small that only what a reader needs for each sample counts."""
    return _kept(store, f"tiny-{n}", lambda: {"x": np.arange(n, dtype=np.float32)})


def pairs(store: Store, size: int, n: int) -> Arrays:
    """`lr` (n, size / 4, size / 4, 3) and `hr` (n, size, size, 3) uint8, cut from photographs."""

    def make() -> Arrays:
        hr = _patches(size, n, np.random.default_rng(1))
        small = size // SCALE
        # The mean of each square of pixels: fast, and as smooth as any other way to make a picture smaller.
        lr = hr.reshape(n, small, SCALE, small, SCALE, 3).mean(axis=(2, 4), dtype=np.float32).astype(np.uint8)
        return {"lr": lr, "hr": hr}

    return _kept(store, f"pairs{size}-{n}", make)


def clouds(store: Store, n: int) -> Arrays:
    """Points of all clouds, `xyz` (m, 3) float32 and `rgb` (m, 3) uint8, and where each begins, `offsets` (n + 1,)."""

    def make() -> Arrays:
        rng = np.random.default_rng(2)
        offsets = np.concatenate([[0], np.cumsum(rng.integers(500, 20_001, n))])
        xyz, rgb = terrain()
        at = np.arange(offsets[-1]) % len(xyz)
        noise = rng.standard_normal((len(at), 3), dtype=np.float32) * _NOISE
        return {"xyz": xyz[at] + noise, "rgb": rgb[at], "offsets": offsets}

    return _kept(store, f"clouds-{n}", make)


def splats(store: Store, n: int, grouped: bool) -> Arrays:
    """3D Gaussians, 62 float32 each, 500 to 5,000 a scene: in seven fields, or with a field a numbered property."""

    def make() -> Arrays:
        rng = np.random.default_rng(5)
        offsets = np.concatenate([[0], np.cumsum(rng.integers(500, 5_001, n))])
        held: Arrays = {"offsets": offsets}
        for name, width in {"xyz": 3, "normal": 3, "f_dc": 3, "f_rest": 45, "opacity": 1, "scale": 3, "rot": 4}.items():
            values = rng.standard_normal((offsets[-1], width), dtype=np.float32)
            if width == 1 or (not grouped and name not in ("xyz", "normal")):
                columns = np.ascontiguousarray(values.T)
                held |= {f"{name}_{i}" if width > 1 else name: column for i, column in enumerate(columns)}
            else:
                held[name] = values
        return held

    return _kept(store, f"splats-{n}-{'grouped' if grouped else 'apart'}", make)


def cold(store: Store, n: int) -> Path:
    """A .npy file of `x` (n, 48,000) uint8; not loaded."""

    def make(path: Path) -> None:
        with path.open("wb") as file:
            np.save(file, np.random.default_rng(3).integers(0, 256, (n, COLD_BYTES), dtype=np.uint8))

    return store.made(f"cold-{n}.npy", make)


def terrain() -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """Measured elevations as points, (m, 3) float32 in metres, and their colours by height, (m, 3) uint8."""
    from inputs.clouds import elevation_grids  # here, because matplotlib takes a second to import

    xyz = np.concatenate([grid.reshape(-1, 3) for grid in elevation_grids()])
    height = (xyz[:, 2] - xyz[:, 2].min()) / np.ptp(xyz[:, 2]) * 255
    rgb = np.stack([height, 255 - height, height // 2], axis=1).astype(np.uint8)
    return xyz, rgb


def _patches(size: int, n: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    pictures = [np.asarray(picture) for _, picture in photographs()]
    out = np.empty((n, size, size, 3), np.uint8)
    for i in range(n):
        picture = pictures[i % len(pictures)]
        top = rng.integers(0, picture.shape[0] - size + 1)
        left = rng.integers(0, picture.shape[1] - size + 1)
        out[i] = picture[top : top + size, left : left + size]
    return out


def _kept(store: Store, name: str, make: Callable[[], Arrays]) -> Arrays:
    def write(folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        for field, values in make().items():
            np.save(folder / f"{field}.npy", values)

    return _loaded(store.made(name, write))


@lru_cache(maxsize=1)
def _loaded(folder: Path) -> Arrays:
    """One set is held at a time: rows that use the same one stand together."""
    return {file.stem: np.load(file) for file in sorted(folder.glob("*.npy"))}


class ArraySource(Source):
    """Samples start..stop of arrays that share their first axis, or, with `offsets`, of ragged ones.

    Fields whose samples have three axes are images.

    Args:
        arrays: by field, (n, ...); with offsets (m, ...), the samples one behind another.
        offsets: where each sample begins, and the end of the last, (n + 1,).
    """

    kind = "arrays"
    names = None

    def __init__(
        self,
        arrays: Mapping[str, NDArray[Any]],
        offsets: NDArray[np.int64] | None = None,
        start: int = 0,
        stop: int | None = None,
    ) -> None:
        self._arrays = dict(arrays)
        self._offsets = offsets
        self._start = start
        count = len(next(iter(arrays.values()))) if offsets is None else len(offsets) - 1
        self._stop = count if stop is None else stop
        self.fields = tuple(_spec(name, values, offsets is not None) for name, values in arrays.items())

    def __len__(self) -> int:
        return self._stop - self._start

    def shapes(self, field: str) -> NDArray[np.int64] | None:
        if self._offsets is None:
            return None
        return np.diff(self._offsets[self._start : self._stop + 1])[:, None]

    def part(self, start: int, stop: int) -> Source:
        return ArraySource(self._arrays, self._offsets, self._start + start, self._start + stop)

    def files(self) -> list[str]:
        return []

    def read(self) -> Iterator[Block]:
        held = sum(values.nbytes for values in self._arrays.values())
        count = len(next(iter(self._arrays.values()))) if self._offsets is None else len(self._offsets) - 1
        step = max(1, _BLOCK_BYTES * count // max(held, 1))
        for first in range(self._start, self._stop, step):
            last = min(first + step, self._stop)
            yield {name: self._cut(values, first, last) for name, values in self._arrays.items()}

    def _cut(self, values: NDArray[Any], first: int, last: int) -> NDArray[Any] | list[NDArray[Any]]:
        if self._offsets is None:
            return values[first:last]
        edges = self._offsets[first : last + 1].tolist()
        return [values[a:b] for a, b in itertools.pairwise(edges)]


def _spec(name: str, values: NDArray[Any], is_ragged: bool) -> FieldSpec:
    shape = (None, *values.shape[1:]) if is_ragged else values.shape[1:]
    kind: Kind = "image" if len(shape) == 3 else "array"
    return FieldSpec(name=name, dtype=values.dtype.name, kind=kind, shape=shape)
