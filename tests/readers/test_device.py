"""Moving batches to a device: the order of calls on a pretended device; the rest, marked gpu, on a real one."""

import gc
import weakref
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch
from torch.utils.data import DataLoader

from packer.errors import UsageError
from readers import Loader, PackedDataset
from readers.device import move_ahead, to_device

gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@dataclass
class Item:
    image: torch.Tensor
    name: str = "a"


class FakeCuda:
    """Stands in for torch.cuda: writes down what is called, on which stream, and completes copies when told to."""

    def __init__(self):
        self.calls = []
        self.stream_now = "current"
        self.events = []
        self.complete = True

    def __getattr__(self, name):
        raise AssertionError(f"torch.cuda.{name} is not pretended")

    def Stream(self, device):  # noqa: N802
        assert device == torch.device("cuda", 0)
        return "side"

    def Event(self):  # noqa: N802
        self.events.append(FakeEvent(self, len(self.events)))
        return self.events[-1]

    def current_stream(self, device):
        return self if self.stream_now == "current" else self.stream_now

    def wait_event(self, event):
        self.calls.append(f"wait {event.number}")

    @contextmanager
    def stream(self, stream):
        before, self.stream_now = self.stream_now, "current" if stream is self else stream
        yield
        self.stream_now = before

    def to(self, tensor, device, non_blocking=False):
        self.calls.append(f"copy {tensor.item():g} on {self.stream_now}{'' if non_blocking else ', blocking'}")
        return tensor.clone()

    def record_stream(self, tensor, stream):
        assert stream is self
        self.calls.append(f"record {tensor.item():g}")

    def install(self, monkeypatch):
        for name in ("Stream", "Event", "current_stream", "stream"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        monkeypatch.setattr(torch.Tensor, "to", lambda tensor, *a, **k: self.to(tensor, *a, **k))
        monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: self.record_stream(tensor, stream))


class FakeEvent:
    def __init__(self, cuda, number):
        self.cuda = cuda
        self.number = number

    def record(self, stream):
        assert stream == "side"
        self.cuda.calls.append(f"event {self.number}")

    def query(self):
        return self.cuda.complete

    def synchronize(self):
        self.cuda.calls.append(f"synchronize {self.number}")


@pytest.fixture
def cuda(monkeypatch):
    fake = FakeCuda()
    fake.install(monkeypatch)
    return fake


def batches(n, alive=None):
    """Batches {"x": tensor(i)}; `alive` collects weak references to what they are copied from."""
    for i in range(n):
        tensor = torch.tensor(float(i))
        if alive is not None:
            alive.append(weakref.ref(tensor))
        yield {"x": tensor}
        del tensor


def test_one_batch_ahead(cuda):
    """The next copy is started on the side stream before a batch is handed over, behind its event and recorded."""
    staged = move_ahead(batches(3), "cuda")
    assert next(staged)["x"].item() == 0
    assert cuda.calls == ["copy 0 on side", "event 0", "copy 1 on side", "event 1", "wait 0", "record 0"]
    cuda.calls.clear()
    assert next(staged)["x"].item() == 1
    assert cuda.calls == ["copy 2 on side", "event 2", "wait 1", "record 1"]
    cuda.calls.clear()
    assert next(staged)["x"].item() == 2
    assert cuda.calls == ["wait 2", "record 2"]
    assert list(staged) == []
    assert list(move_ahead([], "cuda")) == []
    assert [batch["x"].item() for batch in move_ahead(batches(1), "cuda")] == [0]


def test_source_lives_until_its_copy_is_done(cuda):
    """What is copied from is kept while the copy is under way, and let go of afterwards."""
    alive = []
    cuda.complete = False
    staged = move_ahead(batches(4, alive), "cuda:0")
    next(staged)
    next(staged)
    gc.collect()
    assert not [ref for ref in alive if ref() is None]
    cuda.complete = True
    next(staged)
    gc.collect()
    assert [ref() is not None for ref in alive] == [False, False, False, True]


@pytest.mark.parametrize("leave", ["close", "forget", "exhaust"])
def test_leaving_waits_for_the_last_copy(cuda, leave):
    """An iterator that is closed, forgotten or at its end waits for its copies before it lets go of their source."""
    cuda.complete = False
    staged = move_ahead(batches(3), "cuda")
    next(staged)
    if leave == "close":
        staged.close()
    elif leave == "exhaust":
        list(staged)
    del staged
    gc.collect()
    assert cuda.calls[-1] == ("synchronize 2" if leave == "exhaust" else "synchronize 1")


def test_batch_handed_out_is_not_held(cuda):
    """The memory on the device is free as soon as its user lets go of it."""
    staged = move_ahead(batches(3), "cuda")
    batch = next(staged)
    ref = weakref.ref(batch["x"])
    del batch
    gc.collect()
    assert ref() is None


def test_exception_comes_at_its_own_batch(cuda):
    """An exception while the next batch is made does not cost the one before it, and keeps its traceback."""

    def broken():
        yield from batches(2)
        raise ValueError("a bad frame")

    staged = move_ahead(broken(), "cuda")
    assert next(staged)["x"].item() == 0
    assert next(staged)["x"].item() == 1
    with pytest.raises(ValueError, match="a bad frame") as caught:
        next(staged)
    assert caught.traceback[-1].name == "broken"
    assert cuda.calls[-1] == "synchronize 1"


def test_tensors_on_a_device_move_on_the_callers_stream(cuda, monkeypatch):
    """A tensor that is on a device already may still be computed; it is moved behind that work."""
    on_device = torch.tensor(7.0)
    meta = torch.device("meta")
    monkeypatch.setattr(torch.Tensor, "device", property(lambda t: meta if t is on_device else torch.device("cpu")))
    assert len(list(move_ahead([[on_device, torch.tensor(1.0)]], "cuda"))) == 1
    assert cuda.calls[:5] == ["copy 7 on current", "copy 1 on side", "event 0", "wait 0", "record 7"]


def test_cpu_batches_pass_through():
    """On the CPU the same call gives the same tensors, each when it is asked for."""
    taken = []

    def source():
        for i in range(3):
            taken.append(i)
            yield {"x": torch.tensor(i), "name": ["a"]}

    moved = move_ahead(source(), "cpu")
    assert taken == []
    assert next(moved)["x"].item() == 0
    assert taken == [0]
    assert [b["x"].item() for b in moved] == [1, 2]


def test_to_device_moves_nests():
    """Every tensor of a nest is moved, other leaves stay; the CPU moves nothing."""
    tree = {"a": torch.ones(2), "b": [Item(torch.ones(3))], "n": 3}
    moved = to_device(tree, "meta")
    assert moved["a"].device.type == moved["b"][0].image.device.type == "meta"
    assert moved["b"][0].name == "a"
    assert moved["n"] == 3
    assert tree["a"].device.type == "cpu"
    assert to_device(tree, "cpu")["a"] is tree["a"]


def test_copies_to_the_cpu_block(cuda):
    """A copy to the CPU waits even when asked not to: its memory is read at once."""
    to_device(torch.tensor(1.0), "cpu")
    to_device(torch.tensor(2.0), "cuda")
    to_device(torch.tensor(3.0), "cuda", non_blocking=False)
    assert cuda.calls == ["copy 1 on current, blocking", "copy 2 on current", "copy 3 on current, blocking"]


@pytest.mark.parametrize("device", ["cuda:99", "gpu", "mps"])
def test_missing_devices_are_refused(device):
    """A device that is not here is refused at once, with what to use instead."""
    with pytest.raises(UsageError, match="'cpu'"):
        move_ahead([], device)


class TestOnGpu:
    """On a real device."""

    pytestmark = gpu

    def test_equality_while_memory_is_reused(self):
        """Batches arrive whole though their pinned memory is written again as soon as it is let go of."""
        free = [torch.empty(1 << 20, dtype=torch.int32).pin_memory() for _ in range(2)]

        def reusing():
            for i in range(100):
                buffer = free.pop() if free else torch.empty(1 << 20, dtype=torch.int32).pin_memory()
                view = buffer.numpy()
                view[:] = i
                weakref.finalize(view, free.append, buffer)
                yield {"x": torch.from_numpy(view), "i": i}
                del view

        for batch in move_ahead(reusing(), "cuda"):
            torch.cuda._sleep(1_000_000)
            assert batch["x"].device.type == "cuda"
            assert bool((batch["x"] == batch["i"]).all())

    def test_pinned_and_pageable_arrive_equal(self):
        """Pinned, pageable and channels_last tensors arrive as they were."""
        torch.manual_seed(0)
        images = torch.randint(0, 255, (128, 3, 64, 64), dtype=torch.uint8).to(memory_format=torch.channels_last)
        for batch in (images, images.pin_memory()):
            (moved,) = move_ahead([{"x": batch}], "cuda")
            assert torch.equal(moved["x"].cpu(), images)
            assert moved["x"].is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(to_device(to_device(images, "cuda"), "cpu"), images)

    def test_workers_of_a_process_that_uses_the_device(self, packed):
        """Children by fork, which may not ask CUDA for anything, read the batches that their parent reads."""
        torch.zeros(1, device="cuda")
        dataset = PackedDataset(packed, fields=["x", "xyz", "picture"])
        workers = DataLoader(dataset, 8, num_workers=1, multiprocessing_context="fork")
        for batch, expected in zip(workers, Loader(dataset, 8), strict=True):
            for name, values in expected.items():
                assert [value.tolist() for value in batch[name]] == [value.tolist() for value in values]
