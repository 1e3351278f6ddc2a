"""Conversions killed with SIGKILL: nothing published is lost, nothing half-written read, the same command goes on."""

from __future__ import annotations

import itertools
import random
import sys

import pytest
from soaking import kills

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks, and looks into /proc")


@pytest.fixture(scope="module", params=[False, True], ids=["new", "replacing"])
def job(request, tmp_path_factory):
    """A conversion into a new folder, and one that replaces another dataset."""
    return kills.new_job(tmp_path_factory.mktemp("killed"), request.param)


def test_killed_before_every_step(job):
    """Killed before each call that changes a folder, in turn: all that is promised holds, whichever it was."""
    kept = set()
    for step in itertools.count():
        kills.reset(job)
        if not kills.kill_at_step(lambda: job.run(0), step):
            break
        kills.check_left(job)
        kept.add(kills.check_going_on(job))
    assert step > 28
    assert kept == {0, 1, 2, 3, 4}  # kills came before the first shard, between all of them, and behind the last


@pytest.mark.parametrize("whom", kills.WHOM)
def test_killed_at_random_instants(job, whom):
    """Killed from outside at some instant: the converter, one of its workers, or all of them at once."""
    rng = random.Random(f"{whom} {job.old is None}")
    seconds = kills.seconds_of(job)
    for _ in range(9):
        kills.reset(job)
        kills.kill_after(job, rng.uniform(0, seconds), whom, rng)
        kills.check_left(job)
        kills.check_going_on(job, workers=rng.choice([0, 2]))
