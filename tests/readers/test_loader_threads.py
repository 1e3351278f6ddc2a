"""Loader's threads and memory: nothing is left behind, nothing handed out changes, nothing runs too far ahead."""

import gc
import itertools
import multiprocessing
import os
import platform
import resource
import signal
import threading
import time
import traceback
import tracemalloc
import weakref
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from packer.writer import DatasetWriter
from readers import Loader, Mix, PackedDataset
from readers.fields import FixedRaw
from readers.reading import THREAD_NAME

BIG = 96


@pytest.fixture(scope="module")
def big(tmp_path_factory):
    """96 samples x of 128 KiB float32 and y int64, uncompressed; sample i holds i."""
    folder = tmp_path_factory.mktemp("threads") / "big"
    with DatasetWriter(folder, codec="none") as writer:
        for number in range(BIG):
            writer.add({"x": np.full((128, 256), number, np.float32), "y": np.int64(number)})
    return folder


def readers():
    """Threads of loaders that are alive."""
    return [thread for thread in threading.enumerate() if thread.name.startswith(THREAD_NAME)]


def assert_gone():
    """No thread of a loader is left, after a moment."""
    deadline = time.monotonic() + 100
    while readers() and time.monotonic() < deadline:
        time.sleep(0.005)
    assert not readers()


class FailureError(Exception):
    """What the tests raise."""


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_exception_in_a_transform_reaches_the_caller(rows, threads):
    """The batches before the failing one come; then its exception, with the traceback of where it was raised."""

    def fail_at_500(batch):
        if 500 in batch["y"]:
            raise FailureError("at 500")
        return batch

    got = []
    with pytest.raises(FailureError, match="at 500") as raised:  # noqa: PT012
        for batch in Loader(PackedDataset(rows, batch_transform=fail_at_500), 100, threads=threads):
            got += batch["y"].tolist()
    assert got == list(range(500))
    assert "fail_at_500" in [frame.name for frame in traceback.extract_tb(raised.tb)]
    assert not readers()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("device", [None, "cpu"])
def test_leaving_the_loop_stops_the_threads(rows, threads, device):
    """After break, after an exception in the loop's body, and after the last batch, no thread is left."""
    loader = Loader(PackedDataset(rows), 10, threads=threads, device=device, prefetch=4)
    for step, _ in enumerate(loader):
        assert readers()
        if step == 3:
            break
    assert not readers()
    with pytest.raises(FailureError):  # noqa: PT012
        for _ in loader:
            raise FailureError
    assert not readers()
    assert len(list(loader)) == 100
    assert not readers()


@pytest.fixture
def ctrl_c_is_heard():
    """Ctrl-C is a KeyboardInterrupt, also where these tests run in the background of a shell that has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c_is_heard")
def test_ctrl_c_stops_the_threads(rows):
    """A KeyboardInterrupt in the loop's body, or while the loader waits for a batch, leaves no thread."""
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012
        for _ in Loader(PackedDataset(rows), 10, threads=2):
            signal.raise_signal(signal.SIGINT)
    assert not readers()

    sent = []

    def interrupt(batch):
        if 0 in batch["y"]:
            sent.append(1)
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.05)
        return batch

    with pytest.raises(KeyboardInterrupt):
        next(iter(Loader(PackedDataset(rows, batch_transform=interrupt), 10, threads=2)))
    assert sent == [1]
    # Interrupted while it was being started, a thread ends with the others, but nobody has waited for it.
    assert_gone()


def test_throwing_into_an_iterator_stops_the_threads(rows):
    """Whatever is thrown into the iterator ends it."""
    batches = iter(Loader(PackedDataset(rows), 10, threads=2))
    next(batches)
    with pytest.raises(KeyboardInterrupt):
        batches.throw(KeyboardInterrupt)
    assert not readers()
    assert list(batches) == []


def test_collected_iterators_stop_their_threads(rows):
    """An iterator that nothing refers to any more takes its threads with it, also out of a cycle."""
    batches = iter(Loader(PackedDataset(rows), 10, threads=2))
    next(batches)
    assert readers()
    del batches
    assert not readers()
    cycle = [iter(Loader(PackedDataset(rows), 10, threads=2))]
    next(cycle[0])
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert not readers()


def test_iterator_collected_by_its_own_thread(rows):
    """A reading thread that happens to collect its own iterator does not wait for itself."""
    box = []
    dropped = threading.Event()

    def drop(batch):
        if 300 in batch["y"]:
            while not box:
                time.sleep(0.001)
            box.clear()
            dropped.set()
        return batch

    batches = iter(Loader(PackedDataset(rows, batch_transform=drop), 100, threads=1, prefetch=4))
    next(batches)
    box.append(batches)
    del batches
    assert dropped.wait(100)
    assert_gone()


@pytest.mark.parametrize(("threads", "prefetch"), [(1, 1), (1, 3), (3, 2), (2, 5)])
def test_prefetch_is_bounded(rows, threads, prefetch):
    """No more batches than prefetch says, or one a thread, are read beyond the one handed out; however small."""
    started, bound = [], max(threads, prefetch)
    dataset = PackedDataset(rows, batch_transform=lambda batch: started.append(1) or batch)
    for handed, _ in enumerate(Loader(dataset, 5, threads=threads, prefetch=prefetch), 1):
        if handed in (2, 20, 40):
            deadline = time.monotonic() + 100
            while len(started) - handed < bound and time.monotonic() < deadline:
                time.sleep(0.002)
            time.sleep(0.02)  # for one too many
            assert len(started) - handed == bound
        assert len(started) - handed <= bound
    assert len(started) == 200


def test_inline_transforms_run_when_their_batch_is_asked_for(rows):
    """Without threads nothing is transformed ahead, so that random transforms repeat after resuming."""
    calls = []
    dataset = PackedDataset(rows, batch_transform=lambda batch: calls.append(1) or batch)
    for handed, _ in enumerate(Loader(dataset, 5, threads=0), 1):
        assert len(calls) == handed


#: How a batch (16, 128, 256) may be kept.
HOLDS = [
    lambda x: x,
    lambda x: x[3:5],
    lambda x: x[::2, 1:9, 5],
    lambda x: x.view(torch.int32)[1],
    lambda x: x.permute(1, 0, 2)[2],
    lambda x: x.detach(),
    lambda x: torch.unsafe_split_with_sizes(x, [1, 15])[0],
    lambda x: torch.empty(0).set_(x.untyped_storage()),
    lambda x: torch.from_dlpack(x[1:3]),
    lambda x: np.from_dlpack(x)[1:3],
    lambda x: x.numpy()[7:8],
    lambda x: memoryview(x.numpy())[:10],
]


@pytest.mark.parametrize(
    "make",
    [
        lambda dataset: Loader(dataset, 16, shuffle=True, threads=0),
        lambda dataset: Loader(dataset, 16, shuffle=True, threads=3),
        lambda dataset: Loader(dataset, 16, shuffle=True, as_numpy=True),
        lambda dataset: Loader(Mix({dataset: 1}), 16, shuffle=True),
        lambda dataset: DataLoader(dataset, 16, shuffle=True),
    ],
)
def test_batches_never_change(big, make):
    """As long as a view of a batch is kept, of whatever kind, it holds what it held, whatever is read meanwhile."""
    loader, kept, holds = make(PackedDataset(big)), [], itertools.cycle(HOLDS)
    for _ in range(6):
        for batch in loader:
            way = next(holds)(torch.as_tensor(batch["x"]))
            kept.append((way, np.asarray(way).tobytes()))
            kept = kept[-7:]  # the memory of others is used again
            del batch, way
        assert not [way for way, copy in kept if np.asarray(way).tobytes() != copy]


def test_memory_that_is_free_is_bounded(big):
    """However many batches were held, a loader keeps few pieces of memory for the next ones."""
    loader = Loader(PackedDataset(big), 8, sampler=list(range(BIG)) * 12, threads=0)
    tracemalloc.start()
    try:
        held = list(loader)
        assert tracemalloc.get_traced_memory()[0] >= sum(batch["x"].nbytes for batch in held)
        del held
        assert tracemalloc.get_traced_memory()[0] < 7 * 2**23
    finally:
        tracemalloc.stop()


def test_memory_may_come_back_at_any_moment(big):
    """Garbage is collected within whatever call: batches that hold themselves give back their memory there."""
    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for batch in Loader(PackedDataset(big), 8, threads=0, repeat=2):
            assert (batch["x"][:, 0, 0] == batch["y"]).all()
            batch["itself"] = batch
    finally:
        gc.set_threshold(*before)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators keep what they like")
@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("as_numpy", [False, True])
def test_memory_of_dropped_batches_is_used_again(big, threads, as_numpy):
    """A loop that keeps no batch lives on memory that the process has already, epoch after epoch."""
    loader = Loader(PackedDataset(big), 16, threads=threads, prefetch=2, as_numpy=as_numpy)
    for _ in range(3):
        for batch in loader:
            x = batch["x"]
            del x
    before, nbytes = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, 0
    for _ in range(6):
        for batch in loader:
            nbytes += batch["x"].nbytes
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < nbytes / resource.getpagesize() / 2


def test_a_batch_that_is_dropped_is_held_by_nobody(big, monkeypatch):
    """Whoever lets go of a batch before asking for the next is the last to hold it: it is gone when that is read."""
    batches, seen, held = iter(Loader(PackedDataset(big), 16, threads=0)), [], []
    read = FixedRaw.read
    monkeypatch.setattr(FixedRaw, "read", lambda *given: held.append([one() for one in seen]) or read(*given))
    for _ in range(6):
        batch = next(batches)
        seen.append(weakref.ref(batch["x"]))
        del batch
    assert len(held) > 3
    assert all(one is None for some in held for one in some)


def test_batches_made_contiguous_by_a_thread_are_held_by_nobody(big):
    """Nor by the run that they were read with, whose later batches are still to come."""
    batches = iter(Loader(PackedDataset(big), 4, threads=1, channels_last=False))
    next(batches)
    x = weakref.ref(next(batches)["x"])
    next(batches)
    assert x() is None


def _read_in_child(loader, queue):
    loader.set_epoch(0)
    queue.put([n for batch in loader for n in batch["y"].tolist()])


@pytest.mark.parametrize("threads", [0, 2])
def test_loader_works_in_a_forked_child(rows, threads):
    """A loader that its parent has used, and is in the middle of using, reads the same in a forked child."""
    loader = Loader(PackedDataset(rows), 50, shuffle=True, threads=threads)
    expected = [n for batch in loader for n in batch["y"].tolist()]
    loader.set_epoch(0)
    in_use = iter(loader)
    got = next(in_use)["y"].tolist()
    fork = multiprocessing.get_context("fork")
    queue = fork.Queue()
    child = fork.Process(target=_read_in_child, args=(loader, queue))
    child.start()
    assert queue.get(timeout=100) == expected
    child.join(100)
    assert child.exitcode == 0
    queue.close()
    queue.join_thread()
    got += [n for batch in in_use for n in batch["y"].tolist()]
    assert got == expected


def _meet(barrier, batch):
    """Sends the threads that read a loader's first batches into torch at the same time."""
    if 0 <= batch["y"][0] < 200:
        barrier.wait(100)
    return {"y": torch.index_select(batch["y"], 0, torch.arange(50))}


def test_threads_of_a_forked_child_find_torch_ready(rows):
    """Several threads of a forked child may be the first to ask torch for threads, all at once."""
    torch.index_select(torch.zeros(100, 1000), 0, torch.arange(100))  # the parent's threads, which stay behind
    for _ in range(8):
        dataset = PackedDataset(rows, batch_transform=partial(_meet, threading.Barrier(4)))
        child = multiprocessing.get_context("fork").Process(target=list, args=(Loader(dataset, 50, threads=4),))
        child.start()
        child.join(100)
        assert child.exitcode == 0


def _in_shared_memory(dataset):
    """What this process has mapped, but for the dataset, from shared memory that would stay there after a kill."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {
        line.split()[-1]
        for line in lines
        if "/dev/shm/" in line and str(dataset) not in line and "(deleted)" not in line
    }


@pytest.mark.skipif(platform.system() != "Linux", reason="looks into /proc")
@pytest.mark.parametrize("threads", [0, 2])
def test_nothing_lies_in_shared_memory(rows, threads):
    """A run that is killed, at any batch, leaves nothing in /dev/shm: nothing is put there, no process made."""
    before, children = _in_shared_memory(rows), multiprocessing.active_children()
    for _ in Loader(PackedDataset(rows, extras=("number",)), 50, shuffle=True, threads=threads):
        assert _in_shared_memory(rows) == before
        assert multiprocessing.active_children() == children
