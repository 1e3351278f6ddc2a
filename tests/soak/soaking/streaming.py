"""Streams epochs from a bucket through a cache that is smaller than the dataset, with a fault at a random instant."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from packer.errors import DatasetError, PackerError, RemoteError
from packer.format import MANIFEST
from packer.format import manifest as manifests
from soaking import bucket
from soaking.bucket import Bucket
from soaking.reading import SHARDS, Reader, Reading, Within, dataset_of, environment, watch
from soaking.watched import watched

#: Each fault with the errors that it may raise, those below them included.
FAULTS: dict[str, tuple[type[PackerError], ...]] = {
    "wrong bytes": (DatasetError,),
    "SIGINT": (),
    "SIGTERM": (),
    "SIGKILL": (),
    "no space": (DatasetError,),
    "full disk": (DatasetError,),
    "cut": (RemoteError,),
    "busy": (RemoteError,),
    "slow": (RemoteError,),
    "replaced": (DatasetError,),
    "cache removed": (DatasetError,),
    "in turn": (),
}
#: The answers of faulty servers.
_ANSWERS = {
    "busy": [bucket.busy],
    "cut": [bucket.cut, bucket.refused],
    "slow": [bucket.slow, bucket.late],
    "wrong bytes": [bucket.flipped, bucket.zeros, bucket.short, bucket.page],
}
#: Epochs that are streamed with a fault; seconds that they take about, and steps.
_EPOCHS, _SECONDS, _STEPS = 2, 0.7, 700
#: Epochs in which ranks are stopped in turn.
_MANY_EPOCHS = 8
#: Python's audit events for calls that change the cache, or that wait in it or for the bucket.
_EVENTS = {"os.rename", "os.remove", "os.mkdir", "os.utime", "fcntl.flock", "mmap.__new__", "socket.connect", "open"}


def trial(folder: Path, seed: int) -> str:
    """Stream epochs with a fault, by one or two ranks; return the fault and the outcomes.

    Every batch is right, or an error says why; nothing hangs. The next run reads a whole epoch with the same cache, and
    one that has a state from before the fault gives the batches after it. The cache never holds more than its limit. No
    lock stays: another dataset may take all the room. Files that are not of the bucket are untouched, and nothing is
    left in /dev/shm.
    """
    import aiohttp  # noqa: F401  # here, and not in each process
    import s3fs  # noqa: F401

    rng, fault, place = random.Random(seed), list(FAULTS)[seed % len(FAULTS)], folder / str(seed)
    server = _make_bucket(place / "bucket", fault, rng)
    reading = _make_reading(folder, place, server.server_port, fault, rng)
    foreign = _put_foreign_files(reading.cache)
    shared = _shared_memory()
    readers: list[Reader] = []
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(bucket.serving(server, seed))
            stack.callback(lambda: [reader.close() for reader in readers])
            stack.enter_context(environment(server.server_port))
            if fault == "full disk":
                if not stack.enter_context(_small_disk(reading, rng)):
                    return f"{fault}: only the user root can make one"
                foreign = _put_foreign_files(reading.cache)
            outcome = _with_fault(reading, fault, server, readers, rng)
            server.is_faulty[0] = 0
            if fault == "full disk":
                subprocess.run(["mount", "-o", "remount,size=64m", reading.cache], check=True)
            elif fault == "cache removed":
                foreign = _put_foreign_files(reading.cache)
            for version in (reading.cache / "datasets").glob("set-*"):
                for name in ("notes.txt", "shards/mine.txt"):
                    foreign |= _put_foreign(version / name)
            states = [state for reader in readers for state in reader.states]
            _go_on(reading, readers, rng.choice(states) if states and fault != "replaced" else None)
            _check_left(reading, foreign, shared)
            _clear(reading, readers)
            _check_left(reading, foreign, shared)
    except AssertionError as error:
        notes = "".join(f"\nrank {reader.rank}: {reader.lines[-1:]}" for reader in readers)
        raise AssertionError(f"{fault}, {reading}: {error}{notes}") from None
    finally:
        shutil.rmtree(place)
    return f"{fault}: {outcome}"


def _make_bucket(folder: Path, fault: str, rng: random.Random) -> Bucket:
    """Return a bucket of which some answers are wrong, of some files from some request on."""
    if fault not in _ANSWERS:
        return Bucket(folder, "", 0, [])
    end, first = rng.choice(
        [
            ("", rng.randrange(3 * SHARDS)),
            (".lmdb", rng.randrange(3 * SHARDS)),
            (f"{rng.randrange(10)}.lmdb", rng.randrange(2)),
            (MANIFEST, 0),
        ]
    )
    return Bucket(folder, end, first, rng.choices(_ANSWERS[fault], k=rng.choice([1, 2, 2, 3, 8, 30])))


def _make_reading(folder: Path, place: Path, port: int, fault: str, rng: random.Random) -> Reading:
    """Put a dataset and another one into the bucket; return how to read the first, with room for a few shards."""
    codec, is_plain = rng.choice(["none", "lz4"]), rng.random() < 0.5
    sources = [dataset_of(folder, version, codec, is_plain) for version in range(2 if fault == "replaced" else 1)]
    shutil.copytree(sources[0], place / "bucket/bucket/set")
    shutil.copytree(dataset_of(folder, 2, "none", True), place / "bucket/bucket/other")
    ranks = 2 if fault == "in turn" else rng.choice([1, 1, 2])
    has_names = rng.random() < 0.3
    manifest = manifests.read(sources[0])
    shard_bytes = max(entry.bytes for entry in manifest.shards)
    table_bytes = sum(entry.bytes for entry in manifest.tables) if has_names else 0
    shuffle = rng.choice([False, "shards", "shards"])
    return Reading(
        place,
        "s3://bucket/set" if rng.random() < 0.3 else f"http://127.0.0.1:{port}/bucket/set",
        sources,
        ranks,
        # Each rank holds those of its window and of the next, and some more while they are read ahead.
        int(((5 if ranks == 1 else 9) + rng.choice([0, 0.5, 2])) * shard_bytes) + table_bytes + 8192,
        {"extras": ["number", "name"] if has_names else ["number"], "verify": rng.random() < 0.3},
        {
            "batch_size": rng.choice([3, 8, 16]),
            "shuffle": shuffle,
            "shuffle_window": rng.choice([10, 32]) if shuffle else None,
            "threads": rng.choice([0, 1, 2]),
        },
        rng.choice([2**14, 2**23]),
    )


@contextlib.contextmanager
def _small_disk(reading: Reading, rng: random.Random) -> Iterator[bool]:
    """Mount a disk at the cache that holds less than its limit; yield False if this process may not."""
    shutil.rmtree(reading.cache)
    reading.cache.mkdir()
    size = rng.randrange(2**16, reading.limit)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(reading.cache)]
    is_mounted = subprocess.run(mount, capture_output=True).returncode == 0
    try:
        yield is_mounted
    finally:
        if is_mounted:
            subprocess.run(["umount", "-l", reading.cache], check=True)


# ---------------------------------------------------------------- faults


def _with_fault(reading: Reading, fault: str, server: Bucket, readers: list[Reader], rng: random.Random) -> str:
    """Stream epochs, with the fault; return the outcomes."""
    kind = signal.Signals[fault] if fault.startswith("SIG") else None
    within: Within = contextlib.nullcontext
    at_step = kind is not None and rng.random() < 0.5
    if kind is not None and at_step:
        within = partial(_signalled, rng.randrange(_STEPS), kind)
    elif fault == "no space":
        calls = rng.choice([("open", "write", "sync", "mkdir", "rename"), ("write",), ("sync",)])
        within = partial(_without_space, reading.cache, calls, rng.randrange(150), rng.choice([1, 1000]))
    withins: list[Within] = [within, contextlib.nullcontext if kind else within]
    spans = [(None, _MANY_EPOCHS if fault == "in turn" else _EPOCHS)]
    readers += [Reader(reading, rank, spans, withins[rank]) for rank in range(reading.ranks)]
    if not at_step:
        watch(reading, readers, rng.uniform(0, _SECONDS))
    if fault == "in turn":
        return _stop_in_turn(reading, readers, rng)
    if kind and not at_step:
        readers[0].send(kind)
    elif fault == "replaced":
        _replace(reading, rng)
    elif fault == "cache removed":
        for path in rng.choice([list((reading.cache / "datasets").glob("set-*")), [reading.cache]]):
            shutil.rmtree(path, ignore_errors=True)
    watch(reading, readers)
    passes = 2 if fault == "wrong bytes" else bucket.ATTEMPTS  # so many wrong answers in turn are an error
    allowed = () if fault in _ANSWERS and len(server.faults) < passes else FAULTS[fault]
    return " and ".join(sorted(reader.outcome(allowed, None if reader.rank else kind) for reader in readers))


def _stop_in_turn(reading: Reading, readers: list[Reader], rng: random.Random) -> str:
    """Stop one rank after the other, and let it go on from its last state; return how often."""
    living, states, stopped = list(readers), [None, None], 0
    for rank in (0, 1, 0, 1, 0, 1):
        kind = rng.choice([signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
        living[rank].send(kind)
        watch(reading, [living[rank]])
        stopped += living[rank].outcome((), kind) == kind.name
        states[rank] = (living[rank].states or [states[rank]])[-1]
        living[rank] = Reader(reading, rank, [(states[rank], _MANY_EPOCHS)])
        readers.append(living[rank])
        watch(reading, living, rng.uniform(0, _SECONDS / 2))
    watch(reading, living)
    for reader in living:
        reader.outcome()
    return f"{stopped} times stopped"


@contextlib.contextmanager
def _signalled(steps: int, kind: signal.Signals) -> Iterator[None]:
    """Send a signal to this process after so many steps."""

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal steps
        if event in _EVENTS and (event != "open" or (isinstance(arguments[2], int) and arguments[2] & os.O_ACCMODE)):
            steps -= 1
            if steps == -1:
                os.kill(os.getpid(), kind)

    sys.addaudithook(hook)
    yield


@contextlib.contextmanager
def _without_space(cache: Path, calls: tuple[str, ...], first: int, count: int) -> Iterator[None]:
    """Let `count` calls that write to the cache fail, after the `first` ones."""
    made = 0

    def watcher(call: str, place: Any) -> None:
        nonlocal made
        if call in calls:
            path = (
                str(Path(f"/proc/self/fd/{place}").readlink()) if isinstance(place, int) else os.fsdecode(place or "")
            )
            if path.startswith(f"{cache}/"):
                made += 1
                if first < made <= first + count:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    with watched(watcher):
        yield


def _replace(reading: Reading, rng: random.Random) -> None:
    """Put the next version into the bucket, file by file, the manifest at any point; remove what the old one had."""
    home, new = reading.place / "bucket/bucket/set", reading.sources[1]
    names = [str(path.relative_to(new)) for path in new.rglob("*") if path.is_file() and path.name != MANIFEST]
    names.insert(rng.choice([0, len(names), rng.randrange(len(names))]), MANIFEST)
    for name in names:
        shutil.copy(new / name, home / "new")
        (home / "new").replace(home / name)
        time.sleep(rng.choice([0, 0.002]))
    for path in [path for path in home.rglob("*") if path.is_file() and not (new / path.relative_to(home)).exists()]:
        path.unlink()


# ---------------------------------------------------------------- afterwards


def _go_on(reading: Reading, readers: list[Reader], state: Mapping[str, Any] | None) -> None:
    """Read a whole epoch with the same cache, and then the rest of that of a state, if there is one."""
    spans = [(None, 1), (state, state["epoch"] + 1)] if state else [(None, 1)]
    again = [Reader(reading, rank, spans) for rank in range(reading.ranks)]
    readers += again
    watch(reading, again)
    for reader in again:
        reader.outcome()


def _clear(reading: Reading, readers: list[Reader]) -> None:
    """Read another dataset, which takes all the room."""
    other = reading.place / "bucket/bucket/other"
    limit = sum(entry.bytes for entry in manifests.read(other).shards) + 8192
    url = f"{reading.url.removesuffix('set')}other"
    clearing = reading._replace(url=url, sources=[other], ranks=1, limit=limit, dataset={}, loader={"batch_size": 16})
    readers.append(Reader(clearing, 0, [(None, 1)]))
    watch(clearing._replace(limit=max(limit, reading.limit)), readers[-1:])
    readers[-1].outcome()
    assert reading.cached_bytes <= limit, "what nobody reads was not removed"


def _put_foreign(path: Path) -> dict[Path, bytes]:
    """Make a file that is not of the bucket, older than all others."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"mine")
    os.utime(path, (1, 1))
    return {path: b"mine"}


def _put_foreign_files(cache: Path) -> dict[Path, bytes]:
    """Make files wherever a user may have some in the folder of a cache."""
    mine = ("1.png", "manifest.json", "shards/00000.lmdb", ".fetching/1.partial")
    names = ("notes.txt", "datasets/notes.txt", "datasets/.mine/x", "sources/mine/x", "mine/x")
    paths = [cache / name for name in (*names, *(f"datasets/mine/{name}" for name in mine))]
    return {path: data for place in paths for path, data in _put_foreign(place).items()}


def _shared_memory() -> set[str]:
    """Return the names in /dev/shm, but folders of tempfile: tests beside this one make such."""
    return {path.name for path in Path("/dev/shm").iterdir() if not path.name.startswith("tmp")}


def _check_left(reading: Reading, foreign: Mapping[Path, bytes], shared: set[str]) -> None:
    """Check that no lock is held, that foreign files are as they were, and that nothing is left in /dev/shm."""
    for path in (path for path in reading.cache.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise AssertionError(f"a lock stays on {path}") from None
    for path, data in foreign.items():
        assert path.exists(), f"{path} was removed"
        assert (path.read_bytes(), path.stat().st_mtime) == (data, 1), f"{path} was changed"
    mine = reading.cache / "datasets/mine"
    assert {path.name for path in mine.iterdir()} == {".fetching", "1.png", "manifest.json", "shards"}
    # What other programs have there, they map; the readers have ended.
    left = {name for name in _shared_memory() - shared if not _is_mapped(f"/dev/shm/{name}")}
    assert not left, f"left in /dev/shm: {left}"


def _is_mapped(path: str) -> bool:
    """Return whether a process has mapped a file, or has removed it meanwhile."""
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            if path in maps.read_text():
                return True
    return not Path(path).exists()
