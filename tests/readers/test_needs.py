"""Which shards batches need, and how many at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer.format import starts_of
from readers.composed import Mixed, Repeated, SubsetOrder
from readers.needs import Needs
from readers.order import Sequential
from readers.samplers import Given
from readers.shard_order import ShardShuffled
from readers.share import ItemShards, Share

ORDERS = ["sequential", "listed", "shards", "given", "repeated", "subset", "mixed"]


def make_order(kind: str, edges: np.ndarray, seed: int):
    n = int(edges[-1])
    numbers = np.random.default_rng(seed).permutation(n)[: n // 2 + 1]
    return {
        "sequential": lambda: Sequential(n),
        "listed": lambda: Sequential(n),
        "shards": lambda: ShardShuffled(edges, n // 3 + 1, seed),
        "given": lambda: Given(numbers, n),
        "repeated": lambda: Repeated(Sequential(n), 2),
        "subset": lambda: SubsetOrder(Sequential(len(numbers)), np.sort(numbers)),
        "mixed": lambda: Mixed((n,), (1.0,), seed, shuffle=False),
    }[kind]()


@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=20),
    kind=st.sampled_from(ORDERS),
    batch_size=st.integers(1, 40),
    world_size=st.integers(1, 3),
    drop_last=st.booleans(),
    done=st.integers(0, 5),
    seed=st.integers(0, 99),
)
def test_needs_are_those_of_the_batches(lengths, kind, batch_size, world_size, drop_last, done, seed):
    """Each batch has its shards within a stretch, no more are open than said, and what is kept fits the cache."""
    edges = starts_of(lengths)
    order = make_order(kind, edges, seed)
    shards = ItemShards(edges if kind == "sequential" else None, lambda n: edges[1:].searchsorted(n, side="right"))
    done = min(done, len(order))
    for rank in range(world_size):
        batches = order.batches(0, Share(batch_size, rank, world_size, drop_last), done)
        needs = Needs(batches.needs(shards), np.arange(1, len(lengths) + 1), len(batches), 8)
        touched = [set(shards.of(batches.group(b, b + 1)[0]).tolist()) for b in range(len(batches))]
        for limit in (needs.bytes_at_once, 2 * needs.bytes_at_once, None):
            fit = needs.fit(limit)
            assert limit is None or fit.bytes_at_once <= limit
            groups = [[0], *(range(b, min(b + fit.group, len(batches))) for b in range(1, len(batches), fit.group))]
            for group in groups if touched else []:
                now = {s for s, a, b in fit.stretches.tolist() if a <= group[-1] and b >= group[0]}
                if kind != "shards" or group[-1] < len(order) // (batch_size * world_size):  # the last may begin anew
                    assert set().union(*(touched[b] for b in group)) <= now
                assert len(now) <= fit.at_once


def test_a_shard_is_kept_between_its_batches_while_there_is_room():
    """The longest gap is given up first, where the cache is too small; then a shard is fetched twice."""
    touched = np.array([[0, 0, 0], [0, 3, 3], [0, 400, 400], [1, 4, 200], [2, 201, 399], [1, 300, 399]])
    needs = Needs(touched, np.array([10, 10, 10]), 401)
    assert (needs.fit(None).at_once, needs.fit(None).fetches) == (3, 1)
    small = needs.fit(25)
    assert small.stretches.tolist() == [[0, 0, 3], [1, 4, 399], [2, 201, 399], [0, 400, 400]]


@pytest.mark.parametrize("n", [1, 10**9])
def test_an_epoch_in_order_is_not_looked_at_sample_by_sample(n):
    """Of a billion samples the edges of their shards are enough."""
    edges = np.append(np.arange(0, n, 10**6), n)
    shards = ItemShards(edges, lambda numbers: numbers // 10**6)
    batches = Sequential(n).batches(0, Share(64), 0)
    assert len(batches.needs(shards)) in (len(edges) - 1, len(edges))
