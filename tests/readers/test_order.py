"""What holds for every order of an epoch; full shuffles, and shuffles of blocks."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import RandomSampler, SubsetRandomSampler

from readers.order import BlockShuffled, Sequential, Shuffled
from readers.samplers import Given, SamplerOrder

ORDERS = [
    Sequential(1000),
    Shuffled(1000, 3),
    BlockShuffled(np.r_[0:1000:7, 1000], 100, 3),
    BlockShuffled(np.r_[0:1000:7, 1000], 500, 3),
    Given(np.arange(999, -1, -1), 1000),
    SamplerOrder(RandomSampler(range(1000)), 1000, 3),
    SamplerOrder(RandomSampler(range(1000), generator=torch.Generator().manual_seed(5)), 1000, 3),
    SamplerOrder(SubsetRandomSampler(range(1000)), 1000, 3),
]


@pytest.mark.parametrize("order", ORDERS, ids=lambda o: type(o).__name__)
def test_every_number_once(order):
    """An epoch holds every number exactly once, as int64."""
    numbers = order.epoch(2)
    assert numbers.dtype == np.int64
    assert len(order) == 1000
    assert np.array_equal(np.sort(numbers), np.arange(1000))


@pytest.mark.parametrize("order", ORDERS, ids=lambda o: type(o).__name__)
def test_epoch_alone_decides(order):
    """The same epoch gives the same order, whatever was asked for or drawn in between."""
    first = order.epoch(4)
    order.epoch(5)
    torch.rand(3)
    np.random.default_rng().random()
    assert np.array_equal(order.epoch(4), first)


@pytest.mark.parametrize("order", [o for o in ORDERS if not isinstance(o, Sequential | Given)])
def test_epochs_differ(order):
    """A shuffled order is another one in each epoch."""
    assert not np.array_equal(order.epoch(0), order.epoch(1))


@pytest.mark.parametrize("order", ORDERS, ids=lambda o: type(o).__name__)
def test_result_is_the_callers_own(order):
    """Writing to an epoch's order does not change the next one."""
    first = order.epoch(0)
    kept = first.copy()
    first[:] = 0
    assert np.array_equal(order.epoch(0), kept)


def blocks(n, block, window, seed=0):
    """A shuffle by blocks of `block` samples; the last holds what is left of `n`."""
    return BlockShuffled(np.append(np.arange(0, n, block), n), window, seed)


def test_order_is_the_same_on_every_platform():
    """The order of one seed and epoch is written down here: a saved state must mean the same after an upgrade."""
    assert Shuffled(10, 1).epoch(2).tolist() == [8, 5, 6, 0, 9, 1, 4, 3, 7, 2]
    assert blocks(12, 3, 6, 1).epoch(2).tolist() == [3, 10, 4, 9, 11, 5, 8, 2, 0, 1, 7, 6]
    assert blocks(900, 9, 300, 1).epoch(2)[:8].tolist() == [492, 892, 645, 486, 490, 28, 3, 647]
    assert Shuffled(2**18, 1).epoch(2)[:5].tolist() == [68635, 190687, 27044, 163114, 39921]


def test_all_orders_are_equally_likely():
    """Over many epochs each of the 24 orders of 4 numbers comes about as often as any other."""
    order = Shuffled(4, 0)
    seen = np.array([order.epoch(i) @ [64, 16, 4, 1] for i in range(4800)])
    _, counts = np.unique(seen, return_counts=True)
    assert len(counts) == 24
    assert counts.min() > 140  # 200 expected, standard deviation 14
    assert counts.max() < 260


@given(
    lengths=st.lists(st.integers(0, 50), max_size=60),
    window=st.integers(1, 400),
    seed=st.integers(0, 2**40),
)
def test_block_order_is_complete(lengths, window, seed):
    """Blocks of any lengths, empty ones too, and any window give every number once."""
    order = BlockShuffled(np.append(0, np.cumsum(lengths, dtype=np.int64)), window, seed)
    assert np.array_equal(np.sort(order.epoch(1)), np.arange(sum(lengths)))


@pytest.mark.parametrize(("block", "window"), [(10, 50), (10, 500), (1, 1), (16, 16), (50, 10)])
def test_blocks_stay_within_a_window(block, window):
    """All samples of a block lie within one window of whole blocks, so that its frame is decoded once."""
    n = 10_000
    numbers = blocks(n, block, window).epoch(0)
    size = max(-(-window // block) * block, block)
    places = np.empty(n, np.int64)
    places[numbers] = np.arange(n)
    windows = (places // size).reshape(-1, block)
    assert np.all(windows == windows[:, :1])


@pytest.mark.parametrize("window", [60, 600])
def test_window_is_shuffled(window):
    """Neighbours in a window come from different blocks: the blocks of a window are mixed, not laid end to end."""
    numbers = blocks(60_000, 10, window).epoch(0)
    same_block = np.mean(numbers[1:] // 10 == numbers[:-1] // 10)
    assert same_block < 2 * 10 / window


def test_blocks_are_spread():
    """Windows hold blocks from all over the dataset."""
    numbers = blocks(100_000, 10, 1000).epoch(0)
    assert np.all(np.ptp(numbers.reshape(-1, 1000), axis=1) > 70_000)
