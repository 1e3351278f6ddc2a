"""PLY files, one a sample: OUT/NAME.ply, with the elements, properties, types and comments of its source file.

Samples that came from no PLY file get a header made for their fields. The files are written by plyfile.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.export.files import Files, Writer
from packer.format import FieldSpec
from packer.packing import Leaf, kept_by, leaves
from packer.sources import Block, PackedSource
from packer.sources.ply import SIZES, CountType, Element, Header, Property, property_names


class _Options(msgspec.Struct, frozen=True):
    cast: dict[str, str] = {}


class _Origin(msgspec.Struct, frozen=True):
    """What the PLY source keeps of a set of files."""

    headers: tuple[Header, ...]
    header_of: dict[str, int] = {}
    options: _Options = _Options()


class PlyWriter(Writer):
    """Writes a file for each sample: text if the source file was text."""

    text = False

    def __init__(self, source: PackedSource, files: Files) -> None:
        if find_spec("plyfile") is None:
            raise UsageError("PLY files are written by plyfile: pip install '.[ply]' in a clone of packer")
        super().__init__(source, files)
        self._fields = {spec.name: spec for spec in source.fields}
        self._made_up: Header | None = None
        self._headers: dict[str, Header] = {}
        for leaf in leaves(source.origin, len(source)):
            self._add_headers(leaf)

    def write(self) -> Generator[Block]:
        for block, names in self._blocks():
            for number, name in enumerate(names):
                arrays, header = {field: values[number] for field, values in block.items()}, self._headers[name]
                with self._files.new(name, ".ply") as file:
                    try:
                        _write_file(file, header, arrays, self.text or header.format == "ascii")
                    except UsageError as error:
                        raise UsageError(f"sample {name!r}: {error}") from None
            yield block

    def _add_headers(self, leaf: Leaf) -> None:
        """Give the samples of one source their headers; made for the fields if the source had none."""
        origin, header_of = kept_by("ply", leaf.origin, _Origin), {}
        if origin is not None:
            headers, header_of = [self._fitted(one, origin.options.cast) for one in origin.headers], origin.header_of
        else:
            self._made_up = self._made_up or made_up(list(self._fields.values()))
            headers = [self._made_up]
            if leaf.origin.get("kind") == "ply":
                self.notes.append(
                    "a header made for the fields is written, without comments, properties and format of the source: "
                    "what the manifest keeps of it cannot be read"
                )
        for number in leaf.numbers.tolist():
            name = self._names[number]
            self._headers[name] = headers[header_of.get(name, 0)]

    def _fitted(self, header: Header, cast: Mapping[str, str]) -> Header:
        """Return a source's header with the properties that the dataset holds, and the types they were cast to."""
        elements = []
        for element in header.elements:
            kept = [prop for prop in element.properties if prop.field in self._fields]
            for place, prop in enumerate(kept):
                dtype = self._fields[prop.field].dtype
                if prop.field in cast and dtype in SIZES:
                    kept[place] = msgspec.structs.replace(prop, dtype=dtype)
            if kept:
                kept = [msgspec.structs.replace(prop, name=self._ascii(prop.name)) for prop in kept]
                elements.append(Element(self._ascii(element.name), tuple(kept)))
            elif not element.properties:
                self.notes.append("elements without properties are not written")
        form = header.format
        if form == "binary_big_endian":
            self.notes.append("big-endian files are written little-endian")
            form = "binary_little_endian"
        comments, obj_info = (tuple(map(self._ascii, lines)) for lines in (header.comments, header.obj_info))
        return Header(form, tuple(elements), comments, obj_info)

    def _ascii(self, text: str) -> str:
        if not text.isascii():
            self.notes.append("headers are ASCII: other characters in names and comments are written as escapes")
        return " ".join(text.encode("ascii", "backslashreplace").decode().splitlines())


class PlyTextWriter(PlyWriter):
    """Text, whatever the source file was."""

    text = True


def made_up(fields: Sequence[FieldSpec]) -> Header:
    """Return a header for fields that came from no PLY file; the inverse of what the PLY source does.

    Raises:
        UsageError: a field cannot be a property of vertices or faces.
    """
    held = {spec.name for spec in fields}
    vertex: list[Property] = []
    face: list[Property] = []
    for spec in fields:
        if spec.name == "face_size" and "face" in held:
            continue
        _check(spec)
        width = spec.shape[1] if len(spec.shape) == 2 else None
        if spec.name == "face":
            count: CountType = "uint8" if width is not None and width < 256 else "int32"
            face.append(Property("vertex_indices", spec.dtype, count, "face"))
            continue
        names = [spec.name] if width is None else property_names(spec.name, width)
        vertex += [Property(name, spec.dtype, None, spec.name, i) for i, name in enumerate(names)]
    elements = [Element(name, tuple(some)) for name, some in (("vertex", vertex), ("face", face)) if some]
    return Header("binary_little_endian", tuple(elements))


def _check(spec: FieldSpec) -> None:
    problem = ""
    if spec.kind != "array" or not 1 <= len(spec.shape) <= 2 or (len(spec.shape) == 2 and spec.shape[1] is None):
        problem = "is not a list of points, (N,) or (N, k)"
    elif len(spec.shape) == 2 and not spec.shape[1] and spec.name != "face":
        problem = "has rows without values, so no property would be left of it"
    elif spec.dtype not in SIZES:
        problem = f"is {spec.dtype}, but PLY has only {', '.join(SIZES)}"
    elif not spec.name.isascii() or len(spec.name.split()) != 1:
        problem = "has a name that PLY cannot hold: ASCII without spaces is expected"
    if problem:
        raise UsageError(f"field {spec.name!r} {problem}; name other fields with --fields, or export to hdf5")


def _write_file(file: BinaryIO, header: Header, arrays: Mapping[str, Any], text: bool) -> None:
    """Write one sample; `plyfile`, which is GPL, is imported only here."""
    from plyfile import PlyData, PlyElement

    elements = []
    for element in header.elements:
        rows, columns = _columns(element, arrays)
        data = np.empty(rows, [(p.name, values.dtype, values.shape[1:]) for p, values in columns])
        for prop, values in columns:
            data[prop.name] = values
        lists = [prop for prop, _ in columns if prop.count_dtype]
        counts = {prop.name: np.dtype(str(prop.count_dtype)).str[1:] for prop in lists}
        entries = {prop.name: np.dtype(prop.dtype).str[1:] for prop in lists}
        elements.append(PlyElement.describe(data, element.name, len_types=counts, val_types=entries))
    lines = {"comments": list(header.comments), "obj_info": list(header.obj_info)}
    PlyData(elements, text=text, byte_order="=" if text else "<", **lines).write(file)


def _columns(element: Element, arrays: Mapping[str, Any]) -> tuple[int, list[tuple[Property, NDArray[Any]]]]:
    """Return how many rows an element has, and its columns; columns without rows are left out if others have rows.

    If a source file lacked a property that other files had, its sample has no rows of it.
    """
    columns = [(prop, _column(prop, arrays)) for prop in element.properties]
    rows = max(len(values) for _, values in columns)
    for prop, values in columns:
        if len(values) not in (0, rows):
            raise UsageError(
                f"field {prop.field!r} has {len(values)} rows, but others of element {element.name} have {rows}; "
                "name fields of one length with --fields, or export to hdf5"
            )
    return rows, [(prop, values) for prop, values in columns if len(values) == rows]


def _column(prop: Property, arrays: Mapping[str, Any]) -> NDArray[Any]:
    """Return the values of a property: (rows,); (rows, length) for lists of one length; (rows,) arrays for others."""
    values = arrays[prop.field]
    if prop.count_dtype is None:
        return _exact(values[:, prop.column or 0] if values.ndim == 2 else values, prop)
    values = _exact(values, prop)
    if values.ndim == 2 and values.shape[1]:
        return values
    sizes: NDArray[Any] = np.zeros(len(values), np.int64)
    if values.ndim == 1:
        if f"{prop.field}_size" not in arrays:
            raise UsageError(f"field {prop.field!r} needs the field {prop.field}_size to be written as lists; name it")
        sizes = arrays[f"{prop.field}_size"]
        if int(sizes.sum()) != len(values) or (sizes < 0).any():
            raise UsageError(f"the lengths in {prop.field}_size do not add up to {prop.field!r}")
    lists: NDArray[Any] = np.empty(len(sizes), np.dtype(object))
    for row, found in enumerate(np.split(values, np.cumsum(sizes)[:-1]) if len(sizes) else ()):
        lists[row] = found
    return lists


def _exact(values: NDArray[Any], prop: Property) -> NDArray[Any]:
    """Return `values` in the type of a property. Raises UsageError if a value would change."""
    if values.dtype == prop.dtype:
        return values
    with np.errstate(all="ignore"):
        found = values.astype(prop.dtype)
    if not ((found == values) | ((found != found) & (values != values))).all():
        raise UsageError(
            f"a value of field {prop.field!r} does not fit property {prop.name} of type {prop.dtype}; export to hdf5"
        )
    return found
