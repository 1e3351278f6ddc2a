"""How fast each setting reads, warm and cold.

Settings are measured in turn, round after round, so that whatever else the machine does meets all alike. Worker
processes are running before anything is timed.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from packer.cli.benching.draws import draws_of
from packer.cli.benching.obstacles import obstacle
from packer.cli.benching.passes import Clock, Passes, timed
from packer.cli.benching.settings import Setting
from packer.cli.benching.subject import Subject
from packer.cli.benching.ways import open_way

#: Rounds that the time is shared out to, and rounds at most.
WARM_ROUNDS, COLD_ROUNDS, MOST_ROUNDS = 3, 2, 7
#: What is thought of a disk before it has been measured, in bytes a second.
_DISK_SPEED = 1e8


def warm_speeds(subject: Subject, settings: Sequence[Setting], seconds: float, clock: Clock) -> list[Passes]:
    """Passes of settings of one batch size, over samples that are in memory."""
    end = clock.gone + seconds
    # Each has a dataset of its own, since they keep decoded frames.
    datasets = [subject.open() for _ in settings]
    found = [Passes(setting, draws_of(setting, datasets[0])) for setting in settings]
    with ExitStack() as stack:
        ways = [stack.enter_context(open_way(*pair)) for pair in zip(settings, datasets, strict=True)]
        subject.warm_files()
        for one, way in zip(found, ways, strict=True):
            one.failure = obstacle(one, subject, clock)
            if one.failure:
                continue
            with one.guarded():
                one.start(way, seconds / len(found) / (WARM_ROUNDS + 1) / 2)
        share = max(end - clock.gone, 0.0) / WARM_ROUNDS / len(found)
        rounds = 0
        while not rounds or (clock.gone + share < end and rounds < MOST_ROUNDS):
            subject.warm_files()
            for one, way in zip(found, ways, strict=True):
                if one.failure or (rounds and clock.gone + share >= end):
                    continue
                numbers = one.drawn(one.batches_in(share))
                subject.warm_samples(datasets[0], numbers)
                with one.guarded():
                    one.run(way, numbers)
                clock.tell(round(len(numbers) * subject.sample_bytes))
            rounds += 1
    return found


def cold_speeds(subject: Subject, settings: Sequence[Setting], seconds: float, clock: Clock) -> list[Passes]:
    """Passes of settings over samples that lie on the disk; each pass by a dataset of its own.

    Pages that any process has mapped stay in memory, so every other dataset on these files has to be gone.
    """
    end = clock.gone + seconds
    known = subject.open()
    guess = subject.stored_bytes / _DISK_SPEED
    found = [Passes(setting, draws_of(setting, known), setting.batch_size * guess) for setting in settings]
    share = seconds / COLD_ROUNDS / len(found)
    rounds = 0
    while not rounds or (clock.gone + share < end and rounds < MOST_ROUNDS):
        for one in found:
            one.failure = one.failure or ("" if one.rates else obstacle(one, subject, clock))
            if one.failure or (rounds and clock.gone + share >= end):
                continue
            # Half the time goes into starting workers.
            batches = min(one.batches_in(share / 2), max(subject.samples // one.setting.batch_size, 1))
            with one.guarded():
                _cold_pass(subject, one, batches)
            clock.tell(round(batches * one.setting.batch_size * subject.sample_bytes))
        rounds += 1
    return found


def _cold_pass(subject: Subject, one: Passes, batches: int) -> None:
    # Each sample is read once: read again it would be warm.
    numbers = one.draws.take(min(batches * one.setting.batch_size, subject.samples))
    with open_way(one.setting, subject.open()) as way:
        timed(way, subject.first(max(one.setting.workers, 1) * one.setting.batch_size))
        subject.cool()
        one.run(way, numbers)
