"""The folder a dataset is made in: claimed by one conversion, unfinished until its manifest is written.

OUT does not exist, or is empty      made here
OUT is unfinished, same conversion   goes on from there; if its manifest is there already, only tidied up
OUT is unfinished, another one       refused; with overwrite begun anew
OUT is a finished dataset            refused; with overwrite made next to it, and swapped when it is done
OUT holds anything else              refused
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import filelock
import msgspec
import xxhash

from packer.errors import SourceError, UsageError, WriteError, as_text
from packer.format.manifest import CONSTANTS_FILE, MANIFEST, NAMES_FILE, REJECTED_FILE, SHARD_FOLDER, UNFINISHED
from packer.format.sync import sync_folder, write_synced
from packer.remote.store import refuse_url

_log = logging.getLogger(__name__)

Known = TypeVar("Known")

#: Stays where it is, as filelock advises: a lock file that is removed could be one that another process has opened.
LOCK = ".lock"
#: Note in the folder of an append: which shards the dataset has once it is done.
APPENDED = "appended.json"
#: Tables of names that appending made.
_TABLE = re.compile(r"names-\d+\.lmdb(\.partial)?")
_WRITTEN = (MANIFEST, NAMES_FILE, CONSTANTS_FILE, REJECTED_FILE, UNFINISHED, APPENDED)
_OURS = {*_WRITTEN, *(name + ".partial" for name in _WRITTEN), SHARD_FOLDER, LOCK}


class OutputFolder:
    """The folder of a dataset while it is made; a context manager that holds its lock.

    It may be killed at any instant: the note (unfinished.json) is written before anything else and removed last. The
    next run learns from it what was left; if there is a manifest as well, only tidying up is left to do.

    Attributes:
        path: where the dataset will be.
        work: where it is made: `path`, or a folder next to it while a finished dataset is replaced.
        is_published: whether an earlier run had published this very dataset; all that is left is `publish`.

    Args:
        state: what is to be made.
        overwrite: whether a dataset that is there may be replaced.
        keeps_note: whether the note stays, so that the same call finds the dataset done instead of refusing it. For
            samples in memory it never stays: it would not say which they were.

    Raises:
        UsageError: it is a URL; the folder is in use, holds something else, or an unfinished conversion that differs.
        WriteError: the folder cannot be written.
    """

    def __init__(self, path: Path, state: State, overwrite: bool = False, keeps_note: bool = False) -> None:
        refuse_url(path)
        # A link stays a link: what it leads to is made, and replaced.
        self.path = self.work = path = path.resolve() if path.is_symlink() else path
        self.is_published = False
        self._keeps_note = keeps_note and state.tells_all
        self._beside = next_to(path, "replacing")
        self._old = next_to(path, "replaced")
        self._locks: list[filelock.BaseFileLock] = []
        try:
            self._open(state, overwrite)
        except OSError as error:
            self._release()
            raise WriteError(f"{error.filename or path}: cannot be written: {error.strerror or error}") from None
        except BaseException:
            self._release()
            raise

    @property
    def shards(self) -> Path:
        return self.work / SHARD_FOLDER

    def publish(self) -> None:
        """Put a replacement in place, and tidy up after the manifest.

        Raises:
            WriteError: that cannot be done.
        """
        try:
            if self.work != self.path:
                self.path.rename(self._old)
                self.work.rename(self.path)
                shutil.rmtree(self._old)
                self.work = self.path
            self._tidy()
        except OSError as error:
            raise WriteError(f"{self.path}: {error}") from None
        self._release()

    def __enter__(self) -> OutputFolder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._release()

    def _open(self, state: State, overwrite: bool) -> None:
        self._finish_swap()
        check_output(self.path, overwrite)  # before a lock is made: the dataset may be one that nobody may write to
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock(self.path)
        if self._old.exists():
            shutil.rmtree(self._old)
        if _is_finished(self.path):
            note = self.path / UNFINISHED
            if state.tells_all and note.exists() and not _difference(note, state):
                self.is_published = True
                return
            self._tidy()
            if not overwrite:
                raise _already(self.path)
            if self.path.name in ("", ".."):
                raise UsageError(f"{self.path}: the folder you are in cannot be replaced; run this from another one")
            self.work = self._beside
            self.work.mkdir(exist_ok=True)
            # Its lock moves to `path` with it, and holds others off there until all is tidied up.
            self._lock(self.work)
        self._claim(state, overwrite)

    def _claim(self, state: State, overwrite: bool) -> None:
        """Note what is being made; what an earlier run left is kept if it was the same."""
        note = self.work / UNFINISHED
        difference = _difference(note, state)
        if difference and not overwrite:
            raise UsageError(
                f"{self.path} holds an unfinished conversion that differs: {difference}; "
                f"undo the change to go on with it, or use --overwrite to begin anew"
            )
        if difference and any(self.shards.glob("*.lmdb")):
            _log.warning("%s: what an earlier run had finished is packed anew: %s", self.path, difference)
        if difference or not note.exists():
            _empty(self.work)
        self.shards.mkdir(exist_ok=True)
        for partial in [*self.shards.glob("*.partial"), *self.work.glob("*.partial")]:
            partial.unlink()
        write_synced(note, msgspec.json.encode(state))
        sync_folder(self.work)

    def _tidy(self) -> None:
        """Remove what a finished dataset needs no more; the note last, for it says that there is something to do."""
        for left_out in self.shards.glob("*.rejected.jsonl"):
            left_out.unlink()
        if not self._keeps_note:
            (self.work / UNFINISHED).unlink(missing_ok=True)

    def _finish_swap(self) -> None:
        """Put right what a kill between the two renames of a replacement left."""
        if self.path.exists() or not self._old.exists():
            return
        self._lock(self._old)
        if not self.path.exists() and _is_finished(self._beside):
            self._beside.rename(self.path)
        elif not self.path.exists():
            self._old.rename(self.path)
        self._release()

    def _lock(self, folder: Path) -> None:
        busy = f"another conversion into {self.path} is running; wait for it or choose another folder"
        self._locks.append(locked(folder, busy))

    def _release(self) -> None:
        for lock in self._locks:
            lock.release()
        self._locks = []


def check_output(path: Path, overwrite: bool) -> None:
    """Raise UsageError if no dataset can be made at a place; called before the sources are looked at. Writes nothing.

    Raises:
        UsageError: it is a URL, holds something else, or a dataset that may not be replaced.
    """
    refuse_url(path)
    _check_only_ours(path)
    left_over = next_to(path, "replaced").exists() or (path / UNFINISHED).exists()
    if not overwrite and _is_finished(path) and not left_over:
        raise _already(path)


def warn_of_room(path: Path, most: int) -> None:
    """Log a warning if the disk may be too small for a dataset of `most` bytes that is made at `path`.

    Args:
        most: without compression; less may do, and therefore this is no error.
    """
    made = next_to(path, "replacing") if _is_finished(path) else path  # a dataset stays until another replaces it
    held = sum(shard.stat().st_size for shard in (made / SHARD_FOLDER).glob("*.lmdb"))
    near = next(folder for folder in (path, *path.absolute().parents) if folder.is_dir())
    free = shutil.disk_usage(near).free
    if most - held > free:
        _log.warning(
            "%s may need up to %s more bytes, but %s are free; `packer plan` says how many are likely",
            path,
            f"{most - held:,}",
            f"{free:,}",
        )


def next_to(path: Path, what: str) -> Path:
    """Return the hidden folder where a dataset is worked on before it takes the place of the one at `path`."""
    real = path.resolve()  # `.` has no name; and by a link to the dataset the same folder is meant
    return real.with_name(f".{real.name}.{what}")


def _is_finished(folder: Path) -> bool:
    return (folder / MANIFEST).exists()


def _already(path: Path) -> UsageError:
    return UsageError(f"{path} is a packed dataset already; use --overwrite to replace it")


def _difference(note: Path, state: State) -> str | None:
    """Return how the conversion in a note differs from `state`; None if it does not, or there is no note."""
    try:
        return msgspec.json.decode(note.read_bytes(), type=State).difference(state)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, OSError):
        return f"{note.name} cannot be read"


def _check_only_ours(path: Path) -> None:
    """Raise UsageError if a folder holds anything but a dataset: nothing of the user's is ever removed."""
    if not path.exists():
        return
    if not path.is_dir():
        raise UsageError(f"{path} is a file; name a folder that does not exist yet")
    held = {entry.name for entry in path.iterdir()}
    foreign = sorted(name for name in held - _OURS if not _TABLE.fullmatch(name))
    if foreign:
        raise UsageError(f"{path} is not empty: it holds {foreign[0]}; name a folder that does not exist yet")
    if held & {MANIFEST, UNFINISHED, UNFINISHED + ".partial"}:
        return
    if SHARD_FOLDER in held and any((path / SHARD_FOLDER).iterdir()):
        raise UsageError(f"{path} holds shards and no manifest; `packer repair` makes it again, or name another folder")
    if held - {LOCK, SHARD_FOLDER}:
        raise UsageError(f"{path} is not empty and not an unfinished conversion; name a folder that does not exist yet")


def _empty(folder: Path) -> None:
    """Remove an unfinished conversion; its note last, so that shards are never left without one."""
    if (folder / SHARD_FOLDER).exists():
        for file in (folder / SHARD_FOLDER).iterdir():
            file.unlink()
    for name in sorted(_OURS - {LOCK, SHARD_FOLDER}, key=lambda name: name == UNFINISHED):
        (folder / name).unlink(missing_ok=True)


class State(msgspec.Struct, frozen=True, kw_only=True):
    """What is being made.

    Attributes:
        shards: how many there will be; None if samples still arrive.
        settings: what decides the bytes of the shards, by name. Not `--on-error` and the limits: finished shards stay.
        files: path, size and time of change (ns) of every source file.
        shown: for settings whose values say little to people, what was asked for.
        tells_all: whether two runs of the same settings and files make the same; not so of samples in memory.
    """

    shards: int | None
    settings: dict[str, Any]
    files: list[tuple[str, int, int]]
    shown: dict[str, str] = {}
    tells_all: bool = True

    def difference(self, other: State) -> str | None:
        """Return what differs from another conversion, in words; None if the other can go on with this one."""
        follows = None
        for name in {**self.settings, **other.settings}:
            was, now = self.settings.get(name), other.settings.get(name)
            if was != now:
                shown = (self.shown.get(name, was), other.shown.get(name, now))
                if shown[0] != shown[1]:
                    return f"{name} was {_short(shown[0])} and is now {_short(shown[1])}"
                # The same was asked for; that it means something else now follows from the files.
                follows = f"{name} {_short(shown[0])} comes to something else now"
        held = {path: rest for path, *rest in self.files}
        for path, *rest in other.files:
            if path not in held:
                return f"{path} is new"
            if held.pop(path) != rest:
                return f"{path} has changed"
        return f"{next(iter(held))} is gone" if held else follows


def claim_of(work: Path) -> str:
    """Return what is being made in a folder, as a digest of its note; empty if that is nothing any more."""
    try:
        return xxhash.xxh3_128_hexdigest((work / UNFINISHED).read_bytes())
    except FileNotFoundError:
        return ""


def source_files(paths: list[str]) -> list[tuple[str, int, int]]:
    """Return the path, size and time of change of each file of a source, for `State`.

    Raises:
        SourceError: a file is gone, or cannot be looked at.
    """
    out = []
    folders: dict[str, str] = {}
    for path in paths:  # without a Path, and folder by folder: there may be millions
        try:
            found = os.stat(path)  # noqa: PTH116
        except OSError as error:
            raise SourceError(f"cannot be read: {error.strerror}", path) from None
        cut = path.rfind("/") + 1
        folder, name = path[:cut], path[cut:]
        if folder not in folders:
            folders[folder] = os.path.abspath(folder).rstrip("/")  # noqa: PTH100
        out.append((as_text(f"{folders[folder]}/{name}"), found.st_size, found.st_mtime_ns))
    return out


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) < 60 else text[:57] + "..."


def locked(folder: Path, busy: str) -> filelock.BaseFileLock:
    """Return the lock of a folder, held; raises UsageError with the message `busy` if somebody else holds it."""
    lock = filelock.FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        raise UsageError(busy) from None
    return lock


@contextlib.contextmanager
def dataset_lock(folder: Path, read: Callable[[Path], Known]) -> Iterator[Known]:
    """Keep others from changing the dataset, and give what `read` tells of it then: earlier it may be an old one.

    Readers need no lock, and do not look at it. It is the one that converting into the folder holds.

    Args:
        read: as `manifests.read`. If it raises, because there is no dataset, no lock is made.

    Raises:
        UsageError: something is changing it already.
        WriteError: the folder cannot be written.
    """
    read(folder)
    try:
        lock = locked(folder, f"{folder} is being changed already: appended to, repaired or replaced; wait for it")
    except OSError as error:
        raise WriteError(f"{folder}: cannot be written: {error.strerror or error}") from None
    try:
        yield read(folder)
    finally:
        lock.release()
