"""What is written into one HDF5 file: datasets of rows, or a group for each sample; attributes, and the file below."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.format.schema import FieldSpec
from packer.sources.hdf5.origin import Stored

#: How many bytes of values are made at a time: fixed strings can be far longer than the texts in a block.
_WRITE_BYTES = 32 * 2**20
#: A dtype of more bytes is no one's; a manifest may have been made by anyone.
_LARGEST = 2**26
Members = tuple[str, ...]
#: What h5py raises for values, names and types of a manifest that HDF5 cannot hold.
_REFUSED = (ValueError, TypeError, LookupError, OverflowError, OSError, RuntimeError)


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

    def array(self, values: Mapping[str, Any], shape: tuple[int, ...], first: int) -> NDArray[Any]:
        """Return values of the dataset's dtype out of those of its fields.

        Args:
            values: by field; those of one sample if `shape` has no axis for samples.
            shape: of the array, without the axes within the dtype.
            first: number of the first sample in its file, for errors.

        Raises:
            UsageError: a text is too long for the dtype, or holds a zero byte.
        """
        if not any(self.fields.values()):
            (name,) = self.fields
            return _boxed(values[name], self.dtype, shape, name, first)
        out = np.zeros(shape, self.dtype)
        for name, members in self.fields.items():
            view: Any = out
            for member in members:
                view = view[member]
            view[...] = _boxed(values[name], view.dtype, shape, name, first)
        return out


def usual_place(spec: FieldSpec, path: str, of_rows: bool) -> Place:
    """Return the dataset of a field of which nothing else is known: text and lists in rows as values of any length."""
    is_list = spec.kind == "text" or (of_rows and spec.shape == (None,))
    return place_of(path, {spec.name: Stored(path, "|O" if is_list else spec.dtype)}, {spec.name: spec})


def place_of(path: str, held: Mapping[str, Stored], specs: Mapping[str, FieldSpec]) -> Place:
    """Return the dataset that is made of these fields.

    Raises:
        ValueError: this is no dtype, one beyond belief, or not what the fields hold.
    """
    try:
        leaves = {name: _leaf(specs[name], stored) for name, stored in held.items()}
        dtype = _joined([(stored.members, stored.axes, leaves[name][0]) for name, stored in held.items()])
    except _REFUSED as error:
        raise ValueError(f"its type is not known: {error}") from None
    if dtype.itemsize > _LARGEST:
        raise ValueError(f"values of {dtype.itemsize:,} bytes are not believed")
    outer, *others = {axes for _, axes in leaves.values()}
    if others:
        raise ValueError("its fields differ in their axes")
    return Place(path, dtype, {name: stored.members for name, stored in held.items()}, outer)


def _leaf(spec: FieldSpec, stored: Stored) -> tuple[np.dtype[Any], tuple[int | None, ...]]:
    """Return the dtype of a field's values, and the axes of one sample that lie outside of its dataset's dtype."""
    dtype: np.dtype[Any] = np.dtype(stored.dtype)
    inner = tuple(n for axes in stored.axes for n in axes)
    outer = spec.shape[: len(spec.shape) - len(inner)]
    if spec.kind == "text" or dtype.kind == "O":
        fits = dtype.kind in ("SO" if spec.kind == "text" else "O") and not inner and spec.shape == (None,)
        if dtype.kind == "O":
            dtype = h5py.string_dtype() if spec.kind == "text" else h5py.vlen_dtype(np.dtype(spec.dtype))
        outer = ()
    else:
        fits = dtype.newbyteorder("=") == np.dtype(spec.dtype) and spec.shape == outer + inner
    if not fits:
        raise ValueError(f"field {spec.name!r} holds other values")
    return dtype, outer


def _joined(leaves: Sequence[tuple[Members, Sequence[tuple[int, ...]], np.dtype[Any]]]) -> np.dtype[Any]:
    """Return the dtype, a compound if they have members, that is made of leaves: members, axes on the way, dtype."""
    axes = leaves[0][1][0]
    if any(members for members, _, _ in leaves):
        below: dict[str, list[Any]] = {}
        for members, inner, dtype in leaves:
            below.setdefault(members[0], []).append((members[1:], inner[1:], dtype))
        base = np.dtype([(name, _joined(some)) for name, some in below.items()])
    elif len(leaves) > 1:
        raise ValueError("several fields are its values")
    else:
        base = leaves[0][2]
    return np.dtype((base, axes)) if axes else base


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
    if value.endswith("\0") or (length is None and "\0" in value):
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
                place = (*[slice(None)] * self._axis, slice(first, last))
                self._dataset[place] = np.moveaxis(values, 0, self._axis)


def _write_lists(dataset: h5py.Dataset, values: NDArray[Any], start: int) -> None:
    """Write arrays of any length as the rows from `start` on; h5py itself would join those of one length."""
    place = dataset.id.get_space()
    place.select_hyperslab((start,), (len(values),))
    dataset.id.write(h5py.h5s.create_simple((len(values),)), place, values)


class RaggedRows:
    """Samples of different shapes as a group.

    It holds `values` (all samples one after another), `offsets` (samples + 1,), and `shapes` (samples, axes) if more
    than the first axis differs; then `values` is flat. Fields of one group share their offsets.
    """

    def __init__(
        self,
        group: h5py.Group,
        spec: FieldSpec,
        shapes: NDArray[np.int64],
        values: str = "values",
        offsets: str = "offsets",
    ) -> None:
        self._field = spec.name
        self._flat = spec.ragged_axes != (0,)
        sizes = shapes.prod(axis=1) if self._flat else shapes[:, 0]
        self._offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        rest = () if self._flat else spec.shape[1:]
        self._values = group.create_dataset(values, (int(self._offsets[-1]), *rest), np.dtype(spec.dtype))
        if offsets not in group:
            group.create_dataset(offsets, data=self._offsets)
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
    """Set the attributes of an object; those that cannot be written are noted."""
    for name, held in attributes.items():
        write_kept(thing.attrs.create, name, held, f"{thing.name}: the attribute {name!r}", notes)


def write_kept(create: Callable[..., Any], name: str, held: Any, what: str, notes: list[str]) -> None:
    """Write an attribute, or a dataset, of what `_value` takes; noted if it cannot be.

    Args:
        create: makes it from its name, `data` and `dtype`.
        what: what it is, for the note.
    """
    if isinstance(held, dict) and "summary" in held:
        return  # it was not kept, which was said when it was packed
    try:
        value, dtype = _value(held)
        create(name, data=value, dtype=dtype)
    except _REFUSED as error:
        notes.append(f"{what} is not written: {error}")


def _value(held: Any) -> tuple[Any, np.dtype[Any] | None]:
    """Return an array, or what a JSON value in the form of `packer.sources.hdf5.origin` stands for, and its dtype.

    The dtype is None if h5py finds it itself; of an array of strings it would make up a type of its own.

    Raises:
        ValueError: it is no value that is kept.
    """
    match held:
        case bool() | int() | float() | str() | np.ndarray():
            return held, None
        case {"dtype": str(name), "value": inner}:
            dtype = h5py.string_dtype() if name == "str" else np.dtype(name)
            if dtype.kind not in "biufcSO" or dtype.itemsize > _LARGEST:
                raise ValueError(f"its dtype {dtype} is not known")
            if inner is None:
                return h5py.Empty(dtype), None
            text = dtype.kind == "S"
            return np.char.encode(np.array(inner, np.str_), "utf-8") if text else np.array(inner, dtype), dtype
    raise ValueError("it is of a kind that is not kept")


# ---------------------------------------------------------------- the file below


@contextmanager
def new_file(path: Path) -> Iterator[tuple[h5py.File, Sink]]:
    """Open a new HDF5 file, which is whole at the end of the block.

    Raises:
        OSError: something could not be written.
    """
    with Sink(path) as sink:
        try:
            with h5py.File(sink, "w") as file:
                yield file, sink
        finally:
            sink.check()


class Sink(io.FileIO):
    """A new file for h5py, which seems to take all that libhdf5 writes, and tells of errors when it is asked.

    libhdf5 cannot close a file that it cannot write to, and often takes the process down later. So what comes after an
    error is dropped, and reads as zeros; `check` is called after every block.

    Raises:
        OSError: the file cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self._error: BaseException | None = None
        super().__init__(path, "w+")

    def check(self) -> None:
        """
        Raises:
            OSError: something could not be written; has the path in it.
            BaseException: what came while libhdf5 was writing, such as KeyboardInterrupt.
        """
        if isinstance(self._error, OSError):
            raise OSError(self._error.errno, self._error.strerror or str(self._error), str(self.name))
        if self._error is not None:
            raise self._error

    def write(self, data: Any, /) -> int:
        left = memoryview(data).cast("B")
        count = len(left)
        try:
            while left and self._error is None:
                left = left[super().write(left) :]  # a disk that is nearly full takes a part
        except BaseException as error:  # within a call of libhdf5 nothing may be raised
            self._error = error
        return count

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer).cast("B")
        count = super().readinto(view)
        view[count:] = bytes(len(view) - count)
        return len(view)

    def truncate(self, size: int | None = None, /) -> int:
        try:
            return super().truncate(size) if self._error is None else 0
        except BaseException as error:
            self._error = error
            return 0
