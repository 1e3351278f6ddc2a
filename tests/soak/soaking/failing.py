"""Makes the n-th call of a kind fail while a job runs, and checks the outcome."""

from __future__ import annotations

import errno
import gc
import multiprocessing
import os
import random
import threading
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from packer.errors import PackerError
from soaking.jobs import EXPORTED, JOBS, Job, new_job
from soaking.watched import KINDS, watched

ERRORS = (errno.ENOSPC, errno.EIO, errno.EMFILE, errno.ENOMEM, errno.EINTR)


def trial(folder: Path, seed: int) -> str:
    """Make a random call of a job fail; return the call and the outcome."""
    rng = random.Random(seed)
    job, kind, error = _job(folder, JOBS[seed % len(JOBS)]), rng.choice(KINDS), rng.choice(ERRORS)
    if not (calls := counts(job, [kind], error)[kind]):
        return f"{job.name}: no {kind}"
    return f"{job.name}: {kind} fails, {check(job, kind, rng.randrange(calls), error)}"


@lru_cache
def _job(folder: Path, name: str) -> Job:
    return new_job(folder / name.replace(" ", "-"), name)


def counts(job: Job, kinds: Sequence[str], error: int = errno.EIO) -> dict[str, int]:
    """Return, by kind, the number of calls that an undisturbed job makes and that may fail with this error."""
    counted = {kind: _Nth(job, kind, None, error) for kind in kinds}
    for workers in {_workers(kind) for kind in kinds}:
        job.reset()
        with watched(lambda kind, what, workers=workers: _workers(kind) == workers and counted[kind](kind, what)):
            job.run(workers)
    return {kind: calls.count for kind, calls in counted.items()}


def check(job: Job, kind: str, number: int, error: int) -> str:
    """Make a call fail; return the outcome in words.

    Args:
        number: the position of the call among those of its kind, from 0.

    Raises:
        AssertionError: the exit status is not 1, or something was lost or left open.
    """
    job.reset()
    before = _open_files(kind)
    calls = _Nth(job, kind, number, error)
    came = _run(job, calls)
    assert calls.has_failed, "the call was not made"
    assert not multiprocessing.active_children(), "a process is left"
    if _open_files(kind) - before:
        gc.collect()
    assert not _open_files(kind) - before, f"left open: {_open_files(kind) - before}"
    if came:
        job.check_left()
    else:
        job.check_over()
    with watched(lambda kind, what: None):  # no call fails, and no sync is waited for
        job.check_again()
    return came or "done all the same"


def _run(job: Job, calls: _Nth) -> str:
    """Run a job; return the name of its error, or "" if it succeeded."""
    with watched(calls):
        try:
            job.run(_workers(calls.kind))
        except PackerError as error:
            came, status = type(error).__name__, error.exit_status
        else:
            return ""
    assert status == 1, f"exit status {status}, {came}"
    return came


def _workers(kind: str) -> int:
    return 2 if kind == "fork" else 0


class _Nth:
    """Counts the calls of a kind that a job makes, and makes one of them fail.

    EIO spares files that are packed with on_error="skip": it means that a file is bad, and the file is skipped.
    """

    def __init__(self, job: Job, kind: str, number: int | None, error: int) -> None:
        self._folder, self._number, self._error = str(job.disk.parent), number, error
        self._spared = ".png" if error == errno.EIO and job.works_at != EXPORTED else None
        self._lock = threading.Lock()
        self.kind = kind
        self.count = 0
        self.has_failed = False

    def __call__(self, kind: str, what: Any) -> None:
        if kind != self.kind or not self._is_ours(kind, what):
            return
        with self._lock:
            number, self.count = self.count, self.count + 1
        if number == self._number:
            self.has_failed = True
            path = os.fsdecode(what) if isinstance(what, (str, bytes, os.PathLike)) else None
            raise OSError(self._error, os.strerror(self._error), path)

    def _is_ours(self, kind: str, what: Any) -> bool:
        """Return whether a call is about a file of the job, not one of Python or of the tests."""
        if kind in ("fork", "put", "commit"):
            return True
        if what is None or (kind == "open" and isinstance(what, int)):  # an open file, which gets another form
            return False
        path = os.readlink(f"/proc/self/fd/{what}") if isinstance(what, int) and what >= 0 else os.fsdecode(what)  # noqa: PTH115
        if self._spared and kind == "open" and path.endswith(self._spared):
            return False
        return path.startswith(self._folder) or not path.startswith("/")  # of rmtree: within a folder that is open


def _open_files(kind: str) -> set[str]:
    """Return the descriptors of this process. Where a fork fails, Python itself leaves four ends of pipes open."""
    found = set()
    for path in Path("/proc/self/fd").iterdir():
        try:
            target = str(path.readlink())
        except OSError:  # the one that listed the folder
            continue
        if kind != "fork" or not target.startswith("pipe:"):
            found.add(f"{target} ({path.name})")
    return found
