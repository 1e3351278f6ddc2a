"""Kills what changes datasets: conversions, appending, merging, repacking, repairing. Needs fork and /proc."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from packer.append import append
from packer.convert import ConvertOptions, convert, open_source
from packer.errors import DatasetError, UsageError
from packer.format import manifest as manifests
from packer.format.manifest import MANIFEST, REJECTED_FILE, SHARD_FOLDER
from packer.merge import merge
from packer.repack import repack
from packer.repair import repair
from packer.verify import verify

WHOM = ("converter", "worker", "all")
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
        old: what `files` gives of the dataset that stood at `out` before; None if there was none.
        mends: whether it mends `out` file by file; else `out` is the old dataset or the new one at every instant.
    """

    out: Path
    run: Callable[[int], object]
    wanted: dict[str, bytes]
    old: dict[str, bytes] | None = None
    mends: bool = False


def files(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder by relative path."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def make_pairs(folder: Path, count: int) -> list[str]:
    """Make pairs of small pictures of noise, one of them damaged; returns the sources."""
    rng = np.random.default_rng(count)
    for field, size in (("lr", 8), ("hr", 16)):
        (folder / field).mkdir(parents=True)
        for number in range(count):
            image = Image.fromarray(rng.integers(0, 256, (size, size, 3), dtype=np.uint8))
            image.save(folder / field / f"{folder.name}-{number:03}.png")
    bad = folder / "hr" / f"{folder.name}-{count // 2:03}.png"
    bad.write_bytes(bad.read_bytes()[:-60] + bytes(60))
    return [f"lr={folder / 'lr'}", f"hr={folder / 'hr'}"]


def new_job(folder: Path, what: str) -> Job:
    """Make a job of four shards, with a bad sample in each source.

    Args:
        folder: an empty one; sources and output go into it.
        what: one of `JOBS`.
    """
    out = folder / "made" / "out"
    out.parent.mkdir(parents=True)
    run, old, mends = JOBS[what](folder, out)
    if old is not None:
        _write(out, old)
    run(0)
    return Job(out, run, files(out), old, mends)


def _convert(folder: Path, out: Path, replaces: bool = False) -> _Made:
    sources = make_pairs(folder / "pairs", 17)

    def run(workers: int) -> object:
        return convert(sources, out, OPTIONS, workers=workers, overwrite=replaces)

    if not replaces:
        return run, None, False
    convert(sources, folder / "old", OPTIONS, codec="none", workers=0)
    return run, files(folder / "old"), False


def _append(folder: Path, out: Path) -> _Made:
    convert(make_pairs(folder / "pairs", 9), folder / "old", OPTIONS, workers=0)
    more = make_pairs(folder / "more", 8)
    options = ConvertOptions(shard_size=4096, on_error="skip")
    return lambda workers: append(out, more, options, workers=workers), files(folder / "old"), False


def _merge(folder: Path, out: Path) -> _Made:
    for name, count in (("a", 9), ("b", 8)):
        convert(make_pairs(folder / f"pairs-{name}", count), folder / name, OPTIONS, workers=0)
    return lambda workers: merge([folder / "a", folder / "b"], out), None, False


def _repack(folder: Path, out: Path) -> _Made:
    convert(make_pairs(folder / "pairs", 17), folder / "first", OPTIONS, codec="none", workers=0)
    options = ConvertOptions(shard_size=4096)
    return lambda workers: repack(folder / "first", out, options, codec="zstd", seed=1, workers=workers), None, False


def _repair(folder: Path, out: Path) -> _Made:
    sources = make_pairs(folder / "pairs", 17)
    convert(sources, folder / "sound", OPTIONS, workers=0)
    damaged = files(folder / "sound")
    for name in (f"{SHARD_FOLDER}/00000.lmdb", f"{SHARD_FOLDER}/00002.lmdb", manifests.NAMES_FILE):
        data = bytearray(damaged[name])
        data[len(data) // 2 : len(data) // 2 + 999] = bytes(999)
        damaged[name] = bytes(data)
    return lambda workers: repair(out, open_source(sources, OPTIONS, []), workers=workers), damaged, True


_Made = tuple[Callable[[int], object], "dict[str, bytes] | None", bool]
#: What is killed, by name.
JOBS: dict[str, Callable[[Path, Path], _Made]] = {
    "convert": _convert,
    "replace": lambda folder, out: _convert(folder, out, replaces=True),
    "append": _append,
    "merge": _merge,
    "repack": _repack,
    "repair": _repair,
}


def _write(folder: Path, data: dict[str, bytes]) -> None:
    for name, content in data.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def reset(job: Job) -> None:
    """Put back what stood before the job."""
    for path in sorted(job.out.parent.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    _write(job.out, job.old or {})


def start(action: Callable[[], object]) -> int:
    """Runs `action` in a forked process, leader of its own session; returns its number."""
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


def kill_after(job: Job, seconds: float, whom: str, rng: random.Random, workers: int = 2) -> None:
    """Starts the job and kills part of it after a time; returns when no process of it is left."""
    pid = start(lambda: job.run(workers))
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


def seconds_of(job: Job, workers: int = 2) -> float:
    """How long the job takes undisturbed."""
    reset(job)
    began = time.perf_counter()
    wait_until_gone(start(lambda: job.run(workers)))
    return time.perf_counter() - began


def kill_at_step(action: Callable[[], object], number: int) -> bool:
    """Runs `action` in a process that kills itself before its `number`th step; whether it came that far.

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
    """Waits until no process of the session `pid` is left; an orphan that works on is a fault."""
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
    old = job.old or {}
    if job.mends:
        held = files(job.out)
        wrong = [name for name in job.wanted if held.get(name) not in (job.wanted[name], old[name])]
        assert not wrong, f"{wrong} are neither as they were nor mended"
    elif (job.out / MANIFEST).exists():
        assert _is_new(job) or (job.old and _holds(job.out, job.old)), "neither the old dataset nor the new one"
        assert not verify(job.out).damages
    elif job.out.exists():
        assert job.old is None, "the old dataset is gone"
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


def what_is_left(job: Job) -> str:
    """Say it in words."""
    if _is_new(job):
        return "the finished dataset"
    return f"{len(finished_shards(job))} finished shards"


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
    work = job.out if job.old is None else job.out.with_name(f".{job.out.name}.replacing")
    return {path.stat().st_ino for path in (work / SHARD_FOLDER).glob("*.lmdb")}
