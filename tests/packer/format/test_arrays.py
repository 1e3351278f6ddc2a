"""Looking up many numbers at once."""

from __future__ import annotations

import numpy as np
import pytest

from packer.format.arrays import finder


@pytest.mark.parametrize("sizes", [[], [5], [7, 7, 7, 2], [1] * 50, [0, 0, 3, 0, 9], [1000, 1, 1, 1, 1, 1000], [0, 0]])
def test_stretches_are_found_as_by_a_search(sizes: list[int]) -> None:
    """Whatever their sizes, each number lies in the stretch that a search finds; numbers after the last lie in it."""
    ends = np.cumsum(sizes, dtype=np.int64)[:-1]
    numbers = np.random.default_rng(0).permutation(sum(sizes) + 5)
    assert np.array_equal(finder(ends)(numbers), ends.searchsorted(numbers, side="right"))
