"""Ctrl-C and SIGTERM in the middle of a conversion, in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from packer.convert import convert

ROOT = Path(__file__).parents[3]
OPTIONS = ["--shard-size", "8KiB", "--codec", "zstd"]

pytestmark = pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks for processes in /proc")


@pytest.fixture(scope="module")
def undisturbed(new_pairs, tmp_path_factory):
    """Pairs, and the folder of a conversion of them that nothing stopped."""
    work = tmp_path_factory.mktemp("undisturbed")
    sources = new_pairs(work / "pairs", 150, 20, 20).sources
    return sources, convert(sources, work / "out", workers=0, shard_size=8192, codec="zstd").path


def start(sources, out, *options):
    """`packer convert` in a session of its own, so that a signal can reach the whole group."""
    command = [sys.executable, "-m", "packer.cli", "convert", *sources, str(out), *OPTIONS, *options]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def session(number):
    """Processes that still run in a session."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, *fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == number and state != "Z":
            found.append(status.parent.name)
    return found


def wait_for(out, process, shards):
    """Wait until so many shards are finished."""
    deadline = time.monotonic() + 100
    while len(list(out.glob("unfinished/*-*.json"))) < shards:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.mark.parametrize(
    ("number", "whole_group", "workers", "status"),
    [(signal.SIGINT, True, "2", 130), (signal.SIGTERM, False, "2", 143), (signal.SIGINT, False, "0", 130)],
)
def test_stopped_halfway(undisturbed, files_of, tmp_path, number, whole_group, workers, status):
    """One line says how to go on, no process or partial file stays, and the same command then makes the same bytes."""
    (sources, other), out = undisturbed, tmp_path / "out"
    process = start(sources, out, "--workers", workers)
    wait_for(out, process, 2)
    (os.killpg if whole_group else os.kill)(process.pid, number)
    _, errors = process.communicate(timeout=100)
    assert process.returncode == status
    assert not session(process.pid)
    last = errors.splitlines()[-1]
    assert last == "packer: stopped; run the same command again to go on"
    assert "Traceback" not in errors
    assert not (out / "manifest.json").exists()
    assert not list(out.rglob("*.partial"))
    report = convert(sources, out, workers=0, shard_size=8192, codec="zstd")
    assert report.kept_shards >= 1
    assert files_of(out) == files_of(other)


@pytest.mark.skipif(not Path("/bin/sh").exists(), reason="a shell ignores the signal")
def test_an_ignored_signal_stays_ignored(undisturbed, tmp_path):
    """Ctrl-C does not stop a conversion in the background of a shell script."""
    command = [sys.executable, "-m", "packer.cli", "convert", *undisturbed[0], str(tmp_path / "out"), *OPTIONS]
    process = subprocess.Popen(["/bin/sh", "-c", 'trap "" INT; exec "$@"', "sh", *command], cwd=ROOT)
    wait_for(tmp_path / "out", process, 1)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=100) == 0
