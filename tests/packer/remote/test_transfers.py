"""How far files that come from a URL are: told in bytes, by the thread that waits for them."""

from __future__ import annotations

import threading

import fsspec
import pytest

from packer.convert import convert
from packer.remote import RemoteFolder, Transfer
from packer.watcher import FETCHING, Watcher


@pytest.fixture
def memory(tmp_path, monkeypatch):
    """The file system behind `memory://`, and a cache of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return fsspec.filesystem("memory")


def test_what_is_fetched_is_told(memory, rows, tmp_path):
    """Up to all bytes, and no more, to the main thread; what is in the cache already is not told of again."""
    told = {}

    def look(name, done, total):
        assert threading.current_thread() is threading.main_thread()
        told.setdefault(name, []).append((done, total))

    memory.put(str(rows.path), "/moved/rows.h5")
    size = rows.path.stat().st_size
    convert(["memory://moved/rows.h5"], "memory://moved/set", workers=0, watcher=Watcher(step=look))
    assert told[FETCHING][-1] == (size, size)
    assert told[FETCHING] == sorted(told[FETCHING])
    told.clear()
    convert(["memory://moved/rows.h5"], tmp_path / "again", workers=0, watcher=Watcher(step=look))
    assert FETCHING not in told


def test_bytes_that_come_again_are_not_counted_twice():
    """What has to be fetched again is taken off; a thread that fails ends the waiting, and stops the others."""
    told = []
    transfer = Transfer(10, Watcher(step=lambda name, done, total: told.append((name, done, total))))

    def move(name):
        for nbytes in (6, -6, 10):
            transfer.add(nbytes)
        return name

    assert list(transfer.each(move, ["a"], 1)) == ["a"]
    assert told[-1] == (FETCHING, 10, 10)

    def fail(name):
        raise OSError(f"no {name}")

    transfer = Transfer(10)
    with pytest.raises(OSError, match="no a"):
        list(transfer.each(fail, ["a", "b"], 2))
    assert transfer.is_stopped


def test_settings_of_others_stay(memory, monkeypatch):
    """How often packer tries again is its own affair: file systems that others got from fsspec keep their settings."""
    monkeypatch.setattr(type(memory), "retries", 5, raising=False)
    RemoteFolder("memory://anything")
    assert fsspec.filesystem("memory").retries == 5
