"""Files and renames that last, whatever happens to the power."""

from __future__ import annotations

import os
from pathlib import Path


def write_synced(path: Path, data: bytes) -> None:
    """Write a file under a temporary name, down to the disk, then rename it: whatever happens it is old, new or absent.

    A file that is renamed before it is on the disk may come back empty after a power cut.
    """
    partial = path.with_name(f"{path.name}.partial")
    with partial.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def sync_folder(folder: Path) -> None:
    """Make renames within a folder last; without effect if folders cannot be synced (Windows)."""
    try:
        fd = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(fd)
    except OSError:
        pass
    finally:
        os.close(fd)
