"""Permutations that a key chooses, and epochs of so many samples that no array of them is made."""

import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from readers import order
from readers.compiled import loading
from readers.composed import Repeated
from readers.keyed import Permutation
from readers.order import Shuffled
from readers.share import Share


@given(st.integers(1, 3000), st.integers(0, 5))
def test_every_number_comes_once(size: int, seed: int) -> None:
    """Whatever the length, each number stands at one place."""
    assert np.array_equal(np.sort(Permutation(size, seed).at(np.arange(size))), np.arange(size))


@pytest.mark.parametrize("size", [1, 2, 1000, 65_537, 2**24 + 1, 10**9, 2**40 + 3])
def test_machine_code_and_numpy_give_the_same(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A permutation does not depend on whether its loop is compiled."""
    places = np.arange(0, size, max(size // 1000, 1))
    with monkeypatch.context() as patch:
        patch.setattr(loading, "loops", lambda: None)
        before = loading.seconds
        by_numpy = Permutation(size, 7, 3).at(places)
        assert (seconds := loading.seconds) > before
    monkeypatch.setattr(loading, "loops", loading.load)
    assert np.array_equal(Permutation(size, 7, 3).at(places), by_numpy)
    assert loading.seconds == seconds


def chi_square(counts: np.ndarray, trials: int) -> float:
    """Return how many standard deviations the chi-square of counts, equally likely in each trial, is off its mean."""
    expected = counts.sum() / counts.size
    degrees = counts.size - 1
    variance = expected * (1 - expected / trials)
    return float((((counts - expected) ** 2 / variance).sum() - degrees) / np.sqrt(2 * degrees))


def test_orders_look_uniform() -> None:
    """Over 1,000 seeds, where a number stands, its neighbour, and which numbers share a batch are as of any order."""
    n, batch = 60, 10
    orders = np.array([Permutation(n, seed, 0).at(np.arange(n)) for seed in range(1000)])
    places = np.array([np.bincount(orders[:, place], minlength=n) for place in range(n)])
    steps = np.bincount(((orders[:, 1:] - orders[:, :-1]) % n).ravel(), minlength=n)[1:]
    places_of = np.argsort(orders, axis=1) // batch
    together = np.array([(places_of[:, a] == places_of[:, b]).sum() for a, b in itertools.combinations(range(n), 2)])
    assert abs(chi_square(places, 1000)) < 4
    assert abs(chi_square(steps, 59_000)) < 4
    assert abs(chi_square(together, 1000)) < 4


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_ranks_share_a_long_order(world_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above `LISTED` samples too, all ranks together read each sample once, as one rank does."""
    monkeypatch.setattr(order, "LISTED", 100)
    whole = Shuffled(5000, 3).epoch(1)
    assert np.array_equal(np.sort(whole), np.arange(5000))
    shares = [Shuffled(5000, 3).batches(1, Share(25, rank, world_size), 0) for rank in range(world_size)]
    read = [shares[rank].group(step, step + 1)[0] for step in range(len(shares[0])) for rank in range(world_size)]
    assert np.array_equal(np.concatenate(read)[:5000], whole)
    passes = Repeated(Shuffled(5000, 3), 2).at(4)(np.arange(10_000))
    assert np.array_equal(passes, np.concatenate([Shuffled(5000, 3).epoch(8), Shuffled(5000, 3).epoch(9)]))


def test_a_billion_samples_take_no_memory() -> None:
    """The first group of an epoch of 1,000,000,000 samples, begun or resumed, takes a few megabytes."""
    tracemalloc.start()
    for done in (0, 123_456_700):
        batches = Shuffled(10**9).batches(3, Share(100, 5, 8), done)
        numbers, positions, _ = batches.group(0, batches.group_end(0, 16384))
        assert len(np.unique(numbers)) == len(numbers) >= 16384
        assert positions[0] == done + 500
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5 * 2**20


def test_an_epoch_that_is_listed_keeps_its_order_alone() -> None:
    """8 bytes a sample: positions, visits and shares of ranks are worked out for the group that is read."""
    tracemalloc.start()
    batches = Shuffled(2_000_000).batches(0, Share(100, 0, 8), 0)
    numbers, *_ = batches.group(0, batches.group_end(0, 16384))
    del numbers, _
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert kept < 9 * 2_000_000
    assert len(batches) == 2500
