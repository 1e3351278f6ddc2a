"""The order of the next epoch, made by a thread while the rest of the present one is read.

A random order takes 20 to 25 ns a number: 230 ms before the first batch of 10,000,000 rows, a seventh of the time of
reading them in batches of 100. numpy sorts without the interpreter's lock, so another processor can do it meanwhile.
"""

from __future__ import annotations

import threading

from readers.block_order import BlockShuffled
from readers.order import Order, Shuffled
from readers.places import Numbers

#: Shorter orders are made when they are needed: in less than 6 ms.
LEAST_NUMBERS = 2**18


class NextOrder:
    """Gives the orders of epochs, and makes one ahead of time where it is told to."""

    def __init__(self) -> None:
        self._making: _Making | None = None

    def __reduce__(self) -> tuple[type[NextOrder], tuple[()]]:
        return NextOrder, ()

    def prepare(self, order: Order, epoch: int) -> None:
        """Begins to make the order of an epoch, where that takes long. It is held until the next call of `of`."""
        # Others ask a sampler, which may be anyone's and draw from torch's generator, or are no work.
        if isinstance(order, Shuffled | BlockShuffled) and len(order) >= LEAST_NUMBERS:
            self._making = _Making(order, epoch)
            self._making.start()

    def of(self, order: Order, epoch: int) -> Numbers:
        """The sample numbers of an epoch, (n,): what was prepared, if it is this."""
        making, self._making = self._making, None
        if making is not None and making.order is order and making.epoch == epoch:
            making.join()
            if making.numbers is not None:
                return making.numbers
        return order.epoch(epoch)


class _Making(threading.Thread):
    """Makes one order. It is no daemon: it ends by itself, soon."""

    def __init__(self, order: Order, epoch: int) -> None:
        super().__init__(name="packed-order")
        self.order = order
        self.epoch = epoch
        #: None as long as there is none, which it stays in a process that was forked meanwhile.
        self.numbers: Numbers | None = None

    def run(self) -> None:
        try:
            self.numbers = self.order.epoch(self.epoch)
        except MemoryError:  # the caller tries again when it is needed, and says so
            return
