"""Sources at a URL: their files are fetched into the cache, and packed from there.

A file is kept from one run to the next if its size and its tag (such as S3's ETag) are those listed now, so that an
interrupted run goes on where it stopped. Files that are gone at the URL are removed from the cache, too; and so are
sources that nobody packed for a month, when another one is fetched.
"""

from __future__ import annotations

import glob
import logging
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote

import xxhash

from packer.errors import RemoteError, SourceError, name_by_url
from packer.format import held_lock, sync_folder
from packer.remote.cache import LOCK, PARTIAL, Lease, default_cache, is_local, remove_unused
from packer.remote.store import BLOCK_BYTES, WEB, RemoteFile, RemoteFolder, Transfer, is_url, label, note, noted
from packer.watcher import NOBODY, Watcher

_log = logging.getLogger(__name__)

_MAGIC = re.compile(r"[*?\[]")
#: One line for each file fetched: its path, size and tag.
_FETCHED = "fetched.jsonl"
#: Images are small: fetching one takes hardly longer than the request.
FILES_AT_ONCE = 16
#: Seconds after which fetched files that nobody used are removed.
UNUSED_SECONDS = 30 * 24 * 3600


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
    kind, _, rest = url.partition("://")
    if kind.lower() in ("file", "local"):
        return rest, None
    base, pattern = _split(url)
    home = default_cache() / "sources" / label(url)
    last = base.rpartition("/")[2]
    if kind.lower() in WEB:
        last = unquote(base.partition("?")[0].rpartition("/")[2])
    name_by_url(str(home / last), base)
    try:
        lease = Lease(home)
        remove_unused(home.parent, UNUSED_SECONDS)
        with held_lock(home / LOCK, wait=True):
            remote = RemoteFolder(base)
            listed = remote.files(pattern)
            if not listed:
                raise SourceError("there is no such file or folder, or it is empty", url)
            # If the URL is a file, the listing has that file alone, and its path below the URL is empty.
            _fetch(remote, listed, home / last, home / _FETCHED, watcher)
    except RemoteError as error:
        raise SourceError(str(error)) from None
    except OSError as error:
        raise SourceError(f"cannot be kept in {home}: {error.strerror}", url) from None
    return str(Path(glob.escape(str(home / last))) / pattern) if pattern else str(home / last), lease


def _fetch(remote: RemoteFolder, listed: Mapping[str, RemoteFile], top: Path, notes: Path, watcher: Watcher) -> None:
    """Fetch files whose listed version is not in `top`, a folder or a file; remove files that are not listed."""
    local = {}
    for path in [top] if top.is_file() else [path for path in top.rglob("*") if not path.is_dir()]:
        name = "" if path == top else path.relative_to(top).as_posix()
        local[name] = path.stat().st_size
        if name not in listed:
            path.unlink()
    noted_files = noted(notes)
    missing = [name for name, file in listed.items() if noted_files.get(name) != file or local.get(name) != file.size]
    transfer = Transfer(sum(listed[name].size for name in missing), watcher)
    if missing:
        _log.info("fetching %s files, %s bytes, from %s", f"{len(missing):,}", f"{transfer.total:,}", remote.url)

    def fetch(name: str) -> str:
        target, file = top / name, listed[name]
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary, url = target.with_name(f".{target.name}{PARTIAL}"), remote.url_of(name)
        try:
            remote.fetch(name, file.size, temporary, transfer)
            if file.size > BLOCK_BYTES and remote.look_up(name) != file:
                raise FileNotFoundError
            temporary.replace(target)
            # Made of the tag, the time tells a changed file, and is the same on every machine that packs a part.
            os.utime(target, (xxhash.xxh32_intdigest(file.tag.encode()) >> 1,) * 2)
            sync_folder(target.parent)
        except FileNotFoundError as error:
            if is_local(error, notes.parent):
                raise SourceError(f"{notes.parent} was removed while it was fetched into it; try again", url) from None
            raise SourceError("it changed while it was fetched; try again", url) from None
        return name

    with notes.open("ab") as lines:
        for name in transfer.each(fetch, missing, FILES_AT_ONCE):
            note(lines, name, *listed[name])


def _split(url: str) -> tuple[str, str]:
    """Return a URL without wildcards, and the pattern below it that has them all."""
    kind, _, rest = url.rstrip("/").partition("://")
    if kind.lower() in WEB and "?" in rest:  # a query, as of a presigned URL
        return url, ""
    parts = rest.split("/")
    plain = next((number for number, part in enumerate(parts) if _MAGIC.search(part)), len(parts))
    return f"{kind}://{'/'.join(parts[:plain])}", "/".join(parts[plain:])
