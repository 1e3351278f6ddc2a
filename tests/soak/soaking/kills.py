"""Kills calls that make or change datasets. Needs fork and /proc."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import msgspec

from packer.format import SHARD_FOLDER, UNFINISHED
from soaking import start
from soaking.jobs import Job, new_job

JOBS = (
    "convert",
    "convert --overwrite",
    "append",
    "append rows",
    "join",
    "drop",
    "merge",
    "repack",
    "repair",
    "repair the manifest",
    "split",
    "stats --save",
    "DatasetWriter",
)
WHOM = ("converter", "worker", "all")
_WORKERS = 2
_GRACE = 100.0  # seconds in which killed processes, and those that lost their parent, must end
#: Python's audit events for calls that change the contents of folders.
_STEPS = {"os.rename", "os.remove", "os.link", "os.mkdir", "os.rmdir"}


def trial(folder: Path, seed: int) -> str:
    """Kill a job at a random instant; return the job, the killed process, and the state left."""
    rng = random.Random(seed)
    name, whom = JOBS[seed % len(JOBS)], WHOM[seed // len(JOBS) % len(WHOM)]
    job, seconds = timed_job(folder / name.replace(" ", "-"), name)
    job.reset()
    kill_after(job, rng.uniform(0, seconds), whom, rng)
    check_left(job)
    left = "the finished dataset" if job.is_new() else f"{len(finished_shards(job))} finished shards"
    check_going_on(job, workers=rng.choice([0, 2]))
    return f"{name}, {whom} killed, left: {left}"


@lru_cache
def timed_job(folder: Path, what: str) -> tuple[Job, float]:
    """Return a new job, and its duration in seconds."""
    job = new_job(folder, what)
    job.reset()
    began = time.perf_counter()
    wait_until_gone(start(lambda: job.run(_WORKERS)))
    return job, time.perf_counter() - began


def kill_after(job: Job, seconds: float, whom: str, rng: random.Random) -> None:
    """Start the job and kill part of it after a time; return when no process of it is left."""
    pid = start(lambda: job.run(_WORKERS))
    time.sleep(seconds)
    with suppress(ProcessLookupError):
        if whom == "all":
            os.killpg(pid, signal.SIGKILL)
        elif whom == "converter":
            os.kill(pid, signal.SIGKILL)
        else:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            os.kill(int(rng.choice(children)) if children else pid, signal.SIGKILL)
    wait_until_gone(pid)


def kill_at_step(action: Callable[[], object], number: int) -> bool:
    """Run `action` in a process that kills itself before its `number`th step; return whether it got that far.

    A step is a call that makes, links, renames or removes a file or folder, or opens a file to write to it.
    """

    def killed() -> None:
        left = number

        def hook(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal left
            writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
            if event in _STEPS or writes:
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        action()

    _, status = os.waitpid(start(killed), 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "it failed, though nobody killed it"
    return os.WIFSIGNALED(status)


def wait_until_gone(pid: int) -> None:
    """Wait until the session `pid` has no process; an orphan that works on is a fault."""
    os.waitpid(pid, 0)
    deadline = time.monotonic() + _GRACE
    while left := list(_session(pid)):
        if time.monotonic() > deadline:
            raise AssertionError(f"processes {left} outlived their parent")
        time.sleep(0.002)


def _session(number: int) -> Iterator[int]:
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _parent, _group, session = status.read_text().rpartition(")")[2].split()[:4]
            if int(session) == number and state != "Z":
                yield int(status.parent.name)


def check_left(job: Job) -> None:
    """Check the state after a kill: whole or marked unfinished; every shard with its final name is finished."""
    job.check_left()
    finished = {*job.wanted.values(), *job.old.values()}
    for shard in (job.out / SHARD_FOLDER).glob("*.lmdb"):
        assert shard.read_bytes() in finished, f"{shard} is half written"


def check_going_on(job: Job, workers: int = 0) -> None:
    """Check that the same call finishes the job, keeps finished shards, and leaves only the result."""
    before = finished_shards(job)
    job.check_again(workers)
    after = {shard.stat().st_ino for shard in (job.out / SHARD_FOLDER).iterdir()}
    assert before <= after, "a finished shard was made again"


def finished_shards(job: Job) -> set[int]:
    """Return the inodes of finished shards that the same call must keep: those with a report, or linked by `merge`."""
    if job.name == "DatasetWriter":  # it begins again
        return set()
    if job.name == "merge":
        return {path.stat().st_ino for path in (job.out / SHARD_FOLDER).glob("*.lmdb")}
    reports = [msgspec.json.decode(path.read_bytes()) for path in (job.out / UNFINISHED).glob("*-*.json")]
    return {(job.out / report["entry"]["file"]).stat().st_ino for report in reports}
