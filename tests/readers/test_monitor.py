"""The data-time monitor, on a clock that the tests move."""

import copy
import pickle
import weakref

import numpy as np
import pytest
import torch

from packer.errors import UsageError
from readers import DataTimeMonitor, monitor


class Clock:
    """Stands still until it is told to go on."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class SlowLoader:
    """Takes the given seconds for each batch; batch i is i."""

    def __init__(self, clock, waits):
        self.clock = clock
        self.waits = waits
        self.epoch = None

    def __iter__(self):
        for i, wait in enumerate(self.waits):
            self.clock.now += wait
            yield i

    def set_epoch(self, epoch):
        self.epoch = epoch


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(monitor, "perf_counter", clock)
    return clock


def run(monitored, clock, use, stop=None):
    """Iterates, using each batch for `use` seconds; leaves the loop behind step `stop`."""
    for i, _ in enumerate(monitored):
        clock.now += use
        if i == stop:
            break


def test_figures(clock):
    """All steps count: the share, and the mean and longest wait."""
    waits = [0.01 * i for i in range(1, 20)] + [4.0]
    lines = []
    monitored = DataTimeMonitor(SlowLoader(clock, waits), every=20, log=lines.append)
    run(monitored, clock, use=1.0)
    figures = monitored.snapshot()
    total = sum(waits) + 19 * 1.0
    assert (figures.first_step, figures.steps) == (0, 20)
    assert figures.mean == pytest.approx(sum(waits) / 20)
    assert figures.max == pytest.approx(4.0)
    assert figures.share == pytest.approx(sum(waits) / total)
    assert len(lines) == 1


def test_report_line(clock):
    """The report is one line with units, and says where the share is too high."""
    lines = []
    run(DataTimeMonitor(SlowLoader(clock, [0.001] * 9 + [0.1]), log=lines.append), clock, use=0.02)
    assert lines == [
        "rank 0, steps 0 to 9: waited for data 37.72% of the time; mean 10.9 ms, median 1.0 ms, max 100.0 ms "
        "(above 1.00%)"
    ]
    run(DataTimeMonitor(SlowLoader(clock, [8e-6, 2.5]), threshold=0.5, log=lines.append), clock, use=100)
    assert lines[1].endswith("mean 1.25 s, median 1.25 s, max 2.50 s")
    run(DataTimeMonitor(SlowLoader(clock, [8e-6]), log=lines.append), clock, use=1.0)
    assert lines[2].endswith(
        "mean 8.0 us, median 8.0 us, max 8.0 us (above 1.00%)"
    )  # the first step has nothing but its wait
    run(DataTimeMonitor(SlowLoader(clock, [2.0]), threshold=1.0, log=lines.append), clock, use=1.0)
    assert lines[3].endswith("waited for data 100.00% of the time; mean 2.00 s, median 2.00 s, max 2.00 s")
    assert str(monitor.Waits(0, 2, 0.5, mean=1e-3, median=1e-3, max=1.0)).endswith("median 1.0 ms, max 1.00 s")


def test_reports_cover_every_step(clock):
    """A report every `every` steps, and one for what is left at the end of the epoch; none of nothing."""
    lines = []
    run(DataTimeMonitor(SlowLoader(clock, [0.1] * 25), every=10, log=lines.append), clock, use=1.0)
    assert [line.split(":")[0] for line in lines] == [
        "rank 0, steps 0 to 9",
        "rank 0, steps 10 to 19",
        "rank 0, steps 20 to 24",
    ]
    lines.clear()
    run(DataTimeMonitor(SlowLoader(clock, [0.1] * 20), every=10, log=lines.append), clock, use=1.0)
    assert len(lines) == 2


def test_time_between_epochs_does_not_count(clock):
    """Steps count on over epochs; what the program does between two epochs is no step."""
    monitored = DataTimeMonitor(SlowLoader(clock, [0.1] * 5), every=100, log=lambda line: None)
    run(monitored, clock, use=0.9)
    clock.now += 1000
    run(monitored, clock, use=0.9)
    figures = monitored.snapshot()
    assert (figures.first_step, figures.steps) == (5, 5)
    assert figures.share == pytest.approx(0.5 / (5 * 0.1 + 4 * 0.9))


def test_epoch_left_early_is_carried_on(clock):
    """Steps of a loop that was left stay in the next report, without the time between."""
    lines = []
    monitored = DataTimeMonitor(SlowLoader(clock, [0.1] * 50), every=10, log=lines.append)
    run(monitored, clock, use=0.9, stop=6)
    clock.now += 1000
    assert not lines
    assert monitored.snapshot().steps == 7
    run(monitored, clock, use=0.9, stop=3)
    assert len(lines) == 1
    assert monitored.snapshot().steps == 1
    assert lines[0].startswith("rank 0, steps 0 to 9: waited for data 12.20% of the time; mean 100.0 ms")


def test_snapshot_before_any_step(clock):
    """Before any step there are no figures; an empty epoch reports nothing."""
    lines = []
    monitored = DataTimeMonitor(SlowLoader(clock, []), log=lines.append)
    assert monitored.snapshot() is None
    run(monitored, clock, use=1.0)
    assert monitored.snapshot() is None
    assert not lines


@pytest.mark.parametrize(("wait", "reports"), [(0.5, 1), (0.001, 0)])
def test_other_ranks_report_when_too_slow(clock, monkeypatch, wait, reports):
    """A rank other than 0 reports only where its share exceeds the threshold, and says which rank it is."""
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 3)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 4)
    lines = []
    run(DataTimeMonitor(SlowLoader(clock, [wait] * 4), log=lines.append), clock, use=1.0)
    assert len(lines) == reports
    assert not [line for line in lines if not line.startswith("rank 3,")]


def test_loader_shows_through(clock):
    """Length and attributes are the loader's; a loader without length stays one."""
    loader = SlowLoader(clock, [])
    monitored = DataTimeMonitor(loader)
    monitored.set_epoch(4)
    assert loader.epoch == 4
    assert len(DataTimeMonitor([1, 2])) == 2
    with pytest.raises(TypeError):
        len(monitored)
    assert monitored
    assert DataTimeMonitor([])
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = monitored.no_such_thing


def test_can_be_copied_and_pickled():
    """A monitor of a loader that can be pickled can be pickled too."""
    assert list(pickle.loads(pickle.dumps(DataTimeMonitor([1, 2], log=print)))) == [1, 2]
    assert len(copy.copy(DataTimeMonitor([1]))) == 1


@pytest.mark.parametrize("bad", [{"every": 0}, {"threshold": -0.1}, {"threshold": 1.5}])
def test_bad_options_are_refused(bad):
    """Options out of range are refused."""
    with pytest.raises(UsageError, match="expected"):
        DataTimeMonitor([], **bad)


def test_a_batch_is_not_held_while_the_next_is_made():
    """The memory of a batch that the loop has let go of is free when the loader makes the next one."""
    alive = []

    def batches():
        for _ in range(3):
            assert not [batch for batch in alive if batch() is not None]
            array = np.zeros(3)
            alive.append(weakref.ref(array))
            yield array
            del array

    steps = iter(DataTimeMonitor(batches(), log=lambda line: None))
    for _ in range(3):
        next(steps)
