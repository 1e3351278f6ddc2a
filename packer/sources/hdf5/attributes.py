"""Attributes of files, groups and datasets as JSON values that give dtype and shape back.

A str, bool, int64 or float64 scalar is itself; any other value is `{"dtype": ..., "value": ...}` with nested
lists for the axes, NaN and infinities as strings, complex numbers as pairs. What is large or cannot be
read is `{"summary": "..."}`.
"""

from __future__ import annotations

import math
from typing import Any

import h5py
import numpy as np

#: Larger attributes are summarised: the manifest is read by people.
_MAX_BYTES = 16 * 2**10
#: Objects carry a handful of attributes; a file with more is hostile or a database.
_MAX_ATTRIBUTES = 1000


def attributes(thing: h5py.HLObject) -> dict[str, Any]:
    """All attributes of an object by name; never raises for what is in them."""
    try:
        names = list(thing.attrs)
    except (OSError, RuntimeError, ValueError, LookupError):
        return {"": {"summary": "attributes cannot be read"}}
    found = {_printable(name): _attribute(thing, name) for name in names[:_MAX_ATTRIBUTES]}
    if len(names) > _MAX_ATTRIBUTES:
        found[""] = {"summary": f"{len(names) - _MAX_ATTRIBUTES:,} more attributes left out"}
    return found


def _attribute(thing: h5py.HLObject, name: str | bytes) -> Any:
    # Whatever a damaged or exotic attribute raises must not cost the data: it is noted in its place.
    try:
        header = thing.attrs.get_id(name)
        dtype, shape = header.dtype, header.shape
        if shape is not None and math.prod(shape) * dtype.itemsize > _MAX_BYTES:
            return {"summary": f"{dtype} of shape {tuple(shape)}"}
        return json_value(thing.attrs[name])
    except Exception as error:
        return {"summary": f"cannot be read: {type(error).__name__}"}


def json_value(value: Any) -> Any:
    """A value as h5py gives it, as JSON; what has no JSON form is summarised."""
    if isinstance(value, h5py.Empty):
        return {"dtype": str(value.dtype), "value": None}
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, bytes):
        return {"dtype": f"S{len(value)}", "value": _text(value.decode("utf-8", "backslashreplace"))}
    array = np.asarray(value)
    plain = array.dtype.name in ("bool", "int64", "float64") and array.ndim == 0
    if plain and np.isfinite(array):
        return array.item()
    if array.dtype.kind in "biufcSU":
        return {"dtype": array.dtype.newbyteorder("=").str, "value": _lists(array.tolist())}
    if array.dtype.kind == "O" and all(isinstance(item, str | bytes) for item in array.flat):
        return {"dtype": "str", "value": _lists(array.tolist())}
    return {"summary": f"{array.dtype} of shape {array.shape}"}


def _lists(value: Any) -> Any:
    if isinstance(value, list):
        return [_lists(item) for item in value]
    if isinstance(value, complex):
        return [_lists(value.real), _lists(value.imag)]
    if isinstance(value, float) and not math.isfinite(value):
        # JSON has no NaN; writers would make it null.
        return str(value)
    if isinstance(value, bytes):
        return _text(value.decode("utf-8", "backslashreplace"))
    return _text(value) if isinstance(value, str) else value


def _text(value: str) -> Any:
    if len(value) > _MAX_BYTES:
        return {"summary": f"text of {len(value):,} characters, beginning {_printable(value[:60])}"}
    return _printable(value)


def _printable(value: str | bytes) -> str:
    """`value` as text without lone surrogates, which JSON in UTF-8 cannot hold; h5py leaves some names bytes."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return value.encode("utf-8", "backslashreplace").decode()
