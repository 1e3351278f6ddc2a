"""The header of a `.npy` array: what numpy's own parser says, with all it says checked before it is used.

No pickle is ever read: an array of objects is refused.
"""

from __future__ import annotations

import math
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from packer.errors import SourceError, UsageError
from packer.format.schema import DTYPES, FieldSpec

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
        """The field whose samples are the rows of this array.

        Raises:
            UsageError: `name` cannot be a field name.
        """
        try:
            return FieldSpec(name=name, dtype=self.dtype.newbyteorder("=").name, shape=self.shape[1:])
        except ValueError as error:
            raise UsageError(str(error)) from None


def read_npy_header(file: BinaryIO, size: int, path: str) -> NpyHeader:
    """The header of an array that begins where `file` stands and takes `size` bytes with its header.

    Raises:
        SourceError: no such array, one that cannot be packed, or more or fewer bytes than the header says.
    """
    header = _header(file, path)
    _check_dtype(header.dtype, path)
    if not header.shape:
        reason = (
            "is 0-d, a single value: it has no first axis that would count samples; save the other arrays without it"
        )
        raise SourceError(reason, path)
    if min(header.shape) < 0:
        raise SourceError(f"has shape {header.shape} in its header; get the file again", path)
    if not header.shape[0]:
        raise SourceError(f"has shape {header.shape}: there is no row to pack", path)
    held = size - header.offset
    if held != header.nbytes:
        much = f"{header.nbytes:,} bytes by its header (shape {header.shape}, {header.dtype}), and {held:,} in the file"
        fault = "it is cut short" if held < header.nbytes else "something else stands behind the array"
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
