"""Writing back early: a hint to the kernel, which changes nothing that anybody reads."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import pytest

from packer.format import lmdb_appender
from packer.format.lmdb_appender import LmdbAppender


def is_open(name: str) -> bool:
    """Whether this process has a file of this name open, removed or not."""
    links = Path("/proc/self/fd").iterdir()
    # The descriptor of the folder itself is gone by the time it is asked for.
    return any(name in str(link.readlink()) for link in links if link.is_symlink())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux alone has sync_file_range")
def test_the_kernel_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call of the C library takes the file and succeeds; every commit makes one."""
    call, results = lmdb_appender._sync_file_range(), []
    monkeypatch.setattr(lmdb_appender, "_sync_file_range", lambda: lambda *given: results.append(call(*given)))
    file = LmdbAppender(tmp_path / "x.lmdb", 2**20)
    for number in range(3):
        file.put(b"%d" % number, bytes(10_000))
        file.commit()
    file.finish()
    assert results == [0] * 4


def test_without_the_call_nothing_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other systems, and C libraries that lack it, write when they see fit."""
    monkeypatch.setattr(lmdb_appender, "_sync_file_range", lambda: None)
    file = LmdbAppender(tmp_path / "x.lmdb", 2**20)
    file.put(b"a", b"b")
    file.finish()
    assert (tmp_path / "x.lmdb").stat().st_size > 0


def test_a_c_library_without_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked for, not taken for granted."""
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    lmdb_appender._sync_file_range.cache_clear()
    assert lmdb_appender._sync_file_range() is None
    lmdb_appender._sync_file_range.cache_clear()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
@pytest.mark.parametrize("end", ["finish", "abort"])
def test_the_file_is_let_go(tmp_path: Path, end: str) -> None:
    """Whether it is finished or given up."""
    file = LmdbAppender(tmp_path / "x.lmdb", 2**20)
    file.put(b"a", b"b")
    assert is_open("x.lmdb")
    getattr(file, end)()
    assert not is_open("x.lmdb")
