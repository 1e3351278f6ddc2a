"""Which fields the properties of a PLY file become.

    vertex x y z              xyz (n, 3)
    vertex nx ny nz           normal (n, 3)
    vertex red green blue     rgb (n, 3); with alpha of the same type rgba (n, 4)
    vertex NAME               NAME (n,), or lists of numbers
    face vertex_indices       face, int32 corner numbers; also vertex_index
    face NAME                 face_NAME
    ELEMENT NAME              ELEMENT_NAME

Properties of one group whose types differ stay apart under their own names, unless `cast` gives the group
a type. A name that is taken already gets `_2`, `_3` and so on: `x y z x` gives xyz and x; `a a` gives a and a_2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from packer.errors import SourceError
from packer.format.schema import check_field_name
from packer.sources.ply.header import Element, Property

#: Vertex properties that become one field, in the order they are looked for.
GROUPS = (
    ("xyz", ("x", "y", "z")),
    ("normal", ("nx", "ny", "nz")),
    ("rgba", ("red", "green", "blue", "alpha")),
    ("rgb", ("red", "green", "blue")),
)
_FACE_LISTS = ("vertex_indices", "vertex_index")


@dataclass(frozen=True)
class Rule:
    """Where a field comes from: property numbers of an element, and its dtype, `cast` included.

    A field of lists has one property.
    """

    field: str
    element: str
    properties: tuple[int, ...]
    dtype: str
    is_list: bool = False

    @property
    def is_face(self) -> bool:
        """Whether these are the corner numbers of faces."""
        return self.is_list and self.field == "face" and self.element == "face"

    @property
    def layout(self) -> tuple[str, bool, int]:
        """What must agree between the files of a set."""
        return self.dtype, self.is_list, len(self.properties)

    def __str__(self) -> str:
        width = f" x {len(self.properties)}" if len(self.properties) > 1 else ""
        return f"{'lists of ' if self.is_list else ''}{self.dtype}{width}"


def rules_of(elements: Sequence[Element], cast: Mapping[str, str], path: str) -> dict[str, Rule]:
    """The fields of a file, by name.

    Raises:
        SourceError: there is no vertex element, no property, or a name that no field can have.
    """
    vertex = next((e for e in elements if e.name == "vertex"), None)
    if vertex is None:
        names = ", ".join(e.name for e in elements) or "none"
        raise SourceError(f"has no vertex element; its elements: {names}", path)
    book = _Rules(dict(cast), path)
    grouped = book.add_groups(vertex)
    face = next((e for e in elements if e.name == "face"), None)
    if face is not None:
        grouped |= book.add_face(face)
    for element in (vertex, *(e for e in elements if e is not vertex)):
        for i, p in enumerate(element.properties):
            if (element.name, i) not in grouped:
                book.add(p.name if element is vertex else f"{element.name}_{p.name}", element, (i,))
    if not book.rules:
        raise SourceError("its header declares no properties", path)
    return book.rules


class _Rules:
    """Collects rules and keeps their names apart."""

    def __init__(self, cast: dict[str, str], path: str) -> None:
        self.cast, self.path = cast, path
        self.rules: dict[str, Rule] = {}
        self.taken: set[str] = set()

    def add(self, name: str, element: Element, properties: tuple[int, ...], dtype: str | None = None) -> None:
        first = element.properties[properties[0]]
        field = self._free_name(name, first.count_dtype is not None)
        self.rules[field] = Rule(
            field,
            element.name,
            properties,
            self.cast.get(field) or dtype or first.dtype,
            first.count_dtype is not None,
        )

    def add_groups(self, vertex: Element) -> set[tuple[str, int]]:
        """Adds the groups of vertex properties; returns what went into them."""
        used: set[tuple[str, int]] = set()
        for name, members in GROUPS:
            numbers = _numbers(vertex, members)
            if numbers is None or any(("vertex", i) in used for i in numbers):
                continue
            if name in self.cast or len({vertex.properties[i].dtype for i in numbers}) == 1:
                self.add(name, vertex, numbers)
                used |= {("vertex", i) for i in numbers}
        return used

    def add_face(self, face: Element) -> set[tuple[str, int]]:
        """Adds the corners of the faces; returns what they came from."""
        for i, p in enumerate(face.properties):
            if p.name in _FACE_LISTS and p.count_dtype and not p.dtype.startswith("float"):
                self.add("face", face, (i,), "int32")
                return {("face", i)}
        return set()

    def _free_name(self, name: str, is_list: bool) -> str:
        try:
            check_field_name(name)
        except ValueError as error:
            raise SourceError(str(error), self.path) from None
        field, number = name, 1
        # The lengths of lists may need a field of their own, NAME_size.
        while field in self.taken or (is_list and f"{field}_size" in self.taken):
            number += 1
            field = f"{name}_{number}"
        self.taken |= {field, f"{field}_size"} if is_list else {field}
        return field


def _numbers(element: Element, names: Sequence[str]) -> tuple[int, ...] | None:
    """The numbers of the first properties of these names that are no lists; None where one is missing."""
    first: dict[str, int] = {}
    for i, p in enumerate(element.properties):
        if _is_number(p):
            first.setdefault(p.name, i)
    return tuple(first[n] for n in names) if all(n in first for n in names) else None


def _is_number(prop: Property) -> bool:
    return prop.count_dtype is None
