"""Samples in files, of every kind: the table says where each lies, the kind reads it.

    data = encode_source(source.slice(0, 1000))        for the plan that an array of jobs shares
    source = decode_source(data)

The bytes are msgpack: the class of a source by its name, and its attributes, which are decoded by the types that the
class declares. This is no pickle: it can name nothing but sources of this room, and decoding calls only what makes
records.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import groupby
from operator import itemgetter
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from packer.errors import PackerError, SourceError, UsageError, as_text
from packer.format import FieldSpec
from packer.sources.arrays import KeptFile
from packer.sources.base import Block, DerivedSource, Source
from packer.sources.kinds import Kind, all_kinds
from packer.sources.options import SourceOptions
from packer.sources.table import Numbers, SampleTable

#: Types of msgpack of our own.
_ARRAY, _SOURCE = 1, 2


@dataclass(eq=False)
class TableSource(Source):
    """The samples of a table.

    Attributes:
        table: of at least one sample.
        kind: of the files, its name.
        options: with which they are read.
    """

    table: SampleTable
    kind: str
    options: SourceOptions
    fields: tuple[FieldSpec, ...]
    origin: Mapping[str, Any] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    constants: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    splits: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, table: SampleTable, kind: Kind, options: SourceOptions, remarks: list[str]) -> TableSource:
        """Return the samples of a table, with their fields.

        Raises:
            UsageError: a field cannot have its name.
        """
        try:
            fields = (*table.specs(kind.are_ragged), *kind.more)
        except ValueError as error:
            raise UsageError(str(error)) from error
        origin = dict(kind.origin(options, table))
        if table.has_rows:
            (files,) = table.inputs.values()
            counts = np.diff(np.asarray(files.ends), prepend=0).tolist()
            pieces = groupby(zip(files.files, counts, strict=True), itemgetter(0))
            origin["files"] = [KeptFile(as_text(file), sum(n for _, n in of_file)) for file, of_file in pieces]
        return cls(table, kind.name, options, fields, origin, remarks)

    @property
    def reader(self) -> Kind:
        """Return the record of the kind."""
        return all_kinds()[self.kind]

    @property
    def cuts(self) -> NDArray[np.int64] | None:  # type: ignore[override]
        if not self.table.has_rows or self.reader.read_rows is None:
            return None
        (files,) = self.table.inputs.values()
        return np.append(0, np.asarray(files.ends))[:-1]

    @property
    def has_files_of_slices(self) -> bool:  # type: ignore[override]
        return self.reader.files_in is None

    @property
    def names(self) -> list[str] | None:  # type: ignore[override]
        return self.table.names

    def __len__(self) -> int:
        return self.table.count

    def shapes(self, field: str) -> NDArray[np.int64] | None:
        return self.table.shapes(field)

    def slice(self, start: int, stop: int) -> TableSource:
        return TableSource(self.table.slice(start, stop), self.kind, self.options, self.fields)

    def in_order(self, numbers: Numbers) -> TableSource:
        """Return some of the samples, in the order given."""
        return replace(self, table=self.table.take(numbers))

    def named(self, names: list[str] | None) -> TableSource:
        """Return the samples with other names, or with none."""
        return replace(self, table=msgspec.structs.replace(self.table, names=names))

    def as_fields(self, fields: Sequence[FieldSpec]) -> TableSource:
        """Return the samples as those of a dataset with these fields, where the files leave that open."""
        table = self.reader.as_fields(self.table, {spec.name: spec for spec in fields})
        if table is self.table:
            return self
        return replace(self, table=table, fields=(*table.specs(self.reader.are_ragged), *self.reader.more))

    def only(self, names: Collection[str]) -> TableSource:
        """Return the samples with some of their fields; of a table no other column is read."""
        layouts = [tuple(laid for laid in layout if laid.name in names) for layout in self.table.layouts]
        fields = tuple(spec for spec in self.fields if spec.name in names)
        return replace(self, table=msgspec.structs.replace(self.table, layouts=layouts), fields=fields)

    def files(self) -> list[str]:
        paths, files_in = self.table.files(), self.reader.files_in
        return paths if files_in is None else [file for path in paths for file in files_in(path)]

    def read(self) -> Iterator[Block]:
        read_table = self.reader.read_table
        if read_table is None:
            raise UsageError(f"the kind {self.kind} has no function read; its package is wrong")
        return read_table(self.table, self.fields, self.options)


# ---------------------------------------------------------------- as bytes


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
        source: Source = msgspec.msgpack.decode(data, type=Source, ext_hook=_decoded)
    except (PackerError, LookupError, TypeError, ValueError, AttributeError, ImportError, RecursionError) as error:
        raise SourceError(f"is no source of this version of packer: {error}") from None
    return source


def _encode(value: Any) -> bytes:
    return msgspec.msgpack.encode(value, enc_hook=_in_msgpack)


def _in_msgpack(value: Any) -> Any:
    """Return an array, a source or a list of sources as values of msgpack; anything else that is data as it is."""
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return msgspec.msgpack.Ext(_ARRAY, _encode((value.dtype.str, value.shape, value.tobytes())))
    if not isinstance(value, TableSource | DerivedSource):
        raise TypeError(f"{value!r} is not data of a source")
    attributes = {column.name: _attribute(getattr(value, column.name)) for column in fields(value)}
    return msgspec.msgpack.Ext(_SOURCE, _encode((type(value).__module__, type(value).__name__, attributes)))


def _attribute(value: Any) -> Any:
    """Return an attribute, in which sources are named: msgspec encodes a dataclass as its fields alone."""
    if isinstance(value, list) and value and isinstance(value[0], Source):
        return list(map(_in_msgpack, value))
    return _in_msgpack(value) if isinstance(value, Source) else value


def _decoded(code: int, data: memoryview) -> Any:
    """Return an array or a source."""
    if code == _ARRAY:
        dtype, shape, items = msgspec.msgpack.decode(data, type=tuple[str, tuple[int, ...], bytes])
        return np.frombuffer(items, dtype).copy().reshape(shape)
    module, name, attributes = msgspec.msgpack.decode(data, type=tuple[str, str, msgspec.Raw])
    cls = getattr(importlib.import_module(module), name) if module.startswith("packer.sources.") else None
    if not (isinstance(cls, type) and issubclass(cls, TableSource | DerivedSource)):
        raise TypeError(f"{module}.{name} is no source of files")
    source = msgspec.msgpack.decode(attributes, type=cls, ext_hook=_decoded)
    if not isinstance(source, TableSource):
        return source
    detail = source.reader.detail  # the records of the kind
    table = source.table.relaid(lambda laid: laid._replace(detail=msgspec.convert(laid.detail, detail)))
    return replace(source, table=table)
