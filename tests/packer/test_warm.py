"""Putting a dataset into memory: all of it, in large pages where the system has them, and nothing else changes."""

from __future__ import annotations

import errno
import mmap
import os
import re
from pathlib import Path

import numpy as np
import pytest

from packer import warm as warming
from packer.convert import convert
from packer.errors import DamagedError, DatasetError
from packer.warm import warm, warm_file
from packer.watcher import Watcher


@pytest.fixture
def packed(on_disk: Path) -> Path:
    """Two shards of 12 MB, on the disk."""
    rng = np.random.default_rng(0)
    samples = [{"x": rng.integers(0, 256, 60_000, np.uint8)} for _ in range(400)]
    return Path(convert(samples, on_disk / "packed", codec="none", shard_size=12_000_000).path)


def shards(packed: Path) -> list[Path]:
    return sorted((packed / "shards").glob("*.lmdb"))


def large_bytes(path: Path, drops: bool) -> int:
    """How much of a file lies in large pages, once it was read through a map; `drops` it first."""
    with path.open("rb+") as file:
        if drops:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as memory:
            memory.madvise(mmap.MADV_HUGEPAGE)
            memory[:: mmap.PAGESIZE]
            maps = Path("/proc/self/smaps").read_text().partition(str(path))[2]
    told = re.search(r"FilePmdMapped: +(\d+) kB", maps[: maps.index("VmFlags")])
    return int(told[1]) * 1024 if told else 0


@pytest.mark.parametrize("call", [22, 9999])
def test_all_of_it_is_read_and_stays_as_it_was(packed: Path, monkeypatch: pytest.MonkeyPatch, call: int) -> None:
    """The progress counts every byte of every shard, also where a kernel does not know the call that reads pages."""
    monkeypatch.setattr(warming, "_MADV_POPULATE_READ", call)
    before = [path.read_bytes() for path in shards(packed)]
    told: list[tuple[int, int]] = []
    nbytes = warm(packed, Watcher(done=lambda samples, nbytes: told.append((samples, nbytes))))
    assert len(before) == 2
    assert nbytes == sum(map(len, before)) == sum(read for _, read in told)
    assert [path.read_bytes() for path in shards(packed)] == before


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="Linux alone has such pages for files")
def test_small_pages_become_large_ones(packed: Path) -> None:
    """Where the system can: shards that lie in memory in small pieces are dropped, and read into large ones."""
    path = shards(packed)[0]
    if not large_bytes(path, drops=True):
        pytest.skip("this file system reads files in small pages")
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while file.read(4096):
            pass
    warm(packed)
    assert large_bytes(path, drops=False) > 0.6 * path.stat().st_size


def test_shards_that_are_open_stay_so(packed: Path) -> None:
    """Who reads the dataset meanwhile sees the same bytes; pages in use are not dropped."""
    path = shards(packed)[0]
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as memory:
        before = memory[:]
        warm(packed)
        assert memory[:] == before == path.read_bytes()


def test_an_empty_file(tmp_path: Path) -> None:
    """It has nothing to read, and no map."""
    (tmp_path / "empty").touch()
    warm_file(tmp_path / "empty")


def test_a_disk_that_fails(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said in words, and which shard it is."""

    def read(*_: object) -> int:
        raise OSError(errno.EFAULT, "Bad address")

    monkeypatch.setattr(warming, "warm_file", read)
    with pytest.raises(DamagedError, match=r"00000\.lmdb cannot be read: the disk does not give all of it"):
        warm(packed)


def test_what_is_not_there(packed: Path, tmp_path: Path) -> None:
    """A folder that is no dataset, and a shard that is cut short or gone, are named."""
    with pytest.raises(DatasetError, match="not a packed dataset"):
        warm(tmp_path)
    os.truncate(shards(packed)[1], 4096)
    with pytest.raises(DamagedError, match=r"00001\.lmdb: 4,096 bytes, 12,"):
        warm(packed)
    shards(packed)[1].unlink()
    with pytest.raises(DamagedError, match=r"00001\.lmdb: it is missing"):
        warm(packed)
