"""One epoch of a loader: its order, and how much of it is done. That is all that a saved state holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from readers.order import Order


@dataclass
class Epoch:
    """An epoch that is read, or that will be.

    Attributes:
        order: of the samples.
        number: of the epoch, from 0 on.
        done: samples of the order that were handed out on all ranks; batches, of a `BatchOrder`.
    """

    order: Order
    number: int = 0
    done: int = 0

    def state(self) -> dict[str, Any]:
        """Return what `Loader.load_state_dict` takes to go on here."""
        return {"epoch": self.number, "done": self.done, **self.order.save()}

    def next_epoch(self, order: Order) -> Epoch:
        """Return the beginning of the next epoch, which may have another order."""
        return Epoch(order, self.number + 1)
