"""Buffers: memory comes back when the last tensor on it is gone, and never before."""

from __future__ import annotations

import importlib
import pickle
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from readers.buffers import _UNUSED, Buffers
from readers.pool import Pool


def as_it_is(array: NDArray[Any]) -> NDArray[Any]:
    """Hands memory out as it is filled."""
    return array


def buffers(keep: int = 3) -> Buffers:
    """64 rows of 100 bytes."""
    return Buffers(64, 100, torch.uint8, as_it_is, keep)


def take(made: Buffers, rows: int = 64) -> torch.Tensor:
    """The next tensor, as those who read make it."""
    _, values = made.take()
    return torch.from_numpy(values) if rows == len(values) else torch.from_numpy(values)[:rows]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.int64, torch.bool])
def test_tensors_have_the_rows_asked_for(dtype: torch.dtype) -> None:
    """Of any dtype, all rows or fewer, writable, aligned as torch's own."""
    made = Buffers(64, 5, dtype, as_it_is, 3)
    for rows in (64, 64, 7, 1, 64):
        tensor = take(made, rows)
        assert (tensor.shape, tensor.dtype) == ((rows, 5), dtype)
        assert tensor.is_contiguous()
        assert tensor.data_ptr() % 64 == 0
        tensor.fill_(1)
        assert int(tensor.sum()) == 5 * rows


def test_what_is_filled_is_what_is_handed_out() -> None:
    """In another shape and dtype, and with other axes first; in use as long as any tensor of those is."""
    made = Buffers(8, 24, torch.int16, lambda array: array.view("u2").reshape(8, 2, 3, 4).transpose(0, 3, 1, 2), 3)
    memory, values = made.take()
    at = memory.data_ptr()
    memory.copy_(torch.arange(8 * 24).view(8, 24))
    tensor = torch.from_numpy(values)
    assert (tensor.shape, tensor.dtype) == ((8, 4, 2, 3), torch.uint16)
    assert np.array_equal(tensor, np.arange(8 * 24).reshape(8, 2, 3, 4).transpose(0, 3, 1, 2))
    del memory, values
    part = tensor[2:3, 1]
    del tensor
    assert made.take()[0].data_ptr() != at
    del part
    assert made.take()[0].data_ptr() == at


def test_dropped_memory_is_used_again() -> None:
    """Two tensors in turn need two pieces of memory, also where some have fewer rows."""
    made, places = buffers(), set()
    last = None
    for rows in (64, 64, 5, 64, 64, 1, 64):
        tensor = take(made, rows)
        places.add(tensor.data_ptr())
        last = tensor
    assert last is not None
    assert len(places) == 2


@pytest.mark.parametrize("rows", [64, 63])
@pytest.mark.parametrize(
    "hold",
    [
        lambda t: t[5:9],
        lambda t: t.view(-1)[:96].view(torch.float32).view(-1, 6)[3],
        lambda t: t.as_strided((len(t), 4, 25), (100, 1, 4)),
        lambda t: t.numpy(),
        lambda t: t.numpy()[7:8],
        lambda t: memoryview(t.numpy())[:10],
        lambda t: t.detach(),
        lambda t: t.permute(1, 0),
        lambda t: torch.unsafe_split_with_sizes(t, [1, len(t) - 1])[0],
        lambda t: t.untyped_storage(),
        lambda t: torch.from_dlpack(t[1:3]),
        lambda t: np.from_dlpack(t)[1:3],
        lambda t: torch.nn.Parameter(t, requires_grad=False),
    ],
)
def test_any_view_keeps_the_memory(hold: Callable[[torch.Tensor], Any], rows: int) -> None:
    """As long as a view is left, of whatever kind, its memory is not given out; after that it is."""
    made = buffers()
    tensor = take(made, rows)
    at = tensor.data_ptr()
    view = hold(tensor)
    del tensor
    assert take(made, 64).data_ptr() != at
    del view
    assert take(made, 64).data_ptr() == at


def test_what_autograd_saved_keeps_the_memory() -> None:
    """A tensor of which only the backward pass knows."""
    made = Buffers(64, 100, torch.float32, as_it_is, 3)
    tensor = take(made, 64)
    at = tensor.data_ptr()
    weight = torch.ones((64, 100), requires_grad=True)
    result = (weight * tensor.fill_(3)).sum()
    del tensor
    assert take(made, 64).data_ptr() != at
    result.backward()
    assert weight.grad is not None
    assert bool((weight.grad == 3).all())
    del result
    assert take(made, 64).data_ptr() == at


def test_memory_beyond_what_is_kept_belongs_to_its_tensors() -> None:
    """Of twenty tensors none changes, and only the memory of the last three is used again."""
    made = buffers(keep=3)
    tensors = [take(made, 64).fill_(number) for number in range(20)]
    assert [int(tensor[-1, -1]) for tensor in tensors] == list(range(20))
    places = [tensor.data_ptr() for tensor in tensors]
    assert len(set(places)) == 20
    tensors.clear()
    again = [take(made, 64) for _ in range(3)]
    assert sorted(tensor.data_ptr() for tensor in again) == sorted(places[-3:])


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads take turns every few instructions."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("restless")
def test_other_threads_may_let_go_at_any_time() -> None:
    """What a thread still reads is never written to."""
    made = buffers()
    wrong = []
    waiting: queue.Queue[tuple[torch.Tensor, int] | None] = queue.Queue(4)

    def check() -> None:
        while (item := waiting.get()) is not None:
            if not bool((item[0] == item[1]).all()):
                wrong.append(item[1])
            del item

    threads = [threading.Thread(target=check) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(1000):
        waiting.put((take(made, 64 - number % 2).fill_(number % 251), number % 251))
    for _ in threads:
        waiting.put(None)
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.usefixtures("restless")
def test_threads_may_ask_at_once() -> None:
    """None is given what another holds, or is about to be given."""
    made = buffers(keep=8)
    wrong = []

    def use(number: int) -> None:
        for _ in range(500):
            tensor = take(made, 64).fill_(number)
            if not bool((tensor == number).all()):
                wrong.append(number)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_what_is_asked_for_in_the_midst_of_asking_is_other_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a signal's handler, say, just when free memory was found."""
    made, inner = buffers(), list[torch.Tensor]()
    free = take(made, 64).data_ptr()

    def ask_again(array: object) -> int:
        monkeypatch.undo()
        inner.append(take(made, 64))
        return _UNUSED

    monkeypatch.setattr("readers.buffers.getrefcount", ask_again)
    assert take(made, 64).data_ptr() == free
    assert inner[0].data_ptr() != free


def test_memory_that_is_dropped_while_it_is_counted_stays_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """By another thread that takes more than is kept."""
    made, counts = buffers(), list[int]()
    take(made)

    def noting(values: object) -> int:
        counts.append(sys.getrefcount(values))
        return _UNUSED

    monkeypatch.setattr("readers.buffers.getrefcount", noting)
    held = take(made)
    own = counts[0] - _UNUSED

    def dropping(values: object) -> int:
        made._kept.clear()
        return sys.getrefcount(values) - own

    monkeypatch.setattr("readers.buffers.getrefcount", dropping)
    assert take(made).data_ptr() != held.data_ptr()


def test_memory_within_functionalize_is_not_kept() -> None:
    """Tensors there stand for others, whose memory is elsewhere."""
    made = buffers()

    def inside(values: torch.Tensor) -> torch.Tensor:
        made.take()
        return values + 1

    torch.func.functionalize(inside)(torch.zeros(1))
    filled = []
    for number in range(6):
        memory, values = made.take()
        memory.fill_(number)
        filled.append(torch.from_numpy(values))
    assert [int(tensor[-1, -1]) for tensor in filled] == list(range(6))


def test_compiled_code_keeps_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.compile makes arrays of its own: neither are those it makes used again, nor does it use those of others."""
    made = buffers()
    free = take(made).data_ptr()
    monkeypatch.setattr("readers.buffers._is_compiling", lambda: True)
    assert len({free, *(tensor.data_ptr() for tensor in [take(made), take(made)])}) == 3
    monkeypatch.undo()
    assert take(made).data_ptr() == free
    assert len(made._kept) == 1


def test_a_debugger_that_looks_on_changes_nothing() -> None:
    """One that reads all variables refers to them too: memory is used again less, and never too early."""

    def tracer(frame: FrameType, *_: object) -> Any:
        assert frame.f_locals is not None
        return tracer

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        fresh_module = importlib.reload(importlib.import_module("readers.buffers"))
        made = fresh_module.Buffers(64, 100, torch.uint8, as_it_is, 3)
        tensors = [take(made, 64).fill_(number) for number in range(3)]
    finally:
        sys.settrace(before)
    tensors += [take(made, 64).fill_(number) for number in range(3, 6)]
    assert [int(tensor[-1, -1]) for tensor in tensors] == list(range(6))


def test_a_pool_keeps_them_from_epoch_to_epoch() -> None:
    """Of each field, shape and dtype one; a copy of the pool has its own."""
    pool = Pool(keep=5)
    made = pool.buffers("x", 8, 4, torch.uint8, as_it_is)
    assert pool.buffers("x", 8, 4, torch.uint8, as_it_is) is made
    others = [
        pool.buffers(("x", (4,)), 8, 4, torch.uint8, as_it_is),
        pool.buffers("x", 8, 5, torch.uint8, as_it_is),
        pool.buffers("x", 9, 4, torch.uint8, as_it_is),
        pool.buffers("x", 8, 4, torch.int8, as_it_is),
        pickle.loads(pickle.dumps(pool)).buffers("x", 8, 4, torch.uint8, as_it_is),
    ]
    assert len({id(one) for one in (made, *others)}) == 6
    held = [take(made, 8) for _ in range(6)]
    places = {tensor.data_ptr() for tensor in held[3:]}
    held.clear()
    assert {tensor.data_ptr() for tensor in [take(made, 8) for _ in range(3)]} == places
