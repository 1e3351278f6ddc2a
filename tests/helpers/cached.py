"""The bytes that a cache takes."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from packer.format import LOCK, held_lock


def cached_bytes(cache: Path) -> int:
    """Return the bytes of all shards and tables in a cache, whole and under way, each counted once.

    Nothing is removed, and no room set aside, while the files are looked at one after another: else one that was just
    removed would count beside the one that took its room. While another process or thread does so, it is 0.
    """
    sizes = {}
    with contextlib.suppress(BlockingIOError, FileNotFoundError), held_lock(cache / LOCK, wait=False):
        for home in (cache / "datasets").glob("*-*"):
            for parent, folders, names in os.walk(home):
                folders.sort()  # a file may move on from `.fetching` to `shards` meanwhile
                for path in (Path(parent) / name for name in names if name.endswith((".lmdb", ".partial"))):
                    with contextlib.suppress(FileNotFoundError):
                        info = path.stat()
                        sizes[info.st_ino] = info.st_size
    return sum(sizes.values())
