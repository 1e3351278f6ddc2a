"""A folder at a URL: its files are listed, read in blocks, and written whole, with retries."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any, NamedTuple, TypeGuard, TypeVar
from urllib.parse import quote, unquote

import msgspec
import xxhash

from packer.errors import RemoteError, UsageError
from packer.format import URL_AS_PATH
from packer.watcher import FETCHING, NOBODY, Watcher

#: Two letters at least: `c://` is a drive.
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_PLAIN = re.compile(r"[^A-Za-z0-9._-]+")


def is_url(text: Any) -> TypeGuard[str]:
    """Return whether `text` is a URL, and not a path or a pattern."""
    return isinstance(text, str) and _URL.match(text) is not None


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


Item = TypeVar("Item")
Value = TypeVar("Value")

#: Errors that another attempt would not change.
_LASTING = (PermissionError, IsADirectoryError, NotADirectoryError, NotImplementedError)
_LASTING_NAMES = {"NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "ParamValidationError"}

#: Statuses of web servers that another attempt would not change.
_REFUSALS = (401, 403, 405)


#: How often something is asked for, at most.
ATTEMPTS = 6
#: Seconds before the second attempt; each further pause is twice as long.
PAUSE = 0.5
#: Seconds that a server may take to accept a connection, or to send the next bytes.
SECONDS = 60.0


def call_with_retries(url: str, action: Callable[[], Value], pause: Callable[[float], None] = time.sleep) -> Value:
    """Return the result of `action`; call it again after errors that may pass, and after a pause.

    Raises:
        FileNotFoundError: there is no such file.
        RemoteError: it failed for good; the message names `url`.
    """
    attempt = 1
    while True:
        try:
            return action()
        except (FileNotFoundError, RemoteError):
            raise
        except Exception as error:  # fsspec passes on whatever the library of each kind of server raises
            # Not kept: it refers to the frames of all callers, and so to what they hold, such as leases.
            refused = getattr(error, "status", None) in _REFUSALS or type(error).__name__ in _LASTING_NAMES
            if refused or isinstance(error, _LASTING):
                raise RemoteError(f"{url}: {text_of(error)}; check the address and your credentials") from error
            if attempt >= ATTEMPTS:
                raise RemoteError(
                    f"{url}: it failed {ATTEMPTS} times, the last time with: {text_of(error)}; "
                    "check the connection and try again"
                ) from error
        pause(PAUSE * 2 ** (attempt - 1))
        attempt += 1


def text_of(error: BaseException | None) -> str:
    """Return an error in one line."""
    text = " ".join(str(error).split())
    return text or type(error).__name__


#: Seconds between two reports of a transfer.
_WORD = 0.1


class Transfer:
    """Moves files by several threads. The thread that waits for them reports how many bytes are done.

    Large files are fetched in blocks, several at a time, by threads that all files share: the blocks of the file that
    was begun first come first. End a transfer with `stop`.

    Args:
        total: bytes to move.
        watcher: its `step` is called several times a second with the bytes moved so far, and the total.
    """

    def __init__(self, total: int, watcher: Watcher = NOBODY) -> None:
        self.total = total
        self._watcher = watcher
        self._lock = threading.Lock()
        self._done = 0
        self._stopped = threading.Event()
        self._requests: set[Future[Any]] = set()
        self._blocks: SimpleQueue[tuple[Future[None], Callable[[], None]] | None] = SimpleQueue()
        # Not a ThreadPoolExecutor: at the end of the process that would first do all that is waiting.
        self._threads: list[threading.Thread] = []

    @property
    def is_stopped(self) -> bool:
        """Return whether nothing more is to be moved."""
        return self._stopped.is_set()

    def stop(self) -> None:
        """Give up what is under way, at once: requests are cancelled where the file system can, and pauses end."""
        with self._lock:
            self._stopped.set()
            requests = list(self._requests)
        for request in requests:
            request.cancel()
        for _ in self._threads:
            self._blocks.put(None)
        for thread in self._threads:
            thread.join()

    def pause(self, seconds: float) -> None:
        """Wait; raises RemoteError if the transfer is stopped."""
        if self._stopped.wait(seconds):
            raise RemoteError("fetching was stopped")

    def add(self, nbytes: int) -> None:
        """Count bytes that were moved; below 0 if they have to be moved again."""
        with self._lock:
            self._done += nbytes

    def wait_for(self, request: Future[Value]) -> Value:
        """Return the result of a request, which `stop` cancels."""
        with self._lock:
            self._requests.add(request)
        try:
            self.pause(0)
            return request.result()
        finally:
            request.cancel()
            with self._lock:
                self._requests.discard(request)
            del request  # it has the error, which refers to this frame and those of all callers

    def call_together(self, actions: Sequence[Callable[[], None]]) -> None:
        """Call functions in several threads, and return when all are done; raises the error of one that failed."""
        futures: list[Future[None]] = [Future() for _ in actions]
        with self._lock:
            if self.is_stopped:
                raise RemoteError("fetching was stopped")
            for task in zip(futures, actions, strict=True):
                self._blocks.put(task)
            while len(self._threads) < min(STREAMS, len(actions)):
                self._threads.append(threading.Thread(target=self._work, daemon=True))
                self._threads[-1].start()
        try:
            for future in futures:
                future.result()
        finally:
            for future in futures:
                future.cancel()
            wait(futures)

    def _work(self) -> None:
        while (task := self._blocks.get()) is not None:
            future, action = task
            if future.set_running_or_notify_cancel():
                try:
                    self.pause(0)
                    future.set_result(action())
                except BaseException as error:  # raised where it is waited for
                    future.set_exception(error)
            del task, future, action

    def each(self, action: Callable[[Item], Value], items: Sequence[Item], threads: int) -> Iterator[Value]:
        """Yield the result of `action` for each item, in order; raise the error of the first that failed.

        If one fails, or the caller stops, the others give up before their next block.
        """
        last_word = 0.0
        with ThreadPoolExecutor(threads) as pool:
            futures = [pool.submit(action, item) for item in items]
            try:
                for future in futures:
                    is_done = False
                    while not is_done:
                        is_done = bool(wait([future], _WORD).done)
                        if (now := time.monotonic()) - last_word >= _WORD:
                            last_word = now
                            self._watcher.step(FETCHING, self._done, self.total)
                    yield future.result()
            finally:
                self.stop()
                pool.shutdown(cancel_futures=True)
        if self.total:
            self._watcher.step(FETCHING, self._done, self.total)


def noted(path: Path) -> dict[str, tuple[Any, ...]]:
    """Return what earlier runs noted of each file with `note`; a line that a kill cut short is skipped."""
    moved = {}
    for line in path.read_bytes().splitlines() if path.exists() else ():
        with contextlib.suppress(msgspec.DecodeError):
            name, *values = msgspec.json.decode(line, type=list[str | int])
            moved[str(name)] = tuple(values)
    return moved


def note(file: IO[bytes], name: str, *values: str | int) -> None:
    """Note that a file was moved: one line, flushed to the system."""
    file.write(msgspec.json.encode((name, *values)) + b"\n")
    file.flush()


#: Bytes asked for at once: a cut connection costs no more than this.
BLOCK_BYTES = 8 * 2**20
#: Requests under way at one time: a server answers many at once faster than one.
STREAMS = 8
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

    Raises:
        UsageError: fsspec or the package for this kind of URL is not installed.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._is_web = self.url.partition("://")[0].lower() in WEB
        self._fs, self._root = _open(self.url)

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
        return call_with_retries(self.url_of(name), lambda: bytes(self._fs.cat_file(path, start=0, end=most)))

    def fetch(self, name: str, size: int, path: Path, transfer: Transfer) -> str:
        """Write the first `size` bytes of a file, in blocks, to a local one, down to the disk; return their digest.

        Several blocks come at a time. If one fails, only that block is asked for again. An existing local file is
        overwritten.

        Raises:
            FileNotFoundError, RemoteError: as `read`, and if the transfer is stopped.
        """
        lock, digest = threading.Lock(), xxhash.xxh3_128()

        def fetch(start: int) -> None:
            ask = partial(self._block, name, start, min(start + BLOCK_BYTES, size), transfer)
            block = call_with_retries(self.url_of(name), ask, transfer.pause)
            transfer.pause(0)
            with lock:
                file.seek(start)
                file.write(block)
            transfer.add(len(block))

        # Not truncated first: its size is what the cache has set aside for it.
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666), "r+b") as file:
            if size > BLOCK_BYTES:
                transfer.call_together([partial(fetch, start) for start in range(0, size, BLOCK_BYTES)])
            elif size:
                fetch(0)
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
        return call_with_retries(self.url_of(name), partial(self._look_up, self._path(name)))

    def files(self, pattern: str = "") -> dict[str, RemoteFile]:
        """Return all files below the folder, or those that match a pattern: path below it to size and tag.

        Raises:
            RemoteError: they cannot be listed, or the size of one is unknown.
        """
        try:
            listing = call_with_retries(self.url_of(pattern), partial(self._listing, pattern))
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
        except FileNotFoundError as error:
            raise RemoteError(f"{self.url}: there is no such bucket or folder: {text_of(error)}") from None
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
                raise OSError(f"{sent.size:,} bytes arrived, {size:,} were sent")
            return sent

        try:
            return call_with_retries(self.url_of(name), put)
        except FileNotFoundError as error:
            raise RemoteError(f"{self.url}: there is no such bucket or folder: {text_of(error)}") from None

    def remove(self, name: str) -> None:
        """Remove a file, if there is one.

        Raises:
            RemoteError: it cannot be removed.
        """
        with contextlib.suppress(FileNotFoundError):
            call_with_retries(self.url_of(name), partial(self._fs.rm_file, self._path(name)))

    def _look_up(self, path: str) -> RemoteFile:
        self._fs.invalidate_cache()
        info = self._fs.info(path)
        if info["type"] != "file":
            raise FileNotFoundError(path)
        return _file_of(info, path)

    def _block(self, name: str, start: int, stop: int, transfer: Transfer) -> bytes:
        path = self._path(name)
        if getattr(self._fs, "async_impl", False):
            request = self._fs._cat_file(path, start=start, end=stop)
            data = bytes(transfer.wait_for(asyncio.run_coroutine_threadsafe(request, self._fs.loop)))
        else:
            data = bytes(self._fs.cat_file(path, start=start, end=stop))
        if len(data) > stop - start:
            raise RemoteError(f"{self.url_of(name)}: its server does not send parts of a file; copy it by other means")
        if len(data) < stop - start:
            raise OSError(f"{start + len(data):,} bytes came, but {stop:,} are expected")
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


def _file_of(info: Mapping[str, Any], name: str) -> RemoteFile:
    if info.get("size") is None:
        raise RemoteError(f"{name}: its server does not say how large it is; download it by other means")
    tag = next((str(info[key]) for key in _TAGS if info.get(key) is not None), "")
    return RemoteFile(int(info["size"]), tag)
