"""Files in memory or not: reading them through, dropping them, and how many bytes came from the disk."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterable
from pathlib import Path

from packer import page_cache

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_BUFFER_BYTES = 2**20
#: What ru_inblock counts in.
_BLOCK = 512


def warm(files: Iterable[Path]) -> None:
    """Reads files through, so that they are in memory."""
    buffer = bytearray(_BUFFER_BYTES)
    for path in files:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def drop(files: Iterable[Path]) -> None:
    """Takes files out of memory; pages that any process has mapped stay."""
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            page_cache.drop(descriptor)
        finally:
            os.close(descriptor)


def disk_bytes() -> int:
    """Bytes that this process and its workers have read from the disk so far; 0 where nothing tells."""
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
