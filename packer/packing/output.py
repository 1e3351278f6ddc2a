"""The folder in which a dataset is made, the list of samples left out of it, and its manifest.

OUT does not exist, or is empty      made here
OUT is unfinished, same conversion   goes on from there
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import filelock
import msgspec
import xxhash

import packer
from packer.errors import DamagedError, SourceError, UsageError, as_text
from packer.format import (
    CONSTANTS_FILE,
    MANIFEST,
    NAMES_FILE,
    REJECTED_FILE,
    SHARD_FOLDER,
    UNFINISHED,
    ColumnTotals,
    Field,
    FileEntry,
    Manifest,
    ShardEntry,
    ShardNames,
    clear_errors,
    file_digest,
    make_folder,
    read_errors,
    sync_folder,
    total_of,
    write_names,
    write_synced,
)
from packer.format import manifest as manifests
from packer.packing.origin import Origin, classes_of
from packer.remote import refuse_url

_log = logging.getLogger(__name__)

Known = TypeVar("Known")

#: Never removed, as filelock advises: another process may have opened the file.
LOCK = ".lock"
#: Note in the folder of an append: which shards the dataset has once it is done.
APPENDED = "appended.json"
#: Tables of names that appending made.
_TABLE = re.compile(r"names-\d+\.lmdb(\.partial)?")
_WRITTEN = (MANIFEST, NAMES_FILE, CONSTANTS_FILE, REJECTED_FILE, UNFINISHED, APPENDED)
_OURS = {*_WRITTEN, *(name + ".partial" for name in _WRITTEN), SHARD_FOLDER, LOCK}


# ---------------------------------------------------------------- the folder


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """The conversion in a folder (unfinished.json): everything that decides the bytes of its shards.

    Attributes:
        shards: how many there will be; None if samples still arrive.
        settings: JSON values by name, as a message may call them.
        files: path, size and time of change (ns) of every source file; empty for samples in memory.
    """

    shards: int | None
    settings: dict[str, Any]
    files: list[tuple[str, int, int]]

    def difference(self, other: Note) -> str | None:
        """Return what differs from another conversion, in words; None if the other can go on with this one.

        Files come first: if one has changed, settings such as the number of samples may follow from that.
        """
        held = {path: rest for path, *rest in self.files}
        for path, *rest in other.files:
            if path not in held:
                return f"{path} is new"
            if held.pop(path) != rest:
                return f"{path} has changed"
        if held:
            return f"{next(iter(held))} is gone"
        for name in {**self.settings, **other.settings}:
            was, now = self.settings.get(name), other.settings.get(name)
            if was != now:
                return f"{name} was {_short(was)} and is now {_short(now)}"
        return None


class OutputFolder:
    """The folder of a dataset while it is made; a context manager that holds its lock.

    The process may be killed at any instant: the note is written before anything else and removed after the manifest is
    written. A folder with a manifest is a finished dataset, whatever else a kill left in it.

    Attributes:
        path: where the dataset will be.
        work: where it is made: `path`, or a folder next to it while a finished dataset is replaced.

    Args:
        note: of the conversion.
        overwrite: whether a dataset that is there may be replaced.
        most: bytes of its shards without compression: if the disk has less room, a warning says so.

    Raises:
        UsageError: it is a URL; the folder is in use, holds something else, or an unfinished conversion that differs.
        WriteError: the folder cannot be written.
    """

    def __init__(self, path: Path, note: Note, overwrite: bool = False, most: int = 0) -> None:
        refuse_url(path)
        # A link stays a link: the folder that it leads to is made, and replaced.
        self.path = self.work = path = path.resolve() if path.is_symlink() else path
        self._old = next_to(path, "replaced")
        with contextlib.ExitStack() as locks, clear_errors(path):
            self._open(note, overwrite, locks)
            locks.callback(self._remove_partials)
            more = most - sum(shard.stat().st_size for shard in self.shards.glob("*.lmdb"))
            free = shutil.disk_usage(self.work).free
            if more > free:
                said = f"{more:,} more bytes, but {free:,} are free; `packer plan` says how many are likely"
                _log.warning("%s may need up to %s", path, said)
            self._locks = locks.pop_all()

    @property
    def shards(self) -> Path:
        return self.work / SHARD_FOLDER

    def publish(self, manifest: Manifest) -> None:
        """Write the manifest, put the dataset in the place of one that it replaces, and tidy up.

        Raises:
            WriteError: that cannot be done.
        """
        manifests.write(self.work, manifest)
        with clear_errors(self.path):
            if self.work != self.path:
                self.path.rename(self._old)
                try:
                    self.work.rename(self.path)
                except OSError:
                    self._old.rename(self.path)
                    raise
                self.work = self.path
                self._remove_old()
            self._tidy()
        self._locks.close()

    def __enter__(self) -> OutputFolder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._locks.close()

    def _remove_partials(self) -> None:
        """Remove shards that a lost or stopped process left half written."""
        with contextlib.suppress(OSError):
            for left in self.shards.glob("*.partial"):
                left.unlink()

    def _open(self, note: Note, overwrite: bool, locks: contextlib.ExitStack) -> None:
        undo_swap(self.path)
        check_output(self.path, overwrite)  # before a lock file is made: the folder may be read-only
        make_folder(self.path)
        locks.enter_context(_locked(self.path, self.path))
        if self._old.exists():
            self._remove_old()
        if _is_finished(self.path):
            self._tidy()
            if not overwrite:
                raise _already(self.path)
            if self.path.name in ("", ".."):
                raise UsageError(f"{self.path}: the folder you are in cannot be replaced; run this from another one")
            self.work = next_to(self.path, "replacing")
            make_folder(self.work)
            # Its lock moves to `path` with it, and holds others off there until all is tidied up.
            locks.enter_context(_locked(self.work, self.path))
        self._claim(note, overwrite)

    def _claim(self, note: Note, overwrite: bool) -> None:
        """Write the note of this conversion. Shards of an earlier run are kept if its note is the same."""
        path, difference = self.work / UNFINISHED, None
        try:
            difference = msgspec.json.decode(path.read_bytes(), type=Note).difference(note)
        except FileNotFoundError:
            pass
        except msgspec.DecodeError:
            difference = f"{path.name} cannot be read"
        if difference and not overwrite:
            raise UsageError(
                f"{self.path} holds an unfinished conversion that differs: {difference}; "
                f"undo the change to go on with it, or use --overwrite to begin anew"
            )
        if difference and any(self.shards.glob("*.lmdb")):
            _log.warning("%s: what an earlier run had finished is packed anew: %s", self.path, difference)
        if difference or not path.exists():
            _empty(self.work)
        self.shards.mkdir(exist_ok=True)
        for partial in [*self.shards.glob("*.partial"), *self.work.glob("*.partial")]:
            partial.unlink()
        write_synced(path, msgspec.json.encode(note))
        sync_folder(self.work)

    def _remove_old(self) -> None:
        """Remove the dataset that was replaced, once the new one is synced in its place."""
        sync_folder(self.path.parent)
        shutil.rmtree(self._old)

    def _tidy(self) -> None:
        """Remove what a finished dataset does not need; the note last, since it says that there is something to do."""
        for left in [*self.shards.glob("*.rejected.jsonl"), *self.shards.glob("*.partial")]:
            left.unlink()
        sync_folder(self.shards)
        (self.work / UNFINISHED).unlink(missing_ok=True)


def undo_swap(path: Path) -> None:
    """Put the old dataset back in its place, if a kill came between the two renames of a replacement.

    Raises:
        UsageError: another conversion into `path` is running.
        WriteError: the folder cannot be renamed.
    """
    path = path.resolve() if path.is_symlink() else path
    old = next_to(path, "replaced")
    if path.exists() or not old.exists():
        return
    with clear_errors(path), _locked(old, path):
        if not path.exists():
            old.rename(path)


def _locked(folder: Path, path: Path) -> AbstractContextManager[object]:
    return locked(folder, f"another conversion into {path} is running; wait for it or choose another folder")


def check_output(path: Path, overwrite: bool) -> None:
    """Raise UsageError if no dataset can be made at a place; called before the sources are opened. Writes nothing.

    Raises:
        UsageError: it is a URL, holds something else, or a dataset that may not be replaced.
    """
    refuse_url(path)
    _check_only_ours(path)
    left_over = next_to(path, "replaced").exists() or (path / UNFINISHED).exists()  # tidied up first
    if not overwrite and _is_finished(path) and not left_over:
        raise _already(path)


def next_to(path: Path, what: str) -> Path:
    """Return the hidden folder `.NAME.WHAT` next to the dataset at `path`, for work on it."""
    real = path.resolve()  # `.` has no name, and a link leads to the same dataset
    return real.with_name(f".{real.name}.{what}")


def _is_finished(folder: Path) -> bool:
    return (folder / MANIFEST).exists()


def _already(path: Path) -> UsageError:
    return UsageError(f"{path} is a packed dataset already; use --overwrite to replace it")


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
    if held - {LOCK, SHARD_FOLDER} or any((path / SHARD_FOLDER).glob("*")):
        raise UsageError(
            f"{path} is not empty, has no manifest and is not an unfinished conversion; `packer repair` makes a lost "
            "manifest again, or name a folder that does not exist yet"
        )


def _empty(folder: Path) -> None:
    """Remove an unfinished conversion; its note last, so that shards are never left without one."""
    if (folder / SHARD_FOLDER).exists():
        for file in (folder / SHARD_FOLDER).iterdir():
            file.unlink()
        sync_folder(folder / SHARD_FOLDER)
    for name in sorted(_OURS - {LOCK, SHARD_FOLDER}, key=lambda name: name == UNFINISHED):
        (folder / name).unlink(missing_ok=True)


def source_files(paths: list[str]) -> list[tuple[str, int, int]]:
    """Return the path, size and time of change of each file of a source, for `Note`.

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


# ---------------------------------------------------------------- locks


def locked(folder: Path, busy: str) -> AbstractContextManager[object]:
    """Take the lock of a folder, and return what releases it.

    Raises:
        UsageError: somebody else holds it; `busy` is the message.
        WriteError: the folder cannot be written.
    """
    with clear_errors(folder):
        try:
            return filelock.FileLock(folder / LOCK).acquire(timeout=0)
        except filelock.Timeout:
            raise UsageError(busy) from None


@contextlib.contextmanager
def dataset_lock(folder: Path, read: Callable[[Path], Known]) -> Iterator[Known]:
    """Keep others from changing the dataset, and yield what `read` returns then: read before, it could be out of date.

    Readers need no lock, and do not look at it. Converting into the folder takes the same one.

    Args:
        read: as `manifests.read`. If it raises, because there is no dataset, no lock is made.

    Raises:
        UsageError: something is changing it already.
        WriteError: the folder cannot be written.
    """
    read(folder)
    with locked(folder, f"{folder} is being changed already: appended to, repaired or replaced; wait for it"):
        yield read(folder)


# ---------------------------------------------------------------- the list of what was left out


class Rejected(msgspec.Struct, frozen=True, omit_defaults=True):
    """A sample that was left out: the file at fault, the reason, and the shard in which it would lie.

    Files that were found bad before anything was planned belong to no shard.
    """

    file: str
    reason: str
    shard: int | None = None

    @classmethod
    def of(cls, error: SourceError, kind: str = "") -> Rejected:
        """Return the entry for an error; a name that is not UTF-8 is escaped, since JSON cannot hold it."""
        return cls(as_text(error.path or kind), as_text(error.reason))

    def moved(self, shards: int) -> Rejected:
        """Return the same for a dataset in which this many other shards come before its own."""
        return self if self.shard is None else msgspec.structs.replace(self, shard=self.shard + shards)


def read_list(path: Path, entry: FileEntry | None = None) -> list[Rejected]:
    """Return the samples that a file lists, one line of JSON each.

    Args:
        entry: the entry of the manifest: how many bytes count, from the first on, and their digest. An append adds
            lines before the manifest counts them, so an append that is killed in between changes nothing.

    Raises:
        DamagedError: the file is missing, has changed since it was written, or lists no samples.
        DatasetError: there is no permission to read it.
    """
    with read_errors(path), path.open("rb") as file:
        lines = file.read()
    if entry is not None:
        lines = lines[: entry.bytes]
        if xxhash.xxh3_128_hexdigest(lines) != entry.digest:
            raise _damaged(path, "its digest is wrong: it was cut short, or changed after it was written")
    try:
        return msgspec.json.Decoder(Rejected).decode_lines(lines)
    except msgspec.DecodeError as error:
        raise _damaged(path, f"it lists no samples: {error}") from None


def rejected_of(folder: Path, manifest: Manifest) -> list[Rejected]:
    """Return the samples that were left out of a dataset. Raises DamagedError and DatasetError, as `read_list`."""
    return read_list(folder / REJECTED_FILE, manifest.left_out) if manifest.left_out else []


def write_list(path: Path, rejected: Sequence[Rejected]) -> FileEntry | None:
    """Write a list of samples, under a temporary name first; if there are none, remove the file.

    Returns:
        the entry of the manifest; None if nothing was left out.

    Raises:
        WriteError: it cannot be written.
    """
    lines = msgspec.json.Encoder().encode_lines(rejected)
    with clear_errors(path):
        if not lines:
            path.unlink(missing_ok=True)  # of an append that was killed
            return None
        write_synced(path, lines)
    return FileEntry(file=path.name, bytes=len(lines), digest=xxhash.xxh3_128_hexdigest(lines))


def _damaged(path: Path, what: str) -> DamagedError:
    return DamagedError(f"{path}: {what}; run `packer repair`, which drops the list")


# ---------------------------------------------------------------- the manifest


def make_manifest(
    folder: Path,
    shards: Sequence[ShardEntry],
    columns: Sequence[Mapping[str, ColumnTotals]],
    fields: Sequence[Field],
    origin: Origin,
    table: str | None,
    rejected: Sequence[Rejected] = (),
    **members: Any,
) -> Manifest:
    """Write the list of what was left out and the table of names, for shards in place, and return the manifest.

    Args:
        columns: bytes of every column, by field: of each shard, or of several together.
        table: file of the table of names; None if samples have none.
        members: other members of the manifest, such as its splits.

    Raises:
        SourceError: no sample was good, or two have one name.
        WriteError: a file cannot be written.
    """
    samples = sum(shard.samples for shard in shards)
    if not samples:
        reason = f"none could be packed; {rejected[0].file}: {rejected[0].reason}" if rejected else "none was given"
        raise SourceError(f"the dataset would hold no sample: {reason}")
    left_out = write_list(folder / REJECTED_FILE, rejected)
    return Manifest(
        tool=f"packer {packer.__version__}",
        samples=samples,
        fields=tuple(fields),
        shards=tuple(shards),
        names=write_table(folder, table, shards) if table else None,
        columns=totals(columns),
        origin=origin,
        left_out=left_out,
        classes=classes_of(origin, samples),
        **members,
    )


def totals(columns: Sequence[Mapping[str, ColumnTotals]]) -> dict[str, ColumnTotals]:
    """Return the bytes of every column, by field, of several shards or datasets together."""
    return {name: total_of(each[name] for each in columns) for name in columns[0]}


def write_table(folder: Path, table: str, shards: Sequence[ShardEntry]) -> FileEntry:
    """Write the table of names of shards that are in place, under a temporary name first.

    Raises:
        SourceError: two samples have one name.
        WriteError: it cannot be written.
    """
    path, partial = folder / table, folder / f"{table}.partial"
    write_names(partial, ShardNames(folder, shards))
    with clear_errors(path):
        partial.replace(path)
        return FileEntry(file=path.name, bytes=path.stat().st_size, digest=file_digest(path))
