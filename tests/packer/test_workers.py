"""Processes of our own: where they may be started and where not, and what reading may take in them."""

from __future__ import annotations

import ctypes
import errno
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from packer import workers
from packer.convert import ConvertOptions, convert
from packer.drop import drop
from packer.errors import ResourceError, UsageError
from packer.join import join
from packer.workers import Limits, memory_within


def _said(connection, make):
    """Sends what comes of a call, in words."""
    try:
        connection.send(f"{make()}")
    except Exception as error:
        connection.send(f"{type(error).__name__}: {error}")


def in_a_daemon(make):
    """What comes of a call in a process such as the workers of multiprocessing.Pool are."""
    here, there = multiprocessing.Pipe(duplex=False)
    process = workers.process_context().Process(target=_said, args=(there, make), daemon=True)
    process.start()
    said = here.recv()
    process.join()
    here.close()
    there.close()
    return said


@pytest.mark.skipif(
    workers.process_context().get_start_method() != "fork", reason="what is called here cannot be pickled"
)
@pytest.mark.parametrize("codec", ["auto", "none"])
def test_a_daemon_is_told_what_it_can_do(tmp_path, codec):
    """It may have no children: an error before anything is written names workers=0, with which it packs by itself."""
    samples = [{"x": np.arange(1000), "y": 1}] * 3
    said = in_a_daemon(lambda: convert(samples, tmp_path / "a", codec=codec, workers=2))
    assert said.startswith(f"{UsageError.__name__}: this process is a daemon")
    assert "workers=0" in said
    assert in_a_daemon(lambda: convert(samples, tmp_path / "a", codec=codec, workers=0).samples) == "3"
    for change in (
        lambda: drop(tmp_path / "a", ["y"], workers=2),
        lambda: join(tmp_path / "a", [{"z": 1}] * 3, codec=codec, workers=2),
    ):
        said = in_a_daemon(change)
        assert said.startswith(f"{UsageError.__name__}: this process is a daemon")
    assert not (tmp_path / "a/unfinished").exists()


#: Takes and frees 24 MB again and again; prints how many bytes were mapped for that.
_TAKING = """
import resource, sys
from packer import workers
from packer.convert import convert

if sys.argv[1:]:
    convert([{"x": 0.5}], sys.argv[1], workers=0)
else:
    workers.begin()
for turn in range(30):
    if turn == 10:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    held = [bytearray(8_000_000) for _ in range(3)]
    del held
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) * resource.getpagesize())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc alone has a setting for it")
@pytest.mark.parametrize("is_worker", [True, False])
def test_memory_of_one_sample_serves_the_next(tmp_path, is_worker):
    """24 MB that are taken 20 times are 480 MB where they are given back to the system each time.

    That holds for a process of ours, and for one that packs by itself.
    """
    if not hasattr(ctypes.CDLL(None), "mallopt"):
        pytest.skip("not glibc")
    # An interpreter of its own: the heap of this one has been grown by other tests.
    arguments = [] if is_worker else [str(tmp_path / "out")]
    done = subprocess.run([sys.executable, "-c", _TAKING, *arguments], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 24_000_000


if sys.platform.startswith("linux"):
    import resource


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux alone keeps this limit")
@pytest.mark.parametrize("fails", [False, True])
def test_the_limit_holds_for_the_block_alone(fails: bool) -> None:
    """Behind the block the process may take what it could before, also where the block took too much."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    reached = False
    try:
        with memory_within(2**28):
            within = resource.getrlimit(resource.RLIMIT_DATA)
            bytearray(2**30 if fails else 2**10)
    except MemoryError:
        reached = True
    assert reached == fails
    assert within[0] != before[0]
    assert within[1] == before[1]
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    assert len(bytearray(2**29)) == 2**29


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="pages of memory are asked for as Linux has them")
@pytest.mark.parametrize(
    ("pages", "expected"), [(2**24, 2**33), (2**20, 2**30), (2**18, 2**29)], ids=["64 GiB", "4 GiB", "1 GiB"]
)
def test_an_eighth_of_the_memory_is_the_usual_limit(monkeypatch: pytest.MonkeyPatch, pages: int, expected: int) -> None:
    """On a small machine it is 1 GiB, and half of it on a very small one."""
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": pages, "SC_PAGE_SIZE": 4096}.__getitem__)
    assert Limits().nbytes == ConvertOptions().read_bytes == expected


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks")
def test_a_process_that_cannot_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system starts no more processes, the error says so, and that none are needed."""

    def fail() -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "fork", fail)
    samples = [{"x": number} for number in range(3)]
    with pytest.raises(ResourceError, match=r"no process can be started: Resource temporarily unavailable; .*workers"):
        convert(samples, tmp_path / "out", workers=1)
