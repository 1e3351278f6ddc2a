"""One pass over some batches, timed; and how many batches the time allows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from packer.cli.benching.draws import Draws
from packer.cli.benching.page_cache import disk_bytes
from packer.cli.benching.results import Rate
from packer.cli.benching.settings import DATALOADER, Setting
from packer.cli.benching.ways import Way
from packer.errors import PackerError
from readers.places import Numbers

#: Batches of a pass, for each worker, at least: fewer would measure how a loader starts and ends.
LEAST_BATCHES = 3
#: Batches of a pass at most: of 10 us each they take a second.
MOST_BATCHES = 100_000

Each = Callable[[Any], object]


def _ignored(batch: Any) -> None:
    pass


class Clock:
    """The time that is left.

    Args:
        seconds: of measuring, in all.
        told: called with the seconds gone by so far and the bytes read since the last call, now and then.
    """

    def __init__(self, seconds: float, told: Callable[[float, int], None] = lambda gone, nbytes: None) -> None:
        self._began = time.monotonic()
        self._told = told
        self.seconds = seconds

    @property
    def gone(self) -> float:
        return time.monotonic() - self._began

    @property
    def left(self) -> float:
        """Seconds that are left for what should be measured once in any case: somewhat more than the user gave."""
        return 1.5 * self.seconds + 5 - self.gone

    def tell(self, nbytes: int) -> None:
        """Takes down that so many bytes were read."""
        self._told(self.gone, nbytes)


@dataclass
class Passes:
    """The passes of one setting.

    Attributes:
        batch_seconds: what a batch takes, as far as is known.
    """

    setting: Setting
    draws: Draws
    batch_seconds: float = 0.0
    rates: list[float] = field(default_factory=list)
    samples: int = 0
    batches: int = 0
    disk: int = 0
    failure: str = ""

    @property
    def least(self) -> int:
        """Batches of the shortest pass."""
        return LEAST_BATCHES * max(self.setting.workers, 1)

    def drawn(self, batches: int) -> Numbers:
        """The samples of the next `batches` batches."""
        return self.draws.take(batches * self.setting.batch_size)

    def batches_in(self, seconds: float) -> int:
        """How many batches to take, so that a pass takes about so long."""
        return round(min(max(seconds / max(self.batch_seconds, 1e-6), self.least), MOST_BATCHES))

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Takes down why worker processes fail: too little shared memory is no fault of the dataset."""
        try:
            yield
        except (RuntimeError, PackerError) as error:
            if self.setting.way != DATALOADER or not self.setting.workers:
                raise
            lines = str(error).strip().splitlines()
            if isinstance(error, PackerError):
                # torch has put the worker's traceback before the sentence, which follows the name of its class.
                raise type(error)(lines[-1].partition(": ")[2] or lines[-1]) from None
            self.failure = lines[0]

    def start(self, way: Way, seconds: float) -> None:
        """Gets workers started, and an idea of what a batch takes, in about so much time or what one batch takes."""
        batches = max(self.setting.workers, 1)
        taken = timed(way, self.drawn(batches))
        self.batch_seconds = taken / batches
        if taken < seconds:
            taken = 0.0  # of which starting the workers was a part
        while taken < seconds / 2 and batches <= MOST_BATCHES:
            taken = timed(way, self.drawn(batches))
            self.batch_seconds = taken / batches
            batches *= 2

    def run(self, way: Way, numbers: Numbers, each: Each = _ignored) -> None:
        """Reads the samples, and takes down how long that took."""
        before = disk_bytes()
        seconds = timed(way, numbers, each)
        self.disk += max(0, disk_bytes() - before)
        self.batches = -(-len(numbers) // self.setting.batch_size)
        self.batch_seconds = seconds / self.batches
        self.samples += len(numbers)
        self.rates.append(len(numbers) / seconds)

    def rate(self, sample_bytes: float) -> Rate | None:
        """The median of the passes; None where there was none."""
        if not self.rates:
            return None
        samples = median(self.rates)
        per_sample = self.disk / self.samples
        return Rate(
            samples=samples,
            slowest=min(self.rates),
            fastest=max(self.rates),
            bytes=samples * sample_bytes,
            passes=len(self.rates),
            batches=self.batches,
            disk_bytes=self.disk,
            disk_bytes_per_sample=per_sample,
        )


def timed(way: Way, numbers: Numbers, each: Each = _ignored) -> float:
    """Seconds that the batches of the samples take; `each` is called with every one of them."""
    began = time.perf_counter()
    for batch in way.batches(numbers):
        each(batch)
        # The loader may use its memory again.
        del batch
    return time.perf_counter() - began
