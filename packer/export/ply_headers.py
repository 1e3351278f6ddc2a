"""Which PLY header a sample is written under: that of its source file, or one made up for its fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

from packer.errors import UsageError
from packer.format.schema import FieldSpec
from packer.packing.origin import Leaf, leaves
from packer.sources.packed.source import PackedSource
from packer.sources.ply.fields import GROUPS

#: PLY's names of the dtypes it has.
TYPE_NAMES = {
    "int8": "char",
    "uint8": "uchar",
    "int16": "short",
    "uint16": "ushort",
    "int32": "int",
    "uint32": "uint",
    "float32": "float",
    "float64": "double",
}
_FACE = "vertex_indices"

Type = Literal["int8", "uint8", "int16", "uint16", "int32", "uint32", "float32", "float64"]
CountType = Literal["int8", "uint8", "int16", "uint16", "int32", "uint32"]


#: What stands between the spaces of a header line.
Word = Annotated[str, msgspec.Meta(pattern=r"^\S+\Z")]


class Property(msgspec.Struct, frozen=True):
    """A property, the field that holds it, and which column of that; `count_type` is set where it is a list."""

    name: Word
    type: Type
    field: str
    count_type: CountType | None = None
    column: int = 0


class Element(msgspec.Struct, frozen=True):
    """An element and its properties."""

    name: Word
    properties: tuple[Property, ...]


class Header(msgspec.Struct, frozen=True):
    """A header without the numbers of rows."""

    format: Literal["ascii", "binary_little_endian", "binary_big_endian"]
    elements: tuple[Element, ...]
    comments: tuple[str, ...] = ()
    obj_info: tuple[str, ...] = ()


class _Options(msgspec.Struct, frozen=True):
    cast: dict[str, str] = {}


class _Origin(msgspec.Struct, frozen=True):
    """What `packer.sources.ply.origin` keeps of a set of files."""

    headers: tuple[Header, ...]
    header_of: dict[str, int] = {}
    options: _Options = _Options()


class Headers:
    """The header of every sample of a dataset.

    Attributes:
        notes: sentences on samples whose source files' headers are not used.

    Raises:
        UsageError: as for `made_up`, where a header must be.
    """

    def __init__(self, source: PackedSource) -> None:
        self._fields = {spec.name: spec for spec in source.fields}
        self._made_up: Header | None = None
        self._sets: list[tuple[Header, ...]] = []
        self._names = source.names
        self._of: dict[str, Header] = {}
        self._leaf_of = [0] * len(source)
        self.notes: list[str] = []
        for number, leaf in enumerate(leaves(source.origin, len(source))):
            self._add_set(leaf)
            if number:
                for sample in leaf.numbers.tolist():
                    self._leaf_of[sample] = number
        if not all(self._sets):
            self._made_up = made_up(source.fields)

    def _add_set(self, leaf: Leaf) -> None:
        """The headers of the samples of one source; none, and a note, where they do not suit the dataset."""
        origin = _parsed(leaf.origin)
        headers = tuple(self._fitted(h, origin.options.cast) for h in origin.headers) if origin else ()
        reason = "what the manifest keeps of it cannot be read"
        for prop in (p for h in headers for e in h.elements for p in e.properties):
            if not self._suits(prop):
                reason = f"field {prop.field!r} is not what property {prop.name} holds"
                headers = ()
                break
        self._sets.append(headers)
        if origin and headers:
            self._of |= {name: headers[i] for name, i in origin.header_of.items() if 0 <= i < len(headers)}
        elif leaf.origin.get("kind") == "ply":
            count = len(leaf.numbers)
            self.notes.append(
                f"{count} {'sample is' if count == 1 else 'samples are'} written under a header made for the fields, "
                f"without the comments, properties and format of the source: {reason}"
            )

    def of(self, sample: int) -> Header:
        """The header of a sample."""
        headers = self._sets[self._leaf_of[sample]]
        if not headers:
            assert self._made_up is not None
            return self._made_up
        found = self._of.get(self._names[sample]) if self._names is not None else None
        return found or headers[0]

    def _fitted(self, header: Header, cast: Mapping[str, str]) -> Header:
        """A source's header with the properties that the dataset holds, and the types they were cast to."""
        elements = []
        for element in header.elements:
            kept = tuple(self._property(p, cast) for p in element.properties if p.field in self._fields)
            if kept or not element.properties:
                elements.append(Element(element.name, kept))
        return msgspec.structs.replace(header, elements=tuple(elements))

    def _suits(self, prop: Property) -> bool:
        """Whether the dataset's field is as this property needs it."""
        shape = self._fields[prop.field].shape
        if self._fields[prop.field].kind == "text" or not 1 <= len(shape) <= 2:
            return False
        if len(shape) == 1:
            return True
        # A list needs no column: where all of a set are empty, the field is (n, 0).
        return shape[1] is not None and (prop.count_type is not None or prop.column < shape[1])

    def _property(self, prop: Property, cast: Mapping[str, str]) -> Property:
        spec = self._fields[prop.field]
        column = 0
        if prop.count_type is None and len(spec.shape) == 2:
            members = dict(GROUPS).get(prop.field, ())
            column = members.index(prop.name) if prop.name in members else 0
        type_ = str(spec.dtype) if prop.field in cast and spec.dtype in TYPE_NAMES else prop.type
        return msgspec.structs.replace(prop, type=type_, column=column)


def _parsed(origin: Mapping[str, Any]) -> _Origin | None:
    """The headers of a set of PLY files; None where the samples came from something else."""
    if origin.get("kind") != "ply":
        return None
    try:
        return msgspec.convert(origin, _Origin)
    except msgspec.ValidationError:
        return None


def made_up(fields: Sequence[FieldSpec]) -> Header:
    """A header for fields that came from no PLY file; the inverse of what the PLY source does.

    Raises:
        UsageError: a field cannot be a property of vertices or faces.
    """
    held = {spec.name: spec for spec in fields}
    vertex: list[Property] = []
    face: list[Property] = []
    for spec in fields:
        if spec.name == "face_size" and "face" in held:
            continue
        _check(spec)
        width = spec.shape[1] if len(spec.shape) == 2 else None
        if spec.name == "face":
            face.append(Property(_FACE, spec.dtype, "face", _count_type(width)))
            continue
        vertex += _vertex_properties(spec, width)
    elements = [Element("vertex", tuple(vertex))] + ([Element("face", tuple(face))] if face else [])
    return Header("binary_little_endian", tuple(elements))


def _vertex_properties(spec: FieldSpec, width: int | None) -> list[Property]:
    if width is None:
        names: Sequence[str] = (spec.name,)
    else:
        members = dict(GROUPS).get(spec.name, ())
        names = members if len(members) == width else [f"{spec.name}_{i}" for i in range(width)]
    return [Property(name, spec.dtype, spec.name, column=i) for i, name in enumerate(names)]


def _count_type(width: int | None) -> CountType:
    return "uint8" if width is not None and width < 256 else "int32"


def _check(spec: FieldSpec) -> None:
    problem = ""
    if spec.kind != "array" or not 1 <= len(spec.shape) <= 2 or (len(spec.shape) == 2 and spec.shape[1] is None):
        problem = "is no list of points, (N,) or (N, k)"
    elif len(spec.shape) == 2 and not spec.shape[1] and spec.name != "face":
        problem = "holds no value in any row, so that no property would be left of it"
    elif spec.dtype not in TYPE_NAMES:
        problem = f"is {spec.dtype}, and PLY knows {', '.join(TYPE_NAMES)} alone"
    elif not spec.name.isascii() or len(spec.name.split()) != 1:
        problem = "has a name that PLY cannot hold: ASCII without spaces is expected"
    if problem:
        raise UsageError(f"field {spec.name!r} {problem}; name other fields with --fields, or export to hdf5")
