"""Conversions that are killed: a job, the kill, and what has to be true afterwards. Needs fork and /proc."""

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

from packer.convert import ConvertOptions, Report, convert
from packer.errors import DatasetError, UsageError
from packer.format import manifest as manifests
from packer.format.manifest import MANIFEST, SHARD_FOLDER
from packer.verify import verify

WHOM = ("converter", "worker", "all")
_GRACE = 20.0  # seconds until all that was killed, or has lost its parent, has to be gone
#: Calls that change what lies in folders, as Python's audit events name them.
_STEPS = {"os.rename", "os.remove", "os.link", "os.mkdir", "os.rmdir"}


@dataclass(frozen=True)
class Job:
    """A conversion into `out`, and the bytes that it makes where nobody disturbs it.

    Attributes:
        wanted: what `files` gives of the finished dataset.
        old: what `files` gives of the dataset that stood at `out` before; None where nothing did.
    """

    sources: list[str]
    out: Path
    options: ConvertOptions
    wanted: dict[str, bytes]
    old: dict[str, bytes] | None = None

    def run(self, workers: int) -> Report:
        return convert(self.sources, self.out, self.options, workers=workers, overwrite=self.old is not None)


def files(folder: Path) -> dict[str, bytes]:
    """The files of a folder by relative path."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def make_pairs(folder: Path, count: int) -> list[str]:
    """Pairs of small pictures of noise, as sources; one of them is damaged."""
    rng = np.random.default_rng(count)
    for field, size in (("lr", 8), ("hr", 16)):
        (folder / field).mkdir(parents=True)
        for number in range(count):
            image = Image.fromarray(rng.integers(0, 256, (size, size, 3), dtype=np.uint8))
            image.save(folder / field / f"{number:03}.png")
    bad = folder / "hr" / f"{count // 2:03}.png"
    bad.write_bytes(bad.read_bytes()[:-60] + bytes(60))
    return [f"lr={folder / 'lr'}", f"hr={folder / 'hr'}"]


def new_job(folder: Path, replaces: bool) -> Job:
    """A job of 17 pairs, one of them bad, in four shards.

    Args:
        folder: an empty one; sources and output go into it.
        replaces: whether another dataset stands at `out` and is to be replaced.
    """
    sources = make_pairs(folder / "pairs", 17)
    options = ConvertOptions(codec="zstd", shard_size=4096, on_error="skip")
    convert(sources, folder / "wanted", options, workers=0)
    out = folder / "made" / "out"
    out.parent.mkdir()
    old = None
    if replaces:
        convert(sources, out, options, codec="none", workers=0)
        old = files(out)
    return Job(sources, out, options, files(folder / "wanted"), old)


def reset(job: Job) -> None:
    """Puts back what stood before the job."""
    for path in sorted(job.out.parent.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    for name, data in (job.old or {}).items():
        path = job.out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


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
    """What a kill left: whole or known to be unfinished; every shard that has its name is finished."""
    if (job.out / MANIFEST).exists():
        held = files(job.out)
        whole = [d for d in (job.wanted, job.old) if d is not None]
        assert any(held.items() >= dataset.items() for dataset in whole), "neither the old dataset nor the new one"
        assert not verify(job.out).damages
    elif job.out.exists():
        assert job.old is None, "the old dataset is gone"
        try:
            manifests.read(job.out)
        except DatasetError:
            pass
        else:
            raise AssertionError("what is unfinished was read")
    for folder in job.out.parent.iterdir():
        for shard in (folder / SHARD_FOLDER).glob("*.lmdb"):
            name = f"{SHARD_FOLDER}/{shard.name}"
            assert shard.read_bytes() in (job.wanted[name], (job.old or {}).get(name)), f"{shard} is half written"


def what_is_left(job: Job) -> str:
    """In words."""
    if (job.out / MANIFEST).exists() and files(job.out).items() >= job.wanted.items():
        return "the finished dataset"
    return f"{len(list(_unfinished_shards(job)))} finished shards"


def check_going_on(job: Job, workers: int = 0) -> int:
    """The same command finishes the job, does no finished shard again, and leaves nothing but the result.

    Returns:
        the number of shards that were kept.
    """
    before = {shard.name: shard.stat().st_ino for shard in _unfinished_shards(job)}
    kept = 0
    try:
        kept = job.run(workers).kept_shards
    except UsageError as error:
        if "packed dataset already" not in str(error):
            raise
    assert files(job.out) == job.wanted
    assert [path.name for path in job.out.parent.iterdir()] == [job.out.name]
    after = {shard.name: shard.stat().st_ino for shard in (job.out / SHARD_FOLDER).iterdir()}
    assert before.items() <= after.items(), "a finished shard was made again"
    return kept


def _unfinished_shards(job: Job) -> Iterator[Path]:
    """Shards of the job itself, finished or not; of a replacement those that lie beside."""
    work = job.out if job.old is None else job.out.with_name(f".{job.out.name}.replacing")
    return (work / SHARD_FOLDER).glob("*.lmdb")
