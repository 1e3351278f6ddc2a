"""A bucket in a process of its own: a folder, served as S3 and as a web server do it, with faults in its answers."""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from soaking import start

#: Seconds that the readers of trials wait for the next bytes.
SECONDS = 0.4
#: How often the readers of trials ask for something.
ATTEMPTS = 3


class Bucket(ThreadingHTTPServer):
    """Answers GET from a folder.

    Args:
        end: faults are in answers about the files whose path ends with this.
        first: how many of these answers are as they should be before the faults begin.
        faults: how each of the next ones is wrong.
    """

    daemon_threads = True

    def __init__(self, folder: Path, end: str, first: int, faults: list[Callable[[Handler, bytes], None]]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder, self.end, self.first, self.faults = folder, end, first, list(reversed(faults))
        self.is_faulty = mmap.mmap(-1, 1)  # shared with the parent
        self.is_faulty[0] = 1
        self.owner = os.getpid()

    def answer_of(self, path: str) -> Callable[[Handler, bytes], None]:
        """Return how the next request for a file is answered."""
        if self.is_faulty[0] and path.endswith(self.end) and self.faults:
            self.first -= 1
            if self.first < 0:
                return self.faults.pop()
        return Handler.pass_on

    def service_actions(self) -> None:
        """End with the process that began this one."""
        if os.getppid() != self.owner:
            os._exit(1)

    def handle_error(self, *_: object) -> None:
        """Say nothing of readers that have gone."""


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: Bucket
    total = 0
    first = 0

    def do_GET(self) -> None:
        """Send the bytes of a file that the header Range asks for."""
        path = self.path.partition("?")[0].lstrip("/")
        answer = self.server.answer_of(path)
        try:
            data = (self.server.folder / path).read_bytes()
        except FileNotFoundError:
            self.send(404, b"<Error><Code>NoSuchKey</Code><Message>There is no such key.</Message></Error>")
            return
        first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
        self.total, self.first = len(data), int(first)
        answer(self, data[int(first) : int(last) + 1])

    def begin(self, status: int, size: int) -> None:
        """Send the head of an answer of so many bytes."""
        self.send_response(status)
        if status == 206:
            self.send_header("Content-Range", f"bytes {self.first}-{self.first + size - 1}/{self.total}")
        self.send_header("Content-Length", str(size))
        self.end_headers()

    def send(self, status: int, data: bytes) -> None:
        """Send a whole answer."""
        self.begin(status, len(data))
        self.wfile.write(data)

    def pass_on(self, data: bytes) -> None:
        """Send the bytes as they are."""
        self.send(206, data)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def busy(handler: Handler, _: bytes) -> None:
    """503, as S3 answers where too much is asked of it."""
    handler.send(503, b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>")


def cut(handler: Handler, data: bytes) -> None:
    """The connection breaks somewhere."""
    handler.begin(206, len(data))
    handler.wfile.write(data[: random.randrange(len(data))])


def refused(handler: Handler, _: bytes) -> None:
    """The connection breaks before the answer begins."""
    handler.close_connection = True


def slow(handler: Handler, data: bytes) -> None:
    """The second half comes when nobody waits for it any more."""
    handler.begin(206, len(data))
    handler.wfile.write(data[: len(data) // 2])
    time.sleep(2 * SECONDS)
    with contextlib.suppress(OSError):
        handler.wfile.write(data[len(data) // 2 :])


def late(handler: Handler, data: bytes) -> None:
    """The second half comes late, but in time."""
    handler.begin(206, len(data))
    handler.wfile.write(data[: len(data) // 2])
    time.sleep(SECONDS / 4)
    handler.wfile.write(data[len(data) // 2 :])


def flipped(handler: Handler, data: bytes) -> None:
    """One bit is another."""
    place = random.randrange(len(data))
    handler.pass_on(data[:place] + bytes([data[place] ^ 1 << random.randrange(8)]) + data[place + 1 :])


def zeros(handler: Handler, data: bytes) -> None:
    """The second half is zeros."""
    handler.pass_on(data[: len(data) // 2] + bytes(len(data) - len(data) // 2))


def short(handler: Handler, data: bytes) -> None:
    """The answer is whole, and has too few bytes."""
    handler.pass_on(data[: len(data) // 2])


def page(handler: Handler, _: bytes) -> None:
    """A page comes instead of the file, as from a proxy that asks for a password."""
    handler.send(200, b"<html>Please log in.</html>")


@contextlib.contextmanager
def serving(bucket: Bucket, seed: int) -> Iterator[None]:
    """Answer within the block, in another process."""

    def serve() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        random.seed(seed)
        bucket.serve_forever(0.05)

    pid = start(serve)
    bucket.socket.close()
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
