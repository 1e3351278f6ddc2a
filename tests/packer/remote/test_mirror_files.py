"""One file from behind a URL into the cache: whole, on the disk before it has its name; the limit of the cache."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from pathlib import Path
from typing import Any

import fsspec
import pytest

from packer.errors import DatasetError
from packer.format import PARTIAL, FileEntry, file_digest
from packer.format import manifest as manifests
from packer.remote import Lease, Mirror, RemoteFolder, cache, default_cache, label, local_inputs
from packer.remote.cache import file_beside, is_whole
from packer.remote.mirror import fetch_all

DATA = bytes(range(256)) * 40


@pytest.fixture
def entry(tmp_path: Path) -> FileEntry:
    """A file behind `memory://set`, as a manifest has it."""
    fsspec.filesystem("memory").pipe_file("/set/shards/00000.lmdb", DATA)
    (tmp_path / "same").write_bytes(DATA)
    return FileEntry(file="shards/00000.lmdb", bytes=len(DATA), digest=file_digest(tmp_path / "same"))


def fetched(entry: FileEntry, folder: Path) -> bytes:
    fetch_all(RemoteFolder("memory://set"), [entry], folder)
    return (folder / entry.file).read_bytes()


def test_it_is_on_the_disk_before_it_has_its_name(tmp_path: Path, entry: FileEntry, disk_calls: Any) -> None:
    """A file of the right size is taken for whole, so its bytes reach the disk first."""
    assert fetched(entry, tmp_path / "cache") == DATA
    disk_calls.check_whole(tmp_path / "cache" / entry.file)


@pytest.mark.parametrize("left", [DATA[:-1], DATA + b"more", b""])
def test_a_file_of_another_size_is_fetched_again(tmp_path: Path, entry: FileEntry, left: bytes) -> None:
    """A file in the cache that is not as long as the manifest says is none."""
    target = tmp_path / "cache" / entry.file
    target.parent.mkdir(parents=True)
    target.write_bytes(left)
    assert not is_whole(tmp_path / "cache", entry)
    assert fetched(entry, tmp_path / "cache") == DATA
    assert is_whole(tmp_path / "cache", entry)


def test_a_temporary_file_that_is_too_long(tmp_path: Path, entry: FileEntry) -> None:
    """What an earlier fetch left is written over, and what it had more than the file is cut off."""
    partial = file_beside(tmp_path / "cache", entry, PARTIAL)
    partial.parent.mkdir(parents=True)
    partial.write_bytes(b"x" * (len(DATA) + 100))
    assert fetched(entry, tmp_path / "cache") == DATA
    assert not partial.exists()


def test_room_is_not_kept_for_a_file_that_came_meanwhile(
    tmp_path: Path, entry: FileEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread may be through with a file while room is made for it: nothing is left that counts twice."""
    place = cache.Cache(tmp_path / "cache", len(DATA))
    folder = place.datasets / "set"
    files = cache._files

    def meanwhile(datasets: Path) -> Any:
        fetched(entry, folder)
        return files(datasets)

    monkeypatch.setattr(cache, "_files", meanwhile)
    folder.mkdir(parents=True)
    place.reserve(folder, [entry])
    assert is_whole(folder, entry)
    assert not file_beside(folder, entry, PARTIAL).exists()


def test_the_manifest_is_on_the_disk_before_it_has_its_name(tmp_path: Path, packed: Path, disk_calls: Any) -> None:
    """A manifest that lies in the cache is taken for whole."""
    fsspec.filesystem("memory").pipe_file("/packed/manifest.json", (packed / "manifest.json").read_bytes())
    mirror, _, lease = Mirror.open("memory://packed", tmp_path / "cache")
    lease.close()
    disk_calls.check_whole(mirror.folder / "manifest.json")


def test_room_is_not_made_of_a_manifest_that_is_opened(tmp_path: Path, packed: Path) -> None:
    """From the moment that a dataset at a URL is opened, nobody who needs room in the cache removes its manifest."""
    data = (packed / "manifest.json").read_bytes()
    fsspec.filesystem("memory").pipe_file("/packed/manifest.json", data)
    mirror, manifest, lease = Mirror.open("memory://packed", tmp_path / "cache", len(data))
    assert manifest == manifests.read(mirror.folder)
    other = FileEntry(file="shards/00000.lmdb", bytes=len(data), digest="")
    with pytest.raises(DatasetError, match="what others have open leaves too little"):
        mirror.cache.reserve(mirror.cache.datasets / label("memory://other"), [other])
    assert (mirror.folder / "manifest.json").exists()
    lease.close()
    mirror.cache.reserve(mirror.cache.datasets / label("memory://other"), [other])
    assert not (mirror.folder / "manifest.json").exists()


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, packed: Path) -> None:
    """Where a file is in the place of its folder, say."""
    fsspec.filesystem("memory").pipe_file("/packed/manifest.json", (packed / "manifest.json").read_bytes())
    (tmp_path / "cache").touch()
    with pytest.raises(
        DatasetError, match=f"{tmp_path}/cache/.*: the cache cannot be written: Not a directory; make room there"
    ):
        Mirror.open("memory://packed", tmp_path / "cache")


# ---------------------------------------------------------------- the cache


def test_what_is_on_its_way_counts(tmp_path: Path) -> None:
    """Room that is set aside for a file is not given to another, until whoever fetched it is gone."""
    place, entry = cache.Cache(tmp_path, 150), FileEntry(file="shards/00000.lmdb", bytes=100, digest="0" * 32)
    first, second = place.datasets / label("memory://first"), place.datasets / label("memory://second")
    lease, other = Lease(first), Lease(second)
    place.reserve(first, [entry])
    with pytest.raises(DatasetError, match="may hold 150 bytes, and what others have open leaves too little: 50 more"):
        place.reserve(second, [entry])
    place.reserve(first, [entry])  # its own room is not counted twice
    lease.close()
    place.reserve(second, [entry])
    with pytest.raises(DatasetError):
        cache.Cache(tmp_path, 149).reserve(first, [entry])
    other.close()


def test_what_others_keep_in_the_cache_stays(tmp_path: Path) -> None:
    """Files that were not fetched are neither removed nor counted, however old they are."""
    place, entry = cache.Cache(tmp_path, 100), FileEntry(file="shards/00000.lmdb", bytes=100, digest="0" * 32)
    ours, old = place.datasets / label("memory://ours"), place.datasets / label("memory://old")
    names = ("mine/manifest.json", "mine/shards/00000.lmdb", "mine/1.png", "1.png", f"{old.name}/notes.txt")
    foreign = [place.datasets / name for name in names]
    for path in (*foreign, old / entry.file):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(100))
        os.utime(path, (1, 1))
    with contextlib.closing(Lease(ours)):
        place.reserve(ours, [entry])
    assert not (old / entry.file).exists()
    assert [path.stat().st_mtime for path in foreign] == [1] * len(foreign)
    assert sorted(path.name for path in (place.datasets / "mine").iterdir()) == ["1.png", "manifest.json", "shards"]


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the user's folder of caches, by the convention of XDG."""
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert default_cache() == Path("/somewhere/lmdb-packer")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert default_cache() == Path("/home/someone/.cache/lmdb-packer")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="locks of files are others there")
def test_a_cache_without_locks(tmp_path: Path, packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the file system has none, a dataset is fetched and read as elsewhere, and nothing is removed."""

    def flock(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr("fcntl.flock", flock)
    kept = tmp_path / "cache"
    limit = sum(path.stat().st_size for path in packed.rglob("*.lmdb"))
    first, manifest, lease = Mirror.open(f"file://{packed}", kept, limit)
    first.fetch_shards(manifest).close()
    lease.close()
    assert first.is_fetched(manifest)
    assert not list(kept.rglob(f"*{PARTIAL}"))
    shutil.copytree(packed, tmp_path / "other")
    second, _, _ = Mirror.open(f"file://{tmp_path / 'other'}", kept, limit)
    with pytest.raises(DatasetError, match="has no locks"):
        second.fetch_shards(manifest)
    monkeypatch.setenv("XDG_CACHE_HOME", str(kept))
    fsspec.filesystem("memory").pipe_file("/sources/a.txt", b"a")
    (folder,), _ = local_inputs(["memory://sources"])
    assert (Path(folder) / "a.txt").read_bytes() == b"a"


def test_the_dataset_at_the_url_stays(tmp_path: Path, packed: Path) -> None:
    """What a full cache removes is a copy: all files of a dataset are still at its URL, and come again."""
    before = {path: path.read_bytes() for path in packed.rglob("*") if path.is_file()}
    shutil.copytree(packed, tmp_path / "other")
    limit = sum(path.stat().st_size for path in packed.rglob("*.lmdb"))
    for place in (packed, tmp_path / "other", packed):
        mirror, manifest, lease = Mirror.open(f"file://{place}", tmp_path / "cache", limit)
        mirror.fetch_shards(manifest).close()
        assert mirror.is_fetched(manifest)
        lease.close()
    assert {path: path.read_bytes() for path in packed.rglob("*") if path.is_file()} == before
