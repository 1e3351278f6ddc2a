"""A new LMDB file, written in ascending key order."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any

import lmdb

from packer.codecs.stages import Buffer
from packer.errors import UsageError, WriteError

#: With less than this many bytes free, a write that went wrong did so for want of room.
_HARDLY_ANY = 64 * 10**6


class clear_errors:  # noqa: N801  # reads as a statement
    """Turns what LMDB and the system raise while writing into a WriteError that names the file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if isinstance(error, (lmdb.Error, OSError)):
            raise WriteError(
                f"{self._path}: {self._reason(error)}; free some space or choose another folder, then run again"
            ) from None

    def _reason(self, error: BaseException) -> str:
        """Return the words of LMDB or the system; LMDB calls it an input/output error when the disk took but a part."""
        with contextlib.suppress(OSError):
            if "Input/output error" in str(error) and shutil.disk_usage(self._path.parent).free < _HARDLY_ANY:
                return os.strerror(errno.ENOSPC)
        return str(error)


#: Stored bytes between two commits: two full chunks. Until then they lie in memory twice, as LMDB's dirty pages and
#: here for a replay. What is written at once decides how large the pieces of memory are in which Linux keeps the file
#: for its readers (6.16 and later, on ext4): of one chunk none is a whole 2 MiB, since chunks begin anywhere, of two
#: half are, and small pairs are read faster. Four take a third more time to write (docs/benchmark.md).
COMMIT_BYTES = 4 * 10**6
#: Bytes between two times that the file is mapped anew. What commits look at through the map counts as memory of the
#: process, with all that lies around it.
REMAP_BYTES = 16 * 10**6
#: What `sync_file_range` is told: to begin to write.
_WRITE = 2
#: The map grows to a multiple of this.
_GRAIN = 4096


class LmdbAppender:
    """Appends values to a new LMDB file; grows the map and replays the open batch where it was too small.

    Args:
        path: the file; replaced if it exists.
        map_size: first size of the map in bytes (see `pages.map_size`).
        map_limit: the map never grows beyond this; None for no limit.
    """

    def __init__(self, path: Path, map_size: int, map_limit: int | None = None) -> None:
        self.path = path
        self.growths = 0
        path.unlink(missing_ok=True)
        self._limit = map_limit
        self._map_size = map_size if map_limit is None else min(map_size, map_limit)
        # lib_version 0: an environment variable can make other versions the default, which readers
        # of the 0.9 format cannot open. lock=False: nobody else knows the temporary name.
        try:
            self._env = lmdb.open(
                str(path), subdir=False, lib_version=0, lock=False, sync=False, metasync=False, map_size=self._map_size
            )
            self._fd = os.open(path, os.O_RDONLY)
        except (lmdb.Error, OSError):
            self._remove()
            raise
        self._txn = self._env.begin(write=True)
        self._batch: list[tuple[bytes, Buffer]] = []
        self._batch_bytes = 0
        self._mapped_bytes = 0

    def put(self, key: bytes, value: Buffer) -> None:
        """Append a value; `key` must be greater than all before it. The value must not change until the commit."""
        self._batch.append((key, value))
        self._batch_bytes += len(value)
        self._mapped_bytes += len(key) + len(value)
        try:
            self._put(key, value)
        except lmdb.MapFullError:
            self._replay()
        if self._batch_bytes >= COMMIT_BYTES:
            self.commit()

    def commit(self) -> None:
        """Commit what was put, and have the kernel begin to write it: else it begins when somebody waits for that."""
        while True:
            try:
                self._txn.commit()
                break
            except lmdb.MapFullError:
                self._replay()
        if sync_file_range := _sync_file_range():
            sync_file_range(self._fd, 0, 0, _WRITE)  # a hint: an error will come back from the sync
        if self._mapped_bytes >= REMAP_BYTES:
            self._env.set_mapsize(self._map_size)
            self._mapped_bytes = 0
        self._batch = []
        self._batch_bytes = 0
        self._txn = self._env.begin(write=True)

    def finish(self) -> None:
        """Commit, wait until the file is on the disk, and close it."""
        self.commit()
        self._txn.abort()
        self._env.sync(True)
        self._env.close()
        self._close()

    def abort(self) -> None:
        """Close and remove the file."""
        self._txn.abort()
        self._env.close()
        self._close()
        self._remove()

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _remove(self) -> None:
        with contextlib.suppress(OSError):  # whatever led here is what should be told
            self.path.unlink(missing_ok=True)

    def _put(self, key: bytes, value: Buffer) -> None:
        if not self._txn.put(key, value, append=True):
            raise AssertionError(f"key {key!r} is not greater than the one before")

    def _replay(self) -> None:
        """Double the map and put the open batch again: after MapFullError its transaction is dead."""
        while True:
            self._txn.abort()
            self._grow()
            self._txn = self._env.begin(write=True)
            try:
                for key, value in self._batch:
                    self._put(key, value)
            except lmdb.MapFullError:
                continue
            return

    def _grow(self) -> None:
        if self._limit is not None and self._map_size >= self._limit:
            raise UsageError(
                f"{self.path.name} needs a larger map than --map-size {self._limit:,}; raise it, "
                "or take a smaller --shard-size"
            )
        self.growths += 1
        larger = -(-self._map_size * 2 // _GRAIN) * _GRAIN
        self._map_size = larger if self._limit is None else min(larger, self._limit)
        self._env.set_mapsize(self._map_size)


@lru_cache(maxsize=1)
def _sync_file_range() -> Any:
    """Return that function of Linux's C library, which Python does not offer, or None if there is none."""
    function = getattr(ctypes.CDLL(None), "sync_file_range", None) if os.name == "posix" else None
    if function is not None:
        function.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return function
