"""Trials that the tests run a few of and tests/soak/soak.py runs many of.

A trial is a function of a folder for its files and of a seed. It returns in a few words what came of it, and raises
AssertionError if something is wrong.

kills.py      kills whatever makes or changes a dataset
jobs.py       whatever makes or changes files that somebody would miss, and what it may leave of them
disks.py      every disk that a power cut can leave of a job
failing.py    the n-th call of a kind fails while a job runs
watched.py    tells of the calls that this process makes, and may have one fail
plans.py      plans of random datasets against what is made
mutations.py  damage to datasets
survival.py   reads damaged datasets in every way
replacing.py  datasets and shards replaced under a reader
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
    """Run a trial in a forked child, so that a crash is told of like any other fault.

    Args:
        seconds: how long it may take.
        more_bytes: memory that it may take beyond what it is forked with; None for any.

    Returns:
        what it returns.

    Raises:
        AssertionError: it raised, was killed by a signal, hung or took too much memory.
    """
    end, begin = os.pipe()

    def told() -> None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        torch.set_num_threads(1)  # torch's threads do not survive a fork: those who wait for them wait for ever
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
