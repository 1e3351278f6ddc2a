"""Clouds of 500 to 20,000 points, each of another size: xyz float32 and rgb uint8, in batches of 16.

And scenes of 3D Gaussians, whose 62 properties are seven fields, or 58 if numbered ones are packed one by one.
"""

from __future__ import annotations

import numpy as np
import torch

from benchmark.inputs import clouds, splats
from benchmark.loops import Batches, loader_side
from benchmark.measuring import Bench, Figures, checksum, epochs, row

BATCH = 16
LIMIT = "the limit: slices in RAM, joined"


@row("clouds, none, batch 16, Loader", LIMIT, at_least=0.65, codec="none")
@row("clouds, bitshuffle, batch 16, Loader", LIMIT, at_least=0.35, codec="bitshuffle")
def against_limit(bench: Bench, codec: str) -> Figures:
    """Against slices of two arrays in RAM, joined into one a field."""
    fields = bench.arrays(clouds)
    xyz, rgb, edges = fields["xyz"], fields["rgb"], fields["offsets"].tolist()
    samples = len(edges) - 1

    def batches() -> Batches:
        order = torch.randperm(samples).tolist()
        for at in range(0, samples, BATCH):
            places = [(edges[i], edges[i + 1]) for i in order[at : at + BATCH]]
            yield [np.concatenate([values[a:b] for a, b in places]) for values in (xyz, rgb)]

    ours = loader_side(bench.packed(clouds, codec=codec), BATCH, [xyz, rgb])
    return bench.race(ours, epochs("slices", batches, samples, checksum([xyz, rgb])))


@row("3D Gaussians, none, batch 4, numbered properties as one field", "a field each", at_least=2.5)
def gaussians(bench: Bench) -> Figures:
    """What a scene is read with: seven fields of its points, or 58."""
    sides = []
    for grouped, name in ((True, "seven fields"), (False, "58 fields")):
        fields = [values for name, values in bench.arrays(splats, grouped).items() if name != "offsets"]
        sides.append(loader_side(bench.packed(splats, grouped), 4, fields, name))
    return bench.race(*sides)
