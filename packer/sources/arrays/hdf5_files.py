"""Files of HDF5: opened, or named for what they are; errors of libhdf5 become a SourceError that says where."""

from __future__ import annotations

import errno
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

import h5py

from packer.errors import SourceError
from packer.sources.files import check_lasting, refuse_pointer, unreadable

#: All errors that h5py has been seen to raise on damaged files. MemoryError goes on to the caller, who knows the limit.
FAULTS = (OSError, RuntimeError, ValueError, TypeError, LookupError, ArithmeticError, SystemError)
#: How libhdf5 itself says that it gets no memory.
_NO_MEMORY = re.compile(r"memory allocation failed|image null after H5MM_realloc")
_TRUNCATED = re.compile(r"truncated file: eof = (\d+), .*stored_eof = (\d+)")


@contextmanager
def faults_named(path: str, doing: str) -> Iterator[None]:
    """Turn h5py's errors into `SourceError(path: doing failed: why)`, and keep its warnings quiet.

    Raises:
        SourceError: h5py raised an error.
        MemoryError: there is not enough memory, or a limit allows no more.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except FAULTS as error:
        if _NO_MEMORY.search(str(error)):
            raise MemoryError(plain(error)) from error
        raise unreadable(error, path, f"{doing} failed: {plain(error)}") from error


@contextmanager
def damage_ignored(path: str) -> Iterator[None]:
    """Ignore that something cannot be read, unless that passes."""
    try:
        yield
    except FAULTS as error:
        check_lasting(error, path)


def plain(error: BaseException) -> str:
    """Return the message of an error of libhdf5 in one line, without the word `synchronously`."""
    text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    lines = text.splitlines()
    return (lines[0] if lines else type(error).__name__).replace("synchronously ", "")


def open_file(path: str) -> h5py.File:
    """Open a file for reading.

    Raises:
        SourceError: it is missing, no HDF5 file, cut short, or being written by another program.
    """
    try:
        if not h5py.is_hdf5(path):
            raise SourceError(_what_it_is(path), path)
        return _open_locked(path)
    except FAULTS as error:
        is_of_system = isinstance(error, OSError) and error.errno in (errno.ENOENT, errno.EACCES)
        raise unreadable(error, path, "" if is_of_system else _why_not(error)) from error


def _open_locked(path: str) -> h5py.File:
    """Open with the library's own locking, which notices a writer; without it if the file system has no locks."""
    try:
        return h5py.File(path, "r")
    except OSError as error:
        is_locked = f"errno = {errno.EAGAIN}," in str(error)
        if "unable to lock file" not in str(error) or is_locked:
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


#: How files of MATLAB begin that are HDF5: it keeps arrays column by column.
MATLAB = b"MATLAB 7.3"

#: First bytes of files that have the suffixes of HDF5, and what to do with them.
_OTHERS = (
    (b"CDF", "is a NetCDF-3 file, not HDF5: rewrite it with `nccopy -k netCDF-4 IN OUT`"),
    (b"\x0e\x03\x13\x01", "is an HDF4 file, not HDF5: rewrite it with `h4toh5 IN OUT`"),
    (
        b"MATLAB 5.0",
        "is an old MATLAB file (version 5 to 7.2), not HDF5: save it in MATLAB with `-v7.3`, or read it in Python by "
        "scipy.io.loadmat (docs/have/python.md)",
    ),
    *((start, "is a web page, not HDF5: the download went wrong") for start in (b"<!doctype", b"<html", b"<?xml")),
)


def _what_it_is(path: str) -> str:
    """Return a phrase for a file without an HDF5 signature, such as `is an HDF4 file, not HDF5`.

    Raises:
        OSError: the file cannot be read.
        SourceError: it is a pointer of git-LFS.
    """
    with Path(path).open("rb") as file:
        head = file.read(512)
    refuse_pointer(head, path)
    if not head:
        return "is empty (0 bytes); an HDF5 file is expected"
    known = (meaning for magic, meaning in _OTHERS if head.lstrip().lower().startswith(magic.lower()))
    return next(known, f"is not an HDF5 file: it begins with {head[:8]!r}; name the files of HDF5 with a pattern")


#: What a file begins with, behind what a user put before it; and the place of its end, by the version of its head. All
#: as the format's specification has it (II.A, superblock), for addresses of 8 bytes, counted from its base address.
_HEAD, _BASE_AND_END = b"\x89HDF\r\n\x1a\n", {0: (24, 40), 1: (28, 44), 2: (12, 28), 3: (12, 28)}


def end_in(file: BufferedReader, start: int) -> int:
    """Return the end of an open file of HDF5 as its head says it, whose bytes begin at `start`; 0 if it does not."""
    file.seek(start)
    head = file.read(64)
    base_at, end_at = _BASE_AND_END.get(head[8], (0, 0))
    base, end = (int.from_bytes(head[at : at + 8], "little") for at in (base_at, end_at))
    is_known = head.startswith(_HEAD) and end_at and head[9 if head[8] > 1 else 13] == 8
    return end - base + start if is_known else 0
