"""What is written into one HDF5 file: datasets of rows, or a group for each sample; attributes, and the file below."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.format import FieldSpec

#: A dtype of more bytes is no one's; a manifest may have been made by anyone.
_LARGEST = 2**26
#: What h5py raises for values, names and types of a manifest that HDF5 cannot hold.
_REFUSED = (ValueError, TypeError, LookupError, OverflowError, OSError, RuntimeError)


# ---------------------------------------------------------------- rows and groups


class Rows:
    """Samples as rows of a dataset, along `axis`; text and lists of numbers as values of any length."""

    def __init__(self, file: h5py.File, path: str, spec: FieldSpec, count: int, axis: int) -> None:
        self._spec = spec
        self._base = np.dtype(spec.dtype) if spec.kind != "text" and spec.shape == (None,) else None
        dtype = h5py.string_dtype() if spec.kind == "text" else np.dtype(spec.dtype)
        shape = [] if spec.is_ragged else [n or 0 for n in spec.shape]
        number = axis if axis >= 0 else len(shape) + 1 + axis
        self._axis = number if 0 <= number <= len(shape) else 0  # a dataset with fewer axes counts along the first
        shape.insert(self._axis, count)
        self._dataset = file.create_dataset(path, tuple(shape), h5py.vlen_dtype(self._base) if self._base else dtype)

    def write(self, block: Mapping[str, Any], start: int, stop: int) -> None:
        """Write the samples start..stop of the file."""
        values = block[self._spec.name]
        if self._base is not None:
            _write_lists(self._dataset, values, self._base, start)
        elif self._spec.kind == "text":
            self._dataset[start:stop] = [_text(text, self._spec.name, start + n) for n, text in enumerate(values)]
        elif values.size:
            place = (*[slice(None)] * self._axis, slice(start, stop))
            self._dataset[place] = np.moveaxis(values, 0, self._axis)


def _write_lists(dataset: h5py.Dataset, lists: Sequence[NDArray[Any]], base: np.dtype[Any], start: int) -> None:
    """Write arrays of any length as the rows from `start` on; h5py itself would join those of one length."""
    values = np.empty(len(lists), h5py.vlen_dtype(base))
    for number, row in enumerate(lists):
        values[number] = np.asarray(row, base)
    place = dataset.id.get_space()
    place.select_hyperslab((start,), (len(values),))
    dataset.id.write(h5py.h5s.create_simple((len(values),)), place, values)


def _text(value: str, field: str, sample: int) -> str:
    if "\0" in value:
        raise UsageError(
            f"field {field!r}, sample {sample} of its file: the text {value!r:.40} holds a zero byte, which ends a "
            "string in HDF5; name other fields with --fields"
        )
    return value


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


def write_value(file: h5py.File, path: str, spec: FieldSpec, value: Any, number: int) -> None:
    """Write a field of one sample, the `number`-th of its file, as a dataset."""
    if spec.kind == "text":
        file.create_dataset(path, data=_text(value, spec.name, number), dtype=h5py.string_dtype())
    else:
        file.create_dataset(path, data=np.asarray(value, spec.dtype))


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
