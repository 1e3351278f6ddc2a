"""Datatypes out of the JSON values that `packer.sources.hdf5.stored_types` made of them, and values of such types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import h5py
import msgspec
import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.format.schema import FieldSpec

#: A value of more bytes is no one's; a manifest may have been made by anyone.
_LARGEST = 2**26
Members = tuple[str, ...]


class Typed(msgspec.Struct, frozen=True):
    """What is kept of a dataset: its type, and the fields made of it with the members that lead to each."""

    type: Any
    fields: dict[str, tuple[str, ...]] = {}


@dataclass(frozen=True)
class StoredType:
    """The datatype of a dataset that is made of some fields.

    Attributes:
        fields: compound members that lead to each field.
    """

    dtype: np.dtype[Any]
    fields: Mapping[str, Members]

    def axes(self, specs: Sequence[FieldSpec]) -> tuple[int | None, ...]:
        """Axes of one sample in the dataset; those of array types lie within its values.

        Args:
            specs: all fields.

        Raises:
            ValueError: values of a field are not what the type holds, or the fields differ in their axes.
        """
        found = {self._axes(spec) for spec in specs if spec.name in self.fields}
        if len(found) != 1:
            raise ValueError("its fields differ in their axes")
        return found.pop()

    def _axes(self, spec: FieldSpec) -> tuple[int | None, ...]:
        leaf, inner = _leaf(self.dtype, self.fields[spec.name])
        text, base = h5py.check_string_dtype(leaf), h5py.check_vlen_dtype(leaf)
        if text is not None or base is not None:
            is_same = spec.kind == "text" if text is not None else _name(np.dtype(base)) == spec.dtype
            if not is_same or spec.shape != (None,) or inner:
                raise ValueError(f"field {spec.name!r} holds other values")
            return ()
        outer = len(spec.shape) - len(inner)
        if spec.kind == "text" or _name(leaf) != spec.dtype or outer < 0 or spec.shape[outer:] != inner:
            raise ValueError(f"field {spec.name!r} holds other values")
        return spec.shape[:outer]

    def array(self, values: Mapping[str, Any], shape: tuple[int, ...]) -> NDArray[Any]:
        """Values of this type out of those of the fields.

        Args:
            values: by field; text and lists as sequences where `shape` is not empty.
            shape: of the array, without the axes of array types.

        Raises:
            UsageError: a text is too long for the type, or holds a zero byte.
        """
        out = np.zeros(shape, self.dtype)
        for name, members in self.fields.items():
            leaf, _ = _leaf(self.dtype, members)
            view: Any = out
            for member in members:
                view = view[member]
            view[...] = _values(values[name], leaf, shape, name)
        return out


def stored_type(typed: Typed, fields: Sequence[str]) -> StoredType | None:
    """The type of the dataset that is made of those of its fields that are named; None where there is none of them.

    Raises:
        ValueError: the JSON value is no type.
    """
    members = {name: tuple(typed.fields[name]) for name in typed.fields if name in fields}
    if not members:
        return None
    dtype = dtype_of(typed.type, list(members.values()))
    return StoredType(dtype, members)


def dtype_of(held: Any, paths: Sequence[Members] = ()) -> np.dtype[Any]:
    """The datatype that a JSON value stands for.

    Args:
        paths: the compound members to keep, all of which are there; none for all.

    Raises:
        ValueError: it is none, or one beyond belief.
    """
    try:
        dtype = _dtype(_with_members(held, paths) if paths else held)
        for path in paths:
            _leaf(dtype, path)
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
        raise ValueError(f"its type is not known: {error}") from None
    if dtype.itemsize > _LARGEST:
        raise ValueError(f"values of {dtype.itemsize:,} bytes are not believed")
    return dtype


def _with_members(held: Any, paths: Sequence[Members]) -> Any:
    """The type without compound members that no field is made of."""
    if isinstance(held, dict) and "array" in held:
        return {**held, "array": _with_members(held["array"], paths)}
    if not isinstance(held, dict) or "compound" not in held:
        return held
    kept = []
    for name, inner, offset in held["compound"]:
        below = [path[1:] for path in paths if path[:1] == (name,)]
        if below:
            kept.append([name, _with_members(inner, below), offset])
    if kept == held["compound"]:
        return held
    return {"compound": [[name, inner, None] for name, inner, _ in kept], "size": None}


def _dtype(held: Any) -> np.dtype[Any]:
    made: Any
    match held:
        case str(plain) if np.dtype(plain).kind in "biufcV" and np.dtype(plain).names is None:
            made = plain
        case {"text": "ascii" | "utf-8" as encoding, "length": None | int() as length}:
            made = h5py.string_dtype(encoding, length)
        case {"enum": dict(names), "dtype": str(plain)} if np.dtype(plain).kind in "iu" and _are_numbers(names):
            made = h5py.enum_dtype(names, np.dtype(plain))
        case {"list": str(plain)} if np.dtype(plain).kind in "biufc":
            made = h5py.vlen_dtype(np.dtype(plain))
        case {"array": inner, "shape": list(shape)}:
            made = (_dtype(inner), tuple(shape))
        case {"compound": list(members), "size": int(size)} if all(isinstance(m[2], int) for m in members):
            fields, types, offsets = (list(column) for column in zip(*members, strict=True))
            formats = [_dtype(inner) for inner in types]
            made = {"names": fields, "formats": formats, "offsets": offsets, "itemsize": size}
        case {"compound": list(members)}:
            made = [(name, _dtype(inner)) for name, inner, _ in members]
        case _:
            raise TypeError(f"{held!r:.60}")
    dtype: np.dtype[Any] = np.dtype(made)
    return dtype


def _are_numbers(names: dict[str, Any]) -> bool:
    return all(isinstance(number, int) for number in names.values())


def _leaf(dtype: np.dtype[Any], members: Members) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """What the members lead to, and the axes of all array types on the way."""
    shape: tuple[int, ...] = ()
    for member in (None, *members):
        dtype = dtype if member is None else dtype[member]
        if dtype.subdtype is not None:
            dtype, more = dtype.subdtype
            shape += more
    if dtype.names:
        raise KeyError(f"{'.'.join(members)} is a compound")
    return dtype, shape


def _name(dtype: np.dtype[Any]) -> str:
    return str(dtype.newbyteorder("=").name)


def _values(values: Any, leaf: np.dtype[Any], shape: tuple[int, ...], field: str) -> Any:
    """What numpy can put into an array of `leaf`."""
    text, base = h5py.check_string_dtype(leaf), h5py.check_vlen_dtype(leaf)
    if text is None and base is None:
        return values
    boxed = np.empty(shape or 1, object)
    for i, value in enumerate(values if shape else [values]):  # one by one: numpy would join lists of one length
        # In the byte order of the file: h5py cannot turn the lists within a compound.
        boxed[i] = np.asarray(value, base) if text is None else _text(value, text.length, field)
    return boxed.reshape(shape)


def _text(value: str, length: int | None, field: str) -> Any:
    if "\0" in value:
        raise UsageError(
            f"field {field!r}: the text {value!r:.40} holds a zero byte, which ends a string in HDF5; "
            "name other fields with --fields"
        )
    if length is None:
        return value
    held = value.encode()
    if len(held) > length:
        raise UsageError(
            f"field {field!r}: the text {value!r:.40} has {len(held)} bytes, and its source's strings have {length}; "
            "the dataset or its manifest was changed"
        )
    return held
