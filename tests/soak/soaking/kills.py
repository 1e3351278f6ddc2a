"""Kills what changes datasets: conversions, appending, merging, repacking, repairing. Needs fork and /proc."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image

from packer.append import append
from packer.convert import ConvertOptions, convert, open_source
from packer.errors import DatasetError, UsageError
from packer.format import MANIFEST, REJECTED_FILE, SHARD_FOLDER
from packer.format import manifest as manifests
from packer.merge import merge
from packer.packing import LOCK
from packer.repack import repack
from packer.repair import repair
from packer.verify import verify
from soaking import start

JOBS = ("convert", "replace", "append", "merge", "repack", "repair")
WHOM = ("converter", "worker", "all")
_WORKERS = 2
_GRACE = 20.0  # seconds until all that was killed, or has lost its parent, has to be gone
#: Calls that change what lies in folders, as Python's audit events name them.
_STEPS = {"os.rename", "os.remove", "os.link", "os.mkdir", "os.rmdir"}
OPTIONS = ConvertOptions(codec="zstd", shard_size=4096, on_error="skip")


@dataclass(frozen=True)
class Job:
    """A call that makes or changes the dataset `out`, and the bytes that it makes if nobody disturbs it.

    Attributes:
        run: does it, with so many workers.
        wanted: what `files` gives of the finished dataset.
        old: what `files` gives of the dataset that stood at `out` before; empty if there was none.
        mends: whether it mends `out` file by file; else `out` is the old dataset or the new one at every instant.
    """

    out: Path
    run: Callable[[int], object]
    wanted: dict[str, bytes]
    old: dict[str, bytes]
    mends: bool


def files(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder by relative path, but its lock."""
    found = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != LOCK]
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def make_pairs(folder: Path, count: int) -> list[str]:
    """Make pairs of small pictures of noise, one of them damaged; return the sources."""
    rng = np.random.default_rng(count)
    for field, size in (("lr", 8), ("hr", 16)):
        (folder / field).mkdir(parents=True)
        for number in range(count):
            image = Image.fromarray(rng.integers(0, 256, (size, size, 3), dtype=np.uint8))
            image.save(folder / field / f"{folder.name}-{number:03}.png")
    bad = folder / "hr" / f"{folder.name}-{count // 2:03}.png"
    bad.write_bytes(bad.read_bytes()[:-60] + bytes(60))
    return [f"lr={folder / 'lr'}", f"hr={folder / 'hr'}"]


def trial(folder: Path, seed: int) -> str:
    """Kill a job at a random instant; return what was killed, and what was left."""
    rng = random.Random(seed)
    name, whom = JOBS[seed % len(JOBS)], WHOM[seed // len(JOBS) % len(WHOM)]
    job, seconds = timed_job(folder / name, name)
    reset(job)
    kill_after(job, rng.uniform(0, seconds), whom, rng)
    check_left(job)
    left = "the finished dataset" if _is_new(job) else f"{len(finished_shards(job))} finished shards"
    check_going_on(job, workers=rng.choice([0, 2]))
    return f"{name}, {whom} killed, left: {left}"


@lru_cache
def timed_job(folder: Path, what: str) -> tuple[Job, float]:
    """Return a new job, and the seconds that it takes undisturbed."""
    job = new_job(folder, what)
    reset(job)
    began = time.perf_counter()
    wait_until_gone(start(lambda: job.run(_WORKERS)))
    return job, time.perf_counter() - began


def new_job(folder: Path, what: str) -> Job:
    """Make a job of four shards, with a bad sample in each source.

    Args:
        folder: an empty one; sources and output go into it.
        what: one of `JOBS`.
    """
    out, first, second = folder / "made" / "out", folder / "first", folder / "second"
    pairs, some, rest = (make_pairs(folder / name, count) for name, count in (("pairs", 17), ("some", 9), ("rest", 8)))
    options = ConvertOptions(shard_size=4096, on_error="skip")
    runs: dict[str, Callable[[int], object]] = {
        "convert": lambda workers: convert(pairs, out, OPTIONS, workers=workers),
        "replace": lambda workers: convert(pairs, out, OPTIONS, workers=workers, overwrite=True),
        "append": lambda workers: append(out, rest, options, workers=workers),
        "merge": lambda workers: merge([first, second], out),
        "repack": lambda workers: repack(first, out, options, codec="zstd", seed=1, workers=workers),
        "repair": lambda workers: repair(out, open_source(pairs, OPTIONS, []), workers=workers),
    }
    codec = "none" if what in ("replace", "repack") else "zstd"
    convert(some if what in ("append", "merge") else pairs, first, OPTIONS, codec=codec, workers=0)
    convert(rest, second, OPTIONS, workers=0)
    old = files(first) if what in ("replace", "append", "repair") else {}
    if what == "repair":
        for name in (f"{SHARD_FOLDER}/00000.lmdb", f"{SHARD_FOLDER}/00002.lmdb", manifests.NAMES_FILE):
            middle = len(old[name]) // 2
            old[name] = old[name][:middle] + bytes(999) + old[name][middle + 999 :]
    job = Job(out, runs[what], {}, old, mends=what == "repair")
    reset(job)
    job.run(0)
    return replace(job, wanted=files(out))


def reset(job: Job) -> None:
    """Put back what stood before the job."""
    shutil.rmtree(job.out.parent, ignore_errors=True)
    job.out.parent.mkdir()
    for name, content in job.old.items():
        path = job.out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


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
    """Run `action` in a process that kills itself before its `number`th step; return whether it came that far.

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
    """Wait until no process of the session `pid` is left; an orphan that works on is a fault."""
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
    """Check what a kill left: whole or known to be unfinished; every shard that has its name is finished."""
    old = job.old
    if job.mends:
        held = files(job.out)
        wrong = [name for name in job.wanted if held.get(name) not in (job.wanted[name], old[name])]
        assert not wrong, f"{wrong} are neither as they were nor mended"
    elif (job.out / MANIFEST).exists():
        assert _is_new(job) or (job.old and _holds(job.out, job.old)), "neither the old dataset nor the new one"
        assert not verify(job.out).damages
    elif job.out.exists():
        assert not job.old, "the old dataset is gone"
        try:
            manifests.read(job.out)
        except DatasetError:
            pass
        else:
            raise AssertionError("what is unfinished was read")
    finished = {*job.wanted.values(), *old.values()}
    for folder in job.out.parent.iterdir():
        for shard in (folder / SHARD_FOLDER).glob("*.lmdb"):
            assert shard.read_bytes() in finished, f"{shard} is half written"


def check_going_on(job: Job, workers: int = 0) -> None:
    """Check that the same call finishes the job, does no finished shard again, and leaves nothing but the result."""
    before = finished_shards(job)
    was_new = _is_new(job)
    try:
        job.run(workers)
    except UsageError:
        assert was_new, "it is unfinished, and cannot be gone on with"
    assert files(job.out) == job.wanted
    assert [path.name for path in job.out.parent.iterdir()] == [job.out.name]
    after = {shard.stat().st_ino for shard in (job.out / SHARD_FOLDER).iterdir()}
    assert before <= after, "a finished shard was made again"


def _is_new(job: Job) -> bool:
    return (job.out / MANIFEST).exists() and _holds(job.out, job.wanted)


def _holds(folder: Path, dataset: dict[str, bytes]) -> bool:
    """Return whether a folder holds a dataset; the manifest tells how much of the list of rejected samples counts."""
    held = files(folder)
    listed = held.get(REJECTED_FILE, b"").startswith(dataset.get(REJECTED_FILE, b""))
    return listed and held.items() >= {n: data for n, data in dataset.items() if n != REJECTED_FILE}.items()


def finished_shards(job: Job) -> set[int]:
    """Return the inodes of finished shards that the same call must keep: those in `out`, or in what replaces it."""
    work = job.out if not job.old else job.out.with_name(f".{job.out.name}.replacing")
    return {path.stat().st_ino for path in (work / SHARD_FOLDER).glob("*.lmdb")}
