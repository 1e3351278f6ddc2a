"""What holds for every order of an epoch."""

import numpy as np
import pytest
import torch
from torch.utils.data import RandomSampler, SubsetRandomSampler

from readers.samplers import Given, SamplerOrder
from readers.shuffled import BlockShuffled, Sequential, Shuffled

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
