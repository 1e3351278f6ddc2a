"""Clouds of 500 to 20,000 points, each of another size: xyz float32 and rgb uint8, in batches of 16."""

from __future__ import annotations

import numpy as np
import torch

from benchmark.inputs import arrays, packed
from benchmark.loops import Batches, loader_side, total
from benchmark.measuring import Bench, Figures, Side, epochs, row

BATCH = 16
LIMIT = "the limit: slices in RAM, joined"


def _joined(bench: Bench) -> Side:
    """Slices of two arrays in RAM, joined into one a field."""
    fields = arrays.clouds(bench.store, bench.sizes.clouds)
    xyz, rgb, edges = fields["xyz"], fields["rgb"], fields["offsets"].tolist()
    samples = len(edges) - 1

    def batches() -> Batches:
        order = torch.randperm(samples).tolist()
        for at in range(0, samples, BATCH):
            places = [(edges[i], edges[i + 1]) for i in order[at : at + BATCH]]
            yield [np.concatenate([values[a:b] for a, b in places]) for values in (xyz, rgb)]

    return epochs("slices", batches, samples, total([xyz, rgb]))


def _against_limit(bench: Bench, codec: str) -> Figures:
    fields = arrays.clouds(bench.store, bench.sizes.clouds)
    path = packed.clouds(bench.store, bench.sizes.clouds, codec)
    ours = loader_side(path, BATCH, total([fields["xyz"], fields["rgb"]]))
    return bench.race(ours, _joined(bench))


@row("clouds, none, batch 16, Loader", against=LIMIT, at_least=0.65)
def raw(bench: Bench) -> Figures:
    """Uncompressed."""
    return _against_limit(bench, "none")


@row("clouds, bitshuffle, batch 16, Loader", against=LIMIT, at_least=0.35)
def bitshuffle(bench: Bench) -> Figures:
    """Compressed."""
    return _against_limit(bench, "bitshuffle")
