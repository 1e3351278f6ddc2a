"""Attributes out of the JSON values that `packer.sources.hdf5.attributes` made of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import h5py
import numpy as np

from packer.export.hdf5_types import dtype_of

#: Attributes are kept up to 16 KiB; a longer string dtype is no one's.
_LONGEST = 2**16
#: Attributes that datasets alone have.
_OF_DATASETS = ("DIMENSION_SCALE", "IMAGE", "PALETTE")
#: Paths that a note names.
_SHOWN = 5


def write_all(
    file: h5py.File, attributes: Mapping[str, Mapping[str, Any]], groups: Collection[str] | None, notes: list[str]
) -> None:
    """Sets the attributes of all objects; what cannot be written is noted.

    Args:
        attributes: by path of the object.
        groups: paths of those that were groups, which are made where they hold nothing; None where it is not known.
    """
    lost = []
    for path, held in attributes.items():
        if path in file or _made(file, path, held, groups):
            write_attributes(file[path], path, held, notes)
        else:
            lost.append(path)
    if lost:
        more = f" and {len(lost) - _SHOWN:,} more" if len(lost) > _SHOWN else ""
        note = f"attributes of {', '.join(lost[:_SHOWN])}{more} are not written: the file does not hold them"
        notes.extend([note] if note not in notes else [])  # once for all files of a set


def _made(file: h5py.File, path: str, attributes: Mapping[str, Any], groups: Collection[str] | None) -> bool:
    was_group = plain_value(attributes.get("CLASS")) not in _OF_DATASETS if groups is None else path in groups
    if not was_group:
        return False
    try:
        file.create_group(path)
    except (ValueError, OSError, RuntimeError):  # a dataset is in its way
        return False
    return True


def write_attributes(thing: h5py.HLObject, name: str, attributes: Mapping[str, Any], notes: list[str]) -> None:
    """Sets the attributes of an object; what was kept as a summary alone is noted.

    Args:
        name: what notes call the object.
    """
    for attribute, held in attributes.items():
        try:
            found = value(held)
            thing.attrs.create(attribute, found, dtype=type_for(held, found))
        except (ValueError, TypeError, OverflowError, OSError, RuntimeError) as error:
            notes.append(f"{name}: the attribute {attribute!r} is not written: {error}")


def plain_value(held: Any) -> Any:
    """What a JSON value says, without its dtype."""
    return held.get("value") if isinstance(held, dict) else held


def value(held: Any) -> Any:
    """The value that a JSON value stands for, as h5py takes it.

    Raises:
        ValueError: it is a summary, or no value of an attribute at all.
    """
    if isinstance(held, dict):
        _check_whole(held.get("value"))
    match held:
        case bool() | int() | float() | str():
            return _scalar(held)
        case {"dtype": str(dtype), "value": None}:
            return h5py.Empty(h5py.string_dtype() if dtype in ("object", "str") else np.dtype(dtype))
        case {"dtype": "str", "value": texts}:
            return np.array(texts, h5py.string_dtype(_charset(held, "utf-8")))
        case {"dtype": str(dtype), "enum": dict(names), "value": inner}:
            return np.array(inner, dtype_of({"enum": names, "dtype": dtype}))
        case {"dtype": str(dtype), "value": inner}:
            return _array(np.dtype(dtype), inner, _charset(held, "ascii"))
        case {"type": {"array": _}}:
            raise ValueError("an early version did not keep it as it was; pack its source again")
        case {"type": type_, "shape": list(shape), "hex": str(text)}:
            # numpy has no arrays of array types: their axes are the last ones of the array.
            return np.frombuffer(bytes.fromhex(text), dtype_of(type_)).reshape((*shape, *held.get("axes", ())))
        case {"summary": str(summary)}:
            raise ValueError(_not_kept(summary))
    raise ValueError("it is no value of an attribute")


def type_for(held: Any, found: Any) -> np.dtype[Any] | None:
    """The datatype that h5py is to give `found`, the value of `held`; None where it chooses the right one.

    Raises:
        ValueError: the type that is kept is none.
    """
    if isinstance(held, dict) and "axes" in held:
        return dtype_of({"array": held["type"], "shape": held["axes"]})
    # Of an array of strings h5py would make up a type of its own.
    return found.dtype if isinstance(found, np.ndarray) else None


def _check_whole(held: Any) -> None:
    """Raises ValueError where a part was summarised, as early versions did."""
    match held:
        case list():
            for item in held:
                _check_whole(item)
        case {"summary": str(summary)}:
            raise ValueError(_not_kept(summary))


def _not_kept(summary: str) -> str:
    return f"it was too large or of a kind that is not kept ({summary})"


def _scalar(held: bool | int | float | str) -> Any:
    if isinstance(held, bool):
        return np.bool_(held)
    if isinstance(held, int):
        return np.int64(held)
    return held if isinstance(held, str) else np.float64(held)


def _charset(held: dict[str, Any], usual: str) -> str:
    charset = held.get("charset", usual)
    if charset not in ("ascii", "utf-8"):
        raise ValueError(f"its charset {charset!r} is not known")
    return str(charset)


def _array(dtype: np.dtype[Any], held: Any, charset: str) -> Any:
    if dtype.kind not in "biufcS" or dtype.itemsize > _LONGEST:
        raise ValueError(f"its dtype {dtype} is not known")
    if dtype.kind == "S":
        return np.array(
            _each(held, lambda text: str(text).encode()), h5py.string_dtype(charset, max(dtype.itemsize, 1))
        )
    if dtype.kind == "f":
        return np.array(_each(held, float), dtype)
    if dtype.kind == "c":
        pairs = np.array(_each(held, float), np.float64)
        numbers = np.empty(pairs.shape[:-1], dtype)
        numbers.real, numbers.imag = pairs[..., 0], pairs[..., 1]  # a sum would make NaN of infinities
        return numbers
    return np.array(held, dtype)


def _each(held: Any, convert: Callable[[Any], Any]) -> Any:
    """Nested lists with every item converted."""
    return [_each(item, convert) for item in held] if isinstance(held, list) else convert(held)
