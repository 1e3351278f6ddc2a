"""Opens HDF5 files for reading, and turns what libhdf5 raises into a SourceError that says where.

A file that is no HDF5 is named for what it is.
"""

from __future__ import annotations

import errno
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py

from packer.errors import SourceError
from packer.sources.files import HDF5_SIGNATURE

#: All that h5py has been seen to raise on damaged files. No MemoryError: whoever keeps the limits says which one it is.
FAULTS = (OSError, RuntimeError, ValueError, TypeError, LookupError, ArithmeticError, SystemError)
#: How libhdf5 itself says that it gets no memory.
_NO_MEMORY = re.compile(r"memory allocation failed|image null after H5MM_realloc")
_TRUNCATED = re.compile(r"truncated file: eof = (\d+), .*stored_eof = (\d+)")


@contextmanager
def faults_named(path: str, doing: str) -> Iterator[None]:
    """Turn h5py's errors into `SourceError(path: doing failed: why)`, and keep its warnings quiet.

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
    """Return the message of an error of libhdf5 in one line, without its word on synchronous calls."""
    text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    lines = text.splitlines()
    return (lines[0] if lines else type(error).__name__).replace("synchronously ", "")


@contextmanager
def opened(path: str) -> Iterator[h5py.File]:
    """Open a file for reading; it is closed after the block.

    Raises:
        SourceError: it is missing, no HDF5 file, cut short, or being written by somebody.
    """
    try:
        if Path(path).is_dir():
            raise SourceError("is a folder; an HDF5 file is expected", path)
        if not h5py.is_hdf5(path):
            raise SourceError(_what_it_is(path), path)
        file = _open_locked(path)
    except FileNotFoundError:
        raise SourceError("does not exist", path) from None
    except PermissionError:
        raise SourceError("may not be read: permission denied", path) from None
    except FAULTS as error:
        raise SourceError(_why_not(error), path) from error
    with file:
        yield file


def _open_locked(path: str) -> h5py.File:
    """Open with the library's own locking, which finds out a writer; without if the file system has none."""
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


# ---------------------------------------------------------------- other kinds of files

_LOOK_BYTES = 512

#: First bytes and what they mean; the advice says how to go on.
_OTHERS: tuple[tuple[bytes, str], ...] = (
    (b"version https://git-lfs", "a git-LFS pointer, not the data: run `git lfs pull` to fetch the file"),
    (b"CDF", "a NetCDF-3 file, not HDF5: rewrite it with `nccopy -k netCDF-4 IN OUT`"),
    (b"\x0e\x03\x13\x01", "an HDF4 file, not HDF5: rewrite it with `h4toh5 IN OUT`"),
    (b"MATLAB 5.0", "an old MATLAB file (version 5 to 7.2), not HDF5: save it in MATLAB with `-v7.3`"),
    (b"MATLAB 7.3", "a MATLAB 7.3 file whose HDF5 part is missing or damaged"),
    (b"\x89PNG", "a PNG image, not HDF5"),
    (b"\x93NUMPY", "a NumPy .npy file, not HDF5"),
    (b"PK\x03\x04", "a zip archive (.npz, .keras or the like), not HDF5"),
    (b"\x1f\x8b", "a gzip archive, not HDF5: unpack it with `gunzip`"),
    (b"\xfd7zXZ", "an xz archive, not HDF5: unpack it with `unxz`"),
    (b"BZh", "a bzip2 archive, not HDF5: unpack it with `bunzip2`"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive, not HDF5: unpack it with `unzstd`"),
)


def _what_it_is(path: str) -> str:
    """Return a phrase for a file without a usable HDF5 signature, such as `is an HDF4 file, not HDF5`.

    Raises:
        OSError: the file cannot be read.
    """
    with Path(path).open("rb") as file:
        head = file.read(_LOOK_BYTES)
    if not head:
        return "is empty (0 bytes); an HDF5 file is expected"
    for magic, meaning in _OTHERS:
        if head.startswith(magic):
            return f"is {meaning}"
    if head.lstrip().lower().startswith((b"<!doctype", b"<html")):
        return "is a web page, not HDF5: the download went wrong"
    if HDF5_SIGNATURE.startswith(head):
        return f"is cut short: it holds {len(head)} bytes of the HDF5 signature and nothing else"
    if not any(head):
        return f"is not an HDF5 file: its first {len(head)} bytes are all zero"
    return f"is not an HDF5 file: it begins with {head[:8]!r}, an HDF5 file with {HDF5_SIGNATURE!r}"
