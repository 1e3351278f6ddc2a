"""The limit of the cache, without a server."""

from __future__ import annotations

from pathlib import Path

import pytest

from packer.errors import DatasetError
from packer.format import FileEntry
from packer.remote import Lease, default_cache
from packer.remote.cache import Cache


def test_what_is_on_its_way_counts(tmp_path: Path) -> None:
    """Room that is set aside for a file is not given to another, until whoever fetched it is gone."""
    cache, entry = Cache(tmp_path, 150), FileEntry(file="shards/00000.lmdb", bytes=100, digest="0" * 32)
    first, second = cache.datasets / "first", cache.datasets / "second"
    lease, other = Lease(first), Lease(second)
    cache.reserve(first, [entry])
    with pytest.raises(DatasetError, match="may hold 150 bytes, and open datasets take too much of them: 50 more"):
        cache.reserve(second, [entry])
    cache.reserve(first, [entry])  # its own room is not counted twice
    lease.close()
    cache.reserve(second, [entry])
    with pytest.raises(DatasetError):
        Cache(tmp_path, 99 + 50).reserve(first, [entry])
    other.close()


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the user's folder of caches, by the convention of XDG."""
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert default_cache() == Path("/somewhere/lmdb-packer")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert default_cache() == Path("/home/someone/.cache/lmdb-packer")
