"""A packed dataset at a URL, as a folder of the cache with the files that were needed so far.

The manifest is read first, and its bytes are part of the folder's name: a dataset that was replaced at its URL gets
another folder, and files of two versions never meet.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any

from packer.errors import DamagedError, DatasetError, ManifestError, NoDatasetError, UsageError, WriteError
from packer.format import LOCK, MANIFEST, MAX_MANIFEST_BYTES, PARTIAL, FileEntry, Manifest, held_lock, write_synced
from packer.format import manifest as manifests
from packer.remote.cache import Cache, Lease, default_cache, file_beside, is_local, is_whole
from packer.remote.retries import check_patience, text_of
from packer.remote.store import RemoteFolder, is_url, label
from packer.remote.transfer import STREAMS, Transfer
from packer.watcher import NOBODY, Watcher

#: Seconds after which to look again whether another process has fetched a file.
LOOK_SECONDS = 0.02


def fetch_all(remote: RemoteFolder, entries: Iterable[FileEntry], folder: Path, watcher: Watcher = NOBODY) -> None:
    """Fetch the files that are missing in `folder`; wait for another process that is fetching one.

    Args:
        watcher: its `step` is called with the bytes fetched so far, and the total.

    Raises:
        DamagedError: a file is missing at the URL, or is not what the manifest says.
        RemoteError: it cannot be fetched.
        DatasetError: the cache cannot be written.
    """
    missing = [entry for entry in entries if not is_whole(folder, entry)]
    if missing:
        transfer = Transfer(sum(entry.bytes for entry in missing), watcher)
        for _ in transfer.each(partial(_fetch, remote, folder, transfer), missing, min(STREAMS, len(missing))):
            pass


def _fetch(
    remote: RemoteFolder,
    folder: Path,
    transfer: Transfer,
    entry: FileEntry,
    make_room: Callable[[], None] | None = None,
) -> Lease:
    """Fetch one file, unless it is there; return a lease on it alone.

    Args:
        make_room: called before, if no room is set aside for it.
    """
    target, reserved = folder / entry.file, file_beside(folder, entry, PARTIAL)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        reserved.parent.mkdir(exist_ok=True)
        with _lock_of(folder, entry, transfer) as has_lock:
            temporary = reserved if has_lock else reserved.with_name(f"{os.getpid()}-{reserved.name}")
            if is_whole(folder, entry):
                with contextlib.suppress(FileNotFoundError):  # it was removed just now
                    lease = Lease(folder, entry.file)
                    transfer.add(entry.bytes)
                    return lease
            if make_room is not None:
                make_room()
            # Twice if needed: bytes may be damaged on the way, or the file replaced while it is read.
            for _ in range(2):
                if remote.fetch(entry.file, entry.bytes, temporary, transfer) == entry.digest:
                    # Before it has its name, under which it could be removed at once.
                    lease = Lease(folder, str(temporary.relative_to(folder)))
                    temporary.replace(target)
                    reserved.unlink(missing_ok=True)
                    return lease
                transfer.add(-entry.bytes)
        raise DamagedError(
            f"{remote.url_of(entry.file)}: its bytes do not have the digest that the manifest says ({entry.digest}); "
            "the file was damaged or replaced: upload the dataset again"
        )
    except FileNotFoundError as error:
        if is_local(error, folder):
            raise DatasetError(f"{folder}: it was removed while files were fetched into it; try again") from None
        raise DamagedError(f"{remote.url_of(entry.file)}: the file is missing; upload the dataset again") from None
    except OSError as error:
        raise _unwritable(target, error) from None


@contextlib.contextmanager
def _lock_of(folder: Path, entry: FileEntry, transfer: Transfer) -> Iterator[bool]:
    """Hold the lock of a file, as `held_lock`; wait for another process until the transfer is stopped."""
    with contextlib.ExitStack() as stack:
        while True:
            try:
                has_lock = stack.enter_context(held_lock(file_beside(folder, entry, LOCK), wait=False))
                break
            except BlockingIOError:
                transfer.pause(LOOK_SECONDS)
        yield has_lock


@dataclass(frozen=True)
class Mirror:
    """One version of a dataset at a URL; pickles.

    Attributes:
        url: of the dataset.
        cache: where it is kept.
        folder: of this version within the cache.
        patience: seconds to wait for a server that has answered, and for room that other loops have.
    """

    url: str
    cache: Cache
    folder: Path
    patience: float
    _clients: dict[int, RemoteFolder] = field(default_factory=dict, repr=False, compare=False)  # by process

    @classmethod
    def open(
        cls,
        url: str,
        cache: str | os.PathLike[str] | None = None,
        cache_bytes: int | None = None,
        patience: float | None = None,
    ) -> tuple[Mirror, Manifest, Lease]:
        """Return the dataset that is at a URL now, and its manifest, which alone is fetched.

        The lease keeps the manifest's file in the cache.

        Args:
            cache: folder; None for the user's own.
            cache_bytes: limit for the datasets in it, in bytes; None for no limit.
            patience: seconds to wait for a server that has answered; None for ten minutes.

        Raises:
            UsageError: a package for this kind of URL is not installed, or the limit or `patience` is no such number.
            RemoteError: the manifest cannot be fetched.
            NoDatasetError: there is no packed dataset.
            ManifestError: the manifest is wrong.
        """
        if cache_bytes is not None and not (isinstance(cache_bytes, Real) and cache_bytes >= 0):
            raise UsageError(f"cache_bytes is {cache_bytes!r}; a number of bytes is expected, such as 200 * 2**30")
        local_cache = Cache(default_cache() if cache is None else Path(cache).absolute(), cache_bytes)
        seconds = check_patience(patience)
        remote = RemoteFolder(url, seconds)
        data, manifest = _fetch_manifest(remote)
        folder = local_cache.datasets / label(url, data)
        mirror = cls(url.rstrip("/"), local_cache, folder, seconds, {os.getpid(): remote})
        with _writing(mirror.folder):
            lease = Lease(mirror.folder)
            mirror._keep(data)
        return mirror, manifest, lease

    @property
    def remote(self) -> RemoteFolder:
        """Return the folder at the URL, one for all requests of a process: a client of S3 takes 0.15 s to make."""
        if os.getpid() not in self._clients:
            self._clients.clear()  # that of the process which this one was forked from
            self._clients[os.getpid()] = RemoteFolder(self.url, self.patience)
        return self._clients[os.getpid()]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_clients": {}}

    def manifest(self) -> Manifest:
        """Return the manifest of this very version, even if the one at the URL has been replaced.

        Raises:
            DatasetError: it is no longer in the cache, and there is another one at the URL.
        """
        with _writing(self.folder), contextlib.closing(Lease(self.folder)):
            if not (self.folder / MANIFEST).exists():
                data, _ = _fetch_manifest(self.remote)
                if self.folder.name != label(self.url, data):
                    raise self._replaced()
                self._keep(data)
            return manifests.read(self.folder)

    def _keep(self, data: bytes) -> None:
        """Put the manifest into the folder; many processes may do so at once, with the same bytes."""
        path = self.folder / MANIFEST
        with held_lock(path.with_name(f".{MANIFEST}{LOCK}"), wait=True):
            if path.exists():
                os.utime(path)
            else:
                write_synced(path, data)

    def fetch_shards(self, manifest: Manifest, wanted: Sequence[FileEntry] | None = None) -> Lease:
        """Fetch some shards, and keep them in the cache as long as the lease is; by default all that hold samples.

        Room is made for all of them at once, so that there is room for the others later.

        Raises:
            DamagedError: a file is missing or has the wrong digest.
            RemoteError: it cannot be fetched.
            UsageError, DatasetError: there is no room in the cache.
        """
        return self._reserve_and_fetch([shard for shard in manifest.shards if shard.samples], wanted)

    def is_fetched(self, manifest: Manifest) -> bool:
        """Return whether all shards that hold samples are in the cache."""
        return all(is_whole(self.folder, shard) for shard in manifest.shards if shard.samples)

    def fetch(self, manifest: Manifest, watcher: Watcher = NOBODY, entries: Sequence[FileEntry] | None = None) -> Lease:
        """Fetch all files, or some.

        Args:
            watcher: its `step` is called with the bytes fetched so far, and the total.

        Raises:
            As `fetch_shards`.
        """
        return self._reserve_and_fetch(manifest.files if entries is None else entries, watcher=watcher)

    def _reserve_and_fetch(
        self, entries: Sequence[FileEntry], now: Sequence[FileEntry] | None = None, watcher: Watcher = NOBODY
    ) -> Lease:
        """Make room for `entries`, and fetch those in `now`; all by default."""
        with _writing(self.folder):
            lease = Lease(self.folder)
            self.cache.reserve(self.folder, entries)
        with self._explain_damage():
            fetch_all(self.remote, entries if now is None else now, self.folder, watcher)
        return lease

    def fetch_one(self, entry: FileEntry, transfer: Transfer, make_room: Callable[[], None]) -> Lease:
        """Fetch one shard unless it is there; return a lease on it alone.

        Args:
            make_room: called before it is fetched, while other processes wait for the file.

        Raises:
            As `fetch_shards`, and what `make_room` raises.
        """
        with self._explain_damage():
            return _fetch(self.remote, self.folder, transfer, entry, make_room)

    @contextlib.contextmanager
    def _explain_damage(self) -> Iterator[None]:
        """Raise DatasetError instead of DamagedError if there is another dataset at the URL by now."""
        try:
            yield
        except DamagedError:
            if self.folder.name != label(self.url, _fetch_manifest(self.remote)[0]):
                raise self._replaced() from None
            raise

    def _replaced(self) -> DatasetError:
        return DatasetError(f"{self.url}: the dataset was replaced since it was opened; open it again")


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Turn errors while a folder of the cache is written into a DatasetError that names it."""
    try:
        yield
    except WriteError as error:
        raise DatasetError(str(error)) from None
    except OSError as error:
        raise _unwritable(folder, error) from None


def _unwritable(path: Path, error: OSError) -> DatasetError:
    """Return the error of a file or folder of the cache that cannot be written."""
    return DatasetError(
        f"{path}: the cache cannot be written: {error.strerror or error}; make room there, or name another folder: "
        "cache= of PackedDataset, or XDG_CACHE_HOME"
    )


@contextlib.contextmanager
def whole(
    place: str, watcher: Watcher = NOBODY, wanted: Callable[[Manifest], Sequence[FileEntry]] | None = None
) -> Iterator[Path]:
    """Return the folder of a dataset: a path as it is; for a URL a folder of the cache, with all files fetched.

    Args:
        watcher: its `step` is called with the bytes fetched so far, and the total.
        wanted: returns the files of the manifest to fetch, if not all.

    Raises:
        As `Mirror.open` and `Mirror.fetch`.
    """
    if not is_url(place):
        yield Path(place)
        return
    mirror, manifest, lease = Mirror.open(place)
    entries = None if wanted is None else wanted(manifest)
    with contextlib.closing(lease), contextlib.closing(mirror.fetch(manifest, watcher, entries)):
        yield mirror.folder


def manifest_at(dataset: str | os.PathLike[str]) -> Manifest:
    """Return the manifest of a dataset that is to be read, in a folder or at a URL.

    Raises:
        DatasetError: it cannot be read; as `Mirror.open` for a URL.
    """
    return Mirror.open(dataset)[1] if is_url(dataset) else manifests.read(Path(dataset))


def _fetch_manifest(remote: RemoteFolder) -> tuple[bytes, Manifest]:
    """Return the manifest that is at a URL now, and its bytes; read again if they are wrong, as those of a shard are.

    Raises:
        RemoteError: it cannot be fetched.
        NoDatasetError: there is no packed dataset.
        ManifestError: the manifest is wrong.
    """

    def fetch() -> tuple[bytes, Manifest]:
        data = remote.read(MANIFEST, MAX_MANIFEST_BYTES)
        return data, manifests.decode(data, remote.url_of(MANIFEST))

    try:
        try:
            return fetch()
        except ManifestError:
            return fetch()
    except FileNotFoundError as error:
        raise NoDatasetError(
            f"{remote.url} is not a packed dataset: it has no {MANIFEST} ({text_of(error)}); check the address; an "
            "upload or parts that were interrupted are finished by the same `packer convert` without --part"
        ) from None
