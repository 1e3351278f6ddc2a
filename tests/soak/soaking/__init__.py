"""Trials: the tests run a few of them, tests/soak/soak.py runs many.

A trial is a function of a folder for its files and of a seed. It returns its result in a few words, and raises
AssertionError if something is wrong.

kills.py      kills calls that make or change a dataset
jobs.py       every call that makes or changes files that users need, and the states it may leave
disks.py      every disk that a power cut can leave of a job
failing.py    the n-th call of a kind fails while a job runs
watched.py    reports the system calls of this process, and can make one fail
plans.py      plans of random datasets against their files
mutations.py  damage to datasets
survival.py   reads damaged datasets in every way
replacing.py  datasets and shards replaced under a reader
streaming.py  faults while epochs are streamed from a bucket
reading.py    processes that stream from a bucket, and check every batch
bucket.py     a bucket in a process of its own, with faults in its answers
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import torch


def start(action: Callable[[], object]) -> int:
    """Run `action` in a forked process, the leader of a session of its own; return its number."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        action()
        os._exit(0)
    except BaseException:
        os._exit(1)


def in_child(trial: Callable[[], str], seconds: float = 60, more_bytes: int | None = None) -> str:
    """Run a trial in a forked child, so that a crash is reported like any other fault.

    Args:
        seconds: limit of time.
        more_bytes: limit of memory beyond that of the fork; None for no limit.

    Returns:
        the result of the trial.

    Raises:
        AssertionError: it raised, was killed by a signal, hung or took too much memory.
    """
    end, begin = os.pipe()

    def told() -> None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        torch.set_num_threads(1)  # torch's threads do not survive a fork: waiting for them never ends
        if more_bytes is not None:
            most = more_bytes + int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        try:
            os.write(begin, trial().encode())
        except BaseException:
            os.write(begin, traceback.format_exc().encode())
            raise

    pid = start(told)
    os.close(begin)
    with os.fdopen(end, encoding="utf-8") as pipe:
        said = pipe.read()
    status = os.waitpid(pid, 0)[1]
    assert not os.WIFSIGNALED(status), f"signal {os.WTERMSIG(status)}" + " (it hung)" * (os.WTERMSIG(status) == 14)
    assert not status, said
    return said
