"""Moments: as exact as fractions say, however the values come in."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from packer.moments import moments


def reference(values):
    """Mean and standard deviation of numbers, from exact fractions."""
    exact = [Fraction(v) for v in values]
    mean = sum(exact) / len(exact)
    return float(mean), math.sqrt(sum((v - mean) ** 2 for v in exact) / len(exact))


def measured(values, cuts=()):
    """Moments of values (n, channels) given in pieces."""
    found = moments(values.dtype, values.shape[1])
    for piece in np.split(values, sorted(cuts)):
        found.add(np.ascontiguousarray(piece.T))
    return found


INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")


@given(st.data(), st.sampled_from(INTEGERS))
def test_whole_numbers_are_exact(data, dtype):
    """Extremes to the digit, mean and deviation correctly rounded, over the whole range of every dtype."""
    values = data.draw(npst.arrays(dtype, st.tuples(st.integers(1, 9), st.integers(1, 3))))
    found = measured(values, data.draw(st.lists(st.integers(0, len(values)), max_size=2)))
    for number, column in enumerate(values.T):
        stats = found.channel(number)
        assert (stats.count, stats.min, stats.max) == (len(column), int(column.min()), int(column.max()))
        assert (stats.mean, stats.std) == reference(column.tolist())
    stats = found.all()
    assert (stats.count, stats.min, stats.max) == (values.size, int(values.min()), int(values.max()))
    assert (stats.mean, stats.std) == reference(values.ravel().tolist())


@pytest.mark.parametrize("dtype", INTEGERS)
def test_a_full_piece_of_the_largest_values_is_exact(dtype):
    """Sums of the most and largest products that one piece can hold do not round."""
    info = np.iinfo(dtype)
    values = np.full((1, 2**20), info.max, dtype)
    values[0, ::2] = info.min
    values[0, 0] = info.max
    found = moments(np.dtype(dtype), 1)
    found.add(values)
    high = 2**19 + 1
    low = 2**20 - high
    mean = Fraction(high * int(info.max) + low * int(info.min), 2**20)
    variance = Fraction(high * int(info.max) ** 2 + low * int(info.min) ** 2, 2**20) - mean**2
    assert found.all().mean == float(mean)
    assert found.all().std == math.sqrt(variance)


@pytest.mark.parametrize(("dtype", "offset"), [("float64", 0), ("float64", 1e9), ("float32", 1e5), ("float16", 0)])
def test_floats_are_as_exact_as_float64(dtype, offset):
    """Far from zero, where sums of squares lose every digit, and over many pieces of unequal means."""
    rng = np.random.default_rng(0)
    drift = np.linspace(-1, 1, 2000)[:, None]
    values = (rng.normal(size=(2000, 2)) + drift + offset).astype(dtype)
    found = measured(values, range(7, 2000, 7))
    for number, column in enumerate(values.T):
        mean, std = reference(column.tolist())
        stats = found.channel(number)
        assert (stats.min, stats.max) == (column.min(), column.max())
        assert stats.mean == pytest.approx(mean, rel=0, abs=2 * np.spacing(abs(mean) + std))
        assert stats.std == pytest.approx(std, rel=1e-14)
    mean, std = reference(values.ravel().tolist())
    assert found.all().mean == pytest.approx(mean, rel=0, abs=2 * np.spacing(abs(mean) + std))
    assert found.all().std == pytest.approx(std, rel=1e-14)


def test_what_is_no_number_is_counted_and_left_out():
    """NaN and infinities change neither extremes nor mean; a channel of nothing else has none."""
    nan, inf = math.nan, math.inf
    values = np.array([[1.0, nan], [nan, inf], [3.0, -inf], [-inf, nan]], np.float32)
    found = measured(values, [1])
    first, second = found.channel(0), found.channel(1)
    assert (first.count, first.nan, first.inf) == (2, 1, 1)
    assert (first.min, first.max, first.mean, first.std) == (1.0, 3.0, 2.0, 1.0)
    assert (second.count, second.nan, second.inf) == (0, 2, 2)
    assert (second.min, second.max, second.mean, second.std) == (None, None, None, None)
    together = found.all()
    assert (together.count, together.nan, together.inf, together.mean) == (2, 3, 3, 2.0)


def test_sums_that_float64_cannot_hold_are_not_told():
    """Extremes stay exact where a mean or deviation would overflow, and nothing warns."""
    stats = measured(np.array([[1e308], [-1e308], [1.5e308]])).all()
    assert (stats.min, stats.max, stats.std) == (-1e308, 1.5e308, None)


def test_no_value_at_all():
    """A field whose samples are all empty has a count of 0 and no numbers."""
    for dtype in ("float32", "int64"):
        stats = measured(np.empty((0, 2), dtype)).all()
        assert (stats.count, stats.min, stats.mean) == (0, None, None)
