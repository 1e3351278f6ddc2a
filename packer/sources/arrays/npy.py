"""`.npy` files and `.npz` archives as trees of arrays. Headers are checked before they are used.

No pickle is ever read: an array of objects cannot be packed.
"""

from __future__ import annotations

import errno
import math
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.sources.arrays.tree import CACHE_BYTES, Entry, Tree, never
from packer.sources.files import refuse_pointer, unreadable

_READERS: dict[tuple[int, int], Any] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
#: Longer ones numpy refuses.
_LONGEST_HEADER = 2**16
#: What a damaged zip file, or one of a kind that Python does not read, raises.
_ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, KeyError)


class NpyTree(Tree):
    """Files of arrays: the path of a `.npy` is that of its array, the members of a `.npz` lie below its path."""

    unnamed = "x"

    def faults(self, doing: str) -> AbstractContextManager[None]:
        return _faults(self.path)

    def entries(
        self, root: str = "", is_out: Callable[[str], bool] = never, is_unit: Callable[[str], bool] = never
    ) -> Iterator[Entry]:
        for base, path in self.place:
            for entry in _headers(base, path):
                if not is_out(entry.path):
                    yield entry

    def find(self, path: str) -> Entry | None:
        wanted = path.replace("/", ".")
        return next((entry for entry in self.entries() if entry.path.replace("/", ".") == wanted), None)

    def open(self, path: str, axis: int = 0, cache: int = CACHE_BYTES) -> NDArray[Any]:
        """Return a `.npy` mapped, a member of a `.npz` read whole, after which its checksum was compared."""
        for base, file in self.place:
            with _faults(file):
                if not _is_archive(file):
                    if path == base:
                        return _mapped(file)
                elif path.startswith(f"{base}/"):
                    with zipfile.ZipFile(file) as archive:
                        name = f"{path[len(base) + 1 :]}.npy"
                        if name in archive.NameToInfo:
                            with archive.open(name) as member:
                                array: NDArray[Any] = np.lib.format.read_array(member, allow_pickle=False)
                            return array
        raise SourceError(f"{path} has gone: the file has changed; run again", self.path)


def _is_archive(path: str) -> bool:
    return path.lower().endswith(".npz")


@contextmanager
def _faults(path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, *_ZIP_ERRORS) as error:
        # EINVAL is damage, too: a zip file may name an offset that no file has.
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise unreadable(error, path) from error
        kind, function = (".npz", "np.savez") if _is_archive(path) else (".npy", "np.save")
        raise SourceError(f"is damaged, or not a {kind} file ({error}); save it again with {function}", path) from error


def _headers(base: str, path: str) -> Iterator[Entry]:
    """Yield the arrays of a file.

    Raises:
        SourceError: the file cannot be read or is damaged.
    """
    with _faults(path), Path(path).open("rb") as file:
        refuse_pointer(file.read(64), path)
        file.seek(0)
        if not _is_archive(path):
            yield _header(file, os.fstat(file.fileno()).st_size, base, path)
            return
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            if len({member.filename for member in members}) < len(members):
                raise SourceError("has two members with the same name; save it again with np.savez", path)
            for member in members:
                name = f"{base}/{member.filename.removesuffix('.npy')}"
                if not member.filename.endswith(".npy"):
                    yield Entry(name, path, aside="is no array")
                    continue
                try:
                    with _faults(path), archive.open(member) as opened:
                        yield _header(opened, member.file_size, name, path)
                except SourceError as error:
                    yield Entry(name, path, problem=error.reason)


@lru_cache(256)
def _parsed(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, whether the order is that of Fortran, and dtype; files often have equal headers."""
    file = BytesIO(header)
    # Version 3, for names of members outside of Latin-1, is refused.
    shape, is_fortran, dtype = _READERS[np.lib.format.read_magic(file)](file)
    return tuple(map(int, shape)), is_fortran, dtype


def _read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read a header to its end; raises what numpy does on a bad one."""
    header = file.read(8)
    length = file.read(2 if header[6:7] == b"\x01" else 4)
    return _parsed(header + length + file.read(min(int.from_bytes(length, "little"), _LONGEST_HEADER)))


def _mapped(path: str) -> NDArray[Any]:
    with Path(path).open("rb") as file:
        shape, is_fortran, dtype = _read_header(file)
        if dtype.hasobject:
            raise ValueError("Python objects are not read")
        return np.memmap(file, dtype, "r", file.tell(), shape, "F" if is_fortran else "C")


def _header(file: IO[bytes], size: int, name: str, path: str) -> Entry:
    """Return the array whose header `file` begins with; it must take all `size` bytes of the file."""
    try:
        shape, _, dtype = _read_header(file)
    except OSError:
        raise
    except Exception as error:  # numpy evaluates the header as Python: a damaged one raises anything
        words = (str(error).splitlines() or [type(error).__name__])[0][:200]
        return Entry(name, path, problem=f"is not a .npy array: {words}; save it again with np.save")
    nbytes, length = math.prod(shape) * dtype.itemsize, size - file.tell()
    problem = ""
    if dtype.hasobject:
        problem = (
            "holds Python objects, which only pickle reads, and packer never runs pickle; save it with a plain dtype, "
            "or give the samples to packer.convert as dicts"
        )
    elif length != nbytes or min(shape, default=0) < 0:
        fault = "it is cut short" if length < nbytes else "something else follows the array"
        much = f"{nbytes:,} bytes (shape {shape}, {dtype}), but the file has {length:,}"
        problem = f"by its header has {much}: {fault}; save it again"
    return Entry(name, path, shape, dtype, problem=problem)
