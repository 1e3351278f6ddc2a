"""The order of the next epoch: made ahead of time, the same as if it were not."""

import os
import pickle
import threading
from typing import ClassVar

import numpy as np
import pytest

from readers import Loader, PackedDataset
from readers import order as orders_module
from readers.order import BlockShuffled, NextOrder, Sequential, Shuffled


class Watched(Shuffled):
    """Takes down which thread makes an order."""

    made_by: ClassVar[list[str]] = []

    def epoch(self, epoch):
        self.made_by.append(threading.current_thread().name)
        return super().epoch(epoch)


@pytest.fixture(autouse=True)
def short_orders(monkeypatch):
    """Orders of tests are worth a thread."""
    monkeypatch.setattr(orders_module, "LEAST_NUMBERS", 100)
    Watched.made_by.clear()


@pytest.mark.parametrize("order", [Shuffled(1000, 3), BlockShuffled.uniform(1000, 10, 50, 3), Sequential(1000)])
def test_what_is_prepared_is_the_order(order):
    """Prepared or not, an epoch's order is the same."""
    orders = NextOrder()
    orders.prepare(order, 5)
    assert np.array_equal(orders.of(order, 5), order.epoch(5))


def test_a_prepared_order_is_made_once_by_its_thread():
    """The caller only takes it, and the next one it makes itself."""
    order, orders = Watched(1000), NextOrder()
    orders.prepare(order, 1)
    orders.of(order, 1)
    assert Watched.made_by == ["packed-order"]
    orders.of(order, 1)
    assert Watched.made_by == ["packed-order", threading.current_thread().name]


def test_another_epoch_or_order_is_made_anew():
    """What was prepared is of no use then."""
    order, orders = Shuffled(1000), NextOrder()
    orders.prepare(order, 1)
    assert np.array_equal(orders.of(order, 2), order.epoch(2))
    orders.prepare(order, 1)
    assert np.array_equal(orders.of(Shuffled(1000, seed=9), 1), Shuffled(1000, seed=9).epoch(1))


def test_short_orders_are_left():
    """They take less than a thread does."""
    order, orders = Watched(99), NextOrder()
    orders.prepare(order, 1)
    assert Watched.made_by == []


def test_no_memory_for_an_order_is_the_callers_error(monkeypatch):
    """The thread says nothing; who asks for the order is told."""

    def fails(self, epoch):
        raise MemoryError

    order, orders = Shuffled(1000), NextOrder()
    monkeypatch.setattr(Shuffled, "epoch", fails)
    orders.prepare(order, 1)
    with pytest.raises(MemoryError):
        orders.of(order, 1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_makes_its_own():
    """The thread stays behind in the parent; nothing waits for it."""
    order, orders = Shuffled(300_000), NextOrder()
    orders.prepare(order, 1)
    child = os.fork()
    if not child:
        os._exit(0 if np.array_equal(orders.of(order, 1), order.epoch(1)) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("threads", ["auto", 0, 2])
def test_loaders_prepare_the_next_epoch(rows, threads, monkeypatch):
    """In the last quarter of an epoch, but where all is to be done in the caller's thread; batches are the same."""
    loader = Loader(PackedDataset(rows), 50, shuffle=True, threads=threads)
    loader.order = Watched(1000)
    for epoch in range(3):
        seen = []
        for step, batch in enumerate(loader, 1):
            seen += batch["y"].tolist()
            assert len(Watched.made_by) >= epoch + 1
            if step == 15 and threads != 0:
                loader._next_order._making.join()
        assert seen == Shuffled(1000).epoch(epoch).tolist()
    expected = {"packed-order"} if threads != 0 else {threading.current_thread().name}
    assert set(Watched.made_by[1:]) == expected


def test_loaders_can_be_pickled_meanwhile(rows):
    """The thread does not travel."""
    loader = Loader(PackedDataset(rows), 50, shuffle=True)
    list(loader)
    assert len(list(pickle.loads(pickle.dumps(loader)))) == 20
