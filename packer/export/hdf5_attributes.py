"""Attributes out of the JSON values that `packer.sources.hdf5.attributes` made of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import h5py
import numpy as np

from packer.export.hdf5_types import dtype_of

#: Attributes are kept up to 16 KiB; a longer string dtype is no one's.
_LONGEST = 2**16
#: Attributes that datasets alone have.
_OF_DATASETS = ("DIMENSION_SCALE", "IMAGE", "PALETTE")


def write_attributes(file: h5py.Group, path: str, attributes: Mapping[str, Any], notes: list[str]) -> None:
    """Sets the attributes of an object; what was kept as a summary alone is noted.

    Where there is no such object it becomes a group: the source had one, or a dataset that was not packed.
    """
    if path not in file:
        if plain_value(attributes.get("CLASS")) in _OF_DATASETS:
            notes.append(f"{path}: its attributes are not written, since it was not packed")
            return
        file.create_group(path)
    for name, held in attributes.items():
        try:
            found = value(held)
            # Of an array of strings h5py would make up a type of its own.
            file[path].attrs.create(name, found, dtype=found.dtype if isinstance(found, np.ndarray) else None)
        except (ValueError, TypeError, OverflowError, OSError, RuntimeError) as error:
            notes.append(f"{path}: the attribute {name!r} is not written: {error}")


def plain_value(held: Any) -> Any:
    """What a JSON value says, without its dtype."""
    return held.get("value") if isinstance(held, dict) else held


def value(held: Any) -> Any:
    """The value that a JSON value stands for, as h5py takes it.

    Raises:
        ValueError: it is a summary, or no value of an attribute at all.
    """
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
        case {"type": type_, "shape": list(shape), "hex": str(text)}:
            return np.frombuffer(bytes.fromhex(text), dtype_of(type_)).reshape(shape)
        case {"summary": str(summary)}:
            raise ValueError(f"it was too large or of a kind that is not kept ({summary})")
    raise ValueError("it is no value of an attribute")


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
