"""How the values of a field are spread over samples: over all of a small dataset, over some of a large one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from packer.cli.showing.pixels import real
from packer.cli.showing.samples import Sample
from packer.format.manifest import Manifest
from packer.format.schema import FieldSpec

_BINS = 48
#: Samples that spreads are of, at most, and their raw bytes: what is read in a second or two.
_SAMPLES, _BYTES = 1000, 128 * 2**20


@dataclass(frozen=True)
class Spread:
    """Of the finite values of some samples; extremes and mean are None where there is none.

    Attributes:
        counts: values in each of `_BINS` equal steps from `low` to `high`.
        odd: NaN and infinities.
        sizes: the least and the largest length of each ragged axis.
    """

    counts: tuple[int, ...]
    low: float | None
    high: float | None
    mean: float | None
    odd: int
    sizes: tuple[tuple[int, int], ...]


def samples_measured(manifest: Manifest) -> int:
    """How many samples the spreads of a dataset are of."""
    raw = sum(column.raw for column in manifest.columns.values())
    mean = max(raw / max(manifest.samples, 1), 1)
    return min(manifest.samples, _SAMPLES, max(1, int(_BYTES / mean)))


def spread(field: FieldSpec, samples: Sequence[Sample]) -> Spread:
    """The spread of one field; complex numbers by their absolute values, of text the size alone."""
    values = [sample.values[field.name] for sample in samples]
    if field.kind == "text":
        lengths = [len(text.encode()) for text in values]
        return Spread((), None, None, None, 0, ((min(lengths), max(lengths)),))
    shapes = [np.shape(value) for value in values]
    sizes = tuple((min(s[a] for s in shapes), max(s[a] for s in shapes)) for a in field.ragged_axes)
    flat = np.concatenate([real(np.asarray(value)).reshape(-1).astype(np.float64) for value in values])
    finite = flat[np.isfinite(flat)]
    odd = len(flat) - len(finite)
    if not len(finite):
        return Spread((), None, None, None, odd, sizes)
    low, high = float(finite.min()), float(finite.max())
    mean = float(np.mean(finite / 2)) * 2
    if low == high or not math.isfinite(high - low):
        return Spread((), low, high, mean, odd, sizes)
    counts, _ = np.histogram(finite, _BINS, (low, high))
    return Spread(tuple(counts.tolist()), low, high, mean, odd, sizes)
