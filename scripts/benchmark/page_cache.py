"""Files of inputs, and what share of them is in memory; the rest is what `packer bench` has for it."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from packer.warm import disk_bytes, read_files, warm_file
from packer.warm import drop_files as drop

__all__ = ["disk_bytes", "drop", "files_of", "resident_share", "warm"]


def files_of(path: Path) -> list[Path]:
    """The file `path`, or all files under it."""
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]


def warm(files: Sequence[Path]) -> None:
    """Reads files through, so that they are in memory; shards that are no more, as `packer warm` does."""
    for path in files:
        if path.suffix == ".lmdb" and resident_share([path]) < 1:
            warm_file(path)
        else:
            read_files([path])


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
