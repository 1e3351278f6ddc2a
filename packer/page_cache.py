"""Taking files out of memory, so that they are read from the disk again."""

from __future__ import annotations

import contextlib
import os


def can_drop() -> bool:
    """Whether files can be taken out of memory on this system."""
    return hasattr(os, "posix_fadvise")


def drop(descriptor: int) -> None:
    """Takes an open file out of memory; pages that any process has mapped stay."""
    with contextlib.suppress(OSError):  # a file system that is read alone
        os.fsync(descriptor)  # what was not written yet cannot be dropped
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
