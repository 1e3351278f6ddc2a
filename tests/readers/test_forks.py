"""A forked child reads on, whatever the threads of its parent were at when it was forked."""

from __future__ import annotations

import faulthandler
import os
import subprocess
import sys
import textwrap
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packer.codecs import compiled
from packer.format import FieldSpec
from packer.writer import DatasetWriter
from readers import Loader, PackedDataset
from readers.source import source_of

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")

COUNT = 400


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Frames of several samples, of one shape and ragged; sample i holds i."""
    folder = tmp_path_factory.mktemp("forks") / "shared"
    fields = [FieldSpec(name="x", dtype="int32", shape=(33,)), FieldSpec(name="cloud", dtype="int32", shape=(None, 3))]
    with DatasetWriter(folder, fields, codec="lz4") as writer:
        for i in range(COUNT):
            sample = {"x": np.full(33, i, np.int32), "cloud": np.full((1 + i % 4, 3), i, np.int32)}
            writer.add(sample, name=f"s{i}")
    return folder


def in_child(work: Callable[[], object]) -> int:
    """Exit status of a forked child that does `work`: 0 if it came through, 1 if it failed or hung for a minute."""
    pid = os.fork()
    if not pid:
        status = 1
        try:
            faulthandler.dump_traceback_later(60, exit=True)
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def forked_while_held(lock: Any, work: Callable[[], object]) -> int:
    """The same, of a child that is forked while another thread holds a lock."""
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            done.wait(100)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(100)
    try:
        return in_child(work)
    finally:
        done.set()
        thread.join()


def check(ds: PackedDataset, step: int = 7) -> None:
    numbers = np.arange(COUNT)[::step]
    batch = ds[numbers]
    assert (batch["x"].numpy() == numbers[:, None]).all()
    assert not [
        (i, cloud)
        for i, cloud in zip(numbers.tolist(), batch["cloud"].to_list(), strict=True)
        if not (cloud == i).all()
    ]


@pytest.mark.parametrize("field", ["x", "cloud"])
def test_a_lock_on_decoded_frames_is_free_in_a_child(shared: Path, field: str) -> None:
    """Frames of several samples are decoded, kept and read in a child that was forked while a thread was at them."""
    ds = PackedDataset(shared)
    assert len(list(Loader(ds, 50, shuffle="block", threads=0))) == 8
    reader: Any = source_of(ds).opened.readers[field]
    assert forked_while_held(reader.places.cache.lock, lambda: check(ds)) == 0
    assert (
        forked_while_held(
            reader.places.cache.lock, lambda: list(Loader(ds, 50, shuffle="block", shuffle_window=300, threads=2))
        )
        == 0
    )
    check(ds)


def test_a_lock_on_shards_is_free_in_a_child(shared: Path) -> None:
    """So is that of a dataset which is fetched shard by shard."""

    class Here:
        folder = shared

        def fetch_shards(self, *_: Any) -> object:
            return object()

        def is_fetched(self, *_: Any) -> bool:
            return False

    ds: Any = PackedDataset(shared, ["x"])
    source_of(ds).mirror = Here()
    source_of(ds)._last_session = None

    def read() -> None:
        assert ds[[3, 300]]["x"][:, 0].tolist() == [3, 300]

    for lock in (source_of(ds).opened.shards._lock, source_of(ds).opened.places["x"]._lock):
        assert forked_while_held(lock, read) == 0
    read()


def test_a_fork_waits_for_a_thread_that_loads_the_loops(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else modules would be half imported in the child, for ever. It may load them itself, too."""
    monkeypatch.setattr(compiled, "loading", compiled.Loading(compiled.loading.module))
    ds = PackedDataset(shared)
    begun, loaded = threading.Event(), threading.Event()

    def load() -> None:
        with compiled._lock:
            begun.set()
            time.sleep(0.2)
            loaded.set()

    def read() -> None:
        assert loaded.is_set()
        assert compiled.loading.load() is not None
        check(ds)

    thread = threading.Thread(target=load)
    thread.start()
    assert begun.wait(100)
    assert in_child(read) == 0
    thread.join()
    assert compiled.loading.load() is not None


def test_slots_left_half_done_are_not_read(shared: Path) -> None:
    """A child trusts no slot that a thread of its parent may have been writing to."""
    ds = PackedDataset(shared)
    reader: Any = source_of(ds).opened.readers["x"]
    reader.keep(COUNT, 1)
    check(ds, 1)
    reader.places.cache.memory.fill(0)
    assert in_child(lambda: check(ds, 1)) == 0


def test_a_child_decodes_each_frame_once_an_epoch(shared: Path, decoded: list[int]) -> None:
    """Room that a loader asks for in a child is there, also where its parent had asked for as much before."""
    ds = PackedDataset(shared, fields=["x"])
    loader = Loader(ds, 20, shuffle="block", threads=0)
    list(loader)
    reader: Any = source_of(ds).opened.readers["x"]
    decoded.clear()
    frames = -(-COUNT // reader.field.frame.samples)

    def read() -> None:
        list(loader)
        assert len(decoded) == frames

    assert in_child(read) == 0


def test_nobody_waits_for_threads_that_stayed_behind(rows: Path) -> None:
    """Also if `readers` is imported after the fork: large batches are read without torch's threads."""
    code = f"""
        import faulthandler, os
        import torch
        torch.set_num_threads(2)
        (torch.ones(3000, 3000) + 1).sum()  # torch's threads, which stay behind
        pid = os.fork()
        from readers import Loader, PackedDataset
        if pid:
            raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        faulthandler.dump_traceback_later(20, exit=True)
        ds = PackedDataset({str(rows)!r})
        for _ in range(20):
            ds[torch.arange(20000) % 1000]
        assert sum(len(batch["y"]) for batch in Loader(ds, 20000, sampler=list(range(1000)) * 40)) == 40000
        os._exit(0)
    """
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)], timeout=100, check=False)
    assert done.returncode == 0
