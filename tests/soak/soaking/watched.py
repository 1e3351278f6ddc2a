"""Reports each system call of this process to a watcher before it is made; the watcher may make it fail.

Python announces most calls, by Python or its libraries, as audit events: open, rename, link, remove, mkdir, mmap, fork.
Four have no such event and are patched: a write of a file that Python opened, a sync, and LMDB's put and commit. Syncs
are skipped: the tests need no real ones, and they would take most of the time.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import os
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest import mock

import lmdb

#: Called with the kind of a call and the path or descriptor it is about (None if there is none), before it is done.
OnCall = Callable[[str, Any], None]

#: Audit events by the kind of call they stand for.
_KINDS = {
    "open": "open",
    "os.rename": "rename",
    "os.link": "rename",
    "os.remove": "remove",
    "os.rmdir": "remove",
    "os.mkdir": "mkdir",
    "mmap.__new__": "mmap",
    "os.fork": "fork",
}
KINDS = ("open", "write", "sync", "rename", "remove", "mkdir", "mmap", "put", "commit", "fork")

_watcher: OnCall | None = None
_is_hooked = False


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _watcher is not None and event in _KINDS:
        _watcher(_KINDS[event], arguments[0] if arguments else None)


@contextlib.contextmanager
def watched(watcher: OnCall) -> Iterator[None]:
    """Call `watcher` before each call within the block, in the thread that makes it; not for calls of its own."""
    global _watcher, _is_hooked
    at_it = threading.local()

    def once(kind: str, what: Any) -> None:
        if not getattr(at_it, "now", False):
            at_it.now = True
            try:
                watcher(kind, what)
            finally:
                at_it.now = False

    if not _is_hooked:  # a hook stays for good
        sys.addaudithook(_hook)
        _is_hooked = True
    opened, lmdb_opened = io.open, lmdb.open

    def open_watched(file: Any, mode: str = "r", buffering: int = -1, *args: Any, **options: Any) -> Any:
        if not set("wax+") & set(mode):
            return opened(file, mode, buffering, *args, **options)
        plain = mode.replace("b", "").replace("t", "")
        raw = _Raw(file, plain, options.pop("closefd", True), options.pop("opener", None))
        raw.watcher = once
        if buffering == 0:
            return raw
        binary = (io.BufferedRandom if "+" in mode else io.BufferedWriter)(raw)
        return binary if "b" in mode else io.TextIOWrapper(binary, *args, **options)

    with (
        mock.patch.object(io, "open", open_watched),
        mock.patch.object(builtins, "open", open_watched),
        mock.patch.object(os, "fsync", lambda file: once("sync", file)),
        mock.patch.object(os, "sync", partial(once, "sync", None)),
        mock.patch.object(lmdb, "open", lambda path, **options: _Env(lmdb_opened(path, **options), path, once)),
    ):
        _watcher = once
        try:
            yield
        finally:
            _watcher = None


class _Raw(io.FileIO):
    """A file of which every write is watched, also those of `close`."""

    watcher: OnCall

    def write(self, data: Any, /) -> int:
        self.watcher("write", self.name)
        return super().write(data)


class _Env:
    """An LMDB environment of which put, commit and sync are watched."""

    def __init__(self, env: lmdb.Environment, path: bytes, watcher: OnCall) -> None:
        self._env, self._path, self._watcher = env, os.fsdecode(path), watcher

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def begin(self, **options: Any) -> _Txn:
        return _Txn(self._env.begin(**options), self.watch)

    def sync(self, force: bool) -> None:
        assert force, "opened with sync=False, LMDB does nothing otherwise"
        self.watch("sync")

    def watch(self, kind: str) -> None:
        """Report a call to the watcher; turn an error of the watcher into the one that LMDB raises."""
        try:
            self._watcher(kind, self._path)
        except OSError as error:
            known = {errno.ENOSPC: lmdb.DiskError, errno.ENOMEM: lmdb.MemoryError}
            raise known.get(error.errno or 0, lmdb.Error)(f"mdb_{kind}: {error.strerror}") from None


class _Txn:
    """A transaction of which put and commit are watched."""

    def __init__(self, txn: lmdb.Transaction, watch: Callable[[str], None]) -> None:
        self._txn, self._watch = txn, watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._txn, name)

    def __enter__(self) -> _Txn:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.commit()
        else:
            self._txn.abort()

    def put(self, *args: Any, **options: Any) -> bool:
        self._watch("put")
        return bool(self._txn.put(*args, **options))

    def commit(self) -> None:
        try:
            self._watch("commit")
        except lmdb.Error:
            self._txn.abort()  # as LMDB does
            raise
        self._txn.commit()
