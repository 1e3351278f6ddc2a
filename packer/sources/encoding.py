"""Sources as bytes, for the plan that an array of jobs shares.

    data = encode_source(source.slice(0, 1000))
    source = decode_source(data)

The bytes are a list of rows in msgpack, each a value: a list, an array, or an object of a class of `packer.sources`, by
its name. Values in a row are numbers and texts, or `[n]` for the value of an earlier row, so what many samples share is
there once. This is no pickle: it can name nothing but data of sources, and decoding calls only what makes a record of
its fields.

No class declares anything for this. To decode attributes by their types, each class would have to declare them all,
`LaidField.detail` would be a union of the records of all kinds, and names of files that are no UTF-8 would need a type
of their own: that is more than these lines.
"""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache
from typing import Any

import msgspec
import numpy as np

from packer.errors import SourceError, as_text
from packer.sources.base import Source

#: Modules whose classes the bytes may name.
_MODULES = ("packer.sources.", "packer.format.schema")
_PLAIN = (bool, int, float, str, bytes)
#: Sequences and sets that keep their type.
_COLLECTIONS: Mapping[str, Any] = {cls.__name__: cls for cls in (list, tuple, set, frozenset)}


def encode_source(source: Source) -> bytes:
    """Return a source as bytes.

    Raises:
        TypeError: it holds something that is no data, such as an open file.
    """
    encoder = _Encoder()
    encoder.item(source)
    return msgspec.msgpack.encode(encoder.rows)


def decode_source(data: bytes) -> Source:
    """Return the source that `encode_source` has encoded.

    Raises:
        SourceError: the bytes are no source of this version of packer.
    """
    try:
        values: list[Any] = []
        for kind, items in msgspec.msgpack.decode(data, type=list[tuple[str, list[Any]]]):
            values.append(_decoded(kind, [values[item[0]] if isinstance(item, list) else item for item in items]))
        source = values[-1]
        if not isinstance(source, Source):
            raise TypeError(f"{type(source).__name__} is no source")
    except (msgspec.DecodeError, LookupError, TypeError, ValueError, AttributeError, ImportError) as error:
        raise SourceError(f"is no source of this version of packer: {error}") from None
    return source


class _Encoder:
    def __init__(self) -> None:
        self.rows: list[tuple[str, list[Any]]] = []
        #: By id, the row of a value, and the value, which must not be freed meanwhile.
        self._known: dict[int, tuple[int, Any]] = {}

    def item(self, value: Any) -> Any:
        """Return what stands for a value in a row; a value that is no number or text gets a row of its own."""
        if value is None or (type(value) in _PLAIN and (type(value) is not str or as_text(value) == value)):
            return value
        if id(value) not in self._known:
            self.rows.append(self._row(value))
            self._known[id(value)] = len(self.rows) - 1, value
        return [self._known[id(value)][0]]

    def _row(self, value: Any) -> tuple[str, list[Any]]:
        cls: Any = type(value)
        if cls is str:  # a name that is no text
            return "name", [os.fsencode(value)]
        if cls in _COLLECTIONS.values():
            return cls.__name__, list(map(self.item, value))
        if cls is dict:
            return "dict", [self.item(each) for pair in value.items() for each in pair]
        if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
            dtype = value.dtype.str if value.dtype.names is None else self.item(value.dtype.descr)
            return "array", [dtype, self.item(value.shape), value.tobytes()]
        name = f"{cls.__module__}:{cls.__qualname__}"
        if _named(name) is not cls:
            raise TypeError(f"{value!r} is not data of a source")
        if _is_record(cls):
            return name, [self.item(getattr(value, field)) for field in _fields(cls)]
        return name, [self.item(each) for pair in vars(value).items() for each in pair]


def _named(name: str) -> Any:
    """Return a class of data of the modules of sources."""
    module, _, attribute = name.partition(":")
    cls = getattr(importlib.import_module(module), attribute) if module.startswith(_MODULES) else None
    if not isinstance(cls, type) or cls.__module__ != module or not (_is_record(cls) or issubclass(cls, Source)):
        raise TypeError(f"{name} is not data of a source")
    return cls


def _is_record(cls: Any) -> bool:
    """Return whether objects of a class are made of their fields, as the class says them."""
    return issubclass(cls, msgspec.Struct | tuple) or is_dataclass(cls)


@cache
def _fields(cls: Any) -> list[str]:
    """Return the names of the fields of a record."""
    return list(inspect.signature(cls).parameters)


def _decoded(kind: str, items: Sequence[Any]) -> Any:
    if kind in _COLLECTIONS:
        return _COLLECTIONS[kind](items)
    if kind == "dict":
        return dict(zip(items[::2], items[1::2], strict=True))
    if kind == "name":
        return os.fsdecode(items[0])
    if kind == "array":
        dtype, shape, data = items
        return np.frombuffer(data, np.dtype(dtype)).copy().reshape(shape)[()]  # a number, if it has no axis
    cls = _named(kind)
    if _is_record(cls):
        return cls(**dict(zip(_fields(cls), items, strict=True)))
    value = object.__new__(cls)
    vars(value).update(zip(items[::2], items[1::2], strict=True))
    return value
