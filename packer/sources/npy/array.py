"""Arrays of `.npy` and `.npz` files: their headers, checked before they are used, and their rows as samples.

No pickle is ever read: an array of objects cannot be packed. A structured array is one array for each of its members.
"""

from __future__ import annotations

import errno
import math
import zipfile
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.format import DTYPES, FieldSpec
from packer.sources.base import BLOCK_BYTES, LARGE_BYTES, Block, LargeArray, Source, faults_of, joined
from packer.sources.files import refuse_pointer, unreadable

_READERS: dict[tuple[int, int], Any] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
#: What a damaged zip file, or one of a kind that Python does not read, raises.
_ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, KeyError)


#: By place, the arrays that files hold there.
_Wholes = dict[tuple[str, str], NDArray[Any]]
_NO_DTYPE = np.dtype("u1")


@dataclass(frozen=True)
class Array:
    """An array, or a member of a structured one, and where it lies.

    Attributes:
        path: the file.
        member: its name in a `.npz`, with the suffix; empty in a `.npy`.
        shape, dtype: of its values.
        whole_shape, whole_dtype: of the array in the file, with all members of a structured one.
        inner: the members of a structured array that lead to its values.
        is_row: whether the whole array is one row, of one axis more than it has in the file.
        name: of the field, if the user gave one.
        problem: why it cannot be packed, as a phrase that follows `shown`; the rest means nothing then.
    """

    path: str
    member: str
    shape: tuple[int, ...] = ()
    dtype: np.dtype[Any] = _NO_DTYPE
    whole_shape: tuple[int, ...] = ()
    whole_dtype: np.dtype[Any] = _NO_DTYPE
    inner: tuple[str, ...] = ()
    is_row: bool = False
    problem: str = ""
    name: str = ""

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def shown(self) -> str:
        """Return its name in messages."""
        return ".".join((_shown(self.path, self.member), *self.inner))

    @property
    def own_name(self) -> str:
        """Return the default name of its field: the member, or the file without its suffix; `_` stands for `=`."""
        if self.name:
            return self.name
        own = self.member.removesuffix(".npy").replace("/", ".") if self.member else Path(self.path).stem
        return ".".join((own, *self.inner)).replace("=", "_")

    @property
    def place(self) -> tuple[str, str]:
        """Return where the whole array lies."""
        return self.path, self.member

    @property
    def is_text(self) -> bool:
        return self.dtype.kind in "SU"

    @property
    def type_name(self) -> str:
        """Return its dtype without its byte order, or `text`."""
        return "text" if self.is_text else self.dtype.newbyteorder("=").name

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    def as_row(self) -> Array:
        """Return the array as the one row of another: with one more axis, of length 1, before its own."""
        return replace(self, shape=(1, *self.shape), is_row=True)

    def whole(self) -> NDArray[Any]:
        """Return the array as it is in the file, with all members of a structured one: mapped, or read from a .npz.

        Raises:
            SourceError: the file has gone, has changed or is damaged.
        """
        with _errors(self.path):
            found: NDArray[Any]
            if self.member:  # as np.load does; the checksum of the member is compared at its end
                with zipfile.ZipFile(self.path) as archive, archive.open(self.member) as file:
                    found = np.lib.format.read_array(file, allow_pickle=False)
            else:
                found = np.lib.format.open_memmap(self.path, "r")
            if (found.shape, found.dtype) != (self.whole_shape, self.whole_dtype):
                raise SourceError("has changed since its header was read; run again", self.shown)
            return found[None] if self.is_row else found

    def values(self, rows: NDArray[Any]) -> NDArray[Any] | list[str]:
        """Return the values of some rows of `whole`: C-contiguous and native-endian, or text.

        Raises:
            SourceError: the file is damaged; a bool is neither 0 nor 1; text is not UTF-8.
        """
        with _errors(self.path):
            for name in self.inner:
                rows = rows[name]
            if self.is_text:
                return [self._text(value) for value in rows.tolist()]
            if rows.dtype == bool and (largest := np.ascontiguousarray(rows).view("u1").max(initial=0)) > 1:
                reason = f"a bool is 0 or 1, but it holds {largest}; save it as uint8, or mend it"
                raise SourceError(reason, self.shown)
            return np.require(rows, self.dtype.newbyteorder("="), ["C", "A", "E"])

    def _text(self, value: str | bytes) -> str:
        try:
            return value if isinstance(value, str) else value.decode()
        except UnicodeDecodeError:
            raise SourceError(f"holds text that is not UTF-8 ({value[:40]!r}); save it as str", self.shown) from None


def _shown(path: str, member: str) -> str:
    return f"{path}[{member.removesuffix('.npy')}]" if member else path


@contextmanager
def _errors(path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, *_ZIP_ERRORS) as error:
        # EINVAL is damage, too: a zip file may name an offset that no file has.
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise unreadable(error, path) from error
        kind, function = (".npz", "np.savez") if path.lower().endswith(".npz") else (".npy", "np.save")
        raise SourceError(f"is damaged, or not a {kind} file ({error}); save it again with {function}", path) from error


# ---------------------------------------------------------------- opening


def open_arrays(path: str) -> tuple[list[Array], list[str]]:
    """Return the arrays of a `.npy` or `.npz` file, and the names, for messages, of its members that are no arrays.

    Arrays that cannot be packed have a `problem`.

    Raises:
        SourceError: the file cannot be read or is damaged.
    """
    with _errors(path), Path(path).open("rb") as whole:
        refuse_pointer(whole.read(64), path)
        whole.seek(0)
        if not path.lower().endswith(".npz"):
            return _read_header(whole, Path(path).stat().st_size, path), []
        arrays, others = [], []
        with zipfile.ZipFile(whole) as archive:
            members = {member.filename: member for member in archive.infolist()}
            if len(members) < len(archive.infolist()):
                raise SourceError("has two members with the same name; save it again with np.savez", path)
            for name, member in members.items():
                if not name.endswith(".npy"):
                    others.append(_shown(path, name))
                    continue
                try:
                    with _errors(path), archive.open(member) as file:
                        arrays += _read_header(file, member.file_size, path, name)
                except SourceError as error:
                    arrays.append(Array(path, name, problem=error.reason))
    return arrays, others


def _read_header(file: IO[bytes], size: int, path: str, member: str = "") -> list[Array]:
    """Return the array whose header `file` begins with, or its members; it must take all `size` bytes of the file."""
    try:
        # Version 3, for names of members outside of Latin-1, is refused.
        read = _READERS[np.lib.format.read_magic(file)]
        shape, _, dtype = read(file)
    except OSError:
        raise
    except Exception as error:  # numpy evaluates the header as Python: a damaged one raises anything
        said = (str(error).splitlines() or [type(error).__name__])[0][:200]
        return [Array(path, member, problem=f"is not a .npy array: {said}; save it again with np.save")]
    shape = tuple(map(int, shape))
    nbytes, held = math.prod(shape) * dtype.itemsize, size - file.tell()
    if dtype.hasobject:
        problem = (
            "holds Python objects, which only pickle reads, and packer never runs pickle; save it with a plain dtype, "
            "or give the samples to packer.convert as dicts"
        )
    elif held != nbytes or min(shape, default=0) < 0:
        fault = "it is cut short" if held < nbytes else "something else follows the array"
        much = f"{nbytes:,} bytes (shape {shape}, {dtype}), but the file has {held:,}"
        problem = f"by its header has {much}: {fault}; save it again"
    else:
        return list(_leaves(Array(path, member, shape, dtype, shape, dtype)))
    return [Array(path, member, problem=problem)]


def _leaves(array: Array) -> Iterator[Array]:
    """Yield an array, or each member of a structured one."""
    dtype = array.dtype
    if dtype.subdtype is not None:
        yield from _leaves(replace(array, dtype=dtype.base, shape=array.shape + dtype.shape))
    elif dtype.names:
        for name in dtype.names:
            yield from _leaves(replace(array, dtype=dtype[name], inner=(*array.inner, name)))
    elif array.is_text or array.type_name in DTYPES:
        yield array
    else:
        yield replace(
            array, problem=f"has dtype {dtype}, which cannot be packed; save it as one of {', '.join(DTYPES)}"
        )


# ---------------------------------------------------------------- samples
# A sample that is a whole array is a row too, the only one of an array with one axis more (`Array.as_row`), so that
# arrays one after another are parts of one long array, or the samples of a field.


@dataclass(eq=False)
class NpySource(Source):
    """Rows start..stop of fields of one length. Pickles as paths and headers.

    Attributes:
        arrays: by field, arrays whose rows lie one after another; if files or folders are samples, one array a sample.
        names: of samples that are files or folders; None for rows.
    """

    fields: tuple[FieldSpec, ...]
    arrays: dict[str, tuple[Array, ...]]
    names: Sequence[str] | None
    start: int
    stop: int
    origin: Mapping[str, Any] = field(default_factory=dict)
    remarks: Sequence[str] = ()

    kind = "npy"

    def __len__(self) -> int:
        return self.stop - self.start

    def shapes(self, field: str) -> NDArray[np.int64] | None:
        """Return None for text, whose length in UTF-8 is known only when it is read."""
        if any(array.is_text for array in self.arrays[field]):
            return None
        return np.array([array.shape[1:] for array in self.arrays[field]], np.int64).reshape(len(self), -1)

    def part(self, start: int, stop: int) -> NpySource:
        if self.names is None:
            return replace(self, start=self.start + start, stop=self.start + stop, origin={}, remarks=())
        arrays = {name: some[start:stop] for name, some in self.arrays.items()}
        return replace(self, arrays=arrays, names=self.names[start:stop], stop=stop - start, origin={}, remarks=())

    def read(self) -> Iterator[Block]:
        if self.names is not None:
            yield from joined(map(self._sample, range(len(self))), self.fields, BLOCK_BYTES)
            return
        row_bytes = sum(arrays[0].row_bytes for arrays in self.arrays.values())
        rows = max(1, BLOCK_BYTES // max(1, row_bytes))
        ends = {end for arrays in self.arrays.values() for end in accumulate(map(len, arrays))}
        wholes: _Wholes = {}
        borders = [self.start, *sorted(end for end in ends if self.start < end < self.stop), self.stop]
        for start, stop in pairwise(borders):
            parts = {name: _part_at(arrays, start) for name, arrays in self.arrays.items()}
            wholes = _wholes([array for array, _ in parts.values()], wholes)
            for first in range(start, stop, rows):
                end = min(first + rows, stop)
                yield {
                    name: array.values(wholes[array.place][first - before : end - before])
                    for name, (array, before) in parts.items()
                }

    def _sample(self, number: int) -> dict[str, Any]:
        with faults_of(sample=number):
            arrays = {name: some[number] for name, some in self.arrays.items()}
            wholes = _wholes(arrays.values(), {})
            return {name: _one(array, wholes[array.place], number) for name, array in arrays.items()}

    def files(self) -> list[str]:
        return list(dict.fromkeys(array.path for arrays in self.arrays.values() for array in arrays))


def _wholes(arrays: Iterable[Array], known: _Wholes) -> _Wholes:
    """Return the whole arrays that hold `arrays`, each read once: fields of one structured array share it."""
    places = {array.place: array for array in arrays}
    return {place: known[place] if place in known else array.whole() for place, array in places.items()}


def _part_at(arrays: Sequence[Array], row: int) -> tuple[Array, int]:
    """Return the array that holds a row, of arrays that lie one after another, and how many rows come before it."""
    ends = list(accumulate(map(len, arrays)))
    at = bisect_right(ends, row)
    return arrays[at], ends[at] - len(arrays[at])


def _one(array: Array, whole: NDArray[Any], number: int) -> NDArray[Any] | LargeArray | str:
    """Return the one row of an array, the sample `number`, as a copy, so that no file stays open for it."""
    if array.nbytes > LARGE_BYTES and isinstance(whole, np.memmap) and whole.flags.c_contiguous:

        def read(start: int, stop: int) -> NDArray[Any]:
            values: NDArray[Any] = np.array(array.values(array.whole()[0, start:stop]))
            return values

        return LargeArray(array.dtype.newbyteorder("="), array.shape[1:], read, number=number)
    (value,) = array.values(whole)
    return value if isinstance(value, str) else np.array(value)
