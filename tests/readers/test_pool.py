"""Pool: memory comes back when the last tensor on it is gone, and never before."""

import gc
import pickle
import threading

import numpy as np
import pytest
import torch

from readers.pool import LEAST_BYTES, Pool

MIB = 2**20
gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def test_dropped_memory_is_used_again():
    """The next tensor of the size lies where a dropped one lay."""
    pool = Pool()
    tensor = pool.allocate(3 * MIB)
    assert tensor.dtype == torch.uint8
    assert tensor.shape == (3 * MIB,)
    at = tensor.data_ptr()
    del tensor
    assert pool.allocate(3 * MIB).data_ptr() == at


def test_memory_in_use_is_not_given_out():
    """Tensors that are alive at the same time do not overlap."""
    pool = Pool()
    tensors = [pool.allocate(2 * MIB) for _ in range(8)]
    for i, tensor in enumerate(tensors):
        tensor.fill_(i)
    assert [int(tensor[-1]) for tensor in tensors] == list(range(8))


@pytest.mark.parametrize(
    "hold",
    [
        lambda t: t[5:9],
        lambda t: t.view(torch.float32).view(-1, 64)[3],
        lambda t: t.numpy(),
        lambda t: t.numpy()[7:8],
        lambda t: memoryview(t.numpy())[:10],
        lambda t: t.detach(),
        lambda t: t.view(4, -1).permute(1, 0),
        lambda t: torch.unsafe_split_with_sizes(t, [100, len(t) - 100])[0],
        lambda t: t.untyped_storage(),
        lambda t: torch.from_dlpack(t[1:3]),
        lambda t: np.from_dlpack(t)[1:3],
    ],
)
def test_any_view_keeps_the_memory(hold):
    """As long as a view is left, of whatever kind, its memory is not given out; after that it is."""
    pool = Pool()
    tensor = pool.allocate(2 * MIB)
    at = tensor.data_ptr()
    view = hold(tensor)
    del tensor
    gc.collect()
    other = pool.allocate(2 * MIB)
    assert other.data_ptr() != at
    del view
    gc.collect()
    assert pool.allocate(2 * MIB).data_ptr() == at


def test_memory_of_about_the_size_is_used():
    """A free buffer serves a request that needs most of it, so that ragged batches find one; not a much smaller one."""
    pool = Pool()
    tensor = pool.allocate(10 * MIB)
    at = tensor.data_ptr()
    del tensor
    small = pool.allocate(4 * MIB)
    assert small.data_ptr() != at
    fitting = pool.allocate(9 * MIB + 1)
    assert fitting.data_ptr() == at
    assert fitting.shape == (9 * MIB + 1,)
    del fitting
    larger = pool.allocate(11 * MIB)
    assert larger.data_ptr() != at


def test_free_memory_is_bounded():
    """However many sizes were asked for, and however many buffers were held, only `keep` are kept."""
    pool = Pool(keep=3)
    held = [pool.allocate((1 + i) * MIB) for i in range(20)]
    del held
    assert len(pool._free) == 3


def test_small_memory_is_left_to_the_system():
    """Small tensors are not kept."""
    pool = Pool()
    pool.allocate(LEAST_BYTES - 1)
    assert pool.allocate(0).shape == (0,)
    assert not pool._free


def test_memory_may_outlive_the_pool():
    """A tensor stays what it is when the pool is gone, and is freed as usual."""
    pool = Pool()
    tensor = pool.allocate(2 * MIB)
    tensor.fill_(7)
    del pool
    gc.collect()
    assert int(tensor.sum()) == 7 * 2 * MIB


def test_pickled_pool_is_empty():
    """Free memory does not travel to another process."""
    pool = Pool(keep=4)
    pool.allocate(2 * MIB)
    other = pickle.loads(pickle.dumps(pool))
    assert not other._free
    assert other._free.maxlen == 4


def test_threads_may_share_a_pool():
    """Threads that take, fill and drop memory at the same time never see each other's bytes."""
    pool = Pool()
    wrong = []

    def work(number):
        rng = np.random.default_rng(number)
        held = []
        for turn in range(150):
            tensor = pool.allocate(int(rng.integers(1, 4)) * MIB)
            tensor[::4096] = number
            held.append(tensor[1:])
            if len(held) > 3:
                dropped = held.pop(int(rng.integers(3)))
                if (dropped[4095::4096] != number).any():
                    wrong.append((number, turn))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_collection_within_a_call_is_safe():
    """Memory may come back while the pool is at work: garbage is collected at any moment."""
    pool = Pool(keep=2)
    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(200):
            cycle = [pool.allocate(MIB)]
            cycle.append(cycle)
    finally:
        gc.set_threshold(*before)
    assert len(pool._free) <= 2


@pytest.mark.parametrize("nbytes", [pytest.param(n, marks=gpu) for n in (100, 5 * MIB)])
def test_pinned_memory_waits_for_its_copy(nbytes):
    """Page-locked memory is not given out while a copy from it is under way, although its tensor is gone."""
    pool = Pool(pinned=True)
    tensor = pool.allocate(nbytes).fill_(1)
    assert tensor.is_pinned()
    torch.cuda._sleep(200_000_000)
    copy = tensor[nbytes // 2 :].to("cuda", non_blocking=True)
    del tensor
    for _ in range(5):
        pool.allocate(nbytes).fill_(2)
    assert (copy == 1).all()
