"""Finder: the same answers as a search, whatever the stretches."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from packer.format.column import Finder

stretches = st.lists(st.one_of(st.integers(0, 5), st.integers(1, 200), st.integers(1, 2**40)), max_size=60)


@given(lengths=stretches, seed=st.integers(0, 2**20))
@example(lengths=[], seed=0)
@example(lengths=[1], seed=0)
@example(lengths=[0, 0, 0], seed=0)
@example(lengths=[8, 8, 8, 8], seed=0)
@example(lengths=[7, 9, 7, 9], seed=0)
@example(lengths=[1, 2**40], seed=0)
@example(lengths=[2**61, 2**61], seed=0)
def test_finder_equals_searchsorted(lengths, seed):
    """Numbers at, before and behind every end, and anywhere else, lie in the stretch that a search finds."""
    ends = np.cumsum(lengths, dtype=np.int64) if lengths else np.zeros(0, np.int64)
    top = int(ends[-1]) + 5 if len(ends) else 100
    near = np.concatenate([ends - 1, ends, ends + 1, [0, 1, top]])
    anywhere = np.random.default_rng(seed).integers(0, top, Finder.LEAST)
    numbers = np.concatenate([near[near >= 0], anywhere])
    finder = Finder(ends)
    expected = ends.searchsorted(numbers, side="right")
    np.testing.assert_array_equal(finder.find(numbers), expected)
    for few in (0, 1, Finder.LEAST - 1, Finder.LEAST):
        np.testing.assert_array_equal(finder.find(numbers[:few]), expected[:few])


@pytest.mark.parametrize("count", [1, 2, 1000, 40_000])
def test_finder_of_equal_stretches(count):
    """Stretches of one length, as chunks mostly are, are found by a table; by a search where it were too long."""
    ends = np.arange(1, count + 1, dtype=np.int64) * 1021
    finder = Finder(ends)
    assert (finder._table is None) == (count == 40_000)
    numbers = np.random.default_rng(1).integers(0, (count + 1) * 1021, 5000)
    np.testing.assert_array_equal(finder.find(numbers), numbers // 1021)


def test_finder_of_two_fields():
    """Where chunks of two fields end close together, the table says less and one more comparison is made."""
    ends = np.unique(np.concatenate([np.arange(15_887, 10**6, 15_887), np.arange(262_142, 10**6, 262_142)]))
    assert np.diff(ends).min() == 13
    finder = Finder(ends)
    assert finder._table is not None
    assert finder._compared == 2
    numbers = np.random.default_rng(1).integers(0, 10**6, 5000)
    np.testing.assert_array_equal(finder.find(numbers), ends.searchsorted(numbers, side="right"))


def test_finder_leaves_its_numbers_as_they_are():
    """The numbers passed in are not written to."""
    numbers = np.arange(2000, dtype=np.int64)
    numbers.setflags(write=False)
    Finder(np.array([500, 1500])).find(numbers)
    assert numbers[-1] == 1999
