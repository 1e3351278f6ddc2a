"""`.npy` files and `.npz` archives as trees of arrays. Headers are checked before they are used.

No pickle is ever read: an array of objects cannot be packed.
"""

from __future__ import annotations

import errno
import math
import os
import zipfile
import zlib
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from io import BytesIO
from itertools import islice
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError, UsageError
from packer.sources.agreeing import usual
from packer.sources.arrays.fields import leaves_of, rows_in_words
from packer.sources.arrays.tree import CACHE_BYTES, Entry, FileGroup, Tree, never
from packer.sources.files import refuse_pointer, unreadable
from packer.sources.units import pattern_of
from packer.threads import in_threads

_READERS: dict[tuple[int, int], Any] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
#: Longer ones numpy refuses.
_LONGEST_HEADER = 2**16
#: What a zip file ends with, and the bytes of that without a comment.
_ZIP_END, _ZIP_END_BYTES = b"PK\5\6", 22
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
        pairs = ((group.base, path) for group in self.files for path in group.paths)
        # A tree of one file is itself one of many that threads list.
        are_many = sum(len(group.paths) for group in self.files) > 1
        listed = in_threads(_list_headers, pairs) if are_many else map(_list_headers, pairs)
        for group in self.files:
            entries: Iterator[Entry] = (entry for of_file in islice(listed, len(group.paths)) for entry in of_file)
            if len(group.paths) > 1:
                entries, self.rows[group.base] = _as_one(entries, group)
            yield from (entry for entry in entries if not is_out(entry.path))

    def find(self, path: str) -> Entry | None:
        dotted = path.replace("/", ".")
        return next((entry for entry in self.entries() if entry.path.replace("/", ".") == dotted), None)

    def open(self, path: str, axis: int = 0, cache: int = CACHE_BYTES) -> NDArray[Any]:
        """Return a `.npy` mapped, a member of a `.npz` read whole, after which its checksum was compared."""
        for base, paths, along in self.files:
            parts = [array for file in paths if (array := _opened(file, base, path)) is not None]
            if parts:
                return parts[0] if len(parts) == 1 else np.concatenate(parts, along)
        raise SourceError(f"{path} has gone: the file has changed; run again", self.path)


def _as_one(entries: Iterable[Entry], files: FileGroup) -> tuple[Iterator[Entry], tuple[int, ...]]:
    """Return parts of one array as one entry, next to what is no array, and the rows of each part.

    Parts that cannot be packed stay as they are.

    Raises:
        UsageError: files are no parts of one array.
    """
    asides: list[Entry] = []
    rows = array("q")
    firsts: dict[tuple[str, str, str], Entry] = {}  # of each kind of part
    counts: Counter[tuple[str, str, str]] = Counter()
    for entry in entries:
        if entry.aside:
            asides.append(entry)
            continue
        leaves = leaves_of(entry, files.axis)
        if isinstance(leaves, str) or any(leaf.problem for leaf in leaves):
            deque(entries, 0)  # files of other arrays follow
            return (entry for path in files.paths for entry in _headers(files.base, path)), ()
        rows.append(leaves[0].samples or 0)
        kind = (pattern_of(entry.file), entry.path, rows_in_words(leaves))
        firsts.setdefault(kind, entry)
        counts[kind] += 1
    if not firsts:
        return iter(asides), ()
    most = usual(counts.elements())
    for kind, entry in firsts.items():
        if kind != most:
            raise UsageError(
                f"{files.base[1:]}=: these {len(rows)} arrays are not numbered parts of one: {entry.file} holds rows "
                f"of {kind[-1]}, most of {most[-1]}; give the path without FIELD= and choose with --field NAME=/ARRAY, "
                "or add --samples files if each file is a sample"
            )
    whole = firsts[most]
    shape = list(whole.shape or ())
    shape[files.axis] = sum(rows)
    return iter([*asides, whole._replace(shape=tuple(shape))]), tuple(rows)


def _opened(file: str, base: str, path: str) -> NDArray[Any] | None:
    """Return the array at a path; None if the file, whose arrays begin at `base`, does not hold it."""
    with _faults(file):
        if not _is_archive(file):
            return _mapped(file) if path == base else None
        if not path.startswith(f"{base}/"):
            return None
        with zipfile.ZipFile(file) as archive:
            name = f"{path[len(base) + 1 :]}.npy"
            if name not in archive.NameToInfo:
                return None
            with archive.open(name) as member:
                array: NDArray[Any] = np.lib.format.read_array(member, allow_pickle=False)
            return array


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


def _list_headers(pair: tuple[str, str]) -> list[Entry]:
    return list(_headers(*pair))


def _headers(base: str, path: str) -> Iterator[Entry]:
    """Yield the arrays of a file.

    Raises:
        SourceError: the file cannot be read or is damaged.
    """
    with _faults(path), open(path, "rb") as file:  # noqa: PTH123 - a Path takes as long as the header
        refuse_pointer(file.read(64), path)
        file.seek(0)
        if not _is_archive(path):
            yield _header(file, os.fstat(file.fileno()).st_size, base, path)
            return
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            file.seek(-_ZIP_END_BYTES - len(archive.comment), os.SEEK_END)
            if file.read(len(_ZIP_END)) != _ZIP_END:
                raise SourceError("has bytes after its end: something else follows the archive; save it again", path)
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
    version = np.lib.format.read_magic(file)
    if version not in _READERS:
        raise ValueError(f"version {version[0]}.{version[1]} (3.0 has names of members beyond Latin-1: rename them)")
    shape, is_fortran, dtype = _READERS[version](file)
    return tuple(map(int, shape)), is_fortran, dtype


def _read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read a header to its end; raises what numpy does on a bad one."""
    header = file.read(8)
    length = file.read(2 if header[6:7] == b"\x01" else 4)
    return _parsed(header + length + file.read(min(int.from_bytes(length, "little"), _LONGEST_HEADER)))


def _mapped(path: str) -> NDArray[Any]:
    with open(path, "rb") as file:  # noqa: PTH123
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
