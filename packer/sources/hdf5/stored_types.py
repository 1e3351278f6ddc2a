"""Datatypes of datasets as JSON values, so that an export can give them back.

A number is numpy's word for it with its byte order (`>f4`, `|b1`); all else is an object:

    {"text": "ascii" | "utf-8", "length": n | null}         n bytes, or of any length
    {"enum": {"NAME": number}, "dtype": "<i2"}
    {"list": TYPE}                                          numbers of any length
    {"array": TYPE, "shape": [n, ...]}
    {"compound": [["NAME", TYPE, offset], ...], "size": n}  offset and size null where the library chooses them
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import h5py
import numpy as np

from packer.sources.hdf5.types import Column

#: Datasets whose types are kept: the manifest is read by people.
_MAX_TYPES = 500


def stored_types(root: h5py.Group, columns: Sequence[Column], of_rows: bool) -> tuple[dict[str, dict[str, Any]], int]:
    """By path of each dataset below `root` whose type an export would not choose by itself: the type, and the fields
    made of it, with the compound members that lead to each; and how many more of these datasets there are.

    Args:
        of_rows: whether the samples are rows of the datasets, for which names of enumerations are kept elsewhere, and
            arrays of any length are no dataset of a sample's own.
    """
    found: dict[str, dict[str, Any]] = {}
    for column in columns:
        known = found.get(column.dataset)
        if known is None:
            held = type_json(root[column.dataset.lstrip("/")].dtype)
            if not _is_usual(held, of_rows):
                known = found[column.dataset] = {"type": held, "fields": {}}
        if known is not None:
            known["fields"][column.spec.name] = list(column.members)
    return dict(list(found.items())[:_MAX_TYPES]), max(0, len(found) - _MAX_TYPES)


def type_json(dtype: np.dtype[Any]) -> Any:
    """A datatype as h5py gives it, as JSON."""
    text = h5py.check_string_dtype(dtype)
    if text is not None:
        return {"text": text.encoding, "length": text.length}
    enum = h5py.check_enum_dtype(dtype)
    if enum is not None:
        return {"enum": {str(name): int(number) for name, number in enum.items()}, "dtype": dtype.str}
    base = h5py.check_vlen_dtype(dtype)
    if base is not None:
        return {"list": type_json(np.dtype(base))}
    if dtype.subdtype is not None:
        return {"array": type_json(dtype.subdtype[0]), "shape": list(dtype.subdtype[1])}
    if dtype.names:
        return _compound(dtype)
    return dtype.str


def _compound(dtype: np.dtype[Any]) -> dict[str, Any]:
    # What values of any length take differs between memory and file, and with it all offsets behind them.
    fixed = not dtype.hasobject
    assert dtype.fields is not None
    members = [[name, type_json(dtype[name]), dtype.fields[name][1] if fixed else None] for name in dtype.names or ()]
    return {"compound": members, "size": dtype.itemsize if fixed else None}


def _is_usual(held: Any, of_rows: bool) -> bool:
    """Whether a dataset gets this type where nothing is known of its source."""
    match held:
        case str(plain):
            return np.dtype(plain).isnative
        case {"text": "utf-8", "length": None}:
            return True
        case {"list": str(plain)} | {"enum": _, "dtype": str(plain)}:
            return of_rows and np.dtype(plain).isnative
    return False
