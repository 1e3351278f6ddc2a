"""Records the changes that a call makes to a folder, and builds every disk that a power cut may leave.

The recorder looks at the folder before each call of the process on names (open, rename, link, remove, mkdir) and before
each sync: see `watched`. Differences between two looks were made in between, by Python or by a library. Inodes identify
files and folders, so that a file keeps its bytes under another name. The record is a list, in order, of

    Bytes    a file has new bytes
    Names    names of one file or folder changed, all at once: it was made, linked, renamed or removed
    Synced   a file or folder was synced: fsync, or LMDB's sync

A disk keeps this of the steps before a power cut:

    bytes of a file      those of its last sync; of later ones each page of 4 KiB may be old, new, half of each, or
                         zero, and the file as long as it was after any of these steps
    names in a folder    those of its last sync; each later change may be there or not, whatever became of the others

No more is assumed: a disk may reorder two changes, and a sync of a file need not keep its name. File systems promise
more than this, but each something different.
"""

from __future__ import annotations

import os
import random
import shutil
import stat
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from packer.errors import PackerError
from soaking.jobs import JOBS, Job, new_job
from soaking.watched import watched

PAGE = 4096
ROOT = 0


@dataclass(frozen=True)
class Bytes:
    file: int
    content: bytes


@dataclass(frozen=True)
class Names:
    """`changes`: folder, name, and the file or folder that the name means now; None if it is gone."""

    changes: tuple[tuple[int, str, int | None], ...]


@dataclass(frozen=True)
class Synced:
    what: int


Step = Bytes | Names | Synced
#: By folder, the names in it and the file or folder of each; None for a name that is gone.
Tree = dict[int, dict[str, "int | None"]]


@dataclass(frozen=True)
class Record:
    """The contents of a folder before a call, and the steps of the call, in order. Files and folders are numbers.

    Attributes:
        folders: which numbers are folders.
    """

    tree: Tree
    contents: dict[int, bytes]
    steps: list[Step]
    folders: set[int]


def recorded(root: Path, call: Callable[[], object]) -> Record:
    """Make a call and return the record of its changes below `root`; earlier contents count as synced."""
    recorder = _Recorder(root)
    with watched(recorder):
        call()
    recorder.look()
    return Record(recorder.first_tree, recorder.first_contents, recorder.steps, recorder.folders)


class _Recorder:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._lock = threading.RLock()
        self._numbers: dict[int, int] = {root.stat().st_ino: ROOT}
        self._next = 1
        self._tree: Tree = {ROOT: {}}
        self._contents: dict[int, bytes] = {}
        self.steps: list[Step] = []
        self.folders = {ROOT}
        self.look()
        self.first_tree, self.first_contents, self.steps = self._tree, dict(self._contents), []

    def __call__(self, kind: str, what: Any) -> None:
        if kind not in ("open", "rename", "remove", "mkdir", "sync"):
            return
        with self._lock:
            self.look()
            if kind == "sync" and what is None:
                self.steps += map(Synced, self._numbers.values())
            elif kind == "sync":
                info = os.fstat(what) if isinstance(what, int) else os.stat(what)  # noqa: PTH116
                if info.st_ino in self._numbers:
                    self.steps.append(Synced(self._numbers[info.st_ino]))

    def look(self) -> None:
        """Record all changes since the last look; look again if another thread renames or removes what was listed."""
        while True:
            with suppress(FileNotFoundError):
                self._look()
                return

    def _look(self) -> None:
        tree: Tree = {}
        contents: dict[int, bytes] = {}
        numbers = {self._root.stat().st_ino: ROOT}
        folders = [self._root]
        while folders:
            folder = folders.pop()
            names = tree.setdefault(numbers[folder.stat().st_ino], {})
            for path in sorted(folder.iterdir()):
                info = path.lstat()
                if info.st_ino not in numbers:
                    numbers[info.st_ino] = number = self._numbers.get(info.st_ino, self._next)
                    self._next = max(self._next, number + 1)
                    if stat.S_ISDIR(info.st_mode):
                        folders.append(path)
                        self.folders.add(number)
                    else:
                        contents[number] = path.read_bytes()
                        if info.st_nlink > 1 and number not in self._contents:  # a link to a file elsewhere
                            self.steps += [Bytes(number, contents[number]), Synced(number)]
                            self._contents[number] = contents[number]
                names[path.name] = numbers[info.st_ino]
        for file, content in contents.items():
            if content != self._contents.get(file, b""):
                self.steps.append(Bytes(file, content))
        self.steps += _moves(self._tree, tree)
        self._tree, self._contents, self._numbers = tree, contents, numbers


def _moves(before: Tree, after: Tree) -> Iterator[Names]:
    """Yield the changes between two looks: all names that one file or folder lost and got are one change."""
    changes: dict[int, list[tuple[int, str, int | None]]] = {}
    for folder in after.keys() | before.keys():
        was, now = before.get(folder, {}), after.get(folder, {})
        for name in sorted(was.keys() | now.keys()):
            if was.get(name) != now.get(name):
                whose = now.get(name, was.get(name))
                assert whose is not None
                changes.setdefault(whose, []).append((folder, name, now.get(name)))
    for number in sorted(changes):
        yield Names(tuple(changes[number]))


# ---------------------------------------------------------------- disks


def trial(folder: Path, seed: int) -> str:
    """Check a random disk that a job may leave; return the job, and when the power went."""
    job, record = recorded_job(folder, JOBS[seed % len(JOBS)])
    disk = any_disk(record, random.Random(seed))
    check(job, disk, again=True)
    return f"{job.name}: the power goes {'after' if disk.is_over else 'before'} its end"


@lru_cache
def recorded_job(folder: Path, name: str) -> tuple[Job, Record]:
    """Return a new job, and the record of its call."""
    job = new_job(folder / name.replace(" ", "-"), name)
    job.reset()
    return job, recorded(job.disk, lambda: job.run(0))


def check(job: Job, disk: Disk, again: bool) -> None:
    """Check that a disk holds everything published, and, if `again`, that the job ends well on it.

    Raises:
        AssertionError: something is lost or wrong; the message describes the disk.
    """
    disk.write(job.disk)
    try:
        with watched(lambda kind, what: None):  # no sync is waited for
            job.check_left()
            if disk.is_over:
                job.check_over()
            if again:
                job.check_again()
    except (AssertionError, PackerError) as error:
        raise AssertionError(f"{disk.how}: {error}") from error


@dataclass(frozen=True)
class Disk:
    """The disk that a power cut left: bytes by relative path, and the folders.

    Attributes:
        is_over: whether the call had returned.
        how: the step at which the power went, and what the disk keeps of the steps before it.
    """

    is_over: bool
    how: str
    files: dict[str, bytes]
    folders: list[str]

    def write(self, root: Path) -> None:
        """Make a folder hold this disk and nothing else."""
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir()
        for folder in self.folders:
            (root / folder).mkdir()
        for path, content in self.files.items():
            (root / path).write_bytes(content)


def every_disk(record: Record) -> list[Disk]:
    """Return, for every cut, the disks that keep all, none, all but one or only one of the changes of names.

    Each keeps all or none of the unsynced bytes, or zeros in their place. Equal disks are returned once.
    """
    found: dict[Hashable, Disk] = {}
    for cut in range(len(record.steps) + 1):
        loose = _loose_names(record, cut)
        kept = {"all names": set(loose), "no names": set[int]()}
        kept |= {f"all names but those of step {one}": set(loose) - {one} for one in loose}
        kept |= {f"of names those of step {one} alone": {one} for one in loose}
        for which, names in kept.items():
            for how, pages in (("all", _newest), ("none", _oldest), ("zeros", _zeros)):
                disk = _disk(record, cut, names, pages, f"{which}, of bytes {how}")
                same = disk.is_over, frozenset(disk.files.items()), frozenset(disk.folders)
                found.setdefault(same, disk)
    return list(found.values())


def any_disk(record: Record, rng: random.Random) -> Disk:
    """Return a disk of a random cut; chance decides on each unsynced page and each unsynced change of names."""
    cut, share = rng.randrange(len(record.steps) + 1), rng.choice([0.1, 0.5, 0.9])
    names = {step for step in _loose_names(record, cut) if rng.random() < share}
    return _disk(record, cut, names, partial(_any, rng), f"names of the steps {sorted(names)}, any bytes")


def _loose_names(record: Record, cut: int) -> list[int]:
    """Return the steps before a cut that changed names and may be lost.

    A step is safe once its folder is synced after it; if a name moves between folders, the folder that got it.
    """
    synced: set[int] = set()
    loose = []
    for number in reversed(range(cut)):
        step = record.steps[number]
        if isinstance(step, Synced):
            synced.add(step.what)
        elif isinstance(step, Names):
            got = {folder for folder, _, target in step.changes if target is not None}
            if not (got or {folder for folder, _, _ in step.changes}) <= synced:
                loose.append(number)
    return loose[::-1]


def _disk(record: Record, cut: int, kept: set[int], pages: Callable[[list[bytes]], bytes], how: str) -> Disk:
    """Return the disk of a cut.

    Args:
        kept: the steps that could be lost, and are kept.
        pages: called with the synced bytes of a file and all later versions; returns the bytes on the disk.
    """
    lost = set(_loose_names(record, cut)) - kept
    tree = {folder: dict(names) for folder, names in record.tree.items()}
    contents = {file: [content] for file, content in record.contents.items()}
    for number, step in enumerate(record.steps[:cut]):
        if isinstance(step, Bytes):
            contents.setdefault(step.file, [b""]).append(step.content)
        elif isinstance(step, Synced):
            contents[step.what] = contents.get(step.what, [])[-1:]
        elif number not in lost:
            for folder, name, target in step.changes:
                tree.setdefault(folder, {})[name] = target
    files: dict[str, bytes] = {}
    folders = []
    waiting = [(ROOT, "")]
    while waiting:
        folder, above = waiting.pop()
        for name, target in tree.get(folder, {}).items():
            path = f"{above}{name}"
            if target in record.folders:
                folders.append(path)
                waiting.append((target, f"{path}/"))
            elif target is not None:
                files[path] = pages(contents.get(target) or [b""])
    return Disk(cut == len(record.steps), f"cut before step {cut} of {len(record.steps)}: {how}", files, folders)


def _newest(versions: list[bytes]) -> bytes:
    return versions[-1]


def _oldest(versions: list[bytes]) -> bytes:
    return versions[0]


def _zeros(versions: list[bytes]) -> bytes:
    """Return the newest bytes, with zeros in all pages that changed since they were synced."""
    old, new = versions[0], versions[-1]
    pages = [new[at : at + PAGE] for at in range(0, len(new), PAGE)]
    return b"".join(
        page if page == old[at * PAGE :][: len(page)] else bytes(len(page)) for at, page in enumerate(pages)
    )


def _any(rng: random.Random, versions: list[bytes]) -> bytes:
    """Return bytes as long as any version; each half of a page is from any version, or zeros if it was changed."""
    length = len(rng.choice(versions))
    halves = []
    for at in range(0, length, PAGE // 2):
        some = [version[at : at + PAGE // 2].ljust(PAGE // 2, b"\0") for version in versions]
        is_second = at % PAGE > 0
        same = halves[-1][0] if is_second and rng.random() < 0.7 else None  # most pages are whole
        which = rng.randrange(len(some) + 1) if same is None else same
        is_changed = len(set(some)) > 1
        halves.append(
            (which, bytes(PAGE // 2) if which == len(some) and is_changed else some[min(which, len(some) - 1)])
        )
    return b"".join(half for _, half in halves)[:length]
