"""The folder that fetched files are kept in, with a limit to its size: the least recently used files go first.

    CACHE/datasets/NAME-DIGEST/    one version of one dataset: manifest.json, shards/, names-RUN.lmdb
    CACHE/sources/NAME-DIGEST/     files to be packed, until nobody used them for a month
    CACHE/readers/                 what readers tell each other (`packer/remote/sharing.py`)
    CACHE/outputs/NAME-DIGEST/     shards that are being made, each until it is uploaded

The limit is for `datasets`. An open dataset, and a source that is packed, holds a lease: a shared lock on a file of its
folder. Files are removed only from folders without one. Where shards come and go (`packer/remote/ahead.py`), each that
is open has a lease of its own, a shared lock on itself. Anything in the cache may be deleted by hand.

Nothing else is ever removed, or counted: the user may keep other things in these folders. What was put here is known
by its folder, whose name ends in a digest, and in `datasets` by its own name, too: that of a file of a packed dataset.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from packer.errors import DatasetError, UsageError
from packer.format import LOCK, MANIFEST, PARTIAL, FileEntry, flock, held_lock
from packer.remote.sharing import Claim, Sign, Wait, bytes_claimed, signs

try:
    import fcntl
except ImportError:  # Windows, where a file that is open cannot be removed anyway
    fcntl = None  # type: ignore[assignment]

_IN_USE = ".in-use"
#: Seconds to wait until loops give back what they fetched ahead, and between two looks.
ROOM_SECONDS, LOOK_SECONDS = 10.0, 0.1
#: Seconds after which sources and outputs that nobody used are removed.
UNUSED_SECONDS = 30 * 24 * 3600
#: Names of folders that `label` gives; one that is being removed begins with a dot.
_FOLDER = re.compile(r"\.?[A-Za-z0-9_-][A-Za-z0-9._-]*-[0-9a-f]{32}|\.?-[0-9a-f]{32}")
#: Names of files that are fetched, or under way.
_FETCHED = re.compile(rf"{re.escape(MANIFEST)}|.*\.(lmdb|npz|jsonl|partial)")


def default_cache() -> Path:
    """Return the folder of the cache if none is named: that of the user, by the convention of XDG."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "lmdb-packer"


class Lease:
    """Keeps the files of a folder from being removed, until it is closed or gone; its file has the time of last use.

    Where the file system has no locks, no process removes anything.

    Args:
        file: of the folder, which alone is kept; it must be there.

    Raises:
        FileNotFoundError: that file is gone.
    """

    def __init__(self, folder: Path, file: str = "") -> None:
        path, is_held = folder / (file or _IN_USE), False
        flags = os.O_RDONLY if file else os.O_RDWR | os.O_CREAT
        while not is_held:
            if not file:
                folder.mkdir(parents=True, exist_ok=True)
            try:
                descriptor = os.open(path, flags | getattr(os, "O_CLOEXEC", 0), 0o666)
            except FileNotFoundError:  # the folder was removed in between
                if file:
                    raise
                continue
            self.close = weakref.finalize(self, os.close, descriptor)
            if fcntl is not None:
                flock(descriptor, fcntl.LOCK_SH)
            with contextlib.suppress(FileNotFoundError):  # the folder was removed before the lock was taken
                is_held = os.path.samestat(os.fstat(descriptor), path.stat())
            if not is_held:
                self.close()
        os.utime(path)


def remove_unused(folder: Path, seconds: float) -> None:
    """Remove the folders within `folder` that nobody used for so long, unless a lease is held on them."""
    for path in (path for path in folder.iterdir() if _FOLDER.fullmatch(path.name)):
        removed = path
        with contextlib.suppress(OSError):  # it is in use, or another process removes it
            if not path.name.startswith("."):  # else a process was killed while it removed it
                lock = path / _IN_USE
                if (lock if lock.exists() else path).stat().st_mtime > time.time() - seconds:
                    continue
                removed = path.with_name(f".{path.name}")
                with _exclusively(lock):
                    path.rename(removed)
            shutil.rmtree(removed)


@contextlib.contextmanager
def _exclusively(path: Path) -> Iterator[None]:
    """Hold a file for this process alone; raises OSError if there is a lease on it, or no lock can be had."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class Cache:
    """The fetched datasets below one folder.

    Attributes:
        folder: of the cache.
        limit: bytes that the datasets in it may take; None for no limit.
    """

    folder: Path
    limit: int | None = None

    @property
    def datasets(self) -> Path:
        return self.folder / "datasets"

    def reserve(self, folder: Path, entries: Sequence[FileEntry]) -> None:
        """Make room for the files of one dataset that are still to be fetched; its lease must be held.

        Room is set aside by a sparse temporary file of each file's size, which other processes count.

        Raises:
            UsageError: the dataset alone is larger than the limit.
            DatasetError: other datasets that are open take the room.
        """
        for entry in entries:
            if is_whole(folder, entry):
                os.utime(folder / entry.file)
        if self.limit is None:
            return
        if (needed := sum(entry.bytes for entry in entries)) > self.limit:
            raise UsageError(
                f"the dataset takes {needed:,} bytes, and its cache {self.folder} may hold {self.limit:,}; "
                "all its shards are mapped at once: raise cache_bytes"
            )
        if not (missing_bytes := self.try_reserve(folder, entries)):
            return
        deadline = time.monotonic() + ROOM_SECONDS
        with contextlib.closing(Sign(self.readers, Wait())):  # loops give back what they fetched ahead
            while missing_bytes := self.try_reserve(folder, entries):
                if time.monotonic() > deadline or not self.claims():
                    raise self.too_full(missing_bytes)
                time.sleep(LOOK_SECONDS)

    def try_reserve(self, folder: Path, entries: Sequence[FileEntry]) -> int:
        """Set room aside for files that are still to be fetched; return the bytes missing, and set nothing aside then.

        The least recently used files that are not open are removed first.
        """
        if self.limit is None:
            return 0
        with held_lock(self.folder / LOCK, wait=True):
            used, sizes = _files(self.datasets)
            missing = {file_beside(folder, entry, PARTIAL): entry for entry in entries if not is_whole(folder, entry)}
            partials = {path: entry.bytes for path, entry in missing.items()}
            missing_bytes = sum({**sizes, **partials}.values()) - self.limit
            for path in sorted(set(used) - set(missing), key=used.__getitem__):
                if missing_bytes > 0:
                    missing_bytes -= self._removed(path)
            if missing_bytes > 0:
                return missing_bytes
            # If another process has fetched it meanwhile, this one is unused, and is removed when room is needed.
            for path, entry in missing.items():
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("ab") as file:
                    file.truncate(entry.bytes)
        return 0

    @property
    def readers(self) -> Path:
        return self.folder / "readers"

    def claims(self) -> list[Claim]:
        """Return what the loops hold that go on now."""
        return signs(self.readers, Claim)

    def waits(self) -> list[Wait]:
        """Return who waits for room now."""
        return signs(self.readers, Wait)

    def check_room(self, claim: Claim) -> None:
        """Raise UsageError if a loop cannot have what it claims beside the loops that go on now."""
        others = self.claims()
        if self.limit is None or not others or bytes_claimed([*others, claim]) <= self.limit:
            return
        raise UsageError(
            f"the cache {self.folder} may hold {self.limit:,} bytes; a loop over {others[0].url} needs "
            f"{bytes_claimed(others):,} of them at once, and this one {claim.bytes:,}: raise cache_bytes, give a "
            "smaller shuffle_window to either, or give this one a cache= of its own"
        )

    def claim(self, claim: Claim) -> Sign:
        """Say what a loop holds, until the sign is closed; raises as `check_room`."""
        with held_lock(self.folder / LOCK, wait=True):
            self.check_room(claim)
            return Sign(self.readers, claim)

    def too_full(self, missing_bytes: int) -> DatasetError:
        """Return the error for a cache in which `missing_bytes` bytes too many are open."""
        return DatasetError(
            f"its cache {self.folder} may hold {self.limit:,} bytes, and what others have open leaves too little: "
            f"{missing_bytes:,} more are needed; raise cache_bytes, or give this dataset a cache= of its own (where "
            "the file system has no locks, all datasets count as open: remove old ones by hand)"
        )

    def _removed(self, path: Path) -> int:
        """Remove a file, unless a lease is held on it or its dataset; return the bytes that are free now."""
        folder = self.datasets / path.relative_to(self.datasets).parts[0]
        lock = path.with_name(path.name.removesuffix(PARTIAL) + LOCK) if path.name.endswith(PARTIAL) else path
        with contextlib.suppress(OSError):  # it is in use, or was removed meanwhile
            # The size first: to take the lock of a file that is gone makes an empty one.
            size = path.stat().st_size
            with _exclusively(folder / _IN_USE), _exclusively(lock):
                path.unlink()
                return size
        return 0


def is_local(error: FileNotFoundError, folder: Path) -> bool:
    """Return whether what is missing is a folder of the cache, which somebody removed, and not the file at the URL."""
    return error.filename is not None and str(error.filename).startswith(str(folder))


def is_whole(folder: Path, entry: FileEntry) -> bool:
    """Return whether a file has been fetched: files get their name when they are whole, and the size is checked too."""
    try:
        return (folder / entry.file).stat().st_size == entry.bytes
    except OSError:
        return False


def file_beside(folder: Path, entry: FileEntry, suffix: str) -> Path:
    """Return the temporary file, or the lock, of a file under way; not in shards/, where `verify` would report it."""
    return folder / ".fetching" / (quote(entry.file, safe="") + suffix)


def _files(folder: Path) -> tuple[dict[Path, int], dict[Path, int]]:
    """Return the time of use (ns) and the size of every fetched file below a folder, each once.

    A file may get its name meanwhile, when it is whole: `.fetching` is listed before `shards`, so none is missed.
    """
    used: dict[Path, int] = {}
    sizes: dict[Path, int] = {}
    seen: set[tuple[int, int]] = set()
    for parent, folders, names in os.walk(folder):
        if parent == str(folder):
            folders[:] = [name for name in folders if _FOLDER.fullmatch(name)]
            continue
        folders.sort()
        for path in (Path(parent) / name for name in names if _FETCHED.fullmatch(name)):
            with contextlib.suppress(OSError):  # renamed or removed meanwhile
                info = path.stat()
                if (info.st_dev, info.st_ino) not in seen:
                    seen.add((info.st_dev, info.st_ino))
                    used[path], sizes[path] = info.st_mtime_ns, info.st_size
    return used, sizes
