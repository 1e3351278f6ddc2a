"""What a row is given: where its inputs are kept, how large they are, how often to measure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from benchmark.inputs.sizes import Sizes
from benchmark.inputs.store import Store
from benchmark.measuring import Rounds, Side, race, repeated
from benchmark.profiling import profiled
from benchmark.row import Figures


@dataclass(frozen=True)
class Bench:
    """Passed to every row.

    Attributes:
        store: makes inputs and keeps them.
        sizes: how large the inputs are.
        rounds: how often is measured.
        profile: whether our side is run once more, to see where its time goes.
    """

    store: Store
    sizes: Sizes
    rounds: Rounds
    profile: bool = False

    def race(self, ours: Side, *theirs: Side) -> Figures:
        """Ours against the best of theirs, in turn; the value is the ratio of the rates."""
        figures = race(ours, theirs, self.rounds)
        return replace(figures, profile=profiled(ours)) if self.profile and not ours.apart else figures

    def repeated(self, measure: Callable[[], float], *notes: str) -> Figures:
        """The median of what `measure` gives."""
        return repeated(measure, self.rounds, notes)

    def scratch(self, name: str) -> Path:
        """A path for output of a row; nothing is there."""
        return self.store.scratch(name)
