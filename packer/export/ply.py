"""PLY files, one a sample: OUT/NAME.ply, with the elements, properties, types and comments of its source file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.export.files import Files, sample_names
from packer.export.ply_headers import TYPE_NAMES, Element, Header, Headers, Property
from packer.export.ply_rows import Column, binary_rows, text_rows
from packer.sources.base import Block
from packer.sources.packed.source import PackedSource


class PlyWriter:
    """See `packer.export.dataset.Writer`. Text where the source file was text."""

    text = False

    def __init__(self, source: PackedSource, files: Files) -> None:
        self._headers = Headers(source)
        self.notes = self._headers.notes
        self._names = sample_names(source.names, len(source))
        self._files = files

    def write(self, block: Block, start: int, stop: int) -> None:
        for i, number in enumerate(range(start, stop)):
            arrays = {name: values[i] for name, values in block.items()}
            header = self._headers.of(number)
            if self.text:
                header = msgspec.structs.replace(header, format="ascii")
            self._write_file(self._names[number], header, arrays)

    def close(self) -> None:
        """Every file has been ended."""

    def abort(self) -> None:
        """No file is open."""

    def _write_file(self, name: str, header: Header, arrays: Mapping[str, Any]) -> None:
        tables = [_table(element, arrays, name) for element in header.elements]
        order = ">" if header.format == "binary_big_endian" else "<"
        with self._files.new(name, ".ply") as file:
            file.write(_header_bytes(header, tables))
            for _, columns, rows in tables:
                pieces = text_rows(columns, rows) if header.format == "ascii" else binary_rows(columns, rows, order)
                for piece in pieces:
                    file.write(piece)


class PlyTextWriter(PlyWriter):
    """Text, whatever the source file was."""

    text = True


#: An element's name, its columns, and its number of rows.
_Table = tuple[str, list[Column], int]


def _header_bytes(header: Header, tables: list[_Table]) -> bytes:
    lines = ["ply", f"format {header.format} 1.0"]
    lines += [f"comment {' '.join(text.splitlines())}" for text in header.comments]
    lines += [f"obj_info {' '.join(text.splitlines())}" for text in header.obj_info]
    for name, columns, rows in tables:
        lines.append(f"element {name} {rows}")
        for column in columns:
            prop = column.property
            count = f"list {TYPE_NAMES[prop.count_type]} " if prop.count_type else ""
            lines.append(f"property {count}{TYPE_NAMES[prop.type]} {prop.name}")
    return ("\n".join([*lines, "end_header"]) + "\n").encode()


def _table(element: Element, arrays: Mapping[str, Any], name: str) -> _Table:
    """The columns of an element; properties without a row are left out where others have some.

    A file that had no such property among others that had it was packed with no rows of it.
    """
    columns = [_column(prop, arrays, name) for prop in element.properties]
    rows = max((len(column) for column in columns), default=0)
    kept = [column for column in columns if len(column) == rows]
    for column in columns:
        if len(column) not in (0, rows):
            raise UsageError(
                f"sample {name!r}: field {column.property.field!r} has {len(column)} rows, other fields of element "
                f"{element.name} have {rows}; name fields of one length with --fields, or export to hdf5"
            )
    return element.name, kept, rows


def _column(prop: Property, arrays: Mapping[str, Any], name: str) -> Column:
    values = arrays[prop.field]
    if prop.count_type is None:
        column = values[:, prop.column] if values.ndim == 2 else values
        return Column(prop, _exact(column, prop.type, prop, name))
    sizes: NDArray[Any] | None
    if values.ndim == 2:
        sizes = np.full(len(values), values.shape[1], np.int64)
    else:
        sizes = arrays.get(f"{prop.field}_size")
        if sizes is None:
            raise UsageError(f"field {prop.field!r} needs the field {prop.field}_size to be written as lists; name it")
        if int(sizes.sum()) != len(values) or (sizes < 0).any():
            raise UsageError(f"sample {name!r}: the lengths in {prop.field}_size do not add up to {prop.field!r}")
    flat = _exact(values.reshape(-1), prop.type, prop, name)
    return Column(prop, flat, _exact(sizes, prop.count_type, prop, name))


def _exact(values: NDArray[Any], dtype: str, prop: Property, name: str) -> NDArray[Any]:
    """`values` as `dtype`.

    Raises:
        UsageError: a value would not be the same.
    """
    if values.dtype == dtype:
        return values
    with np.errstate(all="ignore"):
        found = values.astype(dtype)
    if not ((found == values) | ((found != found) & (values != values))).all():
        raise UsageError(
            f"sample {name!r}: a value of field {prop.field!r} does not fit property {prop.name} of type {dtype}; "
            "export to hdf5"
        )
    return found
