"""Whether source files are those of the plan: their sizes and times are compared before and after they are read."""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from packer.errors import as_text
from packer.remote import RemoteFile, default_cache
from packer.sources import unreadable
from packer.threads import in_threads

#: Sizes in bytes and times of change in nanoseconds since 1970 of some files, (n, 2); -1 of one that is gone.
Stamps = NDArray[np.int64]
_GONE = (-1, -1)


class SourceFiles(msgspec.Struct, frozen=True, array_like=True):
    """What identifies source files; without any, the default.

    Attributes:
        count: how many there are.
        digest: of their paths, sizes and times, in their order.
        last: path of the one that was changed last; empty if that is not known.
        last_ns: when it was changed, in nanoseconds since 1970.
    """

    count: int = 0
    digest: str = ""
    last: str = ""
    last_ns: int = 0

    @property
    def are_there(self) -> bool:
        """Return whether there are any: samples in memory have none, and are compared themselves."""
        return self.count > 0

    def difference(self, other: SourceFiles) -> str | None:
        """Return what is known of the files that have changed, in words; None if nothing is."""
        changed = max(self, other, key=lambda files: files.last_ns) if self.last != other.last else other
        where = ""
        if changed.last and (self.last, self.last_ns) != (other.last, other.last_ns):
            when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(changed.last_ns / 1e9))
            where = f": {changed.last}, changed {when}"
        if self.count != other.count:
            return f"the source files were {self.count:,} and are now {other.count:,}{where}"
        return f"a source file has changed{where}" if where else None


class SeenFiles:
    """The stamps of all files of a plan, in 24 bytes each; filled by `source_files`."""

    def __init__(self) -> None:
        self._hashes, self._stamps = array("q"), array("q")
        self._paths_digest = xxhash.xxh3_128()
        self._order: NDArray[np.int64] | None = None
        self._fetched = os.path.abspath(default_cache() / "sources") + os.sep  # noqa: PTH100
        self._folders: dict[str, str] = {}

    def add(self, path: str, size: int, changed_ns: int) -> str:
        """Add a file; return its path as `_full_path` gives it."""
        full_path = self._full_path(path)
        self._paths_digest.update(full_path.encode(errors="surrogateescape") + b"\0")
        self._hashes.append(hash(path))
        self._stamps.extend((size, changed_ns))
        return full_path

    def _full_path(self, path: str) -> str:
        """Return an absolute path; of a file that was fetched its path within the cache, as on every machine."""
        name_start = path.rfind("/") + 1
        folder = path[:name_start]
        full = self._folders.get(folder)
        if full is None:
            full = os.path.abspath(folder).removeprefix(self._fetched).rstrip("/") + "/"  # noqa: PTH100
            self._folders[folder] = full
        return full + path[name_start:]

    def digest(self) -> str:
        """Return a digest of the paths, sizes and times of all files, in their order."""
        digest = self._paths_digest.copy()
        digest.update(self._stamps)
        return digest.hexdigest()

    def stamps(self, paths: Sequence[str]) -> Stamps:
        """Return the stamps of some of the files, by the paths that were added, in their order."""
        hashes = np.frombuffer(self._hashes, np.int64)
        if self._order is None:
            self._order = np.argsort(hashes)
        wanted = np.fromiter(map(hash, paths), np.int64, len(paths))
        places = self._order[hashes.searchsorted(wanted, sorter=self._order)]
        return np.frombuffer(self._stamps, np.int64).reshape(-1, 2)[places]


def changed_files(
    paths: Sequence[str], stamps: Stamps, when_read: Mapping[str, tuple[int, int]] = {}
) -> dict[str, str]:
    """Return the files that are others than when they were planned, and what has changed.

    Args:
        stamps: of each of them, as it was then.
        when_read: stamps of some by path, as they were when these had been read; the others are looked at now.

    Raises:
        SourceError: one is there, and cannot be looked at.
    """
    others = [path for path in paths if path not in when_read]
    known = {**when_read, **dict(zip(others, in_threads(_stamp, others), strict=True))} if others else when_read
    now = np.array([known[path] for path in paths], np.int64).reshape(-1, 2)
    changed = {}
    for number in np.flatnonzero((now != stamps).any(1)).tolist():
        was, is_now = _in_words(*stamps[number].tolist()), _in_words(*now[number].tolist())
        changed[paths[number]] = f"was {was} when it was planned, and is {is_now} now, after it was read; run again"
    return changed


def _stamp(path: str) -> tuple[int, int]:
    try:
        info = os.stat(path)  # noqa: PTH116 - without a Path: there may be millions
    except (FileNotFoundError, NotADirectoryError):
        return _GONE
    except OSError as error:
        reason = f"cannot be looked at again: {error.strerror}; run the same command again"
        raise unreadable(error, path, reason) from None
    return info.st_size, info.st_mtime_ns


def _in_words(size: int, changed_ns: int) -> str:
    if (size, changed_ns) == _GONE:
        return "gone"
    second, rest = divmod(changed_ns, 10**9)
    return f"{size:,} bytes of {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(second))}.{rest // 10**6:03d}"


def source_files(
    paths: Iterable[str], at_urls: Mapping[str, RemoteFile] = {}, seen: SeenFiles | None = None
) -> tuple[SourceFiles, int]:
    """Return what a note says of source files, and their bytes together.

    Args:
        at_urls: files by the paths that they will have when they are fetched; these are not looked at.
        seen: gets the stamps of all files.

    Raises:
        SourceError: a file is gone, or cannot be looked at.
    """
    seen = seen or SeenFiles()
    count, nbytes, last, last_ns = 0, 0, "", 0
    for path, size, changed in in_threads(partial(_look_at, at_urls=at_urls), paths):
        full_path = seen.add(path, size, changed)
        count, nbytes = count + 1, nbytes + size
        if changed > last_ns and full_path.startswith("/"):  # one that was fetched has no time
            last, last_ns = as_text(full_path), changed
    return SourceFiles(count, seen.digest(), last, last_ns) if count else SourceFiles(), nbytes


def _look_at(path: str, at_urls: Mapping[str, RemoteFile]) -> tuple[str, int, int]:
    """Return a path, the size of its file, and the time when it was changed, in nanoseconds."""
    if file := at_urls.get(path):
        return path, file.size, file.time * 10**9
    try:
        info = os.stat(path)  # noqa: PTH116 - without a Path: there may be millions
    except OSError as error:
        raise unreadable(error, path) from None
    return path, info.st_size, info.st_mtime_ns
