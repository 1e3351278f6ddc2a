"""Count, extremes, mean and standard deviation of several channels at once, from pieces that come one by one.

Whole numbers are summed exactly. Floating-point ones are merged by Chan's formula, with what each addition rounds
off carried along, so that a thousand pieces are as exact as one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from packer.format.statistics import ValueStats

#: Values of one channel in one piece, at most: the sum of so many products of two 16-bit numbers is exact in float64.
PIECE = 2**20
_LIMB_BITS = 16

Floats = NDArray[np.float64]


class Moments(Protocol):
    """What is known of each channel."""

    def add(self, values: NDArray[Any]) -> None:
        """Takes `values`, (channels, up to PIECE), C-contiguous, in."""

    def channel(self, number: int) -> ValueStats:
        """Of one channel."""

    def all(self) -> ValueStats:
        """Of all channels together."""


def moments(dtype: np.dtype[Any], channels: int) -> Moments:
    """The moments that suit a dtype: whole numbers or floating-point ones."""
    return FloatMoments(channels) if dtype.kind == "f" else IntegerMoments(channels)


class IntegerMoments:
    """Exact sums of whole numbers, as Python's integers, which do not overflow."""

    def __init__(self, channels: int) -> None:
        self._count = 0
        self._low: list[int | None] = [None] * channels
        self._high: list[int | None] = [None] * channels
        self._sums = [0] * channels
        self._squares = [0] * channels

    def add(self, values: NDArray[Any]) -> None:
        count = values.shape[1]
        if not count:
            return
        low, high = values.min(axis=1), values.max(axis=1)
        base, limbs = _limbs(values, low)
        self._count += count
        sums, squares = _sums(limbs), _squares(limbs)
        for number, (b, s, q) in enumerate(zip(base, sums, squares, strict=True)):
            self._sums[number] += s + count * b
            self._squares[number] += q + 2 * b * s + count * b * b
            self._low[number] = _least(self._low[number], int(low[number]))
            self._high[number] = _most(self._high[number], int(high[number]))

    def channel(self, number: int) -> ValueStats:
        extremes = self._low[number], self._high[number]
        return _exact(self._count, *extremes, self._sums[number], self._squares[number])

    def all(self) -> ValueStats:
        low = min((n for n in self._low if n is not None), default=None)
        high = max((n for n in self._high if n is not None), default=None)
        return _exact(self._count * len(self._sums), low, high, sum(self._sums), sum(self._squares))


class FloatMoments:
    """Mean and sum of squared deviations of floating-point numbers; NaN and infinities are counted and left out."""

    def __init__(self, channels: int) -> None:
        self._count, self._nan, self._inf = (np.zeros(channels, np.int64) for _ in range(3))
        self._low, self._high = np.full(channels, np.inf), np.full(channels, -np.inf)
        # Each with what was rounded off behind it.
        self._mean, self._mean_rest, self._squares, self._squares_rest = (np.zeros(channels) for _ in range(4))

    def add(self, values: NDArray[Any]) -> None:
        if not values.shape[1]:
            return
        x = values.astype(np.float64)
        finite = np.isfinite(x)
        count = np.count_nonzero(finite, axis=1)
        low, high = x, x
        if (count < x.shape[1]).any():
            nan = np.count_nonzero(np.isnan(x), axis=1)
            self._nan += nan
            self._inf += x.shape[1] - count - nan
            low, high, x = (np.where(finite, x, instead) for instead in (np.inf, -np.inf, 0.0))
        self._low = np.minimum(self._low, low.min(axis=1))
        self._high = np.maximum(self._high, high.max(axis=1))
        with np.errstate(over="ignore", invalid="ignore"):
            self._merge(count, *_deviations(x, finite, count))

    def channel(self, number: int) -> ValueStats:
        return self._stats(slice(number, number + 1))

    def all(self) -> ValueStats:
        return self._stats(slice(None))

    def _merge(self, count: NDArray[np.int64], mean: Floats, rest: Floats, squares: Floats) -> None:
        """Takes in pieces of which count, mean, what is behind it, and sum of squared deviations are known."""
        before, total = self._count, np.maximum(self._count + count, 1)
        # The first piece is taken as it is: a step from 0 to its mean would round off what is behind the mean.
        old, old_rest = (np.where(before, a, b) for a, b in ((self._mean, mean), (self._mean_rest, rest)))
        delta = (mean - old) + (rest - old_rest)
        step = delta * (count / total)
        more = squares + delta * step * before
        self._mean, self._mean_rest = _added(old, old_rest, step)
        self._squares, self._squares_rest = _added(self._squares, self._squares_rest, more)
        self._count = before + count

    def _stats(self, which: slice) -> ValueStats:
        together = FloatMoments(1)
        with np.errstate(over="ignore", invalid="ignore"):
            for number in range(*which.indices(len(self._count))):
                one = slice(number, number + 1)
                squares = self._squares[one] + self._squares_rest[one]
                together._merge(self._count[one], self._mean[one], self._mean_rest[one], squares)
        count = int(together._count[0])
        counts = {"nan": int(self._nan[which].sum()), "inf": int(self._inf[which].sum())}
        if not count:
            return ValueStats(count=0, **counts, min=None, max=None, mean=None, std=None)
        return ValueStats(
            count=count,
            **counts,
            min=float(self._low[which].min()),
            max=float(self._high[which].max()),
            mean=_held(float(together._mean[0] + together._mean_rest[0])),
            std=_held(float(np.sqrt((together._squares[0] + together._squares_rest[0]) / count))),
        )


def _deviations(x: Floats, finite: NDArray[np.bool_], count: NDArray[np.int64]) -> tuple[Floats, Floats, Floats]:
    """Of each row: mean, what that rounds off, and sum of squared deviations.

    Args:
        x: 0 where `finite` is not.
    """
    some = np.maximum(count, 1)
    mean = x.sum(axis=1) / some
    off = np.where(finite, x - mean[:, None], 0.0)
    rest = off.sum(axis=1)
    squares = np.maximum((off * off).sum(axis=1) - rest * rest / some, 0.0)
    return mean, rest / some, squares


def _added(total: Floats, rest: Floats, more: Floats) -> tuple[Floats, Floats]:
    """`total + rest + more` as a sum and what it rounds off (Knuth's two-sum)."""
    more = rest + more
    whole = total + more
    part = whole - total
    return whole, (total - (whole - part)) + (more - part)


def _limbs(values: NDArray[Any], low: NDArray[Any]) -> tuple[list[int], list[Floats]]:
    """Whole numbers as 16-bit limbs above a base of each row: `values = base + sum(limb[i] * 2**(16 * i))`."""
    if values.itemsize <= 2:
        return [0] * len(values), [values.astype(np.float64)]
    # The difference of two numbers of 64 bits is right modulo 2**64, and it lies between 0 and that.
    above = values.astype(np.uint64) - low.astype(np.uint64)[:, None]
    count = max(1, -(-int(above.max()).bit_length() // _LIMB_BITS))
    limbs = [((above >> np.uint64(_LIMB_BITS * i)) & np.uint64(0xFFFF)).astype(np.float64) for i in range(count)]
    return [int(n) for n in low], limbs


def _sums(limbs: Sequence[Floats]) -> list[int]:
    """Sum of each row, exact."""
    parts = [limb.sum(axis=1).tolist() for limb in limbs]
    return [sum(int(s) << _LIMB_BITS * i for i, s in enumerate(row)) for row in zip(*parts, strict=True)]


def _squares(limbs: Sequence[Floats]) -> list[int]:
    """Sum of squares of each row, exact."""
    totals = [0] * len(limbs[0])
    for i, a in enumerate(limbs):
        for j, b in enumerate(limbs):
            for row, product in enumerate(np.einsum("cm,cm->c", a, b).tolist()):
                totals[row] += int(product) << _LIMB_BITS * (i + j)
    return totals


def _exact(count: int, low: int | None, high: int | None, total: int, squares: int) -> ValueStats:
    """Of whole numbers; a quotient of Python's integers is rounded once, however large they are."""
    if not count:
        return ValueStats(count=0, min=None, max=None, mean=None, std=None)
    variance = (count * squares - total * total) / (count * count)
    return ValueStats(count=count, min=low, max=high, mean=total / count, std=math.sqrt(variance))


def _least(a: int | None, b: int) -> int:
    return b if a is None else min(a, b)


def _most(a: int | None, b: int) -> int:
    return b if a is None else max(a, b)


def _held(value: float) -> float | None:
    return value if math.isfinite(value) else None
