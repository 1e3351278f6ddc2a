"""What is written into one HDF5 file: datasets of rows, or a group for each sample; attributes, and the file below."""

from __future__ import annotations

import io
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.format.schema import FieldSpec

#: Values are made so many bytes at a time: fixed strings can be far longer than the texts in a block.
_WRITE_BYTES = 32 * 2**20
#: A dtype of more bytes is no one's; a manifest may have been made by anyone.
_LARGEST = 2**26
Members = tuple[str, ...]


# ---------------------------------------------------------------- datasets


@dataclass(frozen=True)
class Place:
    """One dataset: where it lies, its dtype, and the fields it is made of with the compound members that lead to each.

    `axes` are those of one sample, without the axes within the dtype; None for a ragged one.
    """

    path: str
    dtype: np.dtype[Any]
    fields: Mapping[str, Members]
    axes: tuple[int | None, ...]

    @property
    def is_compound(self) -> bool:
        return any(self.fields.values())

    def array(self, values: Mapping[str, Any], shape: tuple[int, ...], first: int) -> NDArray[Any]:
        """Return values of the dataset's dtype out of those of its fields.

        Args:
            values: by field; those of one sample if `shape` has no axis for samples.
            shape: of the array, without the axes within the dtype.
            first: number of the first sample in its file, for errors.

        Raises:
            UsageError: a text is too long for the dtype, or holds a zero byte.
        """
        if not self.is_compound:
            (name,) = self.fields
            return _boxed(values[name], self.dtype, shape, name, first)
        out = np.zeros(shape, self.dtype)
        for name, members in self.fields.items():
            view: Any = out
            for member in members:
                view = view[member]
            view[...] = _boxed(values[name], leaf(self.dtype, members)[0], shape, name, first)
        return out


def plain_place(spec: FieldSpec, path: str, of_rows: bool) -> Place:
    """Return the dataset of one field of which nothing else is known."""
    axes: tuple[int | None, ...] = spec.shape
    if spec.kind == "text":
        dtype, axes = h5py.string_dtype(), ()
    elif of_rows and spec.shape == (None,):
        dtype, axes = h5py.vlen_dtype(np.dtype(spec.dtype)), ()
    else:
        dtype = np.dtype(spec.dtype)
    return Place(path, dtype, {spec.name: ()}, axes)


def typed_place(path: str, held: Any, fields: Mapping[str, Members], specs: Mapping[str, FieldSpec]) -> Place:
    """Return a dataset whose dtype the manifest keeps.

    Args:
        held: the dtype as JSON: what numpy calls its `descr`, with "|O" for values of any length.
        fields: those of its fields that are exported.

    Raises:
        ValueError: the JSON value is no dtype, one beyond belief, or not what the fields hold.
    """
    try:
        dtype = _dtype(held, {members: specs[name] for name, members in fields.items()})
        axes = {_axes(specs[name], *leaf(dtype, members)) for name, members in fields.items()}
    except (ValueError, TypeError, LookupError, RecursionError, OverflowError) as error:
        raise ValueError(f"its type is not known: {error}") from None
    if dtype.itemsize > _LARGEST:
        raise ValueError(f"values of {dtype.itemsize:,} bytes are not believed")
    if len(axes) != 1:
        raise ValueError("its fields differ in their axes")
    return Place(path, dtype, fields, axes.pop())


def leaf(dtype: np.dtype[Any], members: Members) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return what the members lead to, and the axes of all array types on the way."""
    shape: tuple[int, ...] = ()
    for member in (None, *members):
        dtype = dtype if member is None else dtype[member]
        if dtype.subdtype is not None:
            dtype, more = dtype.subdtype
            shape += more
    return dtype, shape


def _dtype(held: Any, below: Mapping[Members, FieldSpec]) -> np.dtype[Any]:
    """Return the dtype that a JSON value stands for, with the compound members that lead to the fields in `below`."""
    if isinstance(held, list):
        made = []
        for name, inner, *axes in held:
            some = {path[1:]: spec for path, spec in below.items() if path[:1] == (name,)}
            if some:
                made.append((name, _dtype(inner, some), tuple(*axes)))
        if not made or len(below) != sum(path[0] in [name for name, *_ in made] for path in below if path):
            raise ValueError("it lacks members")
        return np.dtype(made)
    if isinstance(held, dict):
        return np.dtype((_dtype(held["array"], below), tuple(held["shape"])))
    spec = below[()]
    dtype: np.dtype[Any] = np.dtype(held)
    if dtype.kind not in ("SO" if spec.kind == "text" else "biufcO"):
        raise ValueError(f"{held!r:.60}")
    if dtype.kind == "O":
        dtype = h5py.string_dtype() if spec.kind == "text" else h5py.vlen_dtype(np.dtype(spec.dtype))
    return dtype


def _axes(spec: FieldSpec, inner: np.dtype[Any], shape: tuple[int, ...]) -> tuple[int | None, ...]:
    """Return the axes of one sample of a field outside of its dataset's dtype."""
    if spec.kind == "text" or inner.hasobject:
        if spec.shape != (None,) or shape:
            raise ValueError(f"field {spec.name!r} holds other values")
        return ()
    outer = len(spec.shape) - len(shape)
    if inner.newbyteorder("=") != np.dtype(spec.dtype) or outer < 0 or spec.shape[outer:] != shape:
        raise ValueError(f"field {spec.name!r} holds other values")
    return spec.shape[:outer]


def _boxed(values: Any, dtype: np.dtype[Any], shape: tuple[int, ...], field: str, first: int) -> NDArray[Any]:
    """Return what numpy can put into an array of `dtype`."""
    text, base = h5py.check_string_dtype(dtype), h5py.check_vlen_dtype(dtype)
    if text is None and base is None:
        return np.asarray(values)
    out: NDArray[Any] = np.empty(shape or 1, dtype)
    for i, value in enumerate(values if shape else [values]):  # one by one: numpy would join lists of one length
        out[i] = np.asarray(value, base) if text is None else _text(value, text.length, field, first + i)
    return out.reshape(shape)


def _text(value: str, length: int | None, field: str, sample: int) -> str | bytes:
    where = f"field {field!r}, sample {sample} of its file: the text {value!r:.40}"
    if "\0" in value:
        raise UsageError(f"{where} holds a zero byte, which ends a string in HDF5; name other fields with --fields")
    held = value.encode()
    if length is not None and len(held) > length:
        raise UsageError(
            f"{where} has {len(held)} bytes, and its source's strings have {length}; the dataset or its manifest was "
            "changed"
        )
    return value if length is None else held


# ---------------------------------------------------------------- rows and groups


class Rows:
    """Samples as rows of a dataset, along `axis`."""

    def __init__(self, file: h5py.File, place: Place, count: int, axis: int) -> None:
        shape = [n or 0 for n in place.axes]
        number = axis if axis >= 0 else len(shape) + 1 + axis
        self._axis = number if 0 <= number <= len(shape) else 0  # a dataset with fewer axes counts along the first
        self._rest = tuple(shape)
        shape.insert(self._axis, count)
        self._dataset = file.create_dataset(place.path, tuple(shape), place.dtype)
        self._place = place
        self._run = max(1, _WRITE_BYTES // max(1, math.prod(self._rest) * self._dataset.dtype.itemsize))

    def write(self, block: Mapping[str, Any], start: int, stop: int) -> None:
        """Write the samples start..stop of the file."""
        for first in range(start, stop, self._run):
            last = min(first + self._run, stop)
            some = {name: block[name][first - start : last - start] for name in self._place.fields}
            values = self._place.array(some, (last - first, *self._rest), first)
            if h5py.check_vlen_dtype(self._place.dtype) is not None:
                _write_lists(self._dataset, values, first)
            elif values.size:
                self._dataset[(*[slice(None)] * self._axis, slice(first, last))] = np.moveaxis(values, 0, self._axis)


def _write_lists(dataset: h5py.Dataset, values: NDArray[Any], start: int) -> None:
    """Write arrays of any length as the rows from `start` on; h5py itself would join those of one length."""
    place = dataset.id.get_space()
    place.select_hyperslab((start,), (len(values),))
    dataset.id.write(h5py.h5s.create_simple((len(values),)), place, values)


class RaggedRows:
    """Samples of different shapes as a group.

    It holds `values` (all samples one after another), `offsets` (samples + 1,), and `shapes` (samples, axes) if more
    than the first axis differs; then `values` is flat.
    """

    def __init__(self, group: h5py.Group, spec: FieldSpec, shapes: NDArray[np.int64]) -> None:
        self._field = spec.name
        self._flat = spec.ragged_axes != (0,)
        sizes = shapes.prod(axis=1) if self._flat else shapes[:, 0]
        self._offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        rest = () if self._flat else spec.shape[1:]
        self._values = group.create_dataset("values", (int(self._offsets[-1]), *rest), np.dtype(spec.dtype))
        group.create_dataset("offsets", data=self._offsets)
        if self._flat:
            group.create_dataset("shapes", data=shapes)

    def write(self, block: Mapping[str, Any], start: int, stop: int) -> None:
        """Write the samples start..stop of the file."""
        joined = np.concatenate([value.reshape(-1) if self._flat else value for value in block[self._field]])
        if joined.size:
            self._values[int(self._offsets[start]) : int(self._offsets[stop])] = joined


def write_group(group: h5py.Group, places: Sequence[Place], values: Mapping[str, Any], number: int) -> None:
    """Write one sample, the `number`-th of its file, as datasets of a group."""
    for place in places:
        held = values[next(iter(place.fields))]
        shape = held.shape[: len(place.axes)] if place.axes else ()
        array = place.array(values, shape, number)
        dataset = group.create_dataset(place.path.lstrip("/"), shape, place.dtype)
        if array.size:
            dataset[()] = array[()] if h5py.check_vlen_dtype(place.dtype) is not None else array


# ---------------------------------------------------------------- attributes and single values


def write_attributes(thing: h5py.HLObject, attributes: Mapping[str, Any], notes: list[str]) -> None:
    """Set the attributes of an object, JSON values as `value` takes them; those that cannot be written are noted."""
    for name, held in attributes.items():
        try:
            found = value(held)
            # Of an array of strings h5py would make up a type of its own.
            thing.attrs.create(name, found, dtype=found.dtype if isinstance(found, np.ndarray) else None)
        except (ValueError, TypeError, OverflowError, OSError, RuntimeError) as error:
            notes.append(f"{thing.name}: the attribute {name!r} is not written: {error}")


def write_single(file: h5py.File, path: str, held: Any, notes: list[str]) -> None:
    """Write a dataset of one value; noted if it cannot be."""
    try:
        found = value(held)
        dtype = h5py.string_dtype() if isinstance(found, str) else getattr(found, "dtype", None)
        file.create_dataset(path, data=found, dtype=dtype)
    except (ValueError, TypeError, OverflowError, OSError, RuntimeError) as error:
        notes.append(f"{path} is not written: {error}")


def write_links(file: h5py.File, links: Mapping[str, str], notes: list[str]) -> None:
    """Give what was written its further names, each with the path it leads to."""
    for path, target in links.items():
        if target not in file:
            continue  # it was not packed, or is not exported
        try:
            file[path] = file[target]
        except (ValueError, OSError, RuntimeError) as error:
            notes.append(f"{path}, another name of {target}, is not written: {error}")


def has_object(file: h5py.File, path: str, groups: Collection[str]) -> bool:
    """Return whether something lies at a path; what was a group, and holds nothing, is made."""
    if path not in file and path in groups:
        try:
            file.create_group(path)
        except (ValueError, OSError, RuntimeError):  # a dataset is in its way
            return False
    return path in file


def value(held: Any) -> Any:
    """Return the value that a JSON value stands for, as h5py takes it.

    A str, bool, int64 or float64 scalar is itself; any other value is `{"dtype": ..., "value": ...}` with nested
    lists for the axes, NaN and infinities as strings, and complex numbers as pairs.

    Raises:
        ValueError: it is a summary, or no value that is kept.
    """
    match held:
        case bool() | str():
            return np.bool_(held) if isinstance(held, bool) else held
        case int() | float():
            return np.int64(held) if isinstance(held, int) else np.float64(held)
        case {"dtype": str(dtype), "value": None}:
            return h5py.Empty(h5py.string_dtype() if dtype in ("object", "str") else np.dtype(dtype))
        case {"dtype": "str", "value": texts}:
            return np.array(texts, h5py.string_dtype())
        case {"dtype": str(name), "value": inner}:
            kind = np.dtype(name)
            if kind.kind not in "biufcS" or kind.itemsize > _LARGEST:
                raise ValueError(f"its dtype {kind} is not known")
            if kind.kind == "S":
                return np.char.encode(np.array(inner, np.str_), "utf-8").astype(kind)
            if kind.kind == "c":
                pairs = np.array(inner, np.float64)
                numbers = np.empty(pairs.shape[:-1], kind)
                numbers.real, numbers.imag = pairs[..., 0], pairs[..., 1]  # a sum would make NaN of infinities
                return numbers
            return np.array(inner, kind)
        case {"summary": str(summary)}:
            raise ValueError(f"it was too large or of a kind that is not kept ({summary})")
    raise ValueError("it is of a kind that is not kept")


# ---------------------------------------------------------------- the file below


class Sink(io.RawIOBase):
    """A new file for h5py, which takes all that libhdf5 writes, and tells of errors when it is asked.

    libhdf5 cannot close a file that it cannot write to, and often takes the process down later. So what comes after an
    error is kept in memory: no more than one block of samples and some MiB of metadata if `check` is called after every
    block.

    Raises:
        OSError: the file cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("w+b", buffering=0)
        self._error: BaseException | None = None
        self._kept: list[tuple[int, bytes]] = []
        self._at = 0
        self._end = 0

    def check(self) -> None:
        """
        Raises:
            OSError: something could not be written; has the path in it.
            BaseException: what came while libhdf5 was writing, such as KeyboardInterrupt.
        """
        if isinstance(self._error, OSError):
            raise OSError(self._error.errno, self._error.strerror or str(self._error), str(self._path))
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        self._kept.clear()
        self._file.close()
        super().close()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._end}[whence]
        return self._at

    def write(self, data: Any, /) -> int:
        view = memoryview(data).cast("B")
        if self._error is None:
            try:
                self._write(view)
            except BaseException as error:  # within a call of libhdf5 nothing may be raised
                self._error = error
        if self._error is not None:
            self._kept.append((self._at, bytes(view)))
        self._at += len(view)
        self._end = max(self._end, self._at)
        return len(view)

    def _write(self, view: memoryview) -> None:
        self._file.seek(self._at)
        while view:
            view = view[self._file.write(view) :]  # a disk that is nearly full takes a part

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer).cast("B")
        view[:] = bytes(len(view))
        self._file.seek(self._at)
        self._file.readinto(view)
        for start, data in self._kept:
            first, last = max(start, self._at), min(start + len(data), self._at + len(view))
            if first < last:
                view[first - self._at : last - self._at] = data[first - start : last - start]
        self._at += len(view)
        return len(view)

    def truncate(self, size: int | None = None, /) -> int:
        self._end = self._at if size is None else size
        try:
            self._file.truncate(self._end)
        except BaseException as error:
            self._error = self._error or error
        return self._end
