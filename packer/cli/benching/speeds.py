"""How fast each setting reads, warm and cold.

Settings are measured in turn, round after round, so that whatever else the machine does meets all alike. Worker
processes are running before anything is timed.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from packer.cli.benching.passes import Clock, Passes, timed
from packer.cli.benching.settings import Setting
from packer.cli.benching.subject import Subject
from packer.cli.benching.ways import open_way
from readers.places import Numbers

#: Rounds that the time is shared out to, and rounds at most.
WARM_ROUNDS, COLD_ROUNDS, MOST_ROUNDS = 3, 2, 7
#: What is thought of a disk before it has been measured, in bytes a second.
_DISK_SPEED = 1e8
NO_TIME = "there was no time left; give more --seconds"


def warm_speeds(subject: Subject, settings: Sequence[Setting], seconds: float, clock: Clock) -> list[Passes]:
    """Passes of settings of one batch size, over samples that are in memory."""
    end = clock.gone + seconds
    dataset = subject.open()
    found = [Passes(setting) for setting in settings]
    with ExitStack() as stack:
        ways = [stack.enter_context(open_way(setting, dataset)) for setting in settings]
        subject.warm_files()
        for one, way in zip(found, ways, strict=True):
            with one.guarded():
                one.start(way, _drawn(subject, one.setting, one.least))
        rounds = 0
        while not rounds or (clock.gone < end and rounds < MOST_ROUNDS):
            share = max(end - clock.gone, 0.0) / max(WARM_ROUNDS - rounds, 1) / len(found)
            subject.warm_files()
            for one, way in zip(found, ways, strict=True):
                numbers = _drawn(subject, one.setting, one.batches_in(share))
                if not _can_go_on(one, clock):
                    continue
                subject.warm_samples(dataset, numbers)
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
    found = [Passes(setting, setting.batch_size * subject.stored_bytes / _DISK_SPEED) for setting in settings]
    rounds = 0
    while not rounds or (clock.gone < end and rounds < MOST_ROUNDS):
        share = max(end - clock.gone, 0.0) / max(COLD_ROUNDS - rounds, 1) / len(found)
        for one in found:
            if (rounds and clock.gone >= end) or not _can_go_on(one, clock):
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
    count = min(batches * one.setting.batch_size, subject.samples)
    numbers = subject.draws.numbers(one.setting.shuffle, count)
    with open_way(one.setting, subject.open()) as way:
        timed(way, subject.first(one.least * one.setting.batch_size))
        subject.cool()
        one.run(way, numbers)


def _drawn(subject: Subject, setting: Setting, batches: int) -> Numbers:
    return subject.draws.numbers(setting.shuffle, batches * setting.batch_size)


def _can_go_on(one: Passes, clock: Clock) -> bool:
    if clock.is_over and not one.failure and not one.rates:
        one.failure = NO_TIME
    return not one.failure and not clock.is_over
