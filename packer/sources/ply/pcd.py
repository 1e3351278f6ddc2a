"""Point clouds of PCL (`.pcd`): text, binary, and binary compressed by LZF; one file a sample.

Fields are named as those of PLY are (`packer.sources.ply.fields`): `x y z` are `xyz`, `normal_x normal_y normal_z` are
`normal`, a field of several values such as `fpfh` is (n, 33). The one number `rgb` or `rgba`, which holds the bytes
blue, green, red and alpha, becomes `rgb` (n, 3) or `rgba` (n, 4) uint8. Fields named `_` are padding.
pointclouds.org/documentation/tutorials/pcd_file_format.html describes the format.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.sources.files import open_raw, read_file, unreadable
from packer.sources.kinds import Kind, pair_in_order
from packer.sources.looking import Header
from packer.sources.options import SourceOptions
from packer.sources.ply.header import SIZES, TYPES, Element, Property, Type
from packer.sources.ply.kind import agree, arrays_of, contents_of_points, header_of, origin
from packer.sources.ply.text import read_text
from packer.sources.table import Row

_TYPES: dict[str, Type] = {"F4": "float32", "F8": "float64", "I8": "int64", "U8": "uint64"}
_TYPES |= {f"I{size}": TYPES[f"int{8 * size}"] for size in (1, 2, 4)}
_TYPES |= {f"U{size}": TYPES[f"uint{8 * size}"] for size in (1, 2, 4)}
_VERSIONS = ("0.7", ".7", "0.6", ".6", "0.5", ".5")
_FORMS = ("ascii", "binary", "binary_compressed")
#: What the lines of a header begin with, and what is true if a line is missing.
_USUAL = {"VERSION": ["0.7"], "HEIGHT": ["1"], "VIEWPOINT": ["0", "0", "0", "1", "0", "0", "0"]}
_WORDS = {*_USUAL, "FIELDS", "SIZE", "TYPE", "COUNT", "WIDTH", "POINTS", "DATA"}
_DATA = re.compile(rb"^DATA[^\n]*\n", re.MULTILINE)
_MAX_HEADER_BYTES = 2**16
#: No file holds a number of points with more digits.
_DIGITS = 15
#: Where the bytes of a packed colour lie.
_PACKED = {"red": 2, "green": 1, "blue": 0, "alpha": 3}
_NAMES = {f"normal_{axis}": f"n{axis}" for axis in "xyz"}
#: In front of compressed bytes: their number, and that of the bytes which they become.
_SIZES = np.dtype("<u4")
_MARK_BYTES = 16
#: Numbers of a file: whether its points are those of a picture, and whether it says where the sensor was.
_HAS_ROWS, _HAS_VIEWPOINT = "has rows", "has viewpoint"


class _Field(NamedTuple):
    """A field as it is in the file: `width` values a point."""

    name: str
    dtype: Type
    width: int


class _Head(NamedTuple):
    """What a header says.

    Attributes:
        start: where the body begins.
        size: bytes of the file.
        lines: of the header.
        said: numbers by name, as `Header.numbers` has them.
    """

    fields: tuple[_Field, ...]
    points: int
    form: str
    start: int
    size: int
    lines: int
    said: Mapping[str, int]

    @property
    def row_bytes(self) -> int:
        return sum(SIZES[field.dtype] * field.width for field in self.fields)


def look(row: Row, options: SourceOptions) -> Header:
    """Return what the header of a file says; raises SourceError as `read`."""
    head = _head_of(row.path)
    none = [np.empty((0, field.width), field.dtype) for field in head.fields]
    contents = contents_of_points(_columns(head, none), head.points, row.path, options, _extra(head, row.path))
    looked = header_of(contents, options)
    return looked._replace(numbers={**looked.numbers, **head.said})


def read(row: Row, options: SourceOptions) -> dict[str, Any]:
    """Return the fields of a file; raises SourceError if it cannot be read, or is not what its header declares."""
    path = row.path
    head = _head_of(path)
    try:
        with open_raw(path) as file:
            file.seek(head.start)
            body = file.readall()
    except OSError as error:
        raise unreadable(error, path) from error
    if head.size != head.start + len(body):
        raise SourceError("has changed while it was read; run again", path)
    extra = _extra(head, path)
    values = _text(head, body, path) if head.form == "ascii" else _binary(head, body, path)
    return arrays_of(contents_of_points(_columns(head, values), head.points, path, options, extra), row)


# ---------------------------------------------------------------- the header


def _head_of(path: str) -> _Head:
    """Return what the header of a file says.

    Raises:
        SourceError: the file cannot be read, is no PCD file, or its header is wrong; names the line.
    """
    start, size = read_file(path, _MAX_HEADER_BYTES)
    if (end := _DATA.search(start)) is None:
        raise SourceError("is no PCD file: it has no line that begins with DATA; download it again", path)
    lines = start[: end.end()].decode("latin-1").splitlines()
    words = dict(_USUAL)
    for number, line in enumerate(lines, 1):
        first, *others = line.split() or ["#"]
        first = "FIELDS" if first == "COLUMNS" else first
        if first.startswith("#"):
            continue
        if first not in _WORDS or not others:
            raise SourceError(f"header line {number}: {line[:60]!r} is not a line of PCD; download it again", path)
        words[first] = others
    try:
        return _head(words, (end.end(), size, len(lines)))
    except ValueError as error:
        raise SourceError(f"its header is wrong: {error}; download it again", path) from None


def _head(words: Mapping[str, list[str]], sizes: tuple[int, int, int]) -> _Head:
    """Return what a header says; raises ValueError if it contradicts itself, or something is missing."""
    if missing := {"FIELDS", "SIZE", "TYPE", "WIDTH"} - words.keys():
        raise ValueError(f"it has no line {min(missing)}")
    if words["VERSION"][0] not in _VERSIONS:
        raise ValueError(f"VERSION {words['VERSION'][0]} is not known, {_VERSIONS[0]} is expected")
    if words["DATA"][0] not in _FORMS:
        raise ValueError(f"DATA {words['DATA'][0]} is not known, one of {', '.join(_FORMS)} is expected")
    names = words["FIELDS"]
    counts = words.get("COUNT", ["1"] * len(names))
    for word, values in (("SIZE", words["SIZE"]), ("TYPE", words["TYPE"]), ("COUNT", counts)):
        if len(values) != len(names):
            raise ValueError(f"{word} has {len(values)} values for {len(names)} FIELDS")
    fields = []
    for name, kind, size, count in zip(names, words["TYPE"], words["SIZE"], counts, strict=True):
        if kind + size not in _TYPES:
            raise ValueError(f"field {name} is of TYPE {kind} and SIZE {size}, which no number has")
        fields.append(_Field(name, _TYPES[kind + size], _number("COUNT", count)))
    width, height = (_number(word, words[word][0]) for word in ("WIDTH", "HEIGHT"))
    points = _number("POINTS", words.get("POINTS", [str(width * height)])[0])
    if width * height != points:
        raise ValueError(f"WIDTH {width} x HEIGHT {height} are not POINTS {points}")
    said = {_HAS_ROWS: int(height > 1), _HAS_VIEWPOINT: int(list(map(float, words["VIEWPOINT"])) != _NOWHERE)}
    return _Head(tuple(fields), points, words["DATA"][0], *sizes, said)


_NOWHERE = list(map(float, _USUAL["VIEWPOINT"]))


def _number(word: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS):
        raise ValueError(f"{word} {text[:_DIGITS]} is not a number of at most {_DIGITS} digits")
    return int(text)


def _extra(head: _Head, path: str) -> int:
    """Return how many bytes of a binary file follow its last point.

    Raises:
        SourceError: the file cannot hold what its header declares.
    """
    body = head.size - head.start
    if head.form == "ascii":  # a digit and a blank for each value; the last one may lack the blank
        least = 2 * head.points * sum(field.width for field in head.fields) - 1
    elif head.form == "binary":
        least = head.points * head.row_bytes
    else:
        least = 2 * _SIZES.itemsize
    if body < least:
        need = f"{head.points:,} points need {'at least ' if head.form != 'binary' else ''}{least:,} bytes"
        raise SourceError(f"{need} after the header, but there are {body:,}; download the file again", path)
    return body - least if head.form == "binary" else 0


# ---------------------------------------------------------------- values: (points, width) of every field of the file


def _text(head: _Head, body: bytes, path: str) -> list[NDArray[Any]]:
    columns = [Property(f"{field.name}_{k}", field.dtype) for field in head.fields for k in range(field.width)]
    (table,) = read_text([Element("vertex", tuple(columns), head.points)], body, path, head.lines)
    ends = np.cumsum([field.width for field in head.fields]).tolist()
    values = []
    for field, end in zip(head.fields, ends, strict=True):
        numbers = [table.numbers[i] for i in range(end - field.width, end)]
        values.append(np.stack(numbers, axis=1) if numbers else np.empty((head.points, 0), field.dtype))
        if field.name in ("rgb", "rgba") and field.dtype == "float32" and np.isnan(values[-1]).any():
            row = int(np.argmax(np.isnan(values[-1]).any(axis=1)))
            reason = f"point {row:,}: {field.name} is nan, so its colour was lost when it was written as text"
            raise SourceError(f"{reason}; write the file as binary, or with TYPE U", path)
    return values


def _binary(head: _Head, body: bytes, path: str) -> list[NDArray[Any]]:
    types = [np.dtype(field.dtype).newbyteorder("<") for field in head.fields]
    if head.form == "binary":
        described = [(f"f{i}", dtype, (f.width,)) for i, (f, dtype) in enumerate(zip(head.fields, types, strict=True))]
        rows = np.frombuffer(body, np.dtype(described), head.points)
        return [rows[f"f{i}"] for i in range(len(types))]
    packed, nbytes = np.frombuffer(body, _SIZES, 2).tolist()
    start = 2 * _SIZES.itemsize
    if nbytes != head.points * head.row_bytes or start + packed > len(body):
        declared = f"{head.points:,} points of {head.row_bytes} bytes"
        reason = f"declares {declared}, and {packed:,} compressed bytes that become {nbytes:,}"
        raise SourceError(f"{reason}, of which {len(body) - start:,} are there; download the file again", path)
    data, at, values = _lzf(body[start : start + packed], nbytes, path), 0, list[NDArray[Any]]()
    for field, dtype in zip(head.fields, types, strict=True):  # each field as a whole, one after another
        values.append(np.frombuffer(data, dtype, head.points * field.width, at).reshape(head.points, field.width))
        at += values[-1].nbytes
    return values


def _lzf(packed: bytes, nbytes: int, path: str) -> bytes:
    """Return the bytes that LZF compressed, by the decoder that HDF5 files of h5py are read with.

    It does not say how much it wrote, so a mark that nobody can foresee is put after the last byte, and looked for.
    """
    import h5py

    if not nbytes:
        return b""
    mark = os.urandom(_MARK_BYTES)
    with h5py.File(path, "w", driver="core", backing_store=False) as file:  # in memory alone
        shape = (nbytes + _MARK_BYTES,)
        array = file.create_dataset("data", shape, "u1", chunks=shape, compression="lzf")
        try:
            array.id.write_direct_chunk((0,), packed + bytes([_MARK_BYTES - 1]) + mark)  # these are taken as they are
            data: bytes = array[:].tobytes()
        except OSError as error:
            raise SourceError("its compressed points are damaged; download the file again", path) from error
    if not data.endswith(mark):
        raise SourceError(f"its compressed points do not become {nbytes:,} bytes; download the file again", path)
    return data


# ---------------------------------------------------------------- names


def _columns(head: _Head, values: list[NDArray[Any]]) -> list[tuple[Property, NDArray[Any]]]:
    """Return the values as properties of PLY vertices: (points,) each."""
    return [column for field, array in zip(head.fields, values, strict=True) for column in _columns_of(field, array)]


def _columns_of(field: _Field, values: NDArray[Any]) -> Iterator[tuple[Property, NDArray[Any]]]:
    if field.name == "_":
        return
    if field.name in ("rgb", "rgba") and field.width == 1 and SIZES[field.dtype] == len(_PACKED):
        of_colours = np.ascontiguousarray(values).view(np.uint8)
        for colour in list(_PACKED)[: len(field.name)]:
            yield Property(colour, "uint8"), of_colours[:, _PACKED[colour]]
        return
    name = _NAMES.get(field.name, field.name)
    for k in range(field.width):
        yield Property(name if field.width == 1 else f"{name}_{k}", field.dtype), values[:, k]


KIND = Kind(
    "pcd",
    (".pcd",),
    look,
    read,
    names_fields=True,
    lies_beside=True,
    options=("fields", "cast", "group"),
    exports="ply",
    none_left="none of its files can be packed",
    pair=pair_in_order,
    agree=partial(
        agree,
        sentences={
            _HAS_ROWS: "points that lie in rows and columns (HEIGHT above 1) are packed as one list, row by row",
            _HAS_VIEWPOINT: "the place of the sensor (VIEWPOINT) is not packed",
        },
    ),
    are_ragged=True,
    origin=origin,
)
