"""A real S3 server on loopback, with a proxy before it that counts what is asked for and puts failures in."""

from __future__ import annotations

import contextlib
import functools
import http.client
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import botocore.loaders
import fsspec
import numpy as np
import pytest
from made_datasets import make_plain

from packer.format import manifest as manifests
from packer.remote import retries, store
from packer.writer import DatasetWriter

Fault = Callable[["Handler", int, list[tuple[str, str]], bytes], None]


class Proxy(ThreadingHTTPServer):
    """Passes requests on to `port`, but for the faults planned.

    Attributes:
        asked: method and path of every request, in order.
        halfway: set when an answer stalls; it goes on when `go_on` is set, or at last by itself: then `gone_on` is set.
        faults: by the end of a path, what its next GETs (or PUTs) are answered with, in turn; None passes one on.
    """

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.target = port
        self.lock = threading.Lock()
        self.clear()

    def clear(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.halfway, self.go_on, self.gone_on = threading.Event(), threading.Event(), threading.Event()
        self.faults: dict[tuple[str, str], list[Fault | None]] = {}

    def plan(self, end: str, *faults: Fault | None, method: str = "GET") -> None:
        self.faults[method, end] = list(faults)

    def note(self, method: str, path: str) -> Fault | None:
        with self.lock:
            self.asked.append((method, path))
            for (wanted, end), faults in self.faults.items():
                if method == wanted and path.endswith(end) and faults:
                    return faults.pop(0)
        return None

    def gets(self, end: str, wanted: str = "GET") -> int:
        return sum(method == wanted and path.endswith(end) for method, path in self.asked)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = self.path.partition("?")[0]
        fault = self.server.note(self.command, path)
        status, headers, data = 500, list[tuple[str, str]](), b""
        if fault is None or self.command == "GET":
            target = http.client.HTTPConnection("127.0.0.1", self.server.target, timeout=100)
            with contextlib.closing(target) as connection:
                connection.request(self.command, self.path, body or None, dict(self.headers))
                answer = connection.getresponse()
                status, headers, data = answer.status, answer.getheaders(), answer.read()
        (fault or Handler.pass_on)(self, status, headers, data)

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = handle_any  # noqa: N815

    def begin(self, status: int, headers: list[tuple[str, str]], size: int) -> None:
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in ("connection", "content-length", "transfer-encoding", "date", "server"):
                self.send_header(name, value)
        kept = {name.lower(): value for name, value in headers}
        self.send_header("Content-Length", kept.get("content-length", "0") if self.command == "HEAD" else str(size))
        self.send_header("Connection", "close")  # no thread is left waiting for another request
        self.end_headers()

    def pass_on(self, status: int, headers: list[tuple[str, str]], data: bytes) -> None:
        self.begin(status, headers, len(data))
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


def half(handler: Handler, status: int, headers: list[tuple[str, str]], data: bytes) -> bytes:
    """Half of the bytes come at once; the others are returned."""
    handler.begin(status, headers, len(data))
    handler.wfile.write(data[: len(data) // 2])
    handler.wfile.flush()
    return data[len(data) // 2 :]


def cut(handler: Handler, *answer: Any) -> None:
    """The connection breaks halfway."""
    half(handler, *answer)
    handler.connection.close()


def busy(handler: Handler, *_: Any) -> None:
    """503, as S3 answers where too much is asked of it."""
    text = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
    handler.pass_on(503, [("Content-Type", "application/xml")], text)


def slow(handler: Handler, *answer: Any) -> None:
    """The other half comes when nobody waits for it any more, but has asked anew."""
    path = handler.path.partition("?")[0]
    asked, rest = handler.server.gets(path), half(handler, *answer)
    deadline = time.monotonic() + 100
    while handler.server.gets(path) == asked and time.monotonic() < deadline:
        time.sleep(0.01)
    with contextlib.suppress(OSError):
        handler.wfile.write(rest)


def late(handler: Handler, *answer: Any) -> None:
    """The other half comes later, but within the time that an answer may take."""
    rest = half(handler, *answer)
    time.sleep(min(0.2, store.SECONDS / 2))
    handler.wfile.write(rest)


def corrupt(handler: Handler, status: int, headers: list[tuple[str, str]], data: bytes) -> None:
    """One bit of one byte is another."""
    middle = len(data) // 2
    kept = [(name, value) for name, value in headers if "checksum" not in name.lower()]
    handler.pass_on(status, kept, data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])


def stall(handler: Handler, *answer: Any) -> None:
    """After half the bytes nothing comes for long."""
    half(handler, *answer)
    handler.server.halfway.set()
    handler.server.go_on.wait(100)
    handler.server.gone_on.set()


@pytest.fixture(scope="session")
def _server() -> Iterator[Proxy]:
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"], stderr=subprocess.PIPE, text=True
    )
    proxy = None
    try:
        assert process.stderr is not None
        port = next(int(found[1]) for line in process.stderr if (found := re.search(r"127\.0\.0\.1:(\d+)", line)))
        threading.Thread(target=process.stderr.read, daemon=True).start()  # it writes a line for every request
        proxy = Proxy(port)
        threading.Thread(target=proxy.serve_forever, args=(0.05,), daemon=True).start()
        yield proxy
    finally:
        if proxy is not None:
            proxy.shutdown()
            proxy.server_close()
        process.terminate()
        process.wait(100)
        process.stderr.close()


@pytest.fixture(scope="session")
def _settings(_server: Proxy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_") or name.lower().endswith("_proxy")]:
            patch.delenv(name)
        nothing = str(tmp_path_factory.mktemp("aws") / "none")
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{_server.server_port}",
            "AWS_ACCESS_KEY_ID": "tests",
            "AWS_SECRET_ACCESS_KEY": "tests",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_CONFIG_FILE": nothing,
            "AWS_SHARED_CREDENTIALS_FILE": nothing,
            "AWS_EC2_METADATA_DISABLED": "true",
        }.items():
            patch.setenv(name, value)
        # Every client reads how the services of Amazon are spoken to: once is enough for all of them.
        patch.setattr("botocore.session.create_loader", functools.cache(botocore.loaders.create_loader))
        fsspec.filesystem("s3").mkdir("bucket")
        yield


@pytest.fixture
def s3(_server: Proxy, _settings: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The server: `proxy`, `faults` to plan, `fs` to look into the bucket, and `url`, an empty folder of the test's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    monkeypatch.setattr(store, "SECONDS", 60.0)
    for name, value in {"ATTEMPTS": 3, "PAUSE": 0.01, "PATIENCE": 0.0}.items():
        monkeypatch.setattr(retries, name, value)
    _server.clear()
    fs = fsspec.filesystem("s3")
    fs.invalidate_cache()
    faults = SimpleNamespace(cut=cut, busy=busy, slow=slow, late=late, corrupt=corrupt, stall=stall)
    yield SimpleNamespace(proxy=_server, fs=fs, url=f"s3://bucket/{tmp_path.name}", faults=faults)
    _server.go_on.set()
    _server.clear()


@pytest.fixture
def samples() -> list[dict[str, Any]]:
    """64 samples of a row of 512 floats and a label."""
    rng = np.random.default_rng(5)
    return [{"x": rng.normal(size=512).astype(np.float32), "label": np.int64(i)} for i in range(64)]


@pytest.fixture
def packed(samples: list[dict[str, Any]], tmp_path: Path) -> Path:
    """The samples as a packed dataset of four shards with names."""
    with DatasetWriter(tmp_path / "packed", codec="none", shard_size=16 * 2056) as writer:
        for number, sample in enumerate(samples):
            writer.add(sample, name=f"n{number:02}")
    assert len(manifests.read(tmp_path / "packed").shards) == 4
    return make_plain(tmp_path / "packed")


@pytest.fixture
def dataset(s3: Any, packed: Path) -> str:
    """The URL of the packed dataset in the bucket."""
    s3.fs.put(str(packed), s3.url + "/set", recursive=True)
    s3.fs.invalidate_cache()
    s3.proxy.clear()
    return f"{s3.url}/set"
