"""Files in memory or not: reading them through, dropping them, and how many bytes came from the disk."""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

_BUFFER = bytearray(2**20)


def files_of(path: Path) -> list[Path]:
    """The file `path`, or all files under it."""
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]


def warm(files: Iterable[Path]) -> None:
    """Reads files through, so that they are in memory."""
    for path in files:
        with path.open("rb", buffering=0) as file:
            while file.readinto(_BUFFER):
                pass


def drop(files: Iterable[Path]) -> None:
    """Takes files out of memory; pages that any process has mapped stay."""
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def resident_share(files: Sequence[Path]) -> float:
    """The share of the pages of files that is in memory, 0 to 1."""
    inside = total = 0
    for path in files:
        pages = _resident_pages(path)
        inside, total = inside + int(pages.sum()), total + len(pages)
    return inside / total if total else 0.0


def _resident_pages(path: Path) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    size = path.stat().st_size
    if not size:
        return np.zeros(0, np.bool_)
    libc = ctypes.CDLL(None, use_errno=True)
    pages = np.zeros(-(-size // mmap.PAGESIZE), np.uint8)
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as mapped:
        array = np.frombuffer(mapped, np.uint8)
        address = ctypes.c_void_p(array.ctypes.data)
        status = libc.mincore(address, ctypes.c_size_t(size), ctypes.c_void_p(pages.ctypes.data))
        del array
    if status:
        raise OSError(ctypes.get_errno(), f"mincore fails for {path}")
    return (pages & 1).astype(np.bool_)


def disk_bytes() -> int:
    """Bytes that this process and its worker processes have read from the disk so far; 0 where nothing tells."""
    processes = ["self", *(str(child.pid) for child in multiprocessing.active_children())]
    return sum(_disk_bytes(process) for process in processes)


def _disk_bytes(process: str) -> int:
    try:
        text = Path(f"/proc/{process}/io").read_text()
    except OSError:
        return 0
    counters = dict(line.split(": ") for line in text.splitlines())
    return int(counters["read_bytes"])
