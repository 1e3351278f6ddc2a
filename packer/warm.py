"""Puts a dataset into memory before it is read in random order: from its beginning to its end, in large pages.

from packer.warm import warm
warm(Path("div2k.packed"))

The page cache holds a file in the pieces in which it was written or first read, mostly of 4 KiB, and a processor that
jumps about looks each of them up: see "Pages" in docs/benchmark.md.
Linux reads larger ones if a map asks for them and the file system can (ext4 from Linux 6.16 on, XFS earlier), and
some kernels join smaller ones (`MADV_COLLAPSE`, see madvise(2)).
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import multiprocessing
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from packer.errors import DamagedError
from packer.format import manifest as manifests
from packer.format.manifest import check_file
from packer.sources.base import Progress, no_progress

#: Bytes between two reports of progress.
_STEP = 2**26
#: A file that has this share of the large pages that it could fill has as many as it will get.
_ENOUGH = 0.8
_LARGE_PAGE = 2**21
#: Of Linux 5.14 and 6.1; Python's mmap does not name them.
_MADV_POPULATE_READ, _MADV_COLLAPSE = 22, 25
_SMAPS = Path("/proc/self/smaps")
_ADVICE = "`packer verify` tells what is damaged"


@dataclass(frozen=True)
class Warmed:
    """What lies in memory now.

    Attributes:
        nbytes: of all shards.
        large: of these, in pages of 2 MiB.
    """

    nbytes: int
    large: int


def warm(folder: Path, progress: Progress = no_progress) -> Warmed:
    """Read all shards of the dataset in `folder`; those that lie there in small pages are dropped and read again.

    If that brings no large ones, the other shards stay as they are.

    Args:
        progress: called with 0 and the bytes read since the last call; below 0 if they are read again.

    Raises:
        DatasetError: there is no packed dataset.
        DamagedError: a shard is missing, cannot be read, or has not the size that it was written with.
    """
    nbytes = large = 0
    drops = can_drop()
    for shard in manifests.read(folder).shards:
        path = folder / shard.file
        try:
            check_file(path, shard)
            found, drops = _warm_file(path, drops, progress)
        except (OSError, ValueError) as error:  # ValueError: it became shorter meanwhile
            raise DamagedError(f"{path} cannot be read: {_reason(error)}; {_ADVICE}") from None
        nbytes, large = nbytes + shard.bytes, large + found
    return Warmed(nbytes, large)


def warm_file(path: Path) -> int:
    """Read one file; return how many of its bytes lie in large pages.

    Raises:
        OSError, ValueError: it cannot be read.
    """
    return _warm_file(path, can_drop(), no_progress)[0]


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, OSError) and error.errno != errno.EFAULT:
        return f"{error.strerror}"
    return "the disk does not give all of it, or it was cut short meanwhile"


def _warm_file(path: Path, drops: bool, progress: Progress) -> tuple[int, bool]:
    """Return the bytes in large pages, and whether to drop the next file, too, if it lies in small ones."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    try:
        large = _read(descriptor, progress)
        size = os.fstat(descriptor).st_size
        if not drops or large >= _ENOUGH * (size // _LARGE_PAGE * _LARGE_PAGE):
            return large, drops
        drop(descriptor)
        progress(0, -size)
        again = _read(descriptor, progress)
        return again, again > 0
    finally:
        os.close(descriptor)


def _read(descriptor: int, progress: Progress) -> int:
    """Read a file through a map; return how many bytes lie in large pages."""
    size = os.fstat(descriptor).st_size
    if not size:
        return 0
    steps = [(at, min(_STEP, size - at)) for at in range(0, size, _STEP)]
    with mmap.mmap(descriptor, size, access=mmap.ACCESS_READ) as memory:
        _advise(memory, getattr(mmap, "MADV_HUGEPAGE", None), 0, size)
        for at, nbytes in steps:
            _touch(memory, at, nbytes)
            progress(0, nbytes)
        if size < _LARGE_PAGE:  # it fills none, and asking takes longer than reading
            return 0
        if _large_bytes(memory) < _ENOUGH * (size // _LARGE_PAGE * _LARGE_PAGE):
            for at, nbytes in steps:
                if not _advise(memory, _MADV_COLLAPSE, at, nbytes):
                    break
        return _large_bytes(memory)


def _advise(memory: mmap.mmap, advice: int | None, at: int, nbytes: int) -> bool:
    """Return whether the kernel takes this advice; most join the pages of files that lie in memory alone."""
    if advice is None or not hasattr(mmap, "MADV_HUGEPAGE"):
        return False
    try:
        memory.madvise(advice, at, nbytes)
    except OSError:
        return False
    return True


def _touch(memory: mmap.mmap, at: int, nbytes: int) -> None:
    """Have pages of a map read; one that the disk cannot give is an OSError if the kernel knows the call."""
    try:
        if hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(_MADV_POPULATE_READ, at, nbytes)
            return
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    memory[at : at + nbytes : mmap.PAGESIZE]  # a byte of each page


def _large_bytes(memory: mmap.mmap) -> int:
    """Return how many bytes of a map lie in large pages; 0 if nothing tells."""
    array = np.frombuffer(memory, np.uint8)
    begin = f"{array.ctypes.data:x}-"
    del array  # a map that an array looks into cannot be closed
    try:
        maps = _SMAPS.read_text()
    except OSError:  # not Linux
        return 0
    told = maps.partition(f"\n{begin}")[2].partition("VmFlags")[0]  # the last line of a map
    return sum(int(kib) * 1024 for kib in re.findall(r"(?:File|Shmem)PmdMapped: +(\d+)", told))


try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

#: What ru_inblock counts in.
_BLOCK = 512


def can_drop() -> bool:
    """Return whether files can be taken out of memory on this system."""
    return hasattr(os, "posix_fadvise")


def drop(descriptor: int) -> None:
    """Take an open file out of memory; pages that any process has mapped stay."""
    with contextlib.suppress(OSError):  # a file system that is read alone
        os.fsync(descriptor)  # what was not written yet cannot be dropped
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def drop_files(files: Iterable[Path]) -> None:
    """Take files out of memory, as `drop` does."""
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            drop(descriptor)
        finally:
            os.close(descriptor)


def disk_bytes() -> int:
    """Return the bytes that this process and its workers have read from the disk so far; 0 if nothing tells."""
    return sum(map(_disk_bytes, ["self", *(str(child.pid) for child in multiprocessing.active_children())]))


def _disk_bytes(process: str) -> int:
    try:
        lines = Path(f"/proc/{process}/io").read_text().splitlines()
    except OSError:  # not Linux, or a worker that has ended
        knows = process == "self" and resource
        return resource.getrusage(resource.RUSAGE_SELF).ru_inblock * _BLOCK if knows else 0
    return int(dict(line.split(": ") for line in lines)["read_bytes"])
