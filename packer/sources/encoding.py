"""Sources as bytes, for the plan that an array of jobs shares.

    data = encode_source(source.slice(0, 1000))
    source = decode_source(data)

The bytes are a list of rows in msgpack, each a value: a list, an array, or an object of a class of `packer.sources`, by
its name. Values in a row are numbers and texts, or `[n]` for the value of an earlier row, so what many samples share is
there once. This is no pickle: it can name nothing but data of sources, and decoding calls nothing of theirs.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, cast

import msgspec
import numpy as np

from packer.errors import SourceError, as_text
from packer.sources.base import Source
from packer.sources.kinds import Kind, kind_named

#: Modules whose classes the bytes may name.
_MODULES = ("packer.sources.", "packer.format.schema")
_PLAIN = (bool, int, float, str, bytes)
#: Sequences and sets that keep their type.
_COLLECTIONS: Mapping[str, Callable[[Iterable[Any]], Any]] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
}


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
        kind = type(value)
        if kind is str:  # a name that is no text
            return "name", [value.encode("utf-8", "surrogateescape")]
        if kind.__name__ in _COLLECTIONS and kind in (list, tuple, set, frozenset):
            return kind.__name__, list(map(self.item, value))
        if kind is dict:
            return "dict", [self.item(each) for pair in value.items() for each in pair]
        if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
            dtype = value.dtype.str if value.dtype.names is None else self.item(value.dtype.descr)
            shape = self.item(value.shape) if isinstance(value, np.ndarray) else None
            return "array", [dtype, shape, np.asarray(value).tobytes()]
        if isinstance(value, Kind):
            return "kind", [value.name]
        if isinstance(value, tuple):
            return _name_of(kind), list(map(self.item, value))
        if isinstance(value, msgspec.Struct):
            return _name_of(kind), [self.item(getattr(value, name)) for name in value.__struct_fields__]
        return _name_of(kind), [self.item(each) for pair in vars(value).items() for each in pair]


def _name_of(value: Any) -> str:
    name = f"{value.__module__}:{value.__qualname__}"
    if _named(name) is not value:
        raise TypeError(f"{value!r} is not data of a source")
    return name


def _named(name: str) -> type[Any]:
    """Return a class of data of the modules of sources."""
    module, _, attribute = name.partition(":")
    if not module.startswith(_MODULES):
        raise TypeError(f"{name} is not of a source")
    cls = getattr(importlib.import_module(module), attribute)
    is_data = isinstance(cls, type) and (issubclass(cls, Source | msgspec.Struct | tuple) or is_dataclass(cls))
    if not is_data or cls.__module__ != module:
        raise TypeError(f"{name} is not data of a source")
    return cast("type[Any]", cls)


def _decoded(kind: str, items: Sequence[Any]) -> Any:
    if kind in _COLLECTIONS:
        return _COLLECTIONS[kind](items)
    if kind == "dict":
        return dict(zip(items[::2], items[1::2], strict=True))
    if kind == "name":
        return items[0].decode("utf-8", "surrogateescape")
    if kind == "array":
        dtype, shape, data = items
        array = np.frombuffer(data, np.dtype(dtype)).copy()
        return array[0] if shape is None else array.reshape(shape)
    if kind == "kind":
        return kind_named(items[0])
    cls = _named(kind)
    if issubclass(cls, tuple):
        return tuple.__new__(cls, items)
    if issubclass(cls, msgspec.Struct):
        return cls(**dict(zip(cls.__struct_fields__, items, strict=True)))
    value = object.__new__(cls)
    vars(value).update(zip(items[::2], items[1::2], strict=True))
    return value
