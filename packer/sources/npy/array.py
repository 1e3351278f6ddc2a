"""One array of a `.npy` or `.npz` file: what its header says, checked before it is used, and its rows.

No pickle is ever read: an array of objects is refused.
"""

from __future__ import annotations

import math
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, BinaryIO, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError, UsageError
from packer.format.schema import DTYPES, FieldSpec
from packer.sources.files import refuse_pointer

_READERS: dict[tuple[int, int], Any] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


class NpyHeader(NamedTuple):
    """Where an array begins, in bytes from its magic string, and what it is."""

    offset: int
    shape: tuple[int, ...]
    is_fortran: bool
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def spec(self, name: str) -> FieldSpec:
        """Return the field whose samples are the rows of this array.

        Raises:
            UsageError: `name` cannot be a field name.
        """
        try:
            return FieldSpec(name=name, dtype=self.dtype.newbyteorder("=").name, shape=self.shape[1:])
        except ValueError as error:
            raise UsageError(str(error)) from None


def _read_header(file: BinaryIO, size: int, path: str) -> NpyHeader:
    """Return the header of an array that begins where `file` stands and takes `size` bytes with its header.

    Raises:
        SourceError: no such array, one that cannot be packed, or more or fewer bytes than the header says.
    """
    header = _header(file, path)
    _check_dtype(header.dtype, path)
    if min(header.shape, default=0) < 0:
        raise SourceError(f"has shape {header.shape} in its header; get the file again", path)
    held = size - header.offset
    if held != header.nbytes:
        much = f"{header.nbytes:,} bytes by its header (shape {header.shape}, {header.dtype}), and {held:,} in the file"
        fault = "it is cut short" if held < header.nbytes else "something else stands after the array"
        raise SourceError(f"has {much}: {fault}; save it again", path)
    return header


def _header(file: BinaryIO, path: str) -> NpyHeader:
    start = file.tell()
    try:
        version = np.lib.format.read_magic(file)
        if version not in _READERS:
            raise SourceError(
                f"is a .npy of version {version[0]}.{version[1]}, which only arrays of several members "
                "need; save each member as an array of its own",
                path,
            )
        shape, is_fortran, dtype = _READERS[version](file)
    except SourceError:
        raise
    except OSError as error:
        raise SourceError(f"cannot be read: {error.strerror or error}", path) from error
    except Exception as error:  # numpy evaluates the header as Python: a damaged one raises anything
        raise SourceError(f"is no .npy array: {_sentence(error)}; save it again with np.save", path) from error
    return NpyHeader(file.tell() - start, tuple(map(int, shape)), bool(is_fortran), dtype)


def _sentence(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def _check_dtype(dtype: np.dtype[Any], path: str) -> None:
    if dtype.hasobject:
        raise SourceError(
            "holds Python objects, which only pickle can read, and pickle is never run; save it with a "
            "plain dtype, or give the samples to packer.convert as dicts",
            path,
        )
    if dtype.names:
        listed = ", ".join(dtype.names)
        raise SourceError(f"has several members a row ({listed}); save each as an array of its own", path)
    if dtype.newbyteorder("=").name not in DTYPES:
        raise SourceError(f"has dtype {dtype}, which cannot be packed; one of {', '.join(DTYPES)} can", path)


# ---------------------------------------------------------------- rows

#: What a damaged zip file, or one of a kind that Python does not read, raises.
_ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, KeyError)

_LOCAL_HEADER_BYTES = 30
_CHECK_BYTES = 2**20


@dataclass(frozen=True)
class Array:
    """An array and where it lies.

    Attributes:
        path: the file.
        member: its name in a `.npz`, with the suffix; empty in a `.npy`.
        header: what it is.
        start: offset of its first value in the file; None if it is compressed.
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

    def check_rows(self) -> None:
        """Raise SourceError if the array has no rows that could be samples."""
        if not self.header.shape:
            raise SourceError(
                "is 0-d, a single value: it has no first axis that would count samples; save the other arrays without "
                "it, or say `--samples files` if each file is a sample",
                self.shown,
            )
        if not self.header.shape[0]:
            raise SourceError(f"has shape {self.header.shape}: there is no row to pack", self.shown)

    def as_row(self) -> Array:
        """Return the array as the one row of another: with one more axis, of length 1, before its own."""
        return replace(self, header=self.header._replace(shape=(1, *self.header.shape)))

    def of_row(self) -> Array:
        """Return the array that `as_row` was called of."""
        return replace(self, header=self.header._replace(shape=self.header.shape[1:]))

    @property
    def row_bytes(self) -> int:
        return math.prod(self.header.shape[1:]) * self.header.dtype.itemsize

    def runs(self, start: int, stop: int, rows: int) -> Iterator[NDArray[Any]]:
        """Yield rows start..stop, `rows` at once, C-contiguous and native-endian.

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
        with _member_file(self.path, self.member) as file:
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
        """Read a zip member to its end, where Python compares the checksum."""
        with _member_file(self.path, self.member) as file:
            while file.read(_CHECK_BYTES):
                pass


def open_npy_file(path: str) -> Array:
    """Return the array of a `.npy` file; raises SourceError as `_read_header` does."""
    with _os_errors(path), Path(path).open("rb") as file:
        refuse_pointer(file.read(64), path)
        file.seek(0)
        header = _read_header(file, Path(path).stat().st_size, path)
    return Array(path, "", header, header.offset)


def open_npz_file(path: str) -> tuple[list[Array], list[str]]:
    """Return the arrays of a `.npz` file, and the names of members that are none.

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
        header = _read_header(cast(Any, file), member.file_size, shown)
    if member.compress_type != zipfile.ZIP_STORED:
        return Array(path, member.filename, header, None)
    # A stored member begins after its local header, which ends in a name and an extra field.
    with Path(path).open("rb") as whole:
        whole.seek(member.header_offset)
        lengths = struct.unpack("<26x2H", whole.read(_LOCAL_HEADER_BYTES))
    start = member.header_offset + _LOCAL_HEADER_BYTES + sum(lengths)
    return Array(path, member.filename, header, start + header.offset)


@contextmanager
def _member_file(path: str, member: str) -> Iterator[IO[bytes]]:
    """Open a member of a zip file, decompressed as it is read; damage found within the block is a SourceError."""
    with _os_errors(path), _zip_errors(path), zipfile.ZipFile(path) as archive, archive.open(member) as file:
        yield file


@contextmanager
def _zip_errors(path: str) -> Iterator[None]:
    try:
        yield
    except _ZIP_ERRORS as error:
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
