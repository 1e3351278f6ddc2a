"""The body of a PLY file as tables, and how long its lists are."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.sources.ply.ascii import check_line_count, read_ascii
from packer.sources.ply.binary import Order, least_bytes, read_binary
from packer.sources.ply.fields import Rule
from packer.sources.ply.header import Element, Header
from packer.sources.ply.table import Table, row_error
from packer.sources.ply.text import count_rows
from packer.sources.ply.triangles import triangulated_sizes
from packer.sources.raw_file import open_raw

#: Length of every list, int64 (rows,), by element name and property number.
Sizes = dict[str, dict[int, NDArray[np.int64]]]


class Extent(NamedTuple):
    """All lists of one property of a file: entries in total, and the length that all of them have (None: they differ).

    `width` is -1 where there are no lists at all.
    """

    total: int
    width: int | None


def read_tables(header: Header, body: bytes, path: str) -> dict[str, Table]:
    """All tables of a file by element name; `body` is what follows the header.

    Raises:
        SourceError: the body is not what the header declares; names element, row and property.
    """
    if header.format == "ascii":
        tables = read_ascii(header.elements, body, path)
    else:
        tables = read_binary(header.elements, body, _order(header), path)
    return {table.element.name: table for table in tables}


def check_size(header: Header, size: int, path: str) -> None:
    """Raises SourceError where a file of `size` bytes cannot hold what its header declares, or holds more."""
    body = size - header.body
    if header.format == "ascii":
        # A value takes at least a digit and the blank behind it, which the last one may lack.
        least = sum(2 * e.count * len(e.properties) for e in header.elements) - 1
    else:
        least = sum(least_bytes(e) for e in header.elements)
    if body < least:
        raise SourceError(f"{_declared(header)} need at least {least} bytes behind the header, {body} are there", path)
    if header.format != "ascii" and not header.has_lists and body > least:
        raise SourceError(f"{_declared(header)} need {least} bytes behind the header, {body} are there", path)


def measure_lists(header: Header, path: str, corners: Rule | None = None) -> dict[tuple[str, int], Extent]:
    """How long the lists of a file are, by element name and property number.

    With `corners`, the faces whose corner numbers these are count as the triangles that they become.

    A file without lists is not read. A binary file is read from its first element with lists on; of a text
    file only blanks and line ends are looked at, unless a row has several lists.

    Raises:
        SourceError: the body is not what the header declares; a face has no triangle.
    """
    if not header.has_lists:
        return {(e.name, i): Extent(0, -1) for e in header.elements for i in _lists_of(e)}
    sizes = _sizes_ascii(header, path) if header.format == "ascii" else _sizes_binary(header, path)
    if corners is not None and corners.element in sizes:
        element = next(e for e in header.elements if e.name == corners.element)
        sizes[element.name] = triangulated_sizes(element, corners.properties[0], sizes[element.name], path)
    return {(name, i): _extent(lengths) for name, lists in sizes.items() for i, lengths in lists.items()}


def read_from(path: str, start: int) -> bytes:
    """The bytes of a file from `start` on."""
    try:
        with open_raw(path) as file:
            file.seek(start)
            return file.readall()
    except OSError as error:
        raise SourceError(f"cannot be read: {error.strerror}", path) from error


def _sizes_binary(header: Header, path: str) -> Sizes:
    first = next(i for i, e in enumerate(header.elements) if e.has_lists)
    start = header.body + sum(least_bytes(e) for e in header.elements[:first])
    return _sizes(read_binary(header.elements[first:], read_from(path, start), _order(header), path))


def _sizes_ascii(header: Header, path: str) -> Sizes:
    body = read_from(path, header.body)
    if any(sum(p.count_dtype is not None for p in e.properties) > 1 for e in header.elements):
        return _sizes(read_ascii(header.elements, body, path))
    lines = count_rows(body)
    check_line_count(header.elements, len(lines), path)
    found: Sizes = {}
    line = 0
    for element in header.elements:
        for i in _lists_of(element):
            sizes = lines[line : line + element.count] - len(element.properties)
            if (sizes < 0).any():
                raise row_error(path, element, int(np.argmax(sizes < 0)), "the line holds too few values")
            found.setdefault(element.name, {})[i] = sizes
        line += element.count
    return found


def _sizes(tables: list[Table]) -> Sizes:
    return {t.element.name: {i: lists.sizes for i, lists in t.lists.items()} for t in tables}


def _extent(sizes: NDArray[np.int64]) -> Extent:
    if not len(sizes):
        return Extent(0, -1)
    return Extent(int(sizes.sum()), int(sizes[0]) if (sizes == sizes[0]).all() else None)


def _lists_of(element: Element) -> list[int]:
    return [i for i, p in enumerate(element.properties) if p.count_dtype]


def _order(header: Header) -> Order:
    return "<" if header.format == "binary_little_endian" else ">"


def _declared(header: Header) -> str:
    return " and ".join(f"{e.count} rows of {e.name}" for e in header.elements) or "no elements"
