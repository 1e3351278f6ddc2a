"""The header of a PLY file: which elements it declares, with which properties, and where its body begins.

Lines may end in LF, CR or CRLF. The ending of the first line decides, so that a binary body that begins
with the byte 0x0A is not cut: after `end_header` exactly one line end belongs to the header.

The files of a set have headers that differ in their counts alone, so the rest of a header is parsed once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from io import FileIO
from typing import Literal

import msgspec
import numpy as np

from packer.errors import SourceError
from packer.sources.files import open_raw, refuse_pointer, unreadable

Format = Literal["ascii", "binary_little_endian", "binary_big_endian"]
Type = Literal[
    "int8", "uint8", "int16", "uint16", "int32", "uint32", "float32", "float64", "int64", "uint64", "float16"
]
CountType = Literal["int8", "uint8", "int16", "uint16", "int32", "uint32"]

#: Both naming styles of the PLY scalar types, as numpy names: those that can count the entries of lists, and all.
COUNTS: dict[str, CountType] = {
    "char": "int8",
    "uchar": "uint8",
    "short": "int16",
    "ushort": "uint16",
    "int": "int32",
    "uint": "uint32",
}
COUNTS |= {name: name for name in COUNTS.values()}
TYPES: dict[str, Type] = {**COUNTS, "float": "float32", "double": "float64", "float32": "float32", "float64": "float64"}
#: The types of columns of clouds: those of PLY, and others that numpy has.
COLUMN_TYPES: dict[str, Type] = {**TYPES, "int64": "int64", "uint64": "uint64", "float16": "float16"}
#: Bytes of a value of each.
SIZES = {name: np.dtype(name).itemsize for name in COLUMN_TYPES.values()}

#: Real headers are below 10 kB; a file without `end_header` is given up at this size.
MAX_HEADER_BYTES = 2**20
_FIRST_READ = 4096
#: No file can hold a number of rows with more digits; larger ones are not even added up.
MAX_DIGITS = 15
#: Elements and properties together; real files have up to some hundreds.
MAX_DECLARATIONS = 4096
#: What is stripped from header lines, and by their end the counts of elements, each after all that stands before it.
_BLANKS = b"\r\n \t\v\f\0"
_COUNTS = {
    end: re.compile(rb"(?<=%b)(element[ \t]+\S+[ \t]+)([0-9]{1,%d})(?=[ \t]*\r?%b)" % (end, MAX_DIGITS, end))
    for end in (b"\n", b"\r")
}
#: The forms of header lines, by their first word.
_FORMS = {
    "format": "'format ascii 1.0', or binary_little_endian or binary_big_endian for ascii,",
    "element": f"'element NAME COUNT' with a count of at most {MAX_DIGITS} digits",
    "property": "'property TYPE NAME' or 'property list TYPE TYPE NAME', of an element and with an integer type first,",
}


class Property(msgspec.Struct, frozen=True):
    """One property of an element; `count_dtype` is set if it is a list."""

    name: str
    dtype: Type
    count_dtype: CountType | None = None


class Element(msgspec.Struct, frozen=True):
    """One table of the file: `count` rows of `properties`."""

    name: str
    properties: tuple[Property, ...]
    count: int = 0

    @property
    def has_lists(self) -> bool:
        return any(p.count_dtype for p in self.properties)


class Header(msgspec.Struct, frozen=True):
    """What a PLY file declares.

    Attributes:
        kinds: the elements, each with a count of 0: the same for all files of one kind.
        body: offset of the first byte after the header.
        lines: how many lines the header has.
    """

    format: Format
    kinds: tuple[Element, ...]
    counts: tuple[int, ...]
    body: int = 0
    lines: int = 0

    @property
    def elements(self) -> tuple[Element, ...]:
        return tuple(Element(e.name, e.properties, n) for e, n in zip(self.kinds, self.counts, strict=True))

    @property
    def has_lists(self) -> bool:
        """Return whether any row of the body holds a list."""
        return any(n and e.has_lists for e, n in zip(self.kinds, self.counts, strict=True))


@contextmanager
def opened(path: str) -> Iterator[tuple[Header, FileIO]]:
    """Open a file and read its header, and little more. A failure to read within the block is a SourceError as well.

    Raises:
        SourceError: the file cannot be read, is no PLY file, or its header is wrong.
    """
    try:
        with open_raw(path) as file:
            yield parse_header(_read_head(file), path), file
    except OSError as error:
        raise unreadable(error, path) from error


def _read_head(file: FileIO) -> bytes:
    """Return the first bytes of a file, up to and a little past `end_header`."""
    head = file.read(_FIRST_READ)
    while b"end_header" not in head[:-2] and len(head) < MAX_HEADER_BYTES and head.startswith(b"ply"):
        more = file.read(len(head))
        if not more:
            break
        head += more
    return head


def parse_header(data: bytes, path: str) -> Header:
    """Return the header at the start of `data`, which may go on with the body.

    Raises:
        SourceError: not a PLY file, or its header is wrong; names the line.
    """
    if not data:
        raise SourceError("the file is empty (0 bytes); download it again", path)
    refuse_pointer(data, path)
    if not data.startswith(b"ply") or not data[3:4].isspace():
        raise SourceError("is not a PLY file: its first line is not 'ply'", path)
    end = b"\r" if data[3:4] == b"\r" and data[4:5] != b"\n" else b"\n"
    body = _end_of_header(data, end, path)
    head, counts = data[:body], list[int]()

    def take_count(match: re.Match[bytes]) -> bytes:
        counts.append(int(match[2]))
        return match[1] + b"0"

    try:
        declared = _declarations(_COUNTS[end].sub(take_count, head), end)
        if len(counts) != len(declared.kinds):  # some element line is written in an odd way
            raise ValueError
    except ValueError:
        try:
            declared = _declarations.__wrapped__(head, end)
        except ValueError as error:
            raise SourceError(str(error), path) from None
        counts = list(declared.counts)
    header = msgspec.structs.replace(declared, counts=tuple(counts), body=body)
    for element, count in zip(header.kinds, counts, strict=True):
        if count and not element.properties:
            raise SourceError(f"element {element.name} has {count} rows but no properties", path)
    return header


def _end_of_header(data: bytes, end: bytes, path: str) -> int:
    """Return where the body begins: after the line `end_header`, which may lack its end in an empty cloud."""
    at = data.find(b"end_header", 0, MAX_HEADER_BYTES)
    while at >= 0:
        stop = data.find(end, at)
        stop = len(data) if stop < 0 else stop
        if data[data.rfind(end, 0, at) + 1 : stop].strip(_BLANKS) == b"end_header":
            return min(stop + 1, len(data))
        at = data.find(b"end_header", at + 1, MAX_HEADER_BYTES)
    try:
        _declarations.__wrapped__(data[: data.rfind(end, 0, MAX_HEADER_BYTES) + 1], end)
    except ValueError as error:
        raise SourceError(str(error), path) from None
    raise SourceError("the header has no end_header line: the file is cut short or damaged", path)


@lru_cache(maxsize=64)
def _declarations(head: bytes, end: bytes) -> Header:
    """Return the declarations of a header whose lines end in `end`, without `body`.

    Raises:
        ValueError: a line is wrong; names it.
    """
    lines = _Lines()
    split = head.split(end)
    if not split[-1].strip(_BLANKS):
        split.pop()
    for number, line in enumerate(split, 1):
        try:
            lines.add(_decode(line).strip("\r\n \t\v\f\0"), number)
        except ValueError as error:
            raise ValueError(f"header line {number}: {error}") from None
    if lines.format is None:
        raise ValueError("the header has no format line")
    kinds = tuple(Element(name, tuple(properties)) for name, _, properties in lines.elements)
    return Header(lines.format, kinds, tuple(count for _, count, _ in lines.elements), lines=len(split))


class _Lines:
    """The contents of a header, line by line; methods raise ValueError if a line is wrong."""

    def __init__(self) -> None:
        self.format: Format | None = None
        self.elements: list[tuple[str, int, list[Property]]] = []
        self._declarations = 0

    def add(self, line: str, number: int) -> None:
        word = line.split(" ", 1)[0].split("\t", 1)[0]
        if number == 1:
            if line != "ply":
                raise ValueError("'ply' alone is expected")
        elif word in ("comment", "obj_info") or not line or line == "end_header":
            return
        elif word in _FORMS:
            self._declarations += 1
            if self._declarations > MAX_DECLARATIONS:
                raise ValueError(f"more than {MAX_DECLARATIONS} elements and properties are declared")
            self._declare(line.split())
        else:
            known = ", ".join(("comment", "obj_info", *_FORMS))
            raise ValueError(f"{word[:40]!r} is not known; {known} or end_header is expected")

    def _declare(self, words: list[str]) -> None:
        match words:
            case ["format", ("ascii" | "binary_little_endian" | "binary_big_endian") as form, "1.0"]:
                if self.format is not None:
                    raise ValueError("there is a second format line")
                self.format = form
            case ["element", name, count] if count.isascii() and count.isdigit() and len(count) <= MAX_DIGITS:
                if any(name == e[0] for e in self.elements):
                    raise ValueError(f"there is a second element {name}")
                self.elements.append((name, int(count), []))
            case ["property", dtype, name] if self.elements:
                self._add(Property(name, _type(dtype)))
            case ["property", "list", count, dtype, name] if self.elements and count in COUNTS:
                self._add(Property(name, _type(dtype), COUNTS[count]))
            case _:
                raise ValueError(f"{' '.join(words)[:60]!r} is wrong; {_FORMS[words[0]]} is expected")

    def _add(self, new: Property) -> None:
        name, _, properties = self.elements[-1]
        if any(new.name == p.name for p in properties):
            raise ValueError(f"there is a second property {new.name} of element {name}; rename one of them")
        properties.append(new)


def _type(name: str) -> Type:
    if name not in TYPES:
        raise ValueError(f"type {name!r} is not known; one of {', '.join(TYPES)} is expected")
    return TYPES[name]


def _decode(raw: bytes) -> str:
    """Return the text of a header line: comments written by old programs may be Latin-1."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("latin-1")
