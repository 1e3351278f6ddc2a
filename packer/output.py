"""The folder a dataset is made in: claimed by one conversion, unfinished until its manifest stands.

OUT does not exist, or is empty      made here
OUT is unfinished, same conversion   goes on where it stopped
OUT is unfinished, another one       refused; with overwrite begun anew
OUT is a finished dataset            refused; with overwrite made beside it, and swapped when it is done
OUT holds anything else              refused
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from types import TracebackType
from typing import Any

import filelock
import msgspec

from packer.errors import UsageError, WriteError
from packer.format.manifest import MANIFEST, NAMES_FILE, SHARD_FOLDER, UNFINISHED

REJECTED = "rejected.jsonl"
LOCK = ".lock"
#: Tables of names that appending made.
_TABLE = re.compile(r"names-\d+\.lmdb(\.partial)?")
_OURS = {MANIFEST, MANIFEST + ".partial", NAMES_FILE, NAMES_FILE + ".partial", SHARD_FOLDER, UNFINISHED, REJECTED, LOCK}


class State(msgspec.Struct, frozen=True, kw_only=True):
    """unfinished.json: what is being made, so that only the same conversion goes on with it.

    Attributes:
        shards: how many there will be; None where samples still arrive.
        settings: what was asked for, by name.
        files: path, size and time of change (ns) of every source file.
    """

    shards: int | None
    settings: dict[str, Any]
    files: list[tuple[str, int, int]]

    def difference(self, other: State) -> str | None:
        """What differs from another conversion, in words; None where nothing does."""
        for name in {**self.settings, **other.settings}:
            if self.settings.get(name) != other.settings.get(name):
                return f"{name} was {_short(self.settings.get(name))} and is now {_short(other.settings.get(name))}"
        held = {path: rest for path, *rest in self.files}
        for path, *rest in other.files:
            if path not in held:
                return f"{path} is new"
            if held.pop(path) != rest:
                return f"{path} has changed"
        return f"{next(iter(held))} is gone" if held else None


class OutputFolder:
    """The folder of a dataset while it is made; a context manager that holds its lock.

    Attributes:
        path: where the dataset will stand.
        work: where it is made: `path`, or a folder beside it where a finished dataset is being replaced.

    Args:
        state: what is to be made.
        overwrite: whether a dataset that is there may be replaced.

    Raises:
        UsageError: the folder is in use, holds something else, or an unfinished conversion that differs.
        WriteError: the folder cannot be written.
    """

    def __init__(self, path: Path, state: State, overwrite: bool = False) -> None:
        self.path = path
        self._beside = beside(path, "replacing")
        self._old = beside(path, "replaced")
        self._finish_swap()
        finished = (path / MANIFEST).exists()
        if finished and not overwrite:
            raise UsageError(f"{path} is a packed dataset already; use --overwrite to replace it")
        self.work = self._beside if finished else path
        _check_only_ours(path)
        try:
            self.work.mkdir(parents=True, exist_ok=True)
            (self.work / SHARD_FOLDER).mkdir(exist_ok=True)
            self._lock = filelock.FileLock(self.work / LOCK)
            self._lock.acquire(timeout=0)
        except filelock.Timeout:
            raise UsageError(
                f"another conversion into {path} is running; wait for it or choose another folder"
            ) from None
        except OSError as error:
            raise WriteError(f"{path}: cannot be written: {error.strerror}") from None
        try:
            self._claim(state, overwrite)
        except BaseException:
            self._lock.release()
            raise

    @property
    def shards(self) -> Path:
        return self.work / SHARD_FOLDER

    def publish(self) -> None:
        """Tidies up behind the manifest, and puts a replacement in place."""
        for beside in self.shards.glob("*.rejected.jsonl"):
            beside.unlink()
        (self.work / UNFINISHED).unlink(missing_ok=True)
        self._release()
        if self.work != self.path:
            self.path.rename(self._old)
            self.work.rename(self.path)
            shutil.rmtree(self._old)

    def __enter__(self) -> OutputFolder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._release()

    def _release(self) -> None:
        if self._lock.is_locked:
            # Removed while it is held: a file removed later could be another conversion's.
            (self.work / LOCK).unlink(missing_ok=True)
            self._lock.release()

    def _claim(self, state: State, overwrite: bool) -> None:
        """Notes what is being made; what an earlier run left is kept if it was the same."""
        note = self.work / UNFINISHED
        if note.exists():
            difference = _difference(note, state)
            if difference and not overwrite:
                raise UsageError(
                    f"{self.path} holds an unfinished conversion that differs: {difference}; "
                    "undo the change to go on with it, or use --overwrite to begin anew"
                )
            if difference:
                _empty(self.work)
        for partial in [*self.shards.glob("*.partial"), *self.work.glob("*.partial")]:
            partial.unlink()
        temporary = note.with_name(UNFINISHED + ".partial")
        try:
            temporary.write_bytes(msgspec.json.encode(state))
            temporary.replace(note)
        except OSError as error:
            raise WriteError(f"{note}: {error.strerror}") from None

    def _finish_swap(self) -> None:
        """Puts right what a kill between the two renames of a replacement left."""
        if self._old.exists() and not self.path.exists():
            done = (self._beside / MANIFEST).exists()
            (self._beside if done else self._old).rename(self.path)
        if self._old.exists():
            shutil.rmtree(self._old)


def beside(path: Path, what: str) -> Path:
    """The hidden folder where a dataset is worked on before it takes the place of the one at `path`."""
    absolute = path.absolute()  # `.` has no name
    return absolute.with_name(f".{absolute.name}.{what}")


def source_files(paths: list[str]) -> list[tuple[str, int, int]]:
    """Path, size and time of change of each file, for `State`."""
    out = []
    for path in paths:
        found = Path(path).stat()
        shown = str(Path(path).absolute()).encode(errors="backslashreplace").decode()  # JSON holds nothing but text
        out.append((shown, found.st_size, found.st_mtime_ns))
    return out


def _difference(note: Path, state: State) -> str | None:
    try:
        return msgspec.json.decode(note.read_bytes(), type=State).difference(state)
    except (msgspec.DecodeError, OSError):
        return f"{note.name} cannot be read"


def _check_only_ours(path: Path) -> None:
    """Refuses a folder that holds anything but a dataset: nothing of the user's is ever removed."""
    if not path.exists():
        return
    if not path.is_dir():
        raise UsageError(f"{path} is a file; name a folder that does not exist yet")
    held = {entry.name for entry in path.iterdir()}
    foreign = sorted(name for name in held - _OURS - {UNFINISHED + ".partial"} if not _TABLE.fullmatch(name))
    if foreign:
        raise UsageError(f"{path} is not empty: it holds {foreign[0]}; name a folder that does not exist yet")
    if held - {LOCK, SHARD_FOLDER} and not held & {MANIFEST, UNFINISHED, UNFINISHED + ".partial"}:
        raise UsageError(f"{path} is not empty and not an unfinished conversion; name a folder that does not exist yet")


def _empty(folder: Path) -> None:
    for name in _OURS - {LOCK, SHARD_FOLDER}:
        (folder / name).unlink(missing_ok=True)
    for file in (folder / SHARD_FOLDER).iterdir():
        file.unlink()


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) < 60 else text[:57] + "..."
