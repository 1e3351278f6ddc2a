"""Clouds of 500 to 20,000 points, each of another size: xyz float32 and rgb uint8, in batches of 16."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from benchmark.inputs import clouds
from benchmark.loops import Values, as_tensors, in_ram, loader_side
from benchmark.measuring import Row, Side, checksum
from benchmark.store import Bench
from readers import PackedDataset, VoxelSample

BATCH = 16
#: Metres; about a point of four is left.
VOXEL = 200
LIMIT = "the limit: slices in RAM, joined"


@Row("clouds, none, batch 16, Loader", LIMIT, at_least=0.65, codec="none")
@Row("clouds, bitshuffle, batch 16, Loader", LIMIT, at_least=0.35, codec="bitshuffle")
def against_limit(bench: Bench, codec: str) -> list[Side]:
    """Compare with slices of two arrays in RAM, joined into one a field, with a tensor of each."""
    fields = bench.arrays(clouds)
    arrays, edges = (fields["xyz"], fields["rgb"]), fields["offsets"]
    places, expected = list(pairwise(edges.tolist())), checksum(arrays)

    def joined(numbers: Values, outs: Sequence[Values | None]) -> list[Values]:
        chosen = [places[i] for i in numbers.tolist()]
        rows = sum(stop - start for start, stop in chosen)
        return [
            np.concatenate([values[start:stop] for start, stop in chosen], out=None if out is None else out[:rows])
            for values, out in zip(arrays, outs, strict=True)
        ]

    ours = loader_side(PackedDataset(bench.packed(clouds, codec=codec)), BATCH, expected)
    most = BATCH * int(np.diff(edges).max())
    buffers = [np.zeros((most, 3), values.dtype) for values in arrays]
    return [ours, *as_tensors(len(places), BATCH, joined, buffers, expected)]


@Row("one point a voxel of each cloud, batch 16, Loader", "slices in RAM, hashed and sorted", at_least=3)
def voxels(bench: Bench) -> list[Side]:
    """Read one point of every voxel, against what Pointcept's GridSample does, of slices in RAM."""
    dataset = PackedDataset(bench.packed(clouds), points=VoxelSample(VOXEL))
    fields, rng = bench.arrays(clouds), np.random.default_rng(0)
    xyz, rgb, edges = fields["xyz"], fields["rgb"], fields["offsets"].tolist()

    def sampled(numbers: torch.Tensor) -> list[Values]:
        rows = [edges[i] + _one_a_cell(xyz[edges[i] : edges[i + 1]], rng) for i in numbers.tolist()]
        return [np.concatenate([values[chosen] for chosen in rows]) for values in (xyz, rgb)]

    return [loader_side(dataset, BATCH), in_ram("hash and sort", len(dataset), BATCH, sampled)]


def _one_a_cell(points: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.int64]:
    """Return a point of every cell, (m,): cells are hashed by FNV-1a, and the hashes sorted."""
    cells = np.floor(points / np.float64(VOXEL)).astype(np.int64)
    cells -= cells.min(axis=0)
    hashes = np.full(len(cells), 14695981039346656037, np.uint64)
    for column in cells.T.astype(np.uint64):
        hashes = (hashes * np.uint64(1099511628211)) ^ column
    order = np.argsort(hashes)
    counts = np.unique(hashes[order], return_inverse=True, return_counts=True)[2]
    chosen: NDArray[np.int64] = order[np.cumsum(counts) - counts + rng.integers(0, counts.max(), len(counts)) % counts]
    return chosen
