"""Sources as bytes, for the plan that an array of jobs shares.

    data = encode_source(source.slice(0, 1000))
    source = decode_source(data)

The bytes are msgpack: the class of a source by its name, and its attributes, among which may be other sources. Tables,
options and fields are decoded by the types that their classes declare, `LaidField.detail` by the `Kind.detail` of the
files. This is no pickle: it can name nothing but sources of this room, and decoding calls only what makes records.
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any, TypeVar

import msgspec
import numpy as np

from packer.errors import SourceError
from packer.format import FieldSpec
from packer.sources.base import DerivedSource, Source
from packer.sources.options import SourceOptions
from packer.sources.source import TableSource
from packer.sources.table import SampleTable

Derived = TypeVar("Derived", bound=DerivedSource)

#: Types of msgpack of our own.
_ARRAY, _SOURCE = 1, 2
#: Attributes that are more than lists, texts, numbers, arrays and sources.
_TYPES = {"table": SampleTable, "options": SourceOptions, "fields": tuple[FieldSpec, ...]}


def encode_source(source: Source) -> bytes:
    """Return a source as bytes.

    Raises:
        TypeError: it holds something that is no data, such as an open file.
        UnicodeEncodeError: the name of a file is no UTF-8.
    """
    return _encode(_in_msgpack(source))


def decode_source(data: bytes) -> Source:
    """Return the source that `encode_source` has encoded.

    Raises:
        SourceError: the bytes are no source of this version of packer.
    """
    try:
        source = msgspec.msgpack.decode(data, ext_hook=_decoded)
        if not isinstance(source, Source):
            raise TypeError(f"{type(source).__name__} is no source")
    except (
        msgspec.MsgspecError,
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        ImportError,
        RecursionError,
    ) as error:
        raise SourceError(f"is no source of this version of packer: {error}") from None
    return source


def _encode(value: Any) -> bytes:
    return msgspec.msgpack.encode(value, enc_hook=_in_msgpack)


def _in_msgpack(value: Any) -> Any:
    """Return an array or a source as a value of msgpack."""
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return msgspec.msgpack.Ext(_ARRAY, _encode((value.dtype.str, value.shape, value.tobytes())))
    cls, attributes = type(value), vars(value)
    if isinstance(value, DerivedSource):  # without what it has from the other one, such as a million names
        same = vars(_around(attributes["_source"], cls))
        attributes = {n: v for n, v in attributes.items() if n == "_source" or v is not same.get(n, _ARRAY)}
    elif cls is not TableSource:
        raise TypeError(f"{value!r} is not data of a source")
    name = f"{cls.__module__}:{cls.__name__}"
    return msgspec.msgpack.Ext(_SOURCE, _encode((name, {n: _attribute(v) for n, v in attributes.items()})))


def _attribute(value: Any) -> Any:
    """Return an attribute, in which sources are named: msgspec encodes a dataclass as its fields alone."""
    if isinstance(value, list) and value and isinstance(value[0], Source):
        return list(map(_in_msgpack, value))
    return _in_msgpack(value) if isinstance(value, Source) else value


def _decoded(code: int, data: memoryview) -> Any:
    if code == _ARRAY:
        dtype, shape, items = msgspec.msgpack.decode(data, type=tuple[str, tuple[int, ...], bytes])
        return np.frombuffer(items, dtype).copy().reshape(shape)
    name, values = msgspec.msgpack.decode(data, type=tuple[str, dict[str, Any]], ext_hook=_decoded)
    attributes: dict[str, Any] = {n: msgspec.convert(value, _TYPES.get(n, Any)) for n, value in values.items()}
    module, _, cls_name = name.partition(":")
    cls = getattr(importlib.import_module(module), cls_name) if module.startswith("packer.sources.") else None
    if cls is TableSource:
        return _with_details(TableSource(**attributes))
    if not (isinstance(cls, type) and issubclass(cls, DerivedSource)):
        raise TypeError(f"{name} is no source of files")
    source = _around(attributes["_source"], cls)
    vars(source).update(attributes)
    return source


def _with_details(source: TableSource) -> TableSource:
    """Return a source whose kind's records are such again."""
    kind = source.reader.detail
    table = source.table.relaid(lambda laid: laid._replace(detail=msgspec.convert(laid.detail, kind)))
    return replace(source, table=table)


def _around(source: Source, cls: type[Derived]) -> Derived:
    """Return a source of a class, with what it has from another one."""
    derived = object.__new__(cls)
    DerivedSource.__init__(derived, source)
    return derived
