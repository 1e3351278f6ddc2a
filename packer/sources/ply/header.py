"""The header of a PLY file: which elements it declares, with which properties, and where its body begins.

Lines may end in LF, CR or CRLF. The ending of the first line decides, so that a binary body that begins
with the byte 0x0A is not cut: after `end_header` exactly one line end belongs to the header.

The manifest keeps headers as JSON objects of the same classes, each property with the field it went into, so that
files can be written again as they were.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from typing import Annotated, Literal

import msgspec
import numpy as np

from packer.errors import SourceError
from packer.sources.files import open_raw, refuse_pointer, unreadable

Format = Literal["ascii", "binary_little_endian", "binary_big_endian"]
Type = Literal["int8", "uint8", "int16", "uint16", "int32", "uint32", "float32", "float64"]
CountType = Literal["int8", "uint8", "int16", "uint16", "int32", "uint32"]
#: A word of a header line.
Word = Annotated[str, msgspec.Meta(pattern=r"^\S+\Z")]

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
#: Bytes of a value of each.
SIZES = {name: np.dtype(name).itemsize for name in TYPES.values()}

#: Real headers are below 10 kB; a file without `end_header` is given up at this size.
MAX_HEADER_BYTES = 2**20
_FIRST_READ = 4096
#: No file can hold a number of rows with more digits; larger ones are not even added up.
MAX_DIGITS = 15
#: Elements and properties together; real files have up to some hundreds.
MAX_DECLARATIONS = 4096
#: The forms of header lines, by their first word.
_FORMS = {
    "format": "'format ascii 1.0', or binary_little_endian or binary_big_endian for ascii,",
    "element": f"'element NAME COUNT' with a count of at most {MAX_DIGITS} digits",
    "property": "'property TYPE NAME' or 'property list TYPE TYPE NAME', of an element and with an integer type first,",
}


class Property(msgspec.Struct, frozen=True, rename={"dtype": "type", "count_dtype": "count_type"}):
    """One property of an element; `count_dtype` is set if it is a list.

    In a manifest `field` names the field that the property went into, and `column` its column if that has several.
    """

    name: Word
    dtype: Type
    count_dtype: CountType | None = None
    field: str = ""
    column: int | None = None


class Element(msgspec.Struct, frozen=True, omit_defaults=True):
    """One table of the file: `count` rows of `properties`."""

    name: Word
    properties: tuple[Property, ...]
    count: int = 0

    @property
    def has_lists(self) -> bool:
        return any(p.count_dtype for p in self.properties)


class Header(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a PLY file declares; `body` is the offset of its first byte after the header."""

    format: Format
    elements: tuple[Element, ...]
    comments: tuple[str, ...] = ()
    obj_info: tuple[str, ...] = ()
    body: int = 0

    @property
    def has_lists(self) -> bool:
        """Return whether any row of the body holds a list."""
        return any(e.has_lists and e.count for e in self.elements)

    def without_counts(self) -> Header:
        """Return the header without counts and offset: the same for all files of one kind."""
        elements = tuple(Element(e.name, e.properties) for e in self.elements)
        return Header(self.format, elements, self.comments, self.obj_info)


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
        raise SourceError("the file is empty (0 bytes); get it again", path)
    refuse_pointer(data, path)
    if not data.startswith(b"ply") or not data[3:4].isspace():
        raise SourceError("is not a PLY file: its first line is not 'ply'", path)
    end = b"\r" if data[3:4] == b"\r" and data[4:5] != b"\n" else b"\n"
    lines = _Lines()
    start = number = 0
    while not lines.ended:
        stop = data.find(end, start, MAX_HEADER_BYTES)
        if stop < 0:
            # Only `end_header` of an empty cloud may lack a line end.
            if data[start:].strip() != b"end_header":
                raise SourceError("the header has no end_header line: the file is cut short or damaged", path)
            stop = len(data)
        number += 1
        try:
            lines.add(_decode(data[start:stop]).strip("\r\n \t\v\f\0"), number)
        except ValueError as error:
            raise SourceError(f"header line {number}: {error}", path) from None
        start = stop + 1
    if lines.format is None:
        raise SourceError("the header has no format line", path)
    elements = tuple(Element(name, tuple(properties), count) for name, count, properties in lines.elements)
    for element in elements:
        if element.count and not element.properties:
            raise SourceError(f"element {element.name} has {element.count} rows but no properties", path)
    comments, obj_info = (tuple(some) for some in lines.texts.values())
    return Header(lines.format, elements, comments, obj_info, min(start, len(data)))


class _Lines:
    """The contents of a header, line by line; methods raise ValueError if a line is wrong."""

    def __init__(self) -> None:
        self.format: Format | None = None
        self.elements: list[tuple[str, int, list[Property]]] = []
        self.texts: dict[str, list[str]] = {"comment": [], "obj_info": []}
        self.ended = False
        self._declarations = 0

    def add(self, line: str, number: int) -> None:
        # The first word ends at a blank or a tab, whichever comes first.
        word, _, rest = min(line.partition(" "), line.partition("\t"), key=lambda parts: len(parts[0]))
        if number == 1:
            if line != "ply":
                raise ValueError("'ply' alone is expected")
        elif word in ("comment", "obj_info"):
            self.texts[word].append(rest)
        elif word in _FORMS:
            self._declarations += 1
            if self._declarations > MAX_DECLARATIONS:
                raise ValueError(f"more than {MAX_DECLARATIONS} elements and properties are declared")
            self._declare(line.split())
        elif line == "end_header":
            self.ended = True
        elif line:
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
