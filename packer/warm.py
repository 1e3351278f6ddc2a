"""Reads a dataset into memory, from beginning to end and in large pages, before random reads begin.

from packer.warm import warm
warm(Path("div2k.packed"))

The page cache holds a file in pieces, mostly of 4 KiB, and random reads look each piece up: see "Pages" in
docs/how/choices.md. Linux reads pieces of 2 MiB if a map asks for them and the file system can (ext4 from Linux 6.16
on, XFS earlier). A file keeps the pieces it was first read in, so files are dropped from memory first.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from collections.abc import Iterable
from pathlib import Path

from packer.codecs import compiled
from packer.errors import DamagedError
from packer.format import check_file
from packer.format import manifest as manifests
from packer.watcher import NOBODY, WARMING, Watcher

#: Bytes between two reports of progress.
_STEP = 2**26
#: Of Linux 5.14; Python's mmap does not name it.
_MADV_POPULATE_READ = 22


def warm(folder: Path, watcher: Watcher = NOBODY, again: bool = True) -> int:
    """Read all shards of the dataset in `folder`, and return how many bytes they have.

    Args:
        watcher: its step is `warming`, in bytes.
        again: whether to drop what lies in memory already, and read it again, in large pages.

    Raises:
        DatasetError: there is no packed dataset.
        DamagedError: a shard is missing, cannot be read, or has another size than it was written with.
    """
    manifest = manifests.read(folder)
    compiled.prepare(field.codec for field in manifest.fields)
    shards = manifest.shards
    watcher.step(WARMING, 0, sum(shard.bytes for shard in shards))
    for shard in shards:
        path = folder / shard.file
        try:
            check_file(path, shard)
            if again:
                drop_files([path])
            warm_file(path, watcher)
        except (OSError, ValueError) as error:  # ValueError: it was cut short while it was read
            reason = "the disk does not give all of it, or it was cut short while it was read"
            if isinstance(error, OSError) and error.errno != errno.EFAULT:
                reason = error.strerror or str(error)
            raise DamagedError(f"{path} cannot be read: {reason}; `packer verify` says what is damaged") from None
    return sum(shard.bytes for shard in shards)


def warm_file(path: Path, watcher: Watcher = NOBODY) -> None:
    """Read one file through a map that asks for large pages.

    Raises:
        OSError, ValueError: it cannot be read.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if not size:
            return
        with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as memory:
            if hasattr(mmap, "MADV_HUGEPAGE"):
                with contextlib.suppress(OSError):  # a kernel without such pages
                    memory.madvise(mmap.MADV_HUGEPAGE)
            for start in range(0, size, _STEP):
                nbytes = min(_STEP, size - start)
                _touch(memory, start, nbytes)
                watcher.done(0, nbytes)


def _touch(memory: mmap.mmap, start: int, nbytes: int) -> None:
    """Read pages of a map. If the kernel knows the call, a page that the disk cannot read is an OSError."""
    if hasattr(mmap, "MADV_HUGEPAGE"):  # Linux
        try:
            memory.madvise(_MADV_POPULATE_READ, start, nbytes)
            return
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
    memory[start : start + nbytes : mmap.PAGESIZE]  # a byte of each page


def drop_files(files: Iterable[Path]) -> None:
    """Drop files from memory, where the system can; pages that any process has mapped stay."""
    for path in files if hasattr(os, "posix_fadvise") else ():
        with path.open("rb") as file:
            with contextlib.suppress(OSError):  # a read-only file system
                os.fsync(file.fileno())  # pages that are not written yet cannot be dropped
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
