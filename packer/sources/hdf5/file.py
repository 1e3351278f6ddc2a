"""Opens HDF5 files for reading, and turns whatever libhdf5 raises into a SourceError that says where."""

from __future__ import annotations

import errno
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py

from packer.errors import SourceError
from packer.sources.hdf5.signature import what_it_is

#: All that h5py has been seen to raise on damaged files. No MemoryError: whoever keeps the limits says which one it is.
FAULTS = (OSError, RuntimeError, ValueError, TypeError, LookupError, ArithmeticError, SystemError)
#: How libhdf5 itself says that it gets no memory.
_NO_MEMORY = re.compile(r"memory allocation failed|image null after H5MM_realloc")
_TRUNCATED = re.compile(r"truncated file: eof = (\d+), .*stored_eof = (\d+)")


@contextmanager
def faults_named(path: str, doing: str) -> Iterator[None]:
    """Turns h5py's errors into `SourceError(path: doing failed: why)`, and keeps its warnings quiet.

    Raises:
        SourceError: for each of them.
        MemoryError: there is not enough memory, or a limit allows no more.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except FAULTS as error:
        if _NO_MEMORY.search(str(error)):
            raise MemoryError(plain(error)) from error
        raise SourceError(f"{doing} failed: {plain(error)}", path) from error


def plain(error: BaseException) -> str:
    """The message of an error of libhdf5 in one line, without its word on synchronous calls."""
    text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    lines = text.splitlines()
    return (lines[0] if lines else type(error).__name__).replace("synchronously ", "")


@contextmanager
def opened(path: str) -> Iterator[h5py.File]:
    """The file, open for reading and closed behind the block.

    Raises:
        SourceError: it is missing, no HDF5 file, cut short, or being written by somebody.
    """
    file = _open(path)
    try:
        yield file
    finally:
        file.close()


def _open(path: str) -> h5py.File:
    try:
        if Path(path).is_dir():
            raise SourceError("is a folder, an HDF5 file was expected", path)
        if not h5py.is_hdf5(path):
            raise SourceError(what_it_is(path), path)
        return _open_locked(path)
    except FileNotFoundError:
        raise SourceError("does not exist", path) from None
    except PermissionError:
        raise SourceError("may not be read: permission denied", path) from None
    except FAULTS as error:
        raise SourceError(_why_not(error), path) from error


def _open_locked(path: str) -> h5py.File:
    """Opens with the library's own locking, which finds out a writer; without where the file system has none."""
    try:
        return h5py.File(path, "r")
    except OSError as error:
        held = f"errno = {errno.EAGAIN}," in str(error)
        if "unable to lock file" not in str(error) or held:
            raise
        return h5py.File(path, "r", locking=False)


def _why_not(error: BaseException) -> str:
    text = plain(error)
    cut = _TRUNCATED.search(text)
    if cut:
        return f"is cut short: it holds {int(cut[1]):,} bytes, its header says {int(cut[2]):,}; copy it again"
    if "unable to lock file" in text:
        return "is being written by another program: close it there first"
    if "already open for write" in text:
        return "was not closed by its writer: wait for the writer, or clear the mark with `h5clear -s FILE`"
    return f"cannot be opened as HDF5: {text}"
