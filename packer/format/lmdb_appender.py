"""Writes a new LMDB file in ascending key order."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import lmdb

from packer.codecs import Buffer
from packer.errors import UsageError
from packer.format import sizes

File = TypeVar("File", bound="LmdbAppender")


def open_new(path: Path, map_size: int) -> lmdb.Environment:
    """Open a new LMDB file to write to, in place of one that is there.

    lib_version 0: an environment variable can make other versions the default, whose files readers of the 0.9 format,
    such as BasicSR's, cannot open. lock=False: nobody else knows the temporary name.
    """
    path.unlink(missing_ok=True)
    name = os.fsencode(path)  # which need not be UTF-8
    return lmdb.open(name, subdir=False, lib_version=0, lock=False, sync=False, metasync=False, map_size=map_size)


class LmdbAppender:
    """Appends values to a new LMDB file, a batch at a time. A map that is too small for a batch grows.

    It is finished at the end of a `with` block, or removed after an error.

    Args:
        path: the file; replaced if it exists.
        map_size: first size of the map in bytes (see `sizes.map_size`).
        map_limit: the map never grows beyond this; None for no limit.
    """

    def __init__(self, path: Path, map_size: int, map_limit: int | None = None) -> None:
        self.path = path
        self._limit = map_limit
        self._map_size = map_size if map_limit is None else min(map_size, map_limit)
        try:
            self._env = open_new(path, self._map_size)
        except (lmdb.Error, OSError):
            self._remove()
            raise
        self._batch: list[tuple[bytes, Buffer]] = []
        self._batch_bytes = 0

    def __enter__(self: File) -> File:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            if kind is None:
                self.finish()
        except BaseException:
            self.abort()
            raise
        if kind is not None:
            self.abort()

    def put(self, key: bytes, value: Buffer) -> None:
        """Append a value; `key` must be greater than all before it. The value must not change until the commit.

        Raises:
            lmdb.Error: as `commit`, which a full batch calls.
            UsageError: likewise.
        """
        self._batch.append((key, value))
        self._batch_bytes += len(key) + len(value)
        if self._batch_bytes >= sizes.COMMIT_BYTES:
            self.commit()

    def commit(self) -> None:
        """Commit the batch; the map doubles until the batch fits.

        Raises:
            UsageError: the batch does not fit into the largest map that is allowed.
            lmdb.Error: the file cannot be written.
        """
        while True:
            try:
                with self._env.begin(write=True) as txn:
                    for key, value in self._batch:
                        if not txn.put(key, value, append=True):
                            raise AssertionError(f"key {key!r} is not greater than the one before")
                break
            except lmdb.MapFullError:
                if self._limit is not None and self._map_size >= self._limit:
                    raise UsageError(
                        f"{self.path.name} needs a larger map than --map-size {self._limit:,}; raise it, "
                        "or take a smaller --shard-size"
                    ) from None
                larger = -(-self._map_size * 2 // sizes.PAGE_SIZE) * sizes.PAGE_SIZE
                self._map_size = larger if self._limit is None else min(larger, self._limit)
                self._env.set_mapsize(self._map_size)
        # After mapping again, pages that commits have read no longer count as memory of the process.
        self._env.set_mapsize(self._map_size)
        self._batch = []
        self._batch_bytes = 0

    def finish(self) -> None:
        """Commit, wait until the file is on the disk, and close it."""
        self.commit()
        self._env.sync(True)
        self._env.close()

    def abort(self) -> None:
        """Close and remove the file."""
        self._env.close()
        self._remove()

    def _remove(self) -> None:
        with contextlib.suppress(OSError):  # the error that led here should be reported
            self.path.unlink(missing_ok=True)
