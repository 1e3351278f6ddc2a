"""Sources behind a URL: their files are fetched into the cache, and packed from there.

A file is kept from one run to the next where its size and its tag (such as S3's ETag) are those listed now, so that an
interrupted run goes on where it stopped. What is gone behind the URL goes from the cache too.
"""

from __future__ import annotations

import glob
import logging
import os
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

import filelock
import msgspec

from packer.errors import RemoteError, SourceError
from packer.remote.cache import LOCK, PARTIAL, default_cache
from packer.remote.store import BLOCK_BYTES, Found, Moved, RemoteFolder, Transfer, is_url, label

_log = logging.getLogger(__name__)

_MAGIC = re.compile(r"[*?\[]")
#: One line for each file fetched: its path, size and tag.
_FETCHED = "fetched.jsonl"
#: Pictures are small: the time of each is that of asking for it.
STREAMS = 16


def local_input(text: str, moved: Moved | None = None) -> str:
    """Return an input of the command line, `[FIELD=]URL`, with its files fetched; anything else as it is.

    Args:
        moved: told how many bytes came so far, and of how many.

    Raises:
        UsageError: what the URL needs is not installed.
        SourceError: nothing is there, or it cannot be fetched.
    """
    if is_url(text):
        return fetch_source(text, moved)
    name, equals, place = text.partition("=")
    return f"{name}={fetch_source(place, moved)}" if equals and is_url(place) else text


def fetch_source(url: str, moved: Moved | None = None) -> str:
    """Return the path, or pattern, of the files behind a URL once they are fetched.

    Args, Raises:
        As `local_input`.
    """
    base, pattern = _split(url)
    home = default_cache() / "sources" / label(url)
    last = base.rpartition("/")[2]
    try:
        home.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(home / LOCK):
            remote = RemoteFolder(base)
            found = remote.files(pattern)
            if not found:
                raise SourceError("there is no such file or folder, or it is empty", url)
            # Of a file itself the listing says nothing but the file, whose path below it is empty.
            _Tree(remote, home, home / last).fetch(found, moved)
    except RemoteError as error:
        raise SourceError(str(error)) from None
    except OSError as error:
        raise SourceError(f"cannot be kept in {home}: {error.strerror}", url) from None
    return str(Path(glob.escape(str(home / last))) / pattern) if pattern else str(home / last)


class _Tree:
    """The files of one source, below `top`, or `top` itself."""

    def __init__(self, remote: RemoteFolder, home: Path, top: Path) -> None:
        self._remote = remote
        self._note = home / _FETCHED
        self._top = top

    def fetch(self, found: Mapping[str, Found], moved: Moved | None) -> None:
        held = dict(_held(self._note))
        for path in [path for path in self._local() if path not in found]:
            (self._top / path).unlink()
        missing = {name: file for name, file in found.items() if not self._is_kept(name, file, held)}
        size = sum(file.size for file in missing.values())
        if missing:
            _log.info("fetching %s files, %s bytes, from %s", f"{len(missing):,}", f"{size:,}", self._remote.url)
        transfer = Transfer(size, moved)
        with self._note.open("ab") as note, ThreadPoolExecutor(STREAMS) as pool:
            futures = [pool.submit(self._one, name, file, transfer) for name, file in missing.items()]
            try:
                for name in transfer.results(futures):
                    _write(note, name, missing[name])
            finally:
                transfer.stop()  # a large file is not waited for
                pool.shutdown(cancel_futures=True)

    def _local(self) -> Iterator[str]:
        """Return the path of every file that is there."""
        if self._top.is_file():
            yield ""
        for folder, _, names in os.walk(self._top):
            yield from ((Path(folder) / name).relative_to(self._top).as_posix() for name in names)

    def _is_kept(self, name: str, file: Found, held: Mapping[str, Found]) -> bool:
        path = self._top / name
        return held.get(name) == file and path.is_file() and path.stat().st_size == file.size

    def _one(self, name: str, file: Found, transfer: Transfer) -> str:
        """Fetch the file of a name, and return the name."""
        target = self._top / name
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{target.name}{PARTIAL}")
        try:
            with partial.open("wb") as written:
                for block in self._remote.blocks(name, file.size):
                    if transfer.is_stopped:
                        raise SourceError("it was stopped", self._remote.url_of(name))
                    written.write(block)
                    transfer.add(len(block))
            if file.size > BLOCK_BYTES and self._remote.found(name) != file:
                raise FileNotFoundError
        except FileNotFoundError:
            raise SourceError("it changed while it was fetched; try again", self._remote.url_of(name)) from None
        partial.replace(target)
        return name


def _held(note: Path) -> Iterator[tuple[str, Found]]:
    """Return what earlier runs fetched, the latest last; a line that a kill cut short is passed over."""
    if not note.exists():
        return
    for line in note.read_bytes().splitlines():
        try:
            name, size, tag = msgspec.json.decode(line, type=tuple[str, int, str])
        except msgspec.DecodeError:
            continue
        yield name, Found(size, tag)


def _write(note: IO[bytes], name: str, file: Found) -> None:
    note.write(msgspec.json.encode((name, *file)) + b"\n")
    note.flush()


def _split(url: str) -> tuple[str, str]:
    """Return a URL without wildcards, and the pattern below it that has them all."""
    kind, _, rest = url.rstrip("/").partition("://")
    parts = rest.split("/")
    plain = next((number for number, part in enumerate(parts) if _MAGIC.search(part)), len(parts))
    return f"{kind}://{'/'.join(parts[:plain])}", "/".join(parts[plain:])
