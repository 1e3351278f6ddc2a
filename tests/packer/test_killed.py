"""Conversions killed with SIGKILL: nothing published is lost, nothing half-written read, the same command goes on."""

from __future__ import annotations

import itertools
import shutil
import sys

import pytest
from broken import stopped_at
from soaking import jobs, kills

from packer.convert import convert
from packer.format import LOCK
from packer.packing import Change

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks, and looks into /proc")


#: Jobs that are killed before each step; what others share with them, they are killed in at every third step.
AT_EVERY_STEP = ("convert", "convert --overwrite", "append", "merge", "DatasetWriter")


@pytest.fixture(scope="module", params=kills.JOBS)
def job(request, new_folder_in_memory):
    """A conversion into a new folder, one that replaces another dataset, and all else that makes or changes one."""
    return jobs.new_job(new_folder_in_memory(), request.param)


def test_killed_before_every_step(job):
    """Killed before calls that change a folder, in turn: all that is promised holds, whichever it was."""
    kept = set()
    every = 1 if job.name in AT_EVERY_STEP else 3
    for step in itertools.count(kills.JOBS.index(job.name) % every, every):
        job.reset()
        if not kills.kill_at_step(lambda: job.run(0), step):
            break
        kills.check_left(job)
        kept.add(len(kills.finished_shards(job)))
        kills.check_going_on(job)
    assert step > (6 if job.name in ("split", "stats --save", "repair the manifest") else 12)
    if not job.old and job.name in AT_EVERY_STEP and job.name != "DatasetWriter":
        shards = sum(name.startswith("shards/") for name in job.wanted)
        assert kept == set(range(shards + 1))  # kills came before the first, between all of them, and after the last


def test_begun_anew_killed_before_every_step(folder):
    """An unfinished conversion of other options, replaced: shards are never left without a note of what they are of."""
    job = jobs.new_job(folder, "convert")
    sources, options = [f"{field}={folder}/pairs/{field}" for field in ("lr", "hr")], jobs.OPTIONS

    stopped_at(lambda: convert(sources, folder / "left", options, codec="none", workers=0), Change, "publish")
    kinds = {path.name.split("-")[0] for path in (folder / "left").iterdir()}
    assert kinds == {LOCK, "names", "left", "shards", "unfinished"}
    for step in itertools.count():
        shutil.rmtree(job.disk)
        shutil.copytree(folder / "left", job.out)
        assert kills.kill_at_step(lambda: convert(sources, job.out, options, workers=0, overwrite=True), step)
        if any((job.out / "shards").glob("*.lmdb")):
            assert list(job.out.glob("unfinished/????????.json"))
        kept = convert(sources, job.out, options, workers=0, overwrite=True).kept_shards
        assert jobs.files(job.out) == job.wanted
        if kept:  # from its first shard on it is a conversion as any other
            break
    assert step > 12


@pytest.mark.parametrize("number", range(len(kills.JOBS)), ids=kills.JOBS)
def test_killed_at_random_instants(folder, number):
    """Killed from outside at some instant: the process itself, one of its workers, or all of them at once."""
    for whom in range(len(kills.WHOM)):
        kills.trial(folder, number + len(kills.JOBS) * whom)
