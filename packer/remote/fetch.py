"""A file of a dataset from behind a URL into the cache: whole, checked by digest, fetched by one process for all."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

import filelock
import xxhash

from packer.errors import DamagedError, DatasetError, RemoteError
from packer.format.manifest import FileEntry
from packer.remote.folder import RemoteFolder

PARTIAL = ".partial"
LOCK = ".lock"
#: Files under way at one time: a server answers many at once faster than one.
STREAMS = 8


def fetch_all(remote: RemoteFolder, entries: Iterable[FileEntry], folder: Path) -> None:
    """Fetches into `folder` what is not there yet.

    Raises:
        DamagedError: a file is missing behind the URL, or is not what the manifest says.
        RemoteError: it cannot be had.
        DatasetError: the cache cannot be written.
    """
    missing = [entry for entry in entries if not is_whole(folder, entry)]
    if not missing:
        return
    stop = threading.Event()
    with ThreadPoolExecutor(min(STREAMS, len(missing))) as pool:
        futures = [pool.submit(fetch, remote, entry, folder, stop) for entry in missing]
        try:
            for future in futures:
                future.result()
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)


def fetch(remote: RemoteFolder, entry: FileEntry, folder: Path, stop: threading.Event) -> None:
    """Fetches one file, unless it is there. Another process that is at it is waited for.

    Args:
        stop: ends it between two blocks when it is set: another file has failed, or the user has had enough.

    Raises:
        As `fetch_all`.
    """
    target = folder / entry.file
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        aside(folder, entry, LOCK).parent.mkdir(exist_ok=True)
        with filelock.FileLock(aside(folder, entry, LOCK)):
            if not is_whole(folder, entry):
                _fetch(remote, entry, folder, stop)
    except FileNotFoundError as error:
        if error.filename is not None and str(error.filename).startswith(str(folder)):
            raise DatasetError(f"{folder}: it was removed while files were fetched into it; try again") from None
        raise DamagedError(f"{remote.url_of(entry.file)}: the file is missing; upload the dataset again") from None
    except OSError as error:
        raise DatasetError(f"{target}: the cache cannot be written: {error.strerror}") from None


def is_whole(folder: Path, entry: FileEntry) -> bool:
    """Whether a file has been fetched; files get their name when they are whole, and the size is checked as well."""
    try:
        return (folder / entry.file).stat().st_size == entry.bytes
    except OSError:
        return False


def aside(folder: Path, entry: FileEntry, what: str) -> Path:
    """The temporary file, or the lock, of a file that is fetched; `verify` would take it for a stranger in shards/."""
    return folder / ".fetching" / (quote(entry.file, safe="") + what)


def _fetch(remote: RemoteFolder, entry: FileEntry, folder: Path, stop: threading.Event) -> None:
    partial = aside(folder, entry, PARTIAL)
    # Twice, where need be: bytes can be wrong because of the way, or of a replacement while they were read.
    if not any(_write(remote, entry, partial, stop) == entry.digest for _ in range(2)):
        raise DamagedError(
            f"{remote.url_of(entry.file)}: its bytes do not have the digest that the manifest says ({entry.digest}); "
            "the file was damaged or replaced: upload the dataset again"
        )
    partial.replace(folder / entry.file)


def _write(remote: RemoteFolder, entry: FileEntry, partial: Path, stop: threading.Event) -> str:
    """Writes what comes to `partial`, down to the disk; returns the digest."""
    digest = xxhash.xxh3_128()
    # Not truncated first: its size is what the cache has set aside for it.
    with os.fdopen(os.open(partial, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666), "wb") as file:
        for block in remote.blocks(entry.file, entry.bytes):
            if stop.is_set():
                raise RemoteError(f"{remote.url_of(entry.file)}: it was stopped")
            digest.update(block)
            file.write(block)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()
