"""Files, folders and renames that survive a power cut; clear errors of writing."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import lmdb

from packer.errors import WriteError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

#: The file of a dataset that is locked while it is changed, and the ending of other such files. Never removed: another
#: process may have opened it.
LOCK = ".lock"
#: The ending of a file that is being written.
PARTIAL = ".partial"
#: Errors of file systems that have no locks.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
#: Errors of the system for what stands in place of a lock, in words.
_NO_FILES = {errno.ELOOP: "a link", errno.EISDIR: "a folder", errno.ENXIO: "no file"}
#: Advice by the error of the system; any other gets `_ADVICE`.
_ADVICE = "check its disk or choose another folder, then run again"
_ADVICE_BY_ERROR = {
    errno.ENOSPC: "free some space or choose another folder, then run again",
    errno.EDQUOT: "free some space or choose another folder, then run again",
    errno.ENOENT: "it or its folder is gone, removed by another command perhaps; run again, or choose another folder",
    errno.EROFS: "choose a folder on a file system that can be written",
    errno.EACCES: "choose a folder that you may write to",
    errno.EPERM: "choose a folder that you may write to",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ENOTDIR: "choose another folder",
    errno.EISDIR: "remove it",
    errno.ELOOP: "remove it",
    errno.ENXIO: "remove it",
    errno.EMFILE: "raise the limit of open files (`ulimit -n`), then run again",
    errno.ENFILE: "close other programs, then run again",
    errno.ENOMEM: "free some memory, then run again",
}
#: The same where the file system has bytes, but no room for one more file.
_ADVICE_OF_MANY_FILES = "its file system takes no more files: remove some or choose another folder, then run again"
#: If fewer bytes than this are free, a write that failed is taken for a full disk.
_HARDLY_ANY = 64 * 10**6
#: Errors of systems and file systems that cannot sync a folder, such as some on networks.
_NO_FOLDERS = (errno.EINVAL, errno.EBADF, errno.ENOTSUP, errno.ENOSYS)


@contextlib.contextmanager
def clear_errors(path: Path, verb: str = "written") -> Iterator[None]:
    """Turn errors of LMDB and the system while writing into one that names the file.

    Args:
        verb: what is done with the file, `written` or `removed`.

    Raises:
        WriteError: that cannot be done; the message says what to do.
    """
    try:
        yield
    except (lmdb.Error, OSError) as error:
        reason = getattr(error, "strerror", None) or str(error).removeprefix(f"{path}: ")
        number = getattr(error, "errno", None)
        with contextlib.suppress(OSError):
            # LMDB calls it an input/output error when the disk took only a part.
            if "Input/output error" in reason and shutil.disk_usage(path.parent).free < _HARDLY_ANY:
                number, reason = errno.ENOSPC, os.strerror(errno.ENOSPC)
        if number is None:  # LMDB passes on what the system says, and not its number
            number = next((number for number in _ADVICE_BY_ERROR if os.strerror(number) in reason), 0)
            reason = os.strerror(number) if number else reason
        advice = _ADVICE_BY_ERROR.get(number, _ADVICE)
        if number == errno.ENOSPC and _is_full_of_files(path.parent):
            advice = _ADVICE_OF_MANY_FILES
        if verb == "removed":
            advice = "allow that, then run again"
        raise WriteError(f"{path}: cannot be {verb}: {reason}; {advice}") from None


def _is_full_of_files(folder: Path) -> bool:
    """Return whether the file system of a folder has no room for one more file, however small."""
    with contextlib.suppress(OSError, AttributeError):  # Windows has none of this
        status = os.statvfs(folder)
        return status.f_files > 0 and status.f_favail == 0
    return False


@contextlib.contextmanager
def held_lock(path: Path, wait: bool) -> Iterator[bool]:
    """Hold the lock of a file within the block; it ends with its process.

    Args:
        wait: whether to wait for another process that holds it.

    Yields:
        False where the file system has no locks: another process may do the same thing at the same time.

    Raises:
        BlockingIOError: another process holds it, and `wait` is false.
        OSError: the file cannot be opened; or it is a link, which may lead to the lock of another dataset, or no file.
    """
    if fcntl is None:
        import filelock

        try:
            with filelock.FileLock(path).acquire(timeout=-1 if wait else 0):
                yield True
        except filelock.Timeout:
            raise BlockingIOError from None
        return
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        if error.errno not in _NO_FILES:
            raise
        raise OSError(error.errno, f"{path.name} is {_NO_FILES[error.errno]}") from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EISDIR, f"{path.name} is no file")
        is_held = flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield is_held
        if is_held:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # a process that was forked meanwhile has the descriptor, too
    finally:
        os.close(descriptor)


def flock(descriptor: int, operation: int) -> bool:
    """Lock an open file; return False where the file system has no locks.

    Raises:
        BlockingIOError: another process holds the lock, and `operation` is not to wait for it.
    """
    try:
        fcntl.flock(descriptor, operation)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return False
    return True


def draft_of(path: Path) -> Path:
    """Return a path beside another one, where it can be written before it is renamed; each call returns another."""
    return path.with_name(f"{path.name}.{secrets.token_hex(4)}{PARTIAL}")


@contextlib.contextmanager
def removed_if_stopped(draft: Path) -> Iterator[None]:
    """Remove a draft if the block that writes it, and puts it under its name, is left by an exception."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):  # the first error is the one to report
            draft.unlink(missing_ok=True)
        raise


def write_synced(path: Path, data: bytes, check: Callable[[], None] | None = None) -> None:
    """Write a file under a temporary name, down to the disk, then rename it: whatever happens it is old, new or absent.

    A file that is renamed before it is on the disk may come back empty after a power cut. The rename lasts once
    `sync_folder` has returned, which matters if something else leads to the file.

    Args:
        check: called right before the rename; may raise.

    Raises:
        WriteError: it cannot be written.
    """
    draft = draft_of(path)
    with removed_if_stopped(draft), clear_errors(path):
        with draft.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if check is not None:
            check()
        draft.replace(path)


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
