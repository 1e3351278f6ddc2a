"""A folder at a URL: its files are listed, read in blocks, and written whole, with retries.

A file that several processes may replace is put by a conditional put: the server itself compares the version that it
has. S3, Google Cloud Storage and Azure have it, and so has `memory://`; at any other URL nothing is written.

Requests go through fsspec, whose clients can be made anew in a forked process. obstore is 1.2 times as fast and takes
half the processor time, but the threads of its runtime stay in the process that was forked, and every request in the
other one waits for ever: workers of DataLoader and of a conversion are forked.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard, TypeVar
from urllib.parse import quote, unquote

import xxhash

from packer.errors import RemoteError, UsageError
from packer.format import LOCK, URL_AS_PATH
from packer.remote.retries import ATTEMPTS, IncompleteError, call_with_retries, check_patience, text_of
from packer.remote.transfer import Transfer

Value = TypeVar("Value")

#: Two letters at least: `c://` is a drive.
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_PLAIN = re.compile(r"[^A-Za-z0-9._-]+")


def is_url(text: Any) -> TypeGuard[str]:
    """Return whether `text` is a URL, and not a path or a pattern."""
    return isinstance(text, str) and _URL.match(text) is not None


def has_conditional_put(url: str) -> bool:
    """Return whether the servers of this kind of URL can put a file in place of the one that was read alone."""
    return url.partition("://")[0].lower() in _CONDITIONAL_PUTS


def url_in(text: str) -> str:
    """Return the URL that an input of the command line names, `[FIELD=]URL`; empty if it names something here."""
    place = text if is_url(text) else text.partition("=")[2]
    return place if is_url(place) else ""


def refuse_url(path: Path) -> None:
    """Raise UsageError if a folder to be written is a URL; as a path it has lost one of its slashes."""
    if URL_AS_PATH.match(str(path)):
        raise UsageError(
            f"{str(path).replace(':/', '://', 1)}: this writes only into a folder, not to a URL; name a folder, and "
            "copy it there afterwards"
        )


def label(url: str, content: bytes = b"") -> str:
    """Return a readable name of a folder for what is at `url`; no other URL or `content` has the same."""
    last = _PLAIN.sub("_", url.rstrip("/").rpartition("/")[2])[:40].lstrip(".")
    return f"{last}-{xxhash.xxh3_128_hexdigest(url.rstrip('/').encode() + bytes(1) + content)}"


#: Seconds that a server may take to accept a connection, or to send the next bytes.
SECONDS = 60.0
#: Bytes asked for at once: a cut connection costs no more than this.
BLOCK_BYTES = 8 * 2**20
#: Bytes of a file that a digest takes at a time.
_PIECE_BYTES = 2**20
#: Web servers: they list links, without sizes, and a `?` begins a query.
WEB = ("http", "https")
#: Servers that have no folders: making one makes a bucket.
_WITHOUT_FOLDERS = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "oss", *WEB)
#: Keys of a listing that change with a file's version, by kind of server; the first one present counts.
_TAGS = (
    *("ETag", "etag", "md5Hash", "content_md5", "checksum", "sha", "blob_id", "generation", "mtime", "LastModified"),
    *("Last-Modified", "last_modified", "modified", "modify", "created"),
)
#: Requests under way at one time for the sizes that a listing does not have.
LOOKUPS = 16
#: Files of this size and below are put by one request, which alone may have a condition.
_ONE_REQUEST = 2**30


class _GrownError(RemoteError):
    """A file has more bytes than when it was listed."""


class RemoteFile(NamedTuple):
    """A file as its server lists it: size in bytes, and a text that changes with its bytes."""

    size: int
    tag: str

    @property
    def time(self) -> int:
        """Return the time that a fetched file is given, in seconds, made of its tag: the same on every machine."""
        return xxhash.xxh32_intdigest(self.tag.encode()) >> 1


class RemoteFolder:
    """Files at a URL of fsspec, by their path below it.

    Args:
        patience: seconds to wait for a server that has answered before; None for ten minutes.

    Raises:
        UsageError: fsspec or the package for this kind of URL is not installed.
    """

    def __init__(self, url: str, patience: float | None = None) -> None:
        self.url = url.rstrip("/")
        self._kind = self.url.partition("://")[0].lower()
        self._is_web = self._kind in WEB
        self._patience = check_patience(patience)
        self._fs, self._root = _open(self.url)

    def _ask(self, name: str, action: Callable[[], Value], transfer: Transfer | None = None) -> Value:
        """Return the result of a request for a file, made again after errors that may pass."""
        pause = {} if transfer is None else {"pause": transfer.pause}
        return call_with_retries(self.url_of(name), action, patience=self._patience, **pause)

    def url_of(self, name: str) -> str:
        """Return the URL of a file, for messages."""
        return f"{self.url}/{name}" if name else self.url

    def read(self, name: str, most: int) -> bytes:
        """Return the first `most` bytes of a file, or all if there are fewer.

        Raises:
            FileNotFoundError: there is no such file.
            RemoteError: it cannot be fetched.
        """
        path = self._path(name)
        return self._ask(name, lambda: bytes(self._fs.cat_file(path, start=0, end=most)))

    def fetch(self, name: str, size: int, path: Path, transfer: Transfer) -> str:
        """Write a file of `size` bytes, in blocks, to a local one, down to the disk.

        Several blocks come at a time. If one fails, only that block is asked for again. An existing local file is
        overwritten.

        Returns:
            the digest of the bytes; empty if the file has more of them by now.

        Raises:
            FileNotFoundError, RemoteError: as `read`, and if the transfer is stopped.
        """
        lock, digest = threading.Lock(), xxhash.xxh3_128()

        def fetch(start: int) -> None:
            block = self._ask(name, partial(self._block, name, start, size, transfer), transfer)
            transfer.pause(0)
            with lock:
                file.seek(start)
                file.write(block)
            transfer.add(len(block))

        # Not truncated first: its size is what the cache has set aside for it.
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666), "r+b") as file:
            try:
                if size > BLOCK_BYTES:
                    transfer.call_together([partial(fetch, start) for start in range(0, size, BLOCK_BYTES)])
                elif size:
                    fetch(0)
                elif self.look_up(name).size:
                    return ""
            except _GrownError:
                return ""
            file.truncate(size)
            file.flush()
            os.fsync(file.fileno())
            file.seek(0)
            while block := file.read(_PIECE_BYTES):
                digest.update(block)
        return digest.hexdigest()

    def look_up(self, name: str = "") -> RemoteFile:
        """Return the size and tag of a file.

        Raises:
            FileNotFoundError: there is no such file.
            RemoteError: the server does not say.
        """
        return self._ask(name, partial(self._look_up, self._path(name)))

    def files(self, pattern: str = "") -> dict[str, RemoteFile]:
        """Return all files below the folder, or those that match a pattern: path below it to size and tag.

        Raises:
            RemoteError: they cannot be listed, or the size of one is unknown.
        """
        with self._need_bucket():
            listing = self._ask(pattern, partial(self._listing, pattern))
            infos = {
                self._name(path): info
                for path, info in listing.items()
                if info.get("type") != "directory" and not path.endswith("/")
            }
            # Web servers list no sizes, and some file systems links that may be files.
            incomplete = [
                name for name, info in infos.items() if info.get("size") is None or info.get("type") != "file"
            ]
            with ThreadPoolExecutor(LOOKUPS) as pool:
                complete = dict(zip(incomplete, pool.map(self.look_up, incomplete), strict=True))
        return {name: complete[name] if name in complete else _file_of(info, name) for name, info in infos.items()}

    def _listing(self, pattern: str) -> Mapping[str, Mapping[str, Any]]:
        """Return what fsspec says of every file, by its path."""
        self._fs.invalidate_cache()  # what was listed a while ago may have changed
        path = self._path(pattern)
        if not self._is_web:
            listing: Mapping[str, Mapping[str, Any]] = (self._fs.glob if pattern else self._fs.find)(path, detail=True)
            return listing
        if pattern:
            links = self._fs.glob(path, detail=True)
        else:
            # To list a file, fsspec would read all of it, in search of links.
            info = self._fs.info(path)
            is_file = "?" in path or info.get("mimetype", "text/html") != "text/html"
            links = {path: info} if is_file else self._fs.find(path, detail=True)
        # Pages link to other places, and to themselves in another order.
        return {
            link: info
            for link, info in links.items()
            if link == path or (link.startswith(f"{self._root}/") and not {"?", "#"} & set(link[len(self._root) :]))
        }

    def put(self, name: str, file: Path) -> RemoteFile:
        """Upload a local file; return the size and tag that the server then lists.

        Raises:
            RemoteError: it cannot be written, or what arrived has another size.
        """
        path, size = self._path(name), file.stat().st_size

        def put() -> RemoteFile:
            if not self.url.startswith(tuple(f"{kind}://" for kind in _WITHOUT_FOLDERS)):
                self._fs.makedirs(self._fs._parent(path), exist_ok=True)
            self._fs.put_file(str(file), path)
            sent = self._look_up(path)
            if sent.size != size:
                raise IncompleteError(f"{sent.size:,} bytes arrived, {size:,} were sent")
            return sent

        with self._need_bucket():
            return self._ask(name, put)

    def can_replace(self) -> bool:
        """Return whether the server compares versions, as `replace` needs.

        Some servers that speak the language of S3 pass over conditions, so this one is tried: with a file that is not
        there, in place of a version that never was.

        Raises:
            RemoteError: the server does not answer, or refuses to write.
        """
        if _CONDITIONAL_PUTS.get(self._kind) is not _put_to_s3:
            return self._kind in _CONDITIONAL_PUTS
        # No dataset at a URL has a lock.
        never = {"ETag": '"00000000000000000000000000000000"'}
        with self._need_bucket():
            is_put = self._ask(LOCK, lambda: _put_to_s3(self._fs, self._path(LOCK), b"", never))
        if is_put:
            self.remove(LOCK)
        return not is_put

    def replace(self, name: str, data: bytes, is_expected: Callable[[bytes | None], bool]) -> bool:
        """Put a file in place of the one that is expected there; the server compares and puts in one step.

        Args:
            is_expected: called with the bytes that are there, None without a file; returns whether to replace them.

        Returns:
            whether it was put; False where another file is there.

        Raises:
            RemoteError: it cannot be written.
        """
        path, put = self._path(name), _CONDITIONAL_PUTS[self._kind]
        was_sent = False

        def replace() -> bool:
            nonlocal was_sent
            for _ in range(ATTEMPTS):
                info, present = self._version(path)
                if not is_expected(present):
                    # Put by ourselves, if the answer to an earlier attempt was lost.
                    return was_sent and present == data
                was_sent = True
                if put(self._fs, path, data, info):
                    return True
            raise IncompleteError("its server refuses to replace a file by the version that it lists")

        with self._need_bucket():
            return self._ask(name, replace)

    def _version(self, path: str) -> tuple[Mapping[str, Any] | None, bytes | None]:
        """Return what the server lists of a file, and its bytes, which may be newer than that; None without a file."""
        self._fs.invalidate_cache()
        try:
            return self._fs.info(path), bytes(self._fs.cat_file(path))
        except FileNotFoundError:
            return None, None

    @contextlib.contextmanager
    def _need_bucket(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            reason = f"there is no such bucket or folder: {text_of(error)}; check the address, or make it first"
            raise RemoteError(f"{self.url}: {reason}") from None

    def remove(self, name: str) -> None:
        """Remove a file, if there is one.

        Raises:
            RemoteError: it cannot be removed.
        """
        with contextlib.suppress(FileNotFoundError):
            self._ask(name, partial(self._fs.rm_file, self._path(name)))

    def _look_up(self, path: str) -> RemoteFile:
        self._fs.invalidate_cache()
        info = self._fs.info(path)
        if info["type"] != "file":
            raise FileNotFoundError(path)
        return _file_of(info, path)

    def _block(self, name: str, start: int, size: int, transfer: Transfer) -> bytes:
        """Return a block of a file of `size` bytes; for the last one a byte more is asked for, which must not come."""
        path, stop = self._path(name), min(start + BLOCK_BYTES, size)
        end = stop + (stop == size)
        if getattr(self._fs, "async_impl", False):
            import asyncio  # here, because it takes 20 ms to load

            request = self._fs._cat_file(path, start=start, end=end)
            data = bytes(transfer.wait_for(asyncio.run_coroutine_threadsafe(request, self._fs.loop)))
        else:
            data = bytes(self._fs.cat_file(path, start=start, end=end))
        if len(data) > end - start:
            raise RemoteError(f"{self.url_of(name)}: its server does not send parts of a file; copy it by other means")
        if len(data) > stop - start:
            raise _GrownError
        if len(data) < stop - start:
            raise IncompleteError(f"{start + len(data):,} bytes came, but {stop:,} are expected")
        return data

    def _path(self, name: str) -> str:
        if self._is_web:
            name = quote(name, safe="/*[]!")
        return f"{self._root}/{name}" if name else self._root

    def _name(self, path: str) -> str:
        """Return the path of a listed file below the folder; one that would leave it is refused."""
        root, whole = self._root.lstrip("/"), path.lstrip("/")
        name = whole.removeprefix(root).lstrip("/") if root else whole
        name = unquote(name) if self._is_web else name
        leaves = bool(name) and not {"", ".", ".."}.isdisjoint(name.split("/"))
        if not whole.startswith(root) or leaves or "\\" in name or "\0" in name:
            raise RemoteError(f"{self.url_of(name)}: no file here can have this name; rename it")
        return name


def _open(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, and the path of the URL in it."""
    kind = url.partition("://")[0]
    package = "s3" if kind in ("s3", "s3a") else "fsspec"
    try:
        core = importlib.import_module("fsspec.core")
        # An instance of our own, since `retries` is set below: by default fsspec shares one among all callers.
        fs, root = core.url_to_fs(url, skip_instance_cache=True, **_options(kind))
    except ImportError as error:
        raise UsageError(
            f"{url}: {text_of(error)}; URLs need more: pip install '.[{package}]' in a clone of packer"
        ) from None
    except ValueError as error:
        raise UsageError(f"{url}: {text_of(error)}") from None
    if hasattr(fs, "retries"):
        fs.retries = 1  # s3fs tries five times by itself, within each of our attempts
    return fs, str(root).rstrip("/")


def _options(kind: str) -> dict[str, Any]:
    """Return settings of the file system: timeouts, and no retries of its own; the user's own settings win."""
    if kind in WEB:
        aiohttp = importlib.import_module("aiohttp")
        name, defaults = "client_kwargs", {"timeout": aiohttp.ClientTimeout(sock_connect=SECONDS, sock_read=SECONDS)}
    elif kind in ("s3", "s3a"):
        attempts = {"total_max_attempts": 1}
        name, defaults = "config_kwargs", {"connect_timeout": SECONDS, "read_timeout": SECONDS, "retries": attempts}
    else:
        return {}
    settings = importlib.import_module("fsspec.config").conf.get(kind, {})
    return {name: {**defaults, **settings.get(name, {})}}


def _put_to_s3(fs: Any, path: str, data: bytes, info: Mapping[str, Any] | None) -> bool:
    condition = {"mode": "create"} if info is None else {"IfMatch": info["ETag"]}
    return _is_put(lambda: fs.pipe_file(path, data, chunksize=_ONE_REQUEST, **condition), info)


def _put_to_google(fs: Any, path: str, data: bytes, info: Mapping[str, Any] | None) -> bool:
    bucket, key, _ = fs.split_path(path)
    address = f"{fs._location}/upload/storage/v1/b/{quote(bucket)}/o"
    options = {"uploadType": "media", "name": key, "ifGenerationMatch": str(info["generation"]) if info else "0"}
    return _is_put(lambda: fs.call("POST", address, data=data, json_out=True, **options), info)


def _put_to_azure(fs: Any, path: str, data: bytes, info: Mapping[str, Any] | None) -> bool:
    condition = {"overwrite": False}
    if info is not None:
        match = importlib.import_module("azure.core").MatchConditions.IfNotModified
        condition = {"overwrite": True, "etag": info["etag"], "match_condition": match}
    return _is_put(lambda: fs.pipe_file(path, data, **condition), info)


_memory_lock = threading.Lock()


def _put_to_memory(fs: Any, path: str, data: bytes, info: Mapping[str, Any] | None) -> bool:
    with _memory_lock:
        fs.makedirs(fs._parent(path), exist_ok=True)
        is_same = fs.exists(path) if info is None else not fs.exists(path) or fs.info(path) != info
        if not is_same:
            fs.pipe_file(path, data)
        return not is_same


#: How to put a file if the one there is still that of `info`, or if there is none; they return whether it was put.
_CONDITIONAL_PUTS: dict[str, Callable[[Any, str, bytes, Mapping[str, Any] | None], bool]] = {
    **dict.fromkeys(("s3", "s3a"), _put_to_s3),
    **dict.fromkeys(("gs", "gcs"), _put_to_google),
    **dict.fromkeys(("az", "abfs", "abfss", "adl"), _put_to_azure),
    "memory": _put_to_memory,
}
#: Statuses of a put whose condition does not hold: no such file, another put at this moment, another version.
_CONDITION_STATUSES = (404, 409, 412)


def _is_put(put: Callable[[], Any], info: Mapping[str, Any] | None) -> bool:
    """Return whether a conditional put was done; False if its condition does not hold."""
    try:
        put()
    except FileExistsError:
        return False
    except FileNotFoundError:
        if info is None:  # the bucket is missing
            raise
        return False
    except Exception as error:
        cause: Any = error.__cause__
        answer = getattr(cause, "response", None)  # of botocore
        status = answer["ResponseMetadata"].get("HTTPStatusCode") if isinstance(answer, dict) else None
        for name in ("status_code", "code", "status"):  # of azure, of gcsfs, of aiohttp
            status = status or getattr(error, name, None)
        if str(status) in map(str, _CONDITION_STATUSES):
            return False
        raise
    return True


def _file_of(info: Mapping[str, Any], name: str) -> RemoteFile:
    if info.get("size") is None:
        raise RemoteError(f"{name}: its server does not say how large it is; download it by other means")
    tag = next((str(info[key]) for key in _TAGS if info.get(key) is not None), "")
    return RemoteFile(int(info["size"]), tag)
