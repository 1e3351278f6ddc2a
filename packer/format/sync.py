"""Files, folders and renames that survive a power cut; clear errors of writing."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import lmdb

from packer.errors import WriteError

#: If fewer bytes than this are free, a write that failed is taken for a full disk.
_HARDLY_ANY = 64 * 10**6
#: Errors of systems and file systems that cannot sync a folder, such as some on networks.
_NO_FOLDERS = (errno.EINVAL, errno.EBADF, errno.ENOTSUP, errno.ENOSYS)


@contextlib.contextmanager
def clear_errors(path: Path) -> Iterator[None]:
    """Turn errors of LMDB and the system while writing into a WriteError that names the file."""
    try:
        yield
    except (lmdb.Error, OSError) as error:
        reason = getattr(error, "strerror", None) or str(error).removeprefix(f"{path}: ")
        with contextlib.suppress(OSError):
            # LMDB calls it an input/output error when the disk took only a part.
            if "Input/output error" in reason and shutil.disk_usage(path.parent).free < _HARDLY_ANY:
                reason = os.strerror(errno.ENOSPC)
        raise WriteError(
            f"{path}: cannot be written: {reason}; free some space or choose another folder, then run again"
        ) from None


def write_synced(path: Path, data: bytes) -> None:
    """Write a file under a temporary name, down to the disk, then rename it: whatever happens it is old, new or absent.

    A file that is renamed before it is on the disk may come back empty after a power cut. The rename lasts once
    `sync_folder` has returned, which matters if something else leads to the file.

    Raises:
        WriteError: it cannot be written.
    """
    partial = path.with_name(f"{path.name}.partial")
    with clear_errors(path):
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it that are missing, so that they last.

    Raises:
        WriteError: it cannot be made.
    """
    with clear_errors(folder):
        missing = [place for place in (folder, *folder.parents) if not place.exists()]
        folder.mkdir(parents=True, exist_ok=True)
    for place in missing:
        sync_folder(place.parent)


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that what was made, renamed or removed in it survives a power cut, where folders can be synced.

    Raises:
        WriteError: the disk has an error.
    """
    with clear_errors(folder):
        try:
            fd = os.open(folder, os.O_RDONLY)
        except PermissionError:  # Windows, or a folder that may be written to and not be read
            return
        try:
            os.fsync(fd)
        except OSError as error:
            if error.errno not in _NO_FOLDERS:
                raise
        finally:
            os.close(fd)
