"""Where a dataset is made: a folder, or a URL. Both have the few operations that a commit needs.

A file is written as a draft, which nobody else knows, and then put under its name, whole. A place pickles, so that
workers put their shards there by themselves.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NewType

import xxhash

from packer.errors import ChangedMeanwhileError, DamagedError, RemoteError, UsageError, WriteError
from packer.format import (
    LOCK,
    MAX_MANIFEST_BYTES,
    PARTIAL,
    SHARD_FOLDER,
    UNFINISHED,
    FileEntry,
    clear_errors,
    draft_of,
    held_lock,
    list_folder,
    make_folder,
    open_file,
    read_errors,
    removed_if_stopped,
    sync_folder,
    write_synced,
)
from packer.remote import (
    UNUSED_SECONDS,
    RemoteFolder,
    Transfer,
    default_cache,
    has_conditional_put,
    is_url,
    label,
    refuse_url,
    remove_unused,
)

_log = logging.getLogger(__name__)

_FOLDERS = (SHARD_FOLDER, UNFINISHED)

#: Names of runs, and of reports of parts, as regular expressions.
RUN = "[0-9a-f]{8}"
PART_REPORT = rf"{UNFINISHED}/(verify|stats)-[0-9a-f]{{16}}-\d+-of-\d+\.msgpack"
#: Names that datasets of this version or an earlier one have. No other file is ever removed.
DATASET_FILE = re.compile(
    rf"(manifest(\.copy)?\.json|rejected\.jsonl|left-out-{RUN}\.jsonl|constants(-{RUN})?\.npz"
    rf"|names(-{RUN}|-\d+)?\.lmdb|{SHARD_FOLDER}/({RUN}-)?\d+\.lmdb|{UNFINISHED}/{RUN}(-\d+|-all)?\.(json|plan)"
    rf"|{UNFINISHED}/[0-9a-f]{{16}}\.claim|{PART_REPORT})(\.{RUN}\.partial)?|\.lock"
)

#: What a place says of the bytes that were read there: other bytes have another tag.
Tag = NewType("Tag", str)


class Place(ABC):
    """A folder or a URL, by the paths of files below it.

    Every operation raises WriteError if it fails; `read` of a folder raises DatasetError.
    """

    def __str__(self) -> str:
        return str(self.address)

    @property
    @abstractmethod
    def address(self) -> Path | str:
        """Return the path of the folder, or the URL."""

    def check_writable(self) -> None:  # noqa: B027
        """Raise UsageError if no dataset can be made or changed at this place; nothing is asked of a server."""

    @abstractmethod
    def lock(self) -> contextlib.AbstractContextManager[bool]:
        """Hold off other processes; enter with whether no other process can be here.

        Raises:
            UsageError: another process is here.
            WriteError: the place cannot be written.
        """

    @abstractmethod
    def files(self) -> dict[str, int]:
        """Return the size of every file, by path. Of folders that no dataset has, the name alone is there."""

    @abstractmethod
    def stamps(self) -> dict[str, str]:
        """Return for every file, by path, a text that changes with its bytes; of some servers it is empty."""

    @abstractmethod
    def read_tagged(self, name: str) -> tuple[bytes, Tag] | None:
        """Return the bytes of a file, and their tag; None if there is none."""

    def read(self, name: str) -> bytes | None:
        """Return the bytes of a file; None if there is none."""
        file = self.read_tagged(name)
        return None if file is None else file[0]

    @abstractmethod
    def put(self, name: str, data: bytes, expected: Tag | None) -> Tag:
        """Put bytes under a name, at once and so that they last, if the file there is still the one that was read.

        Args:
            expected: the tag of the file that is replaced; None if there was none.

        Returns:
            the tag of the new file.

        Raises:
            ChangedMeanwhileError: another file is there, or the one that was read is gone. Nothing is written.
        """

    @abstractmethod
    def write(self, name: str, data: bytes) -> None:
        """Put bytes under a name, at once and so that they last, whatever is there."""

    def prepare(self) -> None:  # noqa: B027
        """Make the folders of a dataset."""

    @abstractmethod
    def draft(self, name: str) -> Path:
        """Return a path of this machine where a file can be written that gets a name later."""

    @abstractmethod
    def put_draft(self, draft: Path, name: str) -> None:
        """Put a draft, which is on the disk, under its name, whatever is there."""

    @contextlib.contextmanager
    def drafted(self, name: str) -> Iterator[Path]:
        """Yield a draft to write; the end of the block puts it under its name, an error removes it."""
        draft = self.draft(name)
        with removed_if_stopped(draft):
            yield draft
            self.put_draft(draft, name)

    @abstractmethod
    def local(self, entries: Sequence[FileEntry]) -> Path:
        """Return a folder of this machine that holds these files of the dataset.

        Raises:
            DamagedError: a file at a URL is missing or damaged; files of a folder are not looked at.
        """

    def release(self, entries: Sequence[FileEntry]) -> None:  # noqa: B027
        """Remove from this machine what `local` has fetched; what is mapped stays readable."""

    @abstractmethod
    def remove(self, names: Iterable[str]) -> None:
        """Remove files, in this order, and let that last."""

    def remove_drafts(self, run: str) -> None:  # noqa: B027
        """Remove what a run and its workers have half written, wherever they were stopped; none of them goes on."""

    def sync(self) -> None:  # noqa: B027
        """Let the names of all files last."""


def place_of(path: str | os.PathLike[str]) -> Place:
    """Return the place of a dataset, by its path or URL; `file://` is the folder that it names."""
    if is_url(path):
        kind, _, folder = path.partition("://")
        return LocalPlace(Path(folder)) if kind.lower() in ("file", "local") else RemotePlace(path.rstrip("/"))
    refuse_url(Path(path))
    return LocalPlace(Path(path))


@dataclass(frozen=True)
class LocalPlace(Place):
    """A folder of this machine, or of a shared disk."""

    path: Path

    @property
    def address(self) -> Path:
        return self.path

    def check_writable(self) -> None:
        for folder in _FOLDERS:
            if (self.path / folder).is_symlink():
                raise UsageError(
                    f"{self.path}: its folder {folder} is a link, and what it leads to may belong to another dataset: "
                    "this one is read, and never changed; copy it (`cp -rL`) and change the copy"
                )

    @contextlib.contextmanager
    def lock(self) -> Iterator[bool]:
        self.check_writable()
        make_folder(self.path)
        with contextlib.ExitStack() as stack:
            with clear_errors(self.path):
                try:
                    has_lock = stack.enter_context(held_lock(self.path / LOCK, wait=False))
                except BlockingIOError:
                    raise UsageError(
                        f"{self.path} is being changed already; wait for it or choose another folder"
                    ) from None
            if not has_lock:
                _log.warning("%s: its file system has no locks: do not change it by two commands at once", self.path)
            yield has_lock

    def files(self) -> dict[str, int]:
        return {name: status.st_size for name, status in self._statuses().items()}

    def stamps(self) -> dict[str, str]:
        return {name: f"{status.st_size} {status.st_mtime_ns}" for name, status in self._statuses().items()}

    def _statuses(self) -> dict[str, os.stat_result]:
        statuses = {}
        with clear_errors(self.path):
            for folder in ("", *_FOLDERS):
                for entry in list_folder(self.path / folder):
                    name = f"{folder}/{entry.name}".lstrip("/")
                    with contextlib.suppress(FileNotFoundError):
                        status = entry.stat()
                        if not stat.S_ISREG(status.st_mode) and DATASET_FILE.fullmatch(name):
                            raise WriteError(f"{self.path / name}: it is no file, as one of a dataset is; remove it")
                        if not (name in _FOLDERS and stat.S_ISDIR(status.st_mode)):
                            statuses[name] = status
        return statuses

    def read_tagged(self, name: str) -> tuple[bytes, Tag] | None:
        path = self.path / name
        with read_errors(path):
            try:
                with open_file(path) as file:
                    data = file.read()
            except FileNotFoundError:
                return None
        return data, _digest_tag(data)

    def put(self, name: str, data: bytes, expected: Tag | None) -> Tag:
        # The caller holds the lock. Where there is none, only the time between the look and the rename is left.
        write_synced(self.path / name, data, lambda: _check_tag(self, name, expected))
        sync_folder((self.path / name).parent)
        return _digest_tag(data)

    def write(self, name: str, data: bytes) -> None:
        path = self.path / name
        if path.parent != self.path and self.path.exists():
            make_folder(path.parent)  # another command, where there are no locks, may have removed it: it was empty
        write_synced(path, data)
        sync_folder(path.parent)

    def prepare(self) -> None:
        for folder in _FOLDERS:
            make_folder(self.path / folder)

    def draft(self, name: str) -> Path:
        return draft_of(self.path / name)

    def put_draft(self, draft: Path, name: str) -> None:
        with clear_errors(self.path / name):
            draft.replace(self.path / name)

    def local(self, entries: Sequence[FileEntry]) -> Path:
        return self.path

    def remove(self, names: Iterable[str]) -> None:
        folders = set()
        for name in names:
            path = self.path / name
            with clear_errors(path, "removed"):
                path.unlink(missing_ok=True)
            folders.add(path.parent)
        for folder in folders:
            # All files are gone: no reason to fail. One that a power cut brings back is removed by the next command.
            with contextlib.suppress(WriteError):
                sync_folder(folder)
        with contextlib.suppress(OSError):  # not empty
            (self.path / UNFINISHED).rmdir()

    def remove_drafts(self, run: str) -> None:
        for folder in ("", *_FOLDERS) if run else ():
            with contextlib.suppress(OSError):
                for draft in (self.path / folder).glob(f"*{run}[-.]*{PARTIAL}"):
                    draft.unlink()

    def sync(self) -> None:
        for folder in (self.path / SHARD_FOLDER, self.path):
            if folder.exists():
                sync_folder(folder)


@dataclass(frozen=True)
class RemotePlace(Place):
    """A URL. Drafts lie in the cache until they are uploaded."""

    url: str

    @property
    def address(self) -> str:
        return self.url

    @property
    def _remote(self) -> RemoteFolder:
        return _open_remote(self.url, os.getpid())  # what is open does not go through a fork

    @property
    def _cache_folder(self) -> Path:
        return default_cache() / "outputs" / label(self.url)

    def check_writable(self) -> None:
        if not has_conditional_put(self.url):
            raise UsageError(_no_comparison(self.url))

    @contextlib.contextmanager
    def lock(self) -> Iterator[bool]:
        self.check_writable()
        with _write_errors():
            if not self._remote.can_replace():
                raise UsageError(_no_comparison(self.url))
        make_folder(self._cache_folder)
        try:
            with held_lock(self._cache_folder / LOCK, wait=False):
                # What killed commands have left, here and for URLs that nobody writes to any more.
                shutil.rmtree(self._cache_folder / "fetched", ignore_errors=True)
                remove_unused(self._cache_folder.parent, UNUSED_SECONDS)
                yield False  # of other machines nothing is known
        except BlockingIOError:
            raise UsageError(f"{self.url} is being changed already; wait for it or choose another URL") from None

    def files(self) -> dict[str, int]:
        with _write_errors():
            return {name: file.size for name, file in self._remote.files().items()}

    def stamps(self) -> dict[str, str]:
        with _write_errors():
            return {name: file.tag for name, file in self._remote.files().items()}

    def read_tagged(self, name: str) -> tuple[bytes, Tag] | None:
        with _write_errors():
            try:
                data = self._remote.read(name, MAX_MANIFEST_BYTES)
            except FileNotFoundError:
                return None
        return data, _digest_tag(data)

    def put(self, name: str, data: bytes, expected: Tag | None) -> Tag:
        def is_expected(present: bytes | None) -> bool:
            return (None if present is None else _digest_tag(present)) == expected

        with _write_errors():
            if not self._remote.replace(name, data, is_expected):
                raise ChangedMeanwhileError.at(self)
        return _digest_tag(data)

    def write(self, name: str, data: bytes) -> None:
        with self.drafted(name) as draft:
            write_synced(draft, data)

    def draft(self, name: str) -> Path:
        make_folder(self._cache_folder)
        return draft_of(self._cache_folder / name.rpartition("/")[2])

    def put_draft(self, draft: Path, name: str) -> None:
        with _write_errors():
            self._remote.put(name, draft)
        draft.unlink()

    def local(self, entries: Sequence[FileEntry]) -> Path:
        folder = self._cache_folder / "fetched"
        for entry in entries:
            path, transfer = folder / entry.file, Transfer(entry.bytes)
            make_folder(path.parent)
            with _write_errors():
                try:
                    digest = self._remote.fetch(entry.file, entry.bytes, path, transfer)
                except FileNotFoundError:
                    digest = None
                finally:
                    transfer.stop()
            if digest != entry.digest:
                raise DamagedError(f"{self.url}/{entry.file}: it is missing or damaged; upload the dataset again")
        return folder

    def release(self, entries: Sequence[FileEntry]) -> None:
        for entry in entries:
            with contextlib.suppress(OSError):
                (self._cache_folder / "fetched" / entry.file).unlink()

    def remove(self, names: Iterable[str]) -> None:
        with _write_errors():
            for name in names:
                self._remote.remove(name)

    def remove_drafts(self, run: str) -> None:
        for draft in self._cache_folder.glob(f"*{PARTIAL}"):
            with contextlib.suppress(OSError):
                draft.unlink()
        shutil.rmtree(self._cache_folder / "fetched", ignore_errors=True)


def _no_comparison(url: str) -> str:
    return (
        f"{url}: a dataset here is read, and not written: the server would not notice that another command was there "
        "first; pack to a folder, and copy it, its manifest.json last"
    )


def _digest_tag(data: bytes) -> Tag:
    return Tag(xxhash.xxh3_128_hexdigest(data))


def _check_tag(place: Place, name: str, expected: Tag | None) -> None:
    """Raise ChangedMeanwhileError if a file is another than the one that was read."""
    file = place.read_tagged(name)
    if (None if file is None else file[1]) != expected:
        raise ChangedMeanwhileError.at(place)


@lru_cache(maxsize=4)
def _open_remote(url: str, _process: int) -> RemoteFolder:
    return RemoteFolder(url)


@contextlib.contextmanager
def _write_errors() -> Iterator[None]:
    try:
        yield
    except RemoteError as error:
        raise WriteError(f"{error}; the same command goes on with what is missing") from None
