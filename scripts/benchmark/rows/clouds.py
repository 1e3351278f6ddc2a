"""Clouds of 500 to 20,000 points, each of another size: xyz float32 and rgb uint8, in batches of 16.

And scenes of 3D Gaussians, whose 62 properties are seven fields, or 58 if numbered ones are packed one by one.
"""

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


@row("3D Gaussians, none, batch 4, numbered properties as one field", against="a field each", at_least=2.5)
def splats(bench: Bench) -> Figures:
    """What a scene is read with: seven fields of its points, or 58."""
    grouped, apart = (_splats(bench, grouped) for grouped in (True, False))
    return bench.race(grouped, apart)


def _splats(bench: Bench, grouped: bool) -> Side:
    fields = arrays.splats(bench.store, bench.sizes.splats, grouped)
    expected = total([values for name, values in fields.items() if name != "offsets"])
    path = packed.splats(bench.store, bench.sizes.splats, grouped)
    return loader_side(path, 4, expected, "seven fields" if grouped else "58 fields")
