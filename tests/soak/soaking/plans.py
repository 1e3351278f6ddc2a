"""Random datasets, whose planned sizes are compared with their files, to the byte."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from copy import copy
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from packer.convert import convert
from packer.format import FieldSpec
from packer.packing import estimate, make_plan
from packer.sources import Block, Source, joined

_DTYPES = ("uint8", "int16", "float32", "float64")
_BLOCK_BYTES = 2**20


class RandomSource(Source):
    """A dataset with fields, shapes and names drawn from a seed; its values are made while they are read.

    One to four fields, fixed or ragged, of up to some megabytes a sample; from one sample to tens of thousands.
    """

    kind = "random"
    names: Sequence[str] | None = None

    def __init__(self, seed: int, most_bytes: int) -> None:
        rng = np.random.default_rng(seed)
        # Drawn by logarithm: as many datasets have a few large samples as many small ones.
        count = int(2 ** rng.uniform(0, 15))
        numbers = max(1, int(2 ** rng.uniform(0, np.log2(most_bytes / 8 / count))))
        self.fields = tuple(_field(rng, n, numbers) for n in range(int(rng.integers(1, 5))))
        self._shapes = {spec.name: _shapes(rng, spec, count, numbers) for spec in self.fields}
        if rng.integers(0, 2):
            self.names = [f"{'x' * int(extra)}{number}" for number, extra in enumerate(rng.integers(0, 60, count))]

    def __len__(self) -> int:
        return len(self._shapes["f0"])

    def shapes(self, field: str) -> NDArray[np.int64] | None:
        return self._shapes[field]

    def slice(self, start: int, stop: int) -> Source:
        part = copy(self)
        part._shapes = {name: shapes[start:stop] for name, shapes in self._shapes.items()}
        part.names = self.names and self.names[start:stop]
        return part

    def files(self) -> list[str]:
        return []

    def read(self) -> Iterator[Block]:
        shapes = [self._shapes[spec.name].tolist() for spec in self.fields]
        samples = (
            {spec.name: np.ones(shape, spec.dtype) for spec, shape in zip(self.fields, sample, strict=True)}
            for sample in zip(*shapes, strict=True)
        )
        return joined(samples, self.fields, _BLOCK_BYTES)


def _field(rng: np.random.Generator, number: int, numbers: int) -> FieldSpec:
    """Return a field of about `numbers` numbers a sample, in up to three axes."""
    shape: list[int | None] = []
    for _ in range(int(rng.integers(0, 3))):
        length = int(2 ** rng.uniform(0, np.log2(max(2, numbers))))
        numbers = max(1, numbers // length)
        shape.append(length)
    if rng.integers(0, 3):
        shape.append(None if rng.integers(0, 2) else numbers)
    return FieldSpec(name=f"f{number}", dtype=str(rng.choice(_DTYPES)), shape=tuple(shape))


def _shapes(rng: np.random.Generator, spec: FieldSpec, count: int, numbers: int) -> NDArray[np.int64]:
    """Return the shape of every sample, (count, axes)."""
    most = max(2, 2 * numbers // max(1, int(np.prod([n for n in spec.shape if n is not None]))))
    axes = [rng.integers(0, most, count) if n is None else np.full(count, n) for n in spec.shape]
    return np.stack(axes, axis=1) if axes else np.empty((count, 0), np.int64)


def trial(folder: Path, seed: int, most_bytes: int = 150 * 10**6) -> str:
    """Make the dataset of a seed without codecs, and compare its files with the plan; return its number of shards.

    Args:
        most_bytes: raw bytes of a field, about.
    """
    shard_size = int(2 ** np.random.default_rng((seed, 1)).uniform(12, np.log2(most_bytes)))
    source, out = RandomSource(seed, most_bytes), folder / str(seed)
    report = convert(source, out, codec="none", shard_size=shard_size, workers=0)
    plan = make_plan(source, "none", shard_size)
    planned = [shard.file_bytes for shard in plan.shards]
    made = [shard.bytes for shard in report.manifest.shards]
    assert plan.exact, "the plan does not claim to be exact"
    assert planned == made, f"planned {planned}, made {made}"
    on_disk = {path.name: path.stat().st_size for path in out.rglob("*.lmdb")}
    assert sum(on_disk.values()) == estimate(plan).file_bytes, f"{on_disk}"
    assert any(name.startswith("names-") for name in on_disk) == (source.names is not None)
    shutil.rmtree(out)
    return f"of {'1 shard' if len(made) == 1 else '2 to 9 shards' if len(made) < 10 else '10 shards and more'}"
