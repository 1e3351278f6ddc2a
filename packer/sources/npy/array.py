"""One array of a `.npy` or `.npz` file: what its header says, checked before it is used, and its rows.

No pickle is ever read: an array of objects is refused.
"""

from __future__ import annotations

import errno
import math
import struct
import sys
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.format.schema import DTYPES
from packer.sources.files import refuse_pointer, unreadable

_READERS: dict[tuple[int, int], Any] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
#: What a damaged zip file, or one of a kind that Python does not read, raises.
_ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, KeyError)
#: The last two numbers of the header before each member of a zip file: bytes of its name and of an extra field.
_LOCAL_HEADER = struct.Struct("<26x2H")
#: Bytes read at once of what is passed over.
_SKIPPED_BYTES = 2**20


@dataclass(frozen=True)
class Array:
    """An array and where it lies.

    Attributes:
        path: the file.
        member: its name in a `.npz`, with the suffix; empty in a `.npy`.
        shape, dtype, is_fortran: as the header says.
        start: bytes before its first value: of the file, or of what the member decompresses to.
        is_deflated: whether it is a compressed member.
    """

    path: str
    member: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_fortran: bool
    start: int
    is_deflated: bool = False

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def shown(self) -> str:
        """Return what messages call it."""
        return _shown(self.path, self.member)

    @property
    def own_name(self) -> str:
        """Return what the field is called if nobody says: the member, or the file without its suffix."""
        return self.member.removesuffix(".npy").replace("/", ".") if self.member else Path(self.path).stem

    @property
    def native(self) -> np.dtype[Any]:
        """Return its dtype in the byte order in which it is stored."""
        return self.dtype.newbyteorder("=")

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    def as_row(self) -> Array:
        """Return the array as the one row of another: with one more axis, of length 1, before its own."""
        return replace(self, shape=(1, *self.shape))

    def runs(self, start: int, stop: int, rows: int) -> Iterator[NDArray[Any]]:
        """Yield rows start..stop, `rows` at once, C-contiguous and native-endian.

        The checksum of a zip member is compared by whoever reads its first row.

        Raises:
            SourceError: the file has gone, has changed or is damaged; a bool is neither 0 nor 1.
        """
        with _errors(self.path):
            if self.member and start == 0:
                with zipfile.ZipFile(self.path) as archive, archive.open(self.member) as file:
                    _skip(file, sys.maxsize)  # at the end Python compares the checksum
            for values in self._runs(start, stop, rows):
                if values.dtype == bool and (largest := np.ascontiguousarray(values).view("u1").max(initial=0)) > 1:
                    reason = f"a bool is 0 or 1, but it holds {largest}; save it as uint8, or mend it"
                    raise SourceError(reason, self.shown)
                # Aligned, since members of a zip file begin at any byte.
                yield np.require(values, self.native, ["C", "A", "E"])

    def _runs(self, start: int, stop: int, rows: int) -> Iterator[NDArray[Any]]:
        """Yield rows as they are in the file: of the mapped file, or of the stream that a member decompresses to."""
        cuts = [(first, min(first + rows, stop)) for first in range(start, stop, rows)]
        if not self.nbytes:
            whole: NDArray[Any] = np.empty(self.shape, self.dtype)
        elif not self.is_deflated:
            if Path(self.path).stat().st_size < self.start + self.nbytes:
                raise SourceError("has become shorter since its header was read; run again", self.shown)
            order = "F" if self.is_fortran else "C"
            whole = np.memmap(self.path, self.dtype, "r", self.start, self.shape, order)  # type: ignore[call-overload]
        else:
            with zipfile.ZipFile(self.path) as archive, archive.open(self.member) as file:
                _skip(file, self.start)
                if not self.is_fortran:
                    _skip(file, start * self.row_bytes)
                    for first, last in cuts:
                        yield self._values(file, (last - first) * self.row_bytes).reshape(-1, *self.shape[1:])
                    return
                # Its rows lie scattered over the whole stream, so all of it is held.
                whole = self._values(file, self.nbytes).reshape(self.shape, order="F")
        for first, last in cuts:
            yield whole[first:last]

    def _values(self, file: IO[bytes], nbytes: int) -> NDArray[Any]:
        # Grows with what is there, so that a header that lies about its size takes no memory.
        data = file.read(nbytes)
        if len(data) < nbytes:
            raise SourceError("ends before its last row; save it again", self.shown)
        return np.frombuffer(data, self.dtype)


def _skip(file: IO[bytes], nbytes: int) -> None:
    while nbytes > 0 and (data := file.read(min(nbytes, _SKIPPED_BYTES))):
        nbytes -= len(data)


def _shown(path: str, member: str) -> str:
    return f"{path}[{member.removesuffix('.npy')}]" if member else path


@contextmanager
def _errors(path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, *_ZIP_ERRORS) as error:
        # A zip file may say that something lies where no file has a place.
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise unreadable(error, path) from error
        reason = f"is damaged, or not a .npz file ({error}); save it again with np.savez"
        raise SourceError(reason, path) from error


# ---------------------------------------------------------------- opening


def open_arrays(path: str) -> tuple[list[Array], list[str]]:
    """Return the arrays of a `.npy` or `.npz` file, and what messages call its members that are none.

    Raises:
        SourceError: the file cannot be read or is damaged, or holds an array that cannot be packed.
    """
    with _errors(path), Path(path).open("rb") as whole:
        refuse_pointer(whole.read(64), path)
        whole.seek(0)
        if not path.lower().endswith(".npz"):
            return [_read_header(whole, Path(path).stat().st_size, path)], []
        arrays, others = [], []
        with zipfile.ZipFile(whole) as archive:
            members = {member.filename: member for member in archive.infolist()}
            if len(members) < len(archive.infolist()):
                raise SourceError("has two members with the same name; save it again with np.savez", path)
            for name, member in members.items():
                if not name.endswith(".npy"):
                    others.append(_shown(path, name))
                    continue
                with archive.open(member) as file:
                    array = _read_header(file, member.file_size, path, name)
                if member.compress_type != zipfile.ZIP_STORED:
                    arrays.append(replace(array, is_deflated=True))
                    continue
                whole.seek(member.header_offset)
                lengths = _LOCAL_HEADER.unpack(whole.read(_LOCAL_HEADER.size))
                before = member.header_offset + _LOCAL_HEADER.size + sum(lengths)
                arrays.append(replace(array, start=before + array.start))
    return arrays, others


def _read_header(file: IO[bytes], size: int, path: str, member: str = "") -> Array:
    """Return the array that `file` begins with, and that takes all of its `size` bytes.

    Raises:
        SourceError: no such array, one that cannot be packed, or more or fewer bytes than the header says.
    """
    shown = _shown(path, member)
    try:
        version = np.lib.format.read_magic(file)
        read = _READERS.get(version)
        shape, is_fortran, dtype = read(file) if read else ((), False, np.dtype(float))
    except OSError:
        raise
    except Exception as error:  # numpy evaluates the header as Python: a damaged one raises anything
        said = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise SourceError(f"is not a .npy array: {said}; save it again with np.save", shown) from error
    array = Array(path, member, tuple(map(int, shape)), dtype, bool(is_fortran), file.tell())
    held = size - array.start
    if not read:
        reason = (
            f"is a .npy of version {version[0]}.{version[1]}, which only structured arrays need; save each "
            "of its members as an array of its own"
        )
    elif dtype.hasobject:
        reason = (
            "holds Python objects, which only pickle reads, and packer never runs pickle; save it with a plain dtype, "
            "or give the samples to packer.convert as dicts"
        )
    elif dtype.names:
        reason = f"has several members in a row ({', '.join(dtype.names)}); save each as an array of its own"
    elif array.native.name not in DTYPES:
        reason = f"has dtype {dtype}, which cannot be packed; save it as one of {', '.join(DTYPES)}"
    elif min(array.shape, default=0) < 0:
        reason = f"has shape {array.shape} in its header; get the file again"
    elif held != array.nbytes:
        fault = "it is cut short" if held < array.nbytes else "something else follows the array"
        much = f"{array.nbytes:,} bytes (shape {array.shape}, {dtype}), but the file has {held:,}"
        reason = f"by its header has {much}: {fault}; save it again"
    else:
        return array
    raise SourceError(reason, shown)
