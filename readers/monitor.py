"""Is the loader fast enough? The time that training waits for data, as a share of its steps.

A step is the time from one hand-over of a batch to the next, the first one from the start of the epoch. The wait
is the part of it spent inside the loader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from statistics import median
from time import perf_counter
from typing import Any, Generic, NamedTuple, TypeVar

from packer.errors import UsageError
from readers.share import present_rank

Batch = TypeVar("Batch")


class Waits(NamedTuple):
    """How long some steps in a row waited for data.

    Attributes:
        first_step: number of the first step; steps count from 0 and go on over all epochs.
        steps: how many.
        share: time waited for data, as a part of the time of all these steps; 0 to 1.
        mean, median, max: seconds that a step waited. A mean far above the median says that few steps waited long.
    """

    first_step: int
    steps: int
    share: float
    mean: float
    median: float
    max: float

    def __str__(self) -> str:
        last = self.first_step + self.steps - 1
        waited = f"waited for data {self.share:.2%} of the time"
        each = f"mean {duration(self.mean)}, median {duration(self.median)}, max {duration(self.max)}"
        return f"steps {self.first_step} to {last}: {waited}; {each}"


class DataTimeMonitor(Generic[Batch]):
    """Wraps a loader and reports how long the loop that iterates it waits for data.

    Each report covers all steps since the last one, even if an epoch was left early; the end of an epoch reports the
    rest. Rank 0 always reports, other ranks if the share is above `threshold`. Everything else (`len`, `set_epoch`,
    `state_dict`, ...) is the loader's own.

        for batch in DataTimeMonitor(loader): ...

    Args:
        loader: any iterable of batches; may be iterated any number of times.
        every: steps between reports.
        threshold: the share of the time above which waiting is too much.
        log: called with each report, one line.

    Raises:
        UsageError: `every` is below 1 or `threshold` outside 0 to 1.
    """

    def __init__(
        self,
        loader: Iterable[Batch],
        every: int = 100,
        threshold: float = 0.01,
        log: Callable[[str], object] = print,
    ) -> None:
        if every < 1:
            raise UsageError(f"every {every} steps: 1 or more is expected")
        if not 0 <= threshold <= 1:
            raise UsageError(f"threshold {threshold}: a share from 0 to 1 is expected")
        self._loader = loader
        self._every = every
        self._threshold = threshold
        self._log = log
        self._first_step = 0
        self._waits: list[float] = []
        # Seconds of steps not yet reported: those of earlier iterations, and from `began` to the last hand-over.
        self._earlier_seconds = 0.0
        self._began = self._handed_over = 0.0
        self._reported: Waits | None = None

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]  # TypeError if the loader has no length

    def __bool__(self) -> bool:
        # Without it Python would ask for the length, which not every loader has.
        return True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # while unpickling there is no loader yet
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __iter__(self) -> Iterator[Batch]:
        self._earlier_seconds += self._handed_over - self._began
        request_time = self._began = self._handed_over = perf_counter()
        waits, every = self._waits, self._every
        for batch in self._loader:
            now = self._handed_over = perf_counter()
            waits.append(now - request_time)
            if len(waits) >= every:
                self._report()
            yield batch
            # The loader may use its memory again, once nobody holds it.
            del batch
            request_time = perf_counter()
        if waits:
            self._report()

    def snapshot(self) -> Waits | None:
        """Return figures of the steps since the last report; right after a report, its own. None before any step."""
        return self._figures() if self._waits else self._reported

    def _figures(self) -> Waits:
        waited, total = sum(self._waits), self._earlier_seconds + self._handed_over - self._began
        steps, share = len(self._waits), waited / total if total else 0.0
        return Waits(self._first_step, steps, share, waited / steps, median(self._waits), max(self._waits))

    def _report(self) -> None:
        waits = self._reported = self._figures()
        self._first_step += waits.steps
        self._waits.clear()
        self._earlier_seconds = 0.0
        self._began = self._handed_over
        rank, _ = present_rank()
        if rank == 0 or waits.share > self._threshold:
            above = f" (above {self._threshold:.2%})" if waits.share > self._threshold else ""
            self._log(f"rank {rank}, {waits}{above}")


def duration(seconds: float) -> str:
    """Return `1.50 s`, `23.4 ms` or `8.0 us`."""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    if seconds >= 1e-3:
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds * 1e6:.1f} us"
