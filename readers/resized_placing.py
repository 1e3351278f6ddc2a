"""Which region of each sample a `ResizedCrop` cuts out: drawn at random, or the middle.

Sides and corners of crops that are decoded at half, a quarter or an eighth of their size are multiples of 2, 4 or 8,
so that they lie on whole pixels of the smaller image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.format import Numbers
from readers.draws import RESIZED, Visits, draw_below, draw_words

#: Crops are drawn this many times at most; then the largest one in the middle is taken, as torchvision does it.
_TRIALS = 10
#: Random words of a visit: area and shape of each trial; row, column and mirroring of the crop.
_WORDS = 2 * _TRIALS + 3
#: How many times as small libjpeg decodes.
_FACTORS = (2, 4, 8)


@dataclass(frozen=True)
class ViewSet:
    """Some crops of every sample that have one size.

    Attributes:
        count: how many.
        shape: height and width of the results.
        scale: the least and the largest share of the sample's area.
    """

    count: int
    shape: tuple[int, int]
    scale: tuple[float, ...]


class Crops(NamedTuple):
    """The crops of n samples; with several views, of (n, views).

    Attributes:
        corners: first row and column of each, (n, 2).
        sides: height and width of each, (n, 2).
        factors: how many times as small it may be decoded, (n,).
        mirrored: whether it is mirrored, (n,).
    """

    corners: Numbers
    sides: Numbers
    factors: Numbers
    mirrored: NDArray[np.bool_]


@dataclass(frozen=True)
class ResizedPlacing:
    """The rules by which crops are placed.

    Attributes:
        sets: the crops of every sample by name; one set without a name if `views` is no dict.
        short: pixels of the shorter side of a sample whose middle is cut; None for random crops.
        views, ratio, flips, exact, seed: see `ResizedCrop`.
    """

    sets: Mapping[str, ViewSet]
    short: int | None
    views: int | Mapping[str, Sequence[Any]] | None
    ratio: Sequence[float]
    flips: bool
    exact: bool
    seed: int

    @property
    def shape(self) -> tuple[int, int]:
        """Return height and width of the result; of the first views, if they differ."""
        return next(iter(self.sets.values())).shape

    def resized_sides(self, sizes: Numbers) -> Numbers:
        """Return the heights and widths of samples, (n, 2), after the shorter one is resized to `short`."""
        assert self.short is not None, "random crops are cut before they are resized"
        short, least = self.short, sizes.min(axis=1, keepdims=True)
        return np.where(sizes == least, short, short * sizes // least)

    def place(self, sizes: Numbers, visits: Visits | None) -> Crops:
        """Return the crops of samples with heights and widths `sizes` (n, 2).

        With `views`, arrays have a second axis, of all crops of a sample: (n, views, ...).
        """
        if self.short is not None:
            zeros, short = np.zeros(len(sizes), np.int64), np.full((1, 2), self.short)
            return Crops(np.zeros_like(sizes), sizes, self._factors(sizes.min(axis=1, keepdims=True), short), zeros > 0)
        assert visits is not None, "random crops are drawn by their visits"
        sets, samples = self.sets.values(), len(sizes)
        counts = [views.count for views in sets]
        shapes, scales = (
            np.tile(np.repeat(values, counts, axis=0), (samples, 1))
            for values in ([views.shape for views in sets], [views.scale for views in sets])
        )
        sizes = np.repeat(sizes, sum(counts), axis=0)
        words = draw_words(visits, self.seed, RESIZED, _WORDS * sum(counts)).reshape(-1, _WORDS)
        sides = self._random_sides(sizes, scales, (words >> np.uint64(11)).astype(np.float64) * 2.0**-53)
        factors = self._factors(sides, shapes)
        pixel = factors[:, None]  # of the smaller image
        sides = np.minimum((sides + pixel // 2) // pixel, sizes // pixel) * pixel
        corners = draw_below(words[:, -3:-1], (sizes - sides) // pixel + 1) * pixel
        mirrored = (words[:, -1] >> np.uint64(63)).astype(bool) & self.flips
        if self.views is None:
            return Crops(corners, sides, factors, mirrored)
        many = samples, sum(counts)
        return Crops(corners.reshape(*many, 2), sides.reshape(*many, 2), factors.reshape(many), mirrored.reshape(many))

    def _random_sides(self, sizes: Numbers, scales: NDArray[np.float64], shares: NDArray[np.float64]) -> Numbers:
        """Return height and width of random crops, (n, 2).

        Args:
            sizes: heights and widths of what is cropped, (n, 2).
            scales: least and largest share of the area, (n, 2).
            shares: random numbers below 1, (n, 2 * trials or more).
        """
        least, largest = scales[:, :1], scales[:, 1:]
        area = sizes.prod(axis=1)[:, None] * (least + shares[:, :_TRIALS] * (largest - least))
        low, high = np.log(self.ratio)
        shapes = np.exp(low + shares[:, _TRIALS : 2 * _TRIALS] * (high - low))
        trials = np.rint(np.sqrt(np.stack([area / shapes, area * shapes], axis=2))).astype(np.int64)
        good = ((trials > 0) & (trials <= sizes[:, None])).all(axis=2)
        sides: Numbers = trials[np.arange(len(sizes)), good.argmax(axis=1)]
        # No trial fits a sample that is very high or wide: it is cut to the nearest shape.
        height, width = sizes.T
        limits = np.stack([np.rint(width / self.ratio[0]), np.rint(height * self.ratio[1])], axis=1).astype(np.int64)
        return np.where(good.any(axis=1)[:, None], sides, np.minimum(sizes, limits).clip(1))

    def _factors(self, sides: Numbers, wanted: Numbers) -> Numbers:
        """Return how many times as small crops may be decoded that have the sides (n, axes), (n,)."""
        factors = np.ones(len(sides), np.int64)
        for factor in () if self.exact else _FACTORS:
            factors[(sides // factor >= wanted).all(axis=1)] = factor
        return factors
