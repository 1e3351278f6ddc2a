"""Point clouds whose files have no header, one file a sample: rows of numbers, whose columns `--columns` names.

    x,y,z,intensity:float32                 .bin of KITTI
    x,y,z,intensity,ring:float32            .bin of nuScenes
    x,y,z:float32,r,g,b:uint8               .txt, .xyz and .pts

A type is that of its column, and of those before it that have none. A `.bin` file is its rows back to back,
little-endian. Text has a row a line, with blanks or commas between the numbers; what follows `#` or `//` is passed
over, and so is a first line with the number of those after it, as `.pts` files have. Without a type its columns are
float64, so that no digit is lost.

Columns become fields as the properties of PLY vertices do (`packer.sources.ply.fields`): x, y, z are `xyz`, and so on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError, UsageError
from packer.format.schema import FieldSpec
from packer.sources.base import HEADERS, Block, Looking, OnBad, Source, not_looking, stop, watched
from packer.sources.files import CLOUDS, find, refuse_pointer, suffix_of
from packer.sources.ply.fields import Rule, rules_of
from packer.sources.ply.header import SIZES, TYPES, Element, Property
from packer.sources.ply.table import DoesNotFitError, Table, convert, least_row, read_binary
from packer.sources.ply.text import BadNumberError, count_rows, parse_rows

#: Files without a type take it in text alone: what the bytes of others are, nobody can tell.
_BINARY = ".bin"
_TEXT_TYPE = "float64"
#: Short names of colours, and what PLY calls them.
_COLOURS = {"r": "red", "g": "green", "b": "blue"}
#: A pointer of git-LFS is shorter than this.
_POINTER_BYTES = 1024
_COMMENT = re.compile(rb"(#|//)[^\n]*")
_NO_VALUE = re.compile(rb"(^|,)[ \t]*,", re.MULTILINE)


def open_clouds(path: str, columns: str, *, on_bad: OnBad = stop, looking: Looking = not_looking) -> CloudSource:
    """Open the clouds of a folder (and all below it), one file, or a glob, in natural order of their names.

    The plan comes from the sizes of binary files; of text the lines are counted, and the numbers in each.

    Args:
        path: folder, file or glob; a sample's name is the relative path without suffix.
        columns: names and types, see above.
        on_bad: told of each file that does not hold rows of these columns.
        looking: told how far finding files and reading them is.

    Raises:
        UsageError: nothing is at `path`, it holds files of several suffixes, or `columns` are none.
        SourceError: no file is good; or whatever `on_bad` raises.
    """
    found = find(path, looking)
    files = found.pick(lambda file: suffix_of(file) in CLOUDS, on_bad)
    if not files:
        raise SourceError(f"no cloud is there; {', '.join(CLOUDS)} are", path)
    suffixes = sorted({suffix_of(file) for file in files})
    if len(suffixes) > 1:
        raise UsageError(f"{path}: files of {' and '.join(suffixes)}; name those of one with a pattern like '*.bin'")
    is_text = suffixes[0] != _BINARY
    element, untyped = element_of(columns, is_text)
    try:
        rules = rules_of((element,))
    except SourceError as error:
        raise UsageError(f"--columns {columns}: {error.reason}") from None
    rows: dict[str, int] = {}
    paths: dict[str, str] = {}
    for file in watched(files, HEADERS, looking, len(files)):
        name = file[: -len(suffixes[0])]
        try:
            if name in paths:
                raise SourceError(f"has the same sample name, {name}, as {paths[name]}; rename one", found.path(file))
            rows[name] = (_count_text if is_text else _count_binary)(found.path(file), element)
            paths[name] = found.path(file)
        except SourceError as error:
            on_bad(error)
    if not rows:
        raise SourceError("none of its files can be packed", path)
    remarks = [f"{found.hidden} hidden files and folders left out"] if found.hidden else []
    if untyped:
        remarks.append(f"{', '.join(untyped)}: {_TEXT_TYPE}, as --columns says no type; {untyped[-1]}:float32 is half")
    return CloudSource(
        paths=list(paths.values()),
        names=list(paths),
        element=element,
        rules=rules,
        rows=np.array(list(rows.values()), np.int64),
        columns=columns,
        remarks=remarks,
    )


def element_of(columns: str, is_text: bool) -> tuple[Element, list[str]]:
    """Return the columns as properties of a PLY element, and the names of those that got a type that nobody gave.

    Raises:
        UsageError: a name is missing, is there twice, or a type is missing or none.
    """
    types: list[tuple[str, str]] = []
    waiting: list[str] = []
    for part in columns.split(","):
        name, colon, dtype = (text.strip() for text in part.partition(":"))
        if not name or len(name.split()) != 1:
            raise UsageError(f"--columns {columns}: {part!r} is no name; names with commas, as in x,y,z, are expected")
        if name in waiting or name in dict(types):
            raise UsageError(f"--columns {columns}: {name} is there twice; name each column once")
        waiting.append(name)
        if colon:
            if dtype not in TYPES:
                raise UsageError(f"--columns {columns}: {dtype!r} is no type; {', '.join(SIZES)} are")
            types += [(name, TYPES[dtype]) for name in waiting]
            waiting = []
    if waiting and not is_text:
        raise UsageError(
            f"--columns {columns}: no type is given for {', '.join(waiting)}, and {_BINARY} files tell none; put it "
            f"after the last of them, as in {waiting[-1]}:float32"
        )
    types += [(name, _TEXT_TYPE) for name in waiting]
    short = _COLOURS if all(name in dict(types) for name in _COLOURS) else {}
    properties = [Property(short.get(name, name), TYPES[dtype]) for name, dtype in types]
    return Element("vertex", tuple(properties)), waiting


@dataclass
class CloudSource(Source):
    """Clouds of one set of columns; made by `open_clouds`.

    Attributes:
        element: the columns, as properties of PLY vertices.
        rules: which of them become which field, by its name.
        rows: points of every sample, int64 (samples,).
        columns: as on the command line.
    """

    paths: list[str]
    names: list[str]
    element: Element
    rules: dict[str, Rule]
    rows: NDArray[np.int64]
    columns: str
    remarks: list[str] = field(default_factory=list)

    fields: tuple[FieldSpec, ...] = field(init=False)
    kind = "clouds"

    def __post_init__(self) -> None:
        self.fields = tuple(
            FieldSpec(name=name, dtype=rule.dtype, shape=(None, *_width(rule))) for name, rule in self.rules.items()
        )

    def __len__(self) -> int:
        return len(self.paths)

    def shapes(self, field: str) -> NDArray[np.int64]:
        return np.stack([self.rows, *(np.full_like(self.rows, n) for n in _width(self.rules[field]))], axis=1)

    def part(self, start: int, stop: int) -> CloudSource:
        within = slice(start, stop)
        return replace(self, paths=self.paths[within], names=self.names[within], rows=self.rows[within], remarks=[])

    def files(self) -> list[str]:
        return list(self.paths)

    def provenance(self) -> dict[str, Any]:
        return {"columns": self.columns}

    def read(self) -> Iterator[Block]:
        """Yield one block a file; see `Source.read`."""
        for number, (path, rows) in enumerate(zip(self.paths, self.rows.tolist(), strict=True)):
            try:
                read = _read_binary if suffix_of(path) == _BINARY else _read_text
                sample = read(path, self.element, self.rules)
                if any(len(values) != rows for values in sample.values()):
                    raise SourceError("the file has changed since the plan was made; convert again", path)
            except SourceError as error:
                raise SourceError(error.reason, error.path, number) from error
            yield {name: [values] for name, values in sample.items()}


def _width(rule: Rule) -> tuple[int, ...]:
    """Return the second axis of a field, if it has one."""
    return (len(rule.properties),) if len(rule.properties) > 1 else ()


def _load(path: str) -> bytes:
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise SourceError(f"cannot be read: {error.strerror}", path) from error
    refuse_pointer(data[:_POINTER_BYTES], path)
    return data


# ---------------------------------------------------------------- binary


def _count_binary(path: str, element: Element) -> int:
    """Return the rows of a file, by its size alone.

    Raises:
        SourceError: it does not hold whole rows, or cannot be read.
    """
    try:
        size = Path(path).stat().st_size
    except OSError as error:
        raise SourceError(f"cannot be read: {error.strerror}", path) from error
    if size < _POINTER_BYTES:
        _load(path)
    row = least_row(element)
    if size % row:
        columns = ", ".join(f"{p.name} {p.dtype}" for p in element.properties)
        reason = f"has {size} bytes, no multiple of the {row} bytes of a row of {columns}"
        raise SourceError(f"{reason}; give the columns that it has with --columns", path)
    return size // row


def _read_binary(path: str, element: Element, rules: dict[str, Rule]) -> dict[str, NDArray[Any]]:
    data = _load(path)
    counted = msgspec.structs.replace(element, count=len(data) // least_row(element))
    (table,) = read_binary([counted], data, "<", path)
    return {name: convert(table.columns(rule.properties), rule.dtype) for name, rule in rules.items()}


# ---------------------------------------------------------------- text


def _lines(path: str, element: Element) -> bytes:
    """Return the text of a file with LF as line ends, and without commas, comments and the number of lines."""
    text = _load(path).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    if b"#" in text or b"//" in text:
        text = _COMMENT.sub(b"", text)
    if b"," in text:
        gap = _NO_VALUE.search(text)
        if gap:
            line = text.count(b"\n", 0, gap.end()) + 1
            raise SourceError(f"line {line}: there is no value between two commas", path)
        text = text.replace(b",", b" ")
    if len(element.properties) > 1:
        text = _without_count(text, path)
    return text


def _without_count(text: bytes, path: str) -> bytes:
    """Return the text with its first line blank if that holds one number, which is that of the lines after it."""
    start = len(text) - len(text.lstrip())
    end = text.find(b"\n", start)
    first = text[start : end if end >= 0 else len(text)].split()
    if len(first) != 1 or not first[0].isdigit():
        return text
    found = len(count_rows(text)) - 1
    if int(first[0]) != found:
        line = text.count(b"\n", 0, start) + 1
        reason = f"line {line} says that there are {int(first[0])} points, {found} are there"
        raise SourceError(reason, path)
    return text[:start] + b" " * len(first[0]) + text[start + len(first[0]) :]


def _count_text(path: str, element: Element) -> int:
    """Return the rows of a file; raises SourceError if it cannot be read, or a row does not hold a number a column."""
    return _rows_of(_lines(path, element), path, element)


def _rows_of(text: bytes, path: str, element: Element) -> int:
    sizes, width = count_rows(text), len(element.properties)
    if (sizes != width).any():
        row = int(np.argmax(sizes != width))
        names = ", ".join(p.name for p in element.properties)
        reason = f"line {_line(text, row)}: {width} columns are expected ({names}), {sizes[row]} are there"
        raise SourceError(f"{reason}; give the columns that it has with --columns", path)
    return len(sizes)


def _line(text: bytes, row: int) -> int:
    """Return the number in the file, from 1, of a line that is not blank."""
    return [number for number, line in enumerate(text.split(b"\n"), 1) if line.strip()][row]


def _read_text(path: str, element: Element, rules: dict[str, Rule]) -> dict[str, NDArray[Any]]:
    text, names = _lines(path, element), [p.name for p in element.properties]
    rows = _rows_of(text, path, element)
    try:
        values = parse_rows(text).values.reshape(rows, len(names))
    except BadNumberError as error:
        reason = f"{error.token!r} is not a number that can be stored"
        raise SourceError(f"line {_line(text, error.row)}, column {names[len(error.before)]}: {reason}", path) from None
    table = Table(element, dict(enumerate(values.T)))
    sample = {}
    for name, rule in rules.items():
        try:
            sample[name] = convert(table.columns(rule.properties), rule.dtype)
        except DoesNotFitError as error:
            column = names[rule.properties[error.index[-1] if _width(rule) else 0]]
            reason = f"line {_line(text, error.index[0])}, column {column}: {error.value:g} does not fit {rule.dtype}"
            raise SourceError(f"{reason}; give another type with --columns", path) from None
    return sample
