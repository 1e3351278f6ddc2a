"""Records what a call does to a folder, and builds every disk that may remain of it when the power goes.

The record is made of looks at the folder. One is taken before each call that the process makes on names (open, rename,
link, remove, mkdir) and before each sync: see `watched`. What differs from the look before was done in between, by
Python or by a library. Files and folders are told apart by their inodes, so that a file keeps its bytes under another
name. The record is a list, in order, of

    Bytes    a file has new bytes
    Names    some names lead somewhere else, all of them at once: a file or folder was made, linked, renamed, removed
    Synced   a file or folder was synced: fsync, or LMDB's sync

What a disk keeps of the steps before a power cut:

    bytes of a file      those of its last sync; of later ones each page of 4 KiB may be old, new, half of each, or
                         zero, and the file as long as it was after any of these steps
    names in a folder    those of its last sync; each later change may be there or not, whatever became of the others

Nothing else is taken for granted: not that a disk keeps the order of two changes, nor that a sync of a file keeps its
name. File systems promise more than this, each something else.
"""

from __future__ import annotations

import os
import random
import shutil
import stat
import threading
from collections.abc import Callable, Hashable, Iterator
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
    """`changes`: folder, name, and the file or folder that it leads to now; None if it is gone."""

    changes: tuple[tuple[int, str, int | None], ...]


@dataclass(frozen=True)
class Synced:
    what: int


Step = Bytes | Names | Synced
#: Of each folder the names in it, and what they lead to; None for one that is gone.
Tree = dict[int, dict[str, "int | None"]]


@dataclass(frozen=True)
class Record:
    """What was in a folder before a call, and what the call did, in order. Files and folders are numbers.

    Attributes:
        folders: which numbers are folders.
    """

    tree: Tree
    contents: dict[int, bytes]
    steps: list[Step]
    folders: set[int]


def recorded(root: Path, call: Callable[[], object]) -> Record:
    """Make a call and return the record of what it does below `root`; what is there before counts as synced."""
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
        """Note all that has changed since the last look."""
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
                        if info.st_nlink > 1 and number not in self._contents:  # of a file that lies elsewhere
                            self.steps += [Bytes(number, contents[number]), Synced(number)]
                            self._contents[number] = contents[number]
                names[path.name] = numbers[info.st_ino]
        for file, content in contents.items():
            if content != self._contents.get(file, b""):
                self.steps.append(Bytes(file, content))
        self.steps += _moves(self._tree, tree)
        self._tree, self._contents, self._numbers = tree, contents, numbers


def _moves(before: Tree, after: Tree) -> Iterator[Names]:
    """Yield what changed between two looks: names that one file or folder has lost and got are one change."""
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
    """Check a disk that chance left of a job; return what was left."""
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
    """Check that a disk holds what was published, and, if it is to be made `again`, that the job ends well on it.

    Raises:
        AssertionError: something is lost or wrong; the message tells which disk it was.
    """
    disk.write(job.disk)
    try:
        with watched(lambda kind, what: None):  # no sync is waited for
            job.check_left(may_be_away=True)
            if disk.is_over:
                job.check_over()
            if again:
                job.check_again()
    except (AssertionError, PackerError) as error:
        raise AssertionError(f"{disk.how}: {error}") from error


@dataclass(frozen=True)
class Disk:
    """What a power cut left: relative path to bytes, and the folders.

    Attributes:
        is_over: whether the call had returned.
        how: after which step the power went, and what was kept of the steps before it.
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
    """Return the disks on which all, nothing, all but one or one alone of the changes of names was kept, of every cut.

    Of the bytes all, nothing, or zeros in their place. None that leaves the same as another.
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
    """Return a disk of any cut; chance decides of each page and each change of names that was not synced."""
    cut, share = rng.randrange(len(record.steps) + 1), rng.choice([0.1, 0.5, 0.9])
    names = {step for step in _loose_names(record, cut) if rng.random() < share}
    return _disk(record, cut, names, partial(_any, rng), f"names of the steps {sorted(names)}, any bytes")


def _loose_names(record: Record, cut: int) -> list[int]:
    """Return the steps before a cut that changed names and may be lost.

    Those stay after which the folder was synced that got or lost the name: got, if the name came from another folder.
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
        kept: of the steps that changed names and may be lost, those that are not.
        pages: gives the bytes of a file; called with its synced ones and all later ones.
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
    """Return zeros in the place of all pages that were changed since they were synced."""
    old, new = versions[0], versions[-1]
    pages = [new[at : at + PAGE] for at in range(0, len(new), PAGE)]
    return b"".join(
        page if page == old[at * PAGE :][: len(page)] else bytes(len(page)) for at, page in enumerate(pages)
    )


def _any(rng: random.Random, versions: list[bytes]) -> bytes:
    """Return as many bytes as there ever were; each half of a page is of any time, or zeros if it was changed."""
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
