"""Sources at a URL: their files are fetched into the cache, and packed from there.

A file is kept from one run to the next if its size and its tag (such as S3's ETag) are those listed now, so that an
interrupted run goes on where it stopped. Files that are gone at the URL are removed from the cache, too; and so are
sources that nobody packed for a month, when another one is fetched. A part of an array of jobs fetches its own files
alone.
"""

from __future__ import annotations

import contextlib
import glob
import logging
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote
from weakref import WeakKeyDictionary

from packer.errors import RemoteError, SourceError, name_by_url
from packer.format import LOCK, PARTIAL, held_lock, sync_folder
from packer.remote.cache import UNUSED_SECONDS, Lease, default_cache, is_local, remove_unused
from packer.remote.store import BLOCK_BYTES, WEB, RemoteFile, RemoteFolder, is_url, label, url_in
from packer.remote.transfer import Transfer, note, noted
from packer.watcher import NOBODY, Watcher

_log = logging.getLogger(__name__)

_MAGIC = re.compile(r"[*?\[]")
#: One line for each file fetched: its path, size and tag.
_FETCHED = "fetched.jsonl"
#: Images are small: fetching one takes hardly longer than the request.
FILES_AT_ONCE = 16


def local_inputs(inputs: Sequence[str], watcher: Watcher = NOBODY) -> tuple[list[str], list[Lease]]:
    """Return inputs of the command line: each `[FIELD=]URL` with its files fetched, anything else as it is.

    Args:
        watcher: its `step` is called with the bytes fetched so far, and the total.

    Returns:
        the inputs, as local paths; and leases, which keep the fetched files in the cache as long as they are kept.

    Raises:
        UsageError: a package for this kind of URL is not installed.
        SourceError: nothing is there, or it cannot be fetched.
    """
    texts, leases = list(inputs), []
    for number, text in enumerate(inputs):
        name, equals, place = ("", "", text) if is_url(text) else text.partition("=")
        if is_url(place):
            path, lease = fetch_source(place, watcher)
            texts[number] = f"{name}{equals}{path}"
            leases += [lease] if lease else []
    return texts, leases


def fetch_source(url: str, watcher: Watcher = NOBODY) -> tuple[str, Lease | None]:
    """Return the path, or pattern, of the files at a URL once they are fetched, and a lease on them.

    `file://` names files that are here: they are not fetched, and need no lease.

    Args, Raises:
        As `local_inputs`.
    """
    source = _CachedSource.of(url)
    if source is None:
        return url.partition("://")[2], None
    lease = source.fetch(lambda remote: remote.files(source.pattern), watcher, is_all=True)
    return str(Path(glob.escape(str(source.top))) / source.pattern) if source.pattern else str(source.top), lease


def fetch_files(inputs: Sequence[str], paths: Collection[str], watcher: Watcher = NOBODY) -> list[Lease]:
    """Fetch files of `inputs`, by the paths in the cache at which `local_inputs` has put them; also on another machine.

    Args:
        inputs: of the command line; those that are no URL are left alone.
        paths: files, or folders whose files are all fetched. Those elsewhere are left alone.
        watcher: as for `local_inputs`.

    Returns:
        leases, as `local_inputs`.

    Raises:
        UsageError, SourceError: as `local_inputs`.
    """
    return [
        source.fetch(partial(_look_up_all, names=names), watcher, is_all=False)
        for source in _cached_sources(inputs)
        if (names := source.names(paths))
    ]


def inputs_here(inputs: Sequence[str]) -> list[str]:
    """Return inputs of the command line: each at a URL as the folder, or file, of the cache that holds what is fetched.

    Nothing is fetched.
    """
    texts = list[str]()
    for text in inputs:
        if url := url_in(text):
            source = _CachedSource.of(url)
            texts.append(url.partition("://")[2] if source is None else str(source.top))
        else:
            texts.append(text)
    return texts


def list_urls(inputs: Sequence[str]) -> dict[str, RemoteFile]:
    """Return all files of `inputs` at URLs, by the paths at which `local_inputs` puts them; none is fetched.

    Raises:
        UsageError, SourceError: as `local_inputs`.
    """
    files: dict[str, RemoteFile] = {}
    for source in _cached_sources(inputs):
        try:
            listed = RemoteFolder(source.base).files(source.pattern)
        except RemoteError as error:
            raise SourceError(str(error)) from None
        files |= {f"{source.top}/{name}".rstrip("/"): file for name, file in listed.items()}
    return files


def _cached_sources(inputs: Sequence[str]) -> list[_CachedSource]:
    """Return those of the inputs that are fetched."""
    sources = [_CachedSource.of(url) for text in inputs if (url := url_in(text))]
    return [source for source in sources if source is not None]


class _CachedSource(NamedTuple):
    """A source at a URL, and where it lies in the cache.

    Attributes:
        base: its URL without wildcards.
        pattern: that of the files below `base`; empty for all.
        home: its folder of the cache.
        top: the file, or folder, with what is at `base`.
    """

    url: str
    base: str
    pattern: str
    home: Path
    top: Path

    @classmethod
    def of(cls, url: str) -> _CachedSource | None:
        """Return the source at a URL; None for `file://`, which is not fetched."""
        kind = url.partition("://")[0].lower()
        if kind in ("file", "local"):
            return None
        base, pattern = _split(url)
        home = default_cache() / "sources" / label(url)
        last = base.rpartition("/")[2]
        if kind in WEB:
            last = unquote(base.partition("?")[0].rpartition("/")[2])
        name_by_url(str(home / last), base)
        return cls(url, base, pattern, home, home / last)

    def names(self, paths: Iterable[str]) -> list[str]:
        """Return the paths below `base` of those files that lie here."""
        top = str(self.top)
        return [path[len(top) + 1 :] for path in paths if path == top or path.startswith(f"{top}/")]

    def fetch(
        self, list_files: Callable[[RemoteFolder], Mapping[str, RemoteFile]], watcher: Watcher, is_all: bool
    ) -> Lease:
        """Fetch the files that `list_files` returns, unless they are here; if these are all, remove all others."""
        try:
            lease = Lease(self.home)
            _fetched_now[lease] = (self.home, set())
            remove_unused(self.home.parent, UNUSED_SECONDS)
            with held_lock(self.home / LOCK, wait=True):
                remote = RemoteFolder(self.base)
                listed = list_files(remote)
                if not listed:
                    raise SourceError("there is no such file or folder, or it is empty; check the address", self.url)
                # If the URL is a file, the listing has that file alone, and its path below the URL is empty.
                _fetch(remote, listed, self.top, self.home / _FETCHED, watcher, is_all)
        except RemoteError as error:
            raise SourceError(str(error)) from None
        except OSError as error:
            advice = "make room there, or name another folder by XDG_CACHE_HOME"
            raise SourceError(f"cannot be kept in {self.home}: {error.strerror}; {advice}", self.url) from None
        return lease


def _look_up_all(remote: RemoteFolder, names: Sequence[str]) -> dict[str, RemoteFile]:
    """Return size and tag of files, by path; of a folder, those of all files in it.

    Raises:
        SourceError: one is gone.
    """

    def look_up(name: str) -> dict[str, RemoteFile]:
        with contextlib.suppress(FileNotFoundError):
            return {name: remote.look_up(name)}
        files = RemoteFolder(remote.url_of(name)).files()
        if not files:
            raise SourceError("it is gone since the parts of this conversion were planned", remote.url_of(name))
        return {f"{name}/{inner}": file for inner, file in files.items()}

    with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
        return {name: file for files in pool.map(look_up, names) for name, file in files.items()}


#: By the lease of each source that is in use: its folder, and the files whose server does not tell versions apart.
_fetched_now: WeakKeyDictionary[Lease, tuple[Path, set[str]]] = WeakKeyDictionary()


def _fetch(
    remote: RemoteFolder, listed: Mapping[str, RemoteFile], top: Path, notes: Path, watcher: Watcher, is_all: bool
) -> None:
    """Fetch files whose listed version is not in `top`, a folder or a file; if all are listed, remove others.

    A file whose server does not tell versions apart is fetched again, unless a source that is in use has done so. Its
    version is then the digest of its bytes.
    """
    local = {}
    for path in [top] if top.is_file() else [path for path in top.rglob("*") if not path.is_dir()]:
        name = "" if path == top else path.relative_to(top).as_posix()
        local[name] = path.stat().st_size
        if is_all and name not in listed:
            path.unlink()
    noted_files = noted(notes)
    home_names = [names for home, names in _fetched_now.values() if home == notes.parent]

    def is_here(name: str, file: RemoteFile) -> bool:
        is_known = noted_files.get(name) == file if file.tag else any(name in names for names in home_names)
        return is_known and local.get(name) == file.size

    missing = [name for name, file in listed.items() if not is_here(name, file)]
    transfer = Transfer(sum(listed[name].size for name in missing), watcher)
    if missing:
        files = "1 file" if len(missing) == 1 else f"{len(missing):,} files"
        _log.info("fetching %s, %s bytes, from %s", files, f"{transfer.total:,}", remote.url)

    def fetch(name: str) -> tuple[str, RemoteFile]:
        target, file = top / name, listed[name]
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary, url = target.with_name(f".{target.name}{PARTIAL}"), remote.url_of(name)
        try:
            digest = remote.fetch(name, file.size, temporary, transfer)
            if not digest or (file.size > BLOCK_BYTES and remote.look_up(name) != file):
                raise FileNotFoundError
            temporary.replace(target)
            file = file._replace(tag=file.tag or digest)
            os.utime(target, (file.time, file.time))
            sync_folder(target.parent)
        except FileNotFoundError as error:
            if is_local(error, notes.parent):
                raise SourceError(f"{notes.parent} was removed while it was fetched into it; try again", url) from None
            raise SourceError("it changed while it was fetched; try again", url) from None
        return name, file

    with notes.open("ab") as lines:
        for name, file in transfer.each(fetch, missing, FILES_AT_ONCE):
            note(lines, name, *file)
            for names in home_names if not listed[name].tag else ():
                names.add(name)


def _split(url: str) -> tuple[str, str]:
    """Return a URL without wildcards, and the pattern below it that has them all."""
    kind, _, rest = url.rstrip("/").partition("://")
    if kind.lower() in WEB and "?" in rest:  # a query, as of a presigned URL
        return url, ""
    parts = rest.split("/")
    plain = next((number for number, part in enumerate(parts) if _MAGIC.search(part)), len(parts))
    return f"{kind}://{'/'.join(parts[:plain])}", "/".join(parts[plain:])
