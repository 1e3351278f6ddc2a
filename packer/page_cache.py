"""Files in memory or not: reads them through, takes them out of memory, and counts what comes from the disk."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Iterable
from pathlib import Path

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_BUFFER_BYTES = 2**20
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


def read_files(files: Iterable[Path]) -> None:
    """Read files through, so that they are in memory."""
    buffer = bytearray(_BUFFER_BYTES)
    for path in files:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def disk_bytes() -> int:
    """Return the bytes that this process and its workers have read from the disk so far; 0 if nothing tells."""
    children = sum(_disk_bytes(str(child.pid)) or 0 for child in multiprocessing.active_children())
    own = _disk_bytes("self")
    if own is None:
        own = resource.getrusage(resource.RUSAGE_SELF).ru_inblock * _BLOCK if resource else 0
    return own + children


def _disk_bytes(process: str) -> int | None:
    try:
        lines = Path(f"/proc/{process}/io").read_text().splitlines()
    except OSError:
        return None
    return int(dict(line.split(": ") for line in lines)["read_bytes"])
