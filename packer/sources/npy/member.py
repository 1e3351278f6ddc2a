"""One array of a `.npy` or `.npz` file, read in runs of rows."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.sources.files import refuse_pointer
from packer.sources.npy.header import NpyHeader, read_npy_header

#: What a damaged zip file, or one of a kind that Python does not read, raises.
ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, KeyError)

_LOCAL_HEADER_BYTES = 30
_CHECK_BYTES = 2**20


@dataclass(frozen=True)
class Array:
    """An array and where it lies.

    Attributes:
        path: the file.
        member: its name in a `.npz`, with the suffix; empty in a `.npy`.
        header: what it is.
        start: offset of its first value in the file; None where it is compressed.
    """

    path: str
    member: str
    header: NpyHeader
    start: int | None

    @property
    def shown(self) -> str:
        """What messages call it."""
        return f"{self.path}[{self.member.removesuffix('.npy')}]" if self.member else self.path

    def __len__(self) -> int:
        return self.header.shape[0]

    @property
    def row_bytes(self) -> int:
        return math.prod(self.header.shape[1:]) * self.header.dtype.itemsize

    def runs(self, start: int, stop: int, rows: int) -> Iterator[NDArray[Any]]:
        """Rows start..stop, `rows` at once, C-contiguous and native-endian.

        The checksum of a zip member is compared by whoever reads its first row.

        Raises:
            SourceError: the file has gone, has changed or is damaged; a bool is neither 0 nor 1.
        """
        with _os_errors(self.path):
            if self.member and start == 0:
                self._check()
            read = self._mapped if self.start is not None else self._inflated
            for values in read(start, stop, rows):
                yield _flags(values, self.shown) if values.dtype == bool else _native(values)

    def _mapped(self, start: int, stop: int, rows: int) -> Iterator[NDArray[Any]]:
        header = self.header
        if not header.nbytes:
            for first in range(start, stop, rows):
                yield np.empty((min(rows, stop - first), *header.shape[1:]), header.dtype)
            return
        if Path(self.path).stat().st_size < cast(int, self.start) + header.nbytes:
            raise SourceError("has become shorter since its header was read; start again", self.shown)
        order = "F" if header.is_fortran else "C"
        mapped = np.memmap(self.path, header.dtype, "r", cast(int, self.start), header.shape, order)  # type: ignore[call-overload]
        for first in range(start, stop, rows):
            yield mapped[first : min(first + rows, stop)]

    def _inflated(self, start: int, stop: int, rows: int) -> Iterator[NDArray[Any]]:
        header = self.header
        with member_file(self.path, self.member) as file:
            _skip(file, header.offset)
            if header.is_fortran:
                # Its rows lie scattered over the whole stream, so all of it is held.
                values = _values(file, header.nbytes, header.dtype, self.shown).reshape(header.shape, order="F")
                for first in range(start, stop, rows):
                    yield values[first : min(first + rows, stop)]
                return
            _skip(file, start * self.row_bytes)
            for first in range(start, stop, rows):
                count = min(rows, stop - first)
                values = _values(file, count * self.row_bytes, header.dtype, self.shown)
                yield values.reshape(count, *header.shape[1:])

    def _check(self) -> None:
        """Reads a zip member to its end, where Python compares the checksum."""
        with member_file(self.path, self.member) as file:
            while file.read(_CHECK_BYTES):
                pass


def open_npy_file(path: str) -> Array:
    """The array of a `.npy` file; raises SourceError as `read_npy_header` does."""
    with _os_errors(path), Path(path).open("rb") as file:
        refuse_pointer(file.read(64), path)
        file.seek(0)
        header = read_npy_header(file, Path(path).stat().st_size, path)
    return Array(path, "", header, header.offset)


def open_npz_file(path: str) -> tuple[list[Array], list[str]]:
    """The arrays of a `.npz` file, and the names of members that are none.

    Raises:
        SourceError: a damaged file, or an array that cannot be packed.
    """
    with _os_errors(path), _zip_errors(path), zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        names = [member.filename for member in members]
        if len(set(names)) < len(names):
            raise SourceError("has two members of one name; save it again with np.savez", path)
        arrays = [_array(archive, member, path) for member in members if member.filename.endswith(".npy")]
    return arrays, [name for name in names if not name.endswith(".npy")]


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: str) -> Array:
    shown = f"{path}[{member.filename.removesuffix('.npy')}]"
    with archive.open(member) as file:
        header = read_npy_header(cast(Any, file), member.file_size, shown)
    start = None
    if member.compress_type == zipfile.ZIP_STORED:
        start = _data_start(path, member) + header.offset
    return Array(path, member.filename, header, start)


def _data_start(path: str, member: zipfile.ZipInfo) -> int:
    """Where a stored member begins: behind its local header, which ends in a name and an extra field."""
    with Path(path).open("rb") as file:
        file.seek(member.header_offset)
        head = file.read(_LOCAL_HEADER_BYTES)
    return (
        member.header_offset
        + _LOCAL_HEADER_BYTES
        + int.from_bytes(head[26:28], "little")
        + int.from_bytes(head[28:30], "little")
    )


@contextmanager
def member_file(path: str, member: str) -> Iterator[IO[bytes]]:
    """A member of a zip file, decompressed as it is read; damage found within the block is a SourceError."""
    with _os_errors(path), _zip_errors(path), zipfile.ZipFile(path) as archive, archive.open(member) as file:
        yield file


@contextmanager
def _zip_errors(path: str) -> Iterator[None]:
    try:
        yield
    except ZIP_ERRORS as error:
        raise SourceError(
            f"is damaged, or no .npz that can be read ({error}); save it again with np.savez", path
        ) from error


@contextmanager
def _os_errors(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SourceError(
            f"cannot be read: {error.strerror or error}; check that it is there and may be read", path
        ) from error


def _skip(file: IO[bytes], nbytes: int) -> None:
    while nbytes > 0 and (data := file.read(min(nbytes, _CHECK_BYTES))):
        nbytes -= len(data)


def _values(file: IO[bytes], nbytes: int, dtype: np.dtype[Any], shown: str) -> NDArray[Any]:
    # Grows with what is there, so that a header that lies about its size takes no memory.
    data = file.read(nbytes)
    if len(data) < nbytes:
        raise SourceError("ends before its last row; save it again", shown)
    return np.frombuffer(data, dtype)


def _flags(values: NDArray[np.bool_], shown: str) -> NDArray[np.bool_]:
    flags = np.ascontiguousarray(values)
    largest = flags.view(np.uint8).max(initial=0)
    if largest > 1:
        raise SourceError(f"the number {largest} stands where a bool is 0 or 1; save it as uint8, or mend it", shown)
    return flags


def _native(values: NDArray[Any]) -> NDArray[Any]:
    # Aligned, since members of a zip file begin at any byte.
    return np.require(values, values.dtype.newbyteorder("="), ["C", "A", "E"])
