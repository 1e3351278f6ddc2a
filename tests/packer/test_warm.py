"""Putting a dataset into memory: all of it, in large pages where the system has them, and nothing else changes."""

from __future__ import annotations

import mmap
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from packer.convert import convert
from packer.errors import DamagedError, DatasetError
from packer.warm import warm, warm_file

LARGE_PAGE = 2**21


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """Two shards of 12 MB, on the disk."""
    rng = np.random.default_rng(0)
    samples = [{"x": rng.integers(0, 256, 60_000, np.uint8)} for _ in range(400)]
    return Path(convert(samples, tmp_path / "packed", codec="none", shard_size=12_000_000).path)


def shards(packed: Path) -> list[Path]:
    return sorted((packed / "shards").glob("*.lmdb"))


def large_pages_of(path: Path) -> bool:
    """Whether this system reads a file of this place into large pages, found out on a file of its own."""
    probe = path.with_name("probe")
    shutil.copyfile(path, probe)
    with probe.open("rb+") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as memory:
            memory.madvise(mmap.MADV_HUGEPAGE)
            memory[:: mmap.PAGESIZE]
            maps = Path("/proc/self/smaps").read_text().partition(str(probe))[2]
    probe.unlink()
    return "FilePmdMapped:         0 kB" not in maps[: maps.index("VmFlags")]


def test_all_of_it_is_read_and_stays_as_it_was(packed: Path) -> None:
    """The progress counts every byte of every shard."""
    before = [path.read_bytes() for path in shards(packed)]
    told: list[tuple[int, int]] = []
    warmed = warm(packed, lambda samples, nbytes: told.append((samples, nbytes)))
    assert len(before) == 2
    assert warmed.nbytes == sum(map(len, before)) == sum(nbytes for _, nbytes in told)
    assert 0 <= warmed.large <= warmed.nbytes
    assert [path.read_bytes() for path in shards(packed)] == before


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="Linux alone has such pages for files")
def test_small_pages_become_large_ones(packed: Path) -> None:
    """Where the system can: shards that lie in memory in small pieces are read anew, and a second time is as good."""
    if not large_pages_of(shards(packed)[0]):
        pytest.skip("this file system reads files in small pages")
    for path in shards(packed):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while file.read(4096):
                pass
    for _ in range(2):
        warmed = warm(packed)
        assert warmed.large > 0.6 * warmed.nbytes
        assert warmed.large % LARGE_PAGE == 0
    assert sum(map(warm_file, shards(packed))) == warmed.large


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
    assert warm_file(tmp_path / "empty") == 0


def test_what_is_not_there(packed: Path, tmp_path: Path) -> None:
    """A folder that is no dataset, and a shard that is gone, are named."""
    with pytest.raises(DatasetError, match="not a packed dataset"):
        warm(tmp_path)
    shards(packed)[1].unlink()
    with pytest.raises(DamagedError, match=r"00001\.lmdb cannot be read: No such file"):
        warm(packed)
