"""Putting a dataset into memory: all of it, in large pages where the system has them, and nothing else changes."""

from __future__ import annotations

import errno
import mmap
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from packer import warm as warming
from packer.convert import convert
from packer.errors import DamagedError, DatasetError
from packer.sources.base import Progress
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
    told = re.search(r"FilePmdMapped: +(\d+) kB", maps[: maps.index("VmFlags")])
    return told is not None and int(told[1]) > 0


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


def test_a_small_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It fills no large page, and the system is not asked, which takes longer than reading it."""
    monkeypatch.delattr(warming, "_large_bytes")
    (tmp_path / "small").write_bytes(bytes(LARGE_PAGE - 1))
    assert warm_file(tmp_path / "small") == 0


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="files cannot be dropped on this system")
@pytest.mark.parametrize(
    ("found", "large", "reads"),
    [
        pytest.param([0, 0, 0], 0, 3, id="no large pages: only the first shard is read again"),
        pytest.param([0, 10, 0, 10], 20, 4, id="each becomes large"),
        pytest.param([10, 10], 20, 2, id="both are large"),
        pytest.param([10, 0, 10], 20, 3, id="the second becomes large"),
        pytest.param([0, 4, 0, 10], 14, 4, id="some stay small: the next is read again all the same"),
    ],
)
def test_what_is_read_again(
    packed: Path, monkeypatch: pytest.MonkeyPatch, found: list[int], large: int, reads: int
) -> None:
    """A shard in small pages, unless that brought nothing for one before it; the progress goes back meanwhile."""
    left, sizes, told = list(found), [], []

    def read(descriptor: int, progress: Progress) -> int:
        sizes.append(os.fstat(descriptor).st_size)
        progress(0, sizes[-1])
        return left.pop(0) * 2**20

    monkeypatch.setattr(warming, "_read", read)
    warmed = warm(packed, lambda samples, nbytes: told.append(nbytes))
    assert (warmed.large, len(sizes), left) == (large * 2**20, reads, [])
    assert sum(told) == warmed.nbytes


def test_a_kernel_that_does_not_know_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages are touched one by one then; other errors are those of the disk."""

    class Map:
        def __init__(self, number: int) -> None:
            self.number, self.touched = number, slice(0)

        def madvise(self, *_: int) -> None:
            raise OSError(self.number, "no")

        def __getitem__(self, pages: slice) -> bytes:
            self.touched = pages
            return b""

    old = Map(errno.EINVAL)
    warming._touch(old, 8192, 4096)  # type: ignore[arg-type]
    assert old.touched == slice(8192, 12288, mmap.PAGESIZE)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with pytest.raises(OSError, match="no"):
            warming._touch(Map(errno.EFAULT), 0, 1)  # type: ignore[arg-type]


def test_a_disk_that_fails(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said in words, and which shard it is."""

    def read(*_: object) -> int:
        raise OSError(errno.EFAULT, "Bad address")

    monkeypatch.setattr(warming, "_read", read)
    with pytest.raises(DamagedError, match=r"00000\.lmdb cannot be read: the disk does not give all of it"):
        warm(packed)


def test_a_shard_that_was_cut(packed: Path) -> None:
    """What is not there is not said to be in memory."""
    os.truncate(shards(packed)[1], 4096)
    with pytest.raises(DamagedError, match=r"00001\.lmdb: 4,096 bytes, 12,"):
        warm(packed)


def test_what_is_not_there(packed: Path, tmp_path: Path) -> None:
    """A folder that is no dataset, and a shard that is gone, are named."""
    with pytest.raises(DatasetError, match="not a packed dataset"):
        warm(tmp_path)
    shards(packed)[1].unlink()
    with pytest.raises(DamagedError, match=r"00001\.lmdb: it is missing"):
        warm(packed)
