"""Batches of one rank."""

import json
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ranks import call_in_ranks

from packer.errors import UsageError
from readers.order import Shuffled
from readers.share import Share, SharedBatches, present_rank

WORLDS = range(1, 6)
SIZES = [0, 1, 5, 7, 16, 97, 120, 240]
BATCHES = [1, 3, 8, 50]


def all_ranks(order, batch_size, world_size, drop_last=False, done=0):
    """The batches of each rank: a list by rank of lists of arrays."""
    ranks = []
    for rank in range(world_size):
        batches = SharedBatches(order.take, len(order), Share(batch_size, rank, world_size, drop_last), done)
        ranks.append([])
        for first in range(0, len(batches), 3):  # in groups, as a loader works them out
            numbers, positions, edges = batches.group(first, min(first + 3, len(batches)))
            assert np.array_equal(order[positions], numbers)
            ranks[-1] += np.split(numbers, edges[1:-1])
    return ranks


def in_global_order(ranks):
    """All batches, step by step, rank by rank, joined."""
    pieces = [piece for step in zip(*ranks, strict=True) for piece in step]
    return np.concatenate([np.empty(0, np.int64), *pieces])


@pytest.mark.parametrize("world_size", WORLDS)
@pytest.mark.parametrize("n", SIZES)
def test_shares_are_complete(world_size, n):
    """Without drop_last all ranks together read the order to its end, resumed too; fewer than world_size come twice.

    Every rank has as many batches, and they are as large.
    """
    order = Shuffled(n).epoch(0)
    for batch_size, done in product(BATCHES, {0, n // 3, n}):
        left = n - done
        ranks = all_ranks(order, batch_size, world_size, done=done)
        assert len({tuple(map(len, batches)) for batches in ranks}) == 1
        joined = in_global_order(ranks)
        assert np.array_equal(joined[:left], order[done:])
        assert len(joined) - left < world_size
        assert np.array_equal(joined[left:], np.resize(order, len(joined) - left))


@pytest.mark.parametrize("world_size", WORLDS)
@pytest.mark.parametrize("n", SIZES)
def test_dropped_shares_are_disjoint(world_size, n):
    """With drop_last all batches are full, no number comes twice, and less than one step is skipped."""
    order = Shuffled(n).epoch(0)
    for batch_size in BATCHES:
        joined = in_global_order(all_ranks(order, batch_size, world_size, drop_last=True))
        assert np.array_equal(joined, order[: len(joined)])
        assert len(joined) % (batch_size * world_size) == 0
        assert n - len(joined) < batch_size * world_size


@given(
    n=st.integers(0, 300),
    parts=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 8), st.integers(0, 10)), max_size=4),
)
def test_resuming_with_other_ranks_and_batches(n, parts):
    """Stopped and continued any number of times, with another world and batch size each, the order is read on."""
    order = Shuffled(n, 1).epoch(3)
    done, seen = 0, []
    for batch_size, world_size, steps in [*parts, (7, 3, n + 1)]:
        share = Share(batch_size, 0, world_size)
        steps = min(steps, share.count_batches(n, done))
        ranks = [batches[:steps] for batches in all_ranks(order, batch_size, world_size, done=done)]
        after = min(done + steps * share.global_batch_size, n)
        seen.append(in_global_order(ranks)[: after - done])
        done = after
    assert done == n
    assert np.array_equal(np.concatenate(seen), order)


def test_ranks_of_the_environment(monkeypatch, caplog):
    """Without a process group, RANK and WORLD_SIZE say which share is read, with one remark; one alone says nothing."""
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "3")
    assert present_rank() == present_rank() == (3, 4)
    assert [record.getMessage() for record in caplog.records] == [
        "there is no process group: this is rank 3 of 4 by RANK and WORLD_SIZE of the environment"
    ]
    for rank in ("4", "x"):  # every rank would read all samples
        monkeypatch.setenv("RANK", rank)
        with pytest.raises(UsageError, match=f"RANK is '{rank}' and WORLD_SIZE '4'"):
            present_rank()
    monkeypatch.delenv("RANK")
    assert present_rank() == (0, 1)


def test_ranks_of_a_mesh(rows, tmp_path):
    """Along the one axis of a mesh batches differ, and processes apart in other axes read the same; four ranks that
    stop within an epoch go on as two, with every sample once.

    It takes 5 s: four ranks find each other.
    """
    call_in_ranks(4, "mesh_on_ranks", "read", str(rows), str(tmp_path))
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(4)]
    assert ranks[0]["rest"] == ranks[1]["rest"] != ranks[2]["rest"] == ranks[3]["rest"]
    read = [rank["begun"] for rank in ranks] + [ranks[0]["rest"], ranks[2]["rest"]]
    assert sorted(number for batches in read for batch in batches for number in batch) == list(range(1000))
    several, outside = zip(*(rank["refused"] for rank in ranks), strict=True)
    assert {message.partition(":")[0] for message in several} == {"mesh has the axes dp, tp"}
    assert outside[1::2] == ("1", "0")
    assert {message.partition(":")[0] for message in outside[::2]} == {"mesh does not hold this process"}
