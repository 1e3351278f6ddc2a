"""Processes that stream a dataset from a bucket into one small cache, and compare every batch with that of a folder."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import msgspec
import numpy as np
import torch
from cached import cached_bytes
from made_datasets import make_plain

from packer.errors import PackerError
from packer.format import manifest as manifests
from packer.writer import DatasetWriter
from readers import Loader, PackedDataset
from soaking import bucket

SHARDS, SAMPLES = 12, 16
#: Seconds in which a process must end.
_MOST_SECONDS = 60.0
#: Bytes of a manifest, which has its place in the cache before room is made for it.
_MANIFEST_BYTES = 8192

#: A context in which a process reads.
Within = Callable[[], contextlib.AbstractContextManager[object]]


class Reading(NamedTuple):
    """What the readers of one trial do.

    Attributes:
        place: folder of the trial; the bucket, the cache and notes are in it.
        url: of the dataset.
        sources: folders of the dataset's versions, as they are in the bucket or will be.
        ranks: processes that read, with one cache.
        limit: bytes that the cache may take.
        dataset, loader: arguments of `PackedDataset` and of `Loader`.
        block: bytes of a shard that are asked for at once.
    """

    place: Path
    url: str
    sources: list[Path]
    ranks: int
    limit: int
    dataset: dict[str, Any]
    loader: dict[str, Any]
    block: int

    @property
    def cache(self) -> Path:
        """Return the folder of the cache."""
        return self.place / "cache"

    @property
    def cached_bytes(self) -> int:
        """Return the bytes of all shards and tables in the cache."""
        return cached_bytes(self.cache)


class Reader:
    """A process that reads as one rank; it notes its state after every batch, and how it ended.

    Args:
        spans: what it reads, one after another: from a state on, or from the beginning if that is None, up to the epoch
            of this number.
        within: a context in which it reads.
    """

    def __init__(
        self,
        reading: Reading,
        rank: int,
        spans: Sequence[tuple[Mapping[str, Any] | None, int]],
        within: Within = contextlib.nullcontext,
    ) -> None:
        self.rank = rank
        self._notes = reading.place / f"notes-{rank}-{time.monotonic_ns()}"
        self._stderr = self._notes.with_suffix(".stderr")
        arguments = reading, rank, spans, self._notes, self._stderr, within
        self._process = get_context("fork").Process(target=_read, args=arguments, daemon=True)
        self._process.start()
        self._deadline = time.monotonic() + _MOST_SECONDS

    @property
    def is_alive(self) -> bool:
        """Return whether the process still reads.

        Raises:
            AssertionError: it hangs; it is killed then, and the message has the stack of each thread.
        """
        if self._process.is_alive() and time.monotonic() > self._deadline:
            self.send(signal.SIGABRT)  # faulthandler reports it
            self._process.join()
            raise AssertionError(f"rank {self.rank} hangs: {self._stderr.read_text()}")
        return self._process.is_alive()

    def send(self, kind: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        if self._process.is_alive() and self._process.pid is not None:
            os.kill(self._process.pid, kind)

    def close(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.join()
        self._process.close()

    @property
    def lines(self) -> list[Any]:
        """Return what the process noted: kind and value."""
        data = self._notes.read_bytes() if self._notes.exists() else b""
        return [msgspec.json.decode(line) for line in data.splitlines(keepends=True) if line.endswith(b"\n")]

    @property
    def states(self) -> list[Any]:
        """Return the state after each batch."""
        return [value for kind, value in self.lines if kind == "state"]

    def outcome(self, allowed: tuple[type[PackerError], ...] = (), kind: signal.Signals | None = None) -> str:
        """Return how the process ended: `right` if it read everything, or the name of an allowed error or the signal.

        Raises:
            AssertionError: it ended in another way.
        """
        self._process.join()
        status, (ending, value) = self._process.exitcode, (self.lines or [("", None)])[-1]
        words = self._stderr.read_text() if self._stderr.exists() else ""
        if ending == "done":
            assert status == 0 or kind, f"status {status} after all was read: {words}"
            return "right"
        if ending == "error":
            names, text = value
            assert {error.__name__ for error in allowed} & set(names), text
            assert status == 0, f"status {status}: {words}"
            assert "Traceback" not in words, words
            return str(names[0])
        assert kind, f"status {status}, {ending}: {value} {words}"
        is_interrupted = kind == signal.SIGINT and status == 1 and "KeyboardInterrupt" in words
        assert ending != "wrong", value
        assert is_interrupted or status == -kind, f"status {status} after {kind.name}: {words}"
        return kind.name


def _read(
    reading: Reading,
    rank: int,
    spans: Sequence[tuple[Mapping[str, Any] | None, int]],
    notes: Path,
    stderr: Path,
    within: Within,
) -> None:
    """Read spans of epochs as one rank, and compare every batch with that of the folder."""
    os.dup2(os.open(stderr, os.O_WRONLY | os.O_CREAT), 2)
    sys.stderr = os.fdopen(2, "w", closefd=False)
    faulthandler.enable(sys.stderr)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    descriptor = os.open(notes, os.O_WRONLY | os.O_CREAT)

    def note(kind: str, value: Any = None) -> None:
        os.write(descriptor, msgspec.json.encode([kind, value]) + b"\n")

    torch.set_num_threads(1)  # torch's threads do not survive a fork
    logging.disable(logging.WARNING)
    requests = mock.patch.multiple("packer.remote.store", SECONDS=bucket.SECONDS, BLOCK_BYTES=reading.block)
    patience = {"ATTEMPTS": bucket.ATTEMPTS, "PAUSE": 0.01, "PATIENCE": 0.0}
    try:
        with requests, mock.patch.multiple("packer.remote.retries", **patience), within():
            dataset = PackedDataset(reading.url, cache=reading.cache, cache_bytes=reading.limit, **reading.dataset)
            # The version that is in the bucket now, as a folder.
            source = next(path for path in reading.sources if manifests.read(path) == dataset.manifest)
            versions = dataset, PackedDataset(source, **reading.dataset)
            for state, epochs in spans:
                loaders = [Loader(each, rank=rank, world_size=reading.ranks, **reading.loader) for each in versions]
                for loader in loaders if state else ():
                    loader.load_state_dict(dict(state or {}))
                while loaders[0].epoch < epochs:
                    for batch, right in zip(*loaders, strict=True):
                        _check_equal(batch, right)
                        note("state", loaders[0].state_dict())
    except PackerError as error:
        note("error", [[parent.__name__ for parent in type(error).__mro__], traceback.format_exc()])
    except KeyboardInterrupt:
        raise
    except BaseException:
        note("wrong", traceback.format_exc())
        raise
    else:
        note("done")


def _check_equal(batch: Mapping[str, Any], right: Mapping[str, Any]) -> None:
    """Check that a batch has the values of another, bit for bit."""
    assert batch.keys() == right.keys()
    for name, value in batch.items():
        is_equal = torch.equal(value, right[name]) if isinstance(value, torch.Tensor) else value == right[name]
        assert is_equal, f"{name} of samples {right['label'].tolist()} is wrong"


def watch(reading: Reading, readers: Sequence[Reader], seconds: float = 1e9) -> None:
    """Wait for processes to end, or for a time.

    Raises:
        AssertionError: one of them hangs, or the cache is above its limit meanwhile.
    """
    deadline = time.monotonic() + seconds
    while sum(reader.is_alive for reader in readers) and time.monotonic() < deadline:
        nbytes = reading.cached_bytes
        assert nbytes <= reading.limit + _MANIFEST_BYTES, f"{nbytes:,} bytes in a cache of {reading.limit:,}"
        time.sleep(0.003)


@lru_cache
def dataset_of(folder: Path, version: int, codec: str, is_plain: bool) -> Path:
    """Write twelve shards of 16 samples; those of two versions differ in every value.

    Args:
        is_plain: files of all versions have the same names.
    """
    rng, path = np.random.default_rng(version), folder / f"{codec}-{version}-{is_plain}"
    with DatasetWriter(path, codec=codec, shard_size=SAMPLES * 3080) as writer:
        for number in range(SHARDS * SAMPLES):
            image = rng.integers(0, 256, (32, 32, 3), np.uint8)
            writer.add({"image": image, "label": np.int64(number + 1000 * version)}, name=f"n{version}{number:03}")
    assert len(manifests.read(path).shards) >= SHARDS
    return make_plain(path) if is_plain else path


@contextlib.contextmanager
def environment(port: int) -> Iterator[None]:
    """Let clients of S3 ask this port of the machine, and nobody else."""
    before = dict(os.environ)
    for name in [name for name in os.environ if name.startswith("AWS_") or name.lower().endswith("_proxy")]:
        del os.environ[name]
    os.environ |= {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "tests",
        "AWS_SECRET_ACCESS_KEY": "tests",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
