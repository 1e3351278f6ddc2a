"""The order of an epoch over whole shards."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer.errors import UsageError
from readers.needs import Needs
from readers.shard_order import HANDS, ShardShuffled
from readers.share import ItemShards, Share

#: Shards of ten samples.
OF_TEN = ItemShards(None, lambda numbers: numbers // 10)


def shards(count: int, size: int, window: int, seed: int = 0) -> ShardShuffled:
    return ShardShuffled(np.arange(count + 1) * size, window, seed)


def read(order: ShardShuffled, share: Share, epoch: int = 0, done: int = 0) -> list[list[int]]:
    """The batches of one rank."""
    batches = order.batches(epoch, share, done)
    numbers, _, edges = batches.group(0, len(batches))
    return [numbers[a:b].tolist() for a, b in itertools.pairwise(edges)]


@given(
    lengths=st.lists(st.integers(0, 50), max_size=80),
    window=st.integers(1, 1000),
    seed=st.integers(0, 2**40),
    epoch=st.integers(0, 3),
)
def test_every_number_comes_once(lengths, window, seed, epoch):
    """Shards of any lengths, empty ones too, and any window give every number once."""
    order = ShardShuffled(np.append(0, np.cumsum(lengths, dtype=np.int64)), window, seed)
    assert np.array_equal(np.sort(order.epoch(epoch)), np.arange(sum(lengths)))


@pytest.mark.parametrize("size", [64, 57])
@pytest.mark.parametrize("done", [0, 72, 73])
@pytest.mark.parametrize("drop_last", [False, True])
def test_nodes_change_nothing(size, done, drop_last):
    """One, two, four and eight nodes read the same samples in each global batch, and ranks take equal steps."""
    order = shards(13, size, 13 * size)
    assert order.hands == 8
    seen = []
    for nodes in (1, 2, 4, 8):
        ranks = [read(order, Share(3, rank, 8, drop_last, nodes), 1, done) for rank in range(8)]
        assert len({tuple(map(len, batches)) for batches in ranks}) == 1
        seen.append([sorted(itertools.chain(*step)) for step in zip(*ranks, strict=True)])
    whole = len(seen[0]) if drop_last else -1
    assert [steps[:whole] for steps in seen] == [seen[0][:whole]] * 4
    for steps in seen:
        rest = set(order.epoch(1)[done:].tolist()) - set(itertools.chain(*steps))
        assert len(rest) == ((13 * size - done) % 24 if drop_last else 0)


def test_node_needs_its_own_shards_in_every_epoch():
    """The samples of a node lie in the shards it is said to need, in the batches said; neighbours share one."""
    order = shards(31, 10, 90)
    nodes = []
    for node in range(4):
        share = Share(5, node, 4, nodes=4)
        for epoch in range(3):
            needs = order.batches(epoch, share, 0).needs(OF_TEN).tolist()
            for batch, numbers in enumerate(read(order, share, epoch)):
                for number in numbers:
                    assert any(s == number // 10 and a <= batch <= b for s, a, b in needs)
            nodes.append(frozenset(shard for shard, _, _ in needs))
    assert nodes[::3] == nodes[1::3] == nodes[2::3]
    assert sum(map(len, nodes[::3])) <= 31 + 3


def test_few_shards_are_under_way():
    """A node needs a window and the next at once, and a shard that is cut between hands."""
    for order in (shards(31, 10, 90), shards(200, 3, 600), shards(7, 100, 100)):
        for nodes in (1, 2) if order.hands > 1 else (1,):
            batches = order.batches(1, Share(1, 0, nodes, nodes=nodes), 0)
            needs = Needs(batches.needs(OF_TEN), np.ones(200, np.int64), len(batches)).fit(None)
            in_window = round(order.window * (len(order.edges) - 1) / len(order)) // nodes
            assert needs.at_once <= 2 * in_window + 1


def test_hands_follow_from_the_window():
    """There is a hand for each shard of a window, rounded down to a power of two; 64 at most, and one at least."""
    assert [shards(100, 10, window).hands for window in (1, 15, 20, 79, 80, 10_000)] == [1, 1, 2, 4, 8, HANDS]


def test_a_number_of_nodes_that_does_not_divide_the_hands_is_refused():
    """The message says what to do."""
    with pytest.raises(
        UsageError, match=r"nodes is 3, which does not divide the 4 shards of a shuffle_window.*nodes=1"
    ):
        shards(10, 10, 40).nodes(3, 6)


def test_epochs_and_seeds_differ():
    """Each epoch and each seed has an order of its own, and the same again."""
    orders = [shards(9, 10, 30, seed).epoch(epoch).tolist() for seed in (0, 1) for epoch in (0, 1)]
    assert len(set(map(tuple, orders))) == 4
    assert shards(9, 10, 30, 1).epoch(1).tolist() == orders[-1]


def test_order_is_the_same_on_every_platform():
    """The order of one seed and epoch is written down here: a saved state must mean the same after an upgrade."""
    assert shards(5, 3, 9, 1).epoch(2).tolist() == [3, 12, 5, 14, 4, 13, 7, 8, 6, 11, 1, 9, 0, 10, 2]


@pytest.mark.parametrize("window", [1000, 4000, 16000])
def test_batches_mix_the_shards_of_a_window(window):
    """A batch has samples of as many shards as a window holds, or as it has samples, in about equal parts."""
    order = shards(100, 500, window)
    for first in range(0, 50_000, 5000):
        _, counts = np.unique(order.at(0)(np.arange(first, first + 256)) // 500, return_counts=True)
        assert len(counts) >= min(order.hands, 64)
        assert counts.max() <= 2 * 256 / order.hands
