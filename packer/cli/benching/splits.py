"""Where the time of a batch goes, taken apart while nothing overlaps: one thread or one process reads at a time.

A Loader with one thread waits for it, and a DataLoader with one worker that reads one batch ahead waits for it, so the
time of a batch is the sum of its parts.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Any

from packer.cli.benching.draws import FullDraws
from packer.cli.benching.obstacles import obstacle
from packer.cli.benching.passes import Clock, Passes, timed
from packer.cli.benching.probes import DECODING, FETCHING, GATHERING, OWN, READING, ProbedDataset
from packer.cli.benching.results import Split
from packer.cli.benching.settings import DATALOADER, Setting
from packer.cli.benching.subject import Subject
from packer.cli.benching.ways import Way, open_way
from readers import PackedDataset
from readers.places import Numbers

WARM, COLD = "warm", "cold"
#: Passes that the time is shared out to.
_ROUNDS = 3
#: Batches of a pass at most, and how fast reading is thought to be before it has been measured, in bytes a second.
_MOST_BATCHES = 2000
_FIRST_GUESS = 1e8
#: Copies to a device that are timed.
_COPIES = 5

#: Copies a batch to a device and waits for it.
Copy = Callable[[Any], None]


def device_copy() -> Copy | None:
    """The copy to the GPU that torch would use; None where it finds none."""
    import torch

    from readers import to_device

    if not torch.cuda.is_available():
        return None

    def copy(batch: Any) -> None:
        to_device(batch, "cuda")
        torch.cuda.synchronize()

    copy_empty = torch.zeros(1)
    copy(copy_empty)  # the first one sets everything up
    return copy


@dataclass(frozen=True)
class Splitting:
    """Splits of settings.

    Attributes:
        copy: None where there is no device.
        failures: by the reason, which settings could not be measured.
    """

    subject: Subject
    clock: Clock
    copy: Copy | None = None
    failures: dict[str, list[str]] = field(default_factory=dict)

    def warm(self, settings: Sequence[Setting], seconds: float) -> list[Split]:
        """Splits over samples that are in memory."""
        with ExitStack() as stack:
            probed = {setting: self._open() for setting in settings}
            ways = {one: stack.enter_context(self._way(one, dataset)) for one, dataset in probed.items()}
            # A batch of rows takes a few microseconds, and half as long again with probes.
            plain = {
                one: stack.enter_context(self._way(one, self.subject.open())) for one in settings if not _apart(one)
            }

            def split(one: Passes, batches: int) -> Split:
                setting, numbers = one.setting, one.drawn(batches)
                if not one.rates:
                    timed(ways[setting], numbers)
                self.subject.warm_files()
                self.subject.warm_samples(probed[setting], numbers)
                alone = timed(plain[setting], numbers) / batches if setting in plain else math.inf
                return self._split(one, ways[setting], probed[setting], numbers, (WARM, alone))

            return self._rounds(settings, seconds, split)

    def cold(self, settings: Sequence[Setting], seconds: float) -> list[Split]:
        """Splits over samples that lie on the disk."""

        def split(one: Passes, batches: int) -> Split:
            numbers = one.draws.take(min(batches * one.setting.batch_size, self.subject.samples))
            dataset = self._open()
            with self._way(one.setting, dataset) as way:
                timed(way, self.subject.first(one.setting.batch_size))
                self.subject.cool()
                return self._split(one, way, dataset, numbers, (COLD, math.inf))

        return self._rounds(settings, seconds, split)

    def _open(self) -> ProbedDataset:
        return ProbedDataset(self.subject.path, self.subject.fields)

    def _way(self, setting: Setting, dataset: PackedDataset) -> Way:
        return open_way(setting, dataset, ahead=1, pin_memory=self.copy is not None)

    def _rounds(
        self, settings: Sequence[Setting], seconds: float, split: Callable[[Passes, int], Split]
    ) -> list[Split]:
        """The median of each setting's splits, some rounds of them."""
        end = self.clock.gone + seconds
        found: dict[Setting, list[Split]] = {setting: [] for setting in settings}
        guess = self.subject.sample_bytes / _FIRST_GUESS
        known = [Passes(one, FullDraws(self.subject.samples), guess * one.batch_size) for one in settings]
        share = seconds / _ROUNDS / len(found)
        rounds = 0
        while not rounds or (self.clock.gone + share < end and rounds < _ROUNDS):
            for one in known:
                one.failure = one.failure or ("" if one.rates else obstacle(one, self.subject, self.clock))
                if one.failure or (rounds and self.clock.gone + share >= end):
                    continue
                with one.guarded():
                    found[one.setting].append(split(one, min(one.batches_in(share / 2), _MOST_BATCHES)))
            rounds += 1
        for one in known:
            if one.failure:
                self.failures.setdefault(one.failure, []).append(one.setting.described)
        return [median_split(splits) for splits in found.values() if splits]

    def _split(self, one: Passes, way: Way, dataset: ProbedDataset, numbers: Numbers, kind: tuple[str, float]) -> Split:
        """The split of a pass; `kind` is warm or cold, and what a batch takes without probes, in seconds."""
        last: deque[Any] = deque(maxlen=1)
        before = list(dataset.seconds)
        one.run(way, numbers, last.append)
        taken = [(after - start) / one.batches for after, start in zip(dataset.seconds, before, strict=True)]
        self.clock.tell(round(len(numbers) * self.subject.sample_bytes))
        state, plain = kind
        batch = one.batch_seconds - taken[OWN]
        # By chance a pass without probes may take even less than the parts that another was seen to have.
        if taken[READING] + taken[DECODING] + taken[GATHERING] < plain < batch:
            batch = plain
        return split_of(one.setting, state, batch, taken, self._copying(last[0]))

    def _copying(self, batch: Any) -> float | None:
        if self.copy is None:
            return None
        return median(_seconds(self.copy, batch) for _ in range(_COPIES))


def split_of(setting: Setting, state: str, batch: float, taken: Sequence[float], copying: float | None) -> Split:
    """The split of a batch that took `batch` seconds, of which the probes have taken down `taken`."""
    parts = [taken[READING], taken[DECODING], taken[GATHERING]]
    handing_over = 0.0
    if setting.workers:
        # What a thread does beside its reading cannot be told from waiting for it.
        handing_over = batch - (taken[FETCHING] - taken[OWN] if _apart(setting) else sum(parts))
    rest = batch - sum(parts) - handing_over
    return Split(setting, state, batch, parts[0], parts[1], parts[2], handing_over, rest, copying)


def _apart(setting: Setting) -> bool:
    """Whether another process reads."""
    return setting.way == DATALOADER and setting.workers > 0


def median_split(splits: Sequence[Split]) -> Split:
    """The one of the splits whose batch took the middle time: its parts add up, as medians of parts would not."""
    ranked = sorted(splits, key=lambda split: split.batch)
    return ranked[(len(ranked) - 1) // 2]


def _seconds(call: Callable[[Any], None], argument: Any) -> float:
    began = perf_counter()
    call(argument)
    return perf_counter() - began
