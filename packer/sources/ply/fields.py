"""Says which fields the properties of a PLY file become.

    vertex x y z              xyz (n, 3)
    vertex nx ny nz           normal (n, 3)
    vertex red green blue     rgb (n, 3); with alpha of the same type rgba (n, 4); also diffuse_red and so on
    vertex NAME_0 NAME_1 ...  NAME (n, k): f_rest (n, 45) of 3D Gaussians
    vertex scalar_NAME        NAME in small letters, if it is free: intensity of scalar_Intensity (CloudCompare)
    vertex NAME               NAME (n,), or lists of numbers
    face vertex_indices       face, int32 corner numbers; also vertex_index
    face NAME                 face_NAME
    ELEMENT NAME              ELEMENT_NAME

Properties of one group whose types differ stay apart under their own names, unless `cast` gives the group
a type. Numbered ones are a group if there are two or more, from 0 on without a gap, and nothing else has their name.
Two properties that would be one field are refused. `Grouping` is what the user says of it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from packer.errors import SourceError, UsageError
from packer.format import check_field_name
from packer.sources.ply.header import Element

#: Vertex properties that become one field, in the order they are looked for.
_GROUPS = (
    ("xyz", ("x", "y", "z")),
    ("normal", ("nx", "ny", "nz")),
    ("rgba", ("red", "green", "blue", "alpha")),
    ("rgb", ("red", "green", "blue")),
)
#: Other names of such properties.
_ALSO = (
    ("rgba", ("diffuse_red", "diffuse_green", "diffuse_blue", "diffuse_alpha")),
    ("rgb", ("diffuse_red", "diffuse_green", "diffuse_blue")),
)
_SCALAR = "scalar_"
_FACE_LISTS = ("vertex_indices", "vertex_index")
#: The name and the number of a numbered property.
_NUMBERED = re.compile(r"(.+)_(0|[1-9][0-9]*)")


class Grouping(NamedTuple):
    """Which properties the user wants as one field.

    Attributes:
        numbered: whether numbered ones are; if not, scalar_NAME keeps its name as well.
        named: fields, and the names of the properties of each.
    """

    numbered: bool = True
    named: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @classmethod
    def of(cls, option: str | Sequence[str]) -> Grouping:
        """Return what `--group` says; raises UsageError if it cannot be understood."""
        texts = [option] if isinstance(option, str) else option
        named: dict[str, tuple[str, ...]] = {}
        for text in texts:
            field, equals, members = text.partition("=")
            names = tuple(name.strip() for name in members.split(","))
            if text not in ("none", "numbered") and not (field and equals and all(names)):
                raise UsageError(f"--group {text}: none or FIELD=A,B is expected, such as rgb=r,g,b")
            if field in named:
                raise UsageError(f"--group {text}: there is a group {field} already; give it once")
            if equals:
                named[field] = names
        return cls("none" not in texts, tuple(named.items()))


_USUAL = Grouping()


def groups_of(vertex: Element, grouping: Grouping) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield groups of properties that may become one field: its name, and the property number of each column."""
    first = {p.name: i for i, p in enumerate(vertex.properties) if p.count_dtype is None}
    for name, members in (*grouping.named, *_GROUPS, *_ALSO):
        if all(member in first for member in members):
            yield name, tuple(first[member] for member in members)
    if grouping.numbered:
        names = {"face", *dict(_GROUPS), *(p.name for p in vertex.properties)}
        counts = Counter(match[1] for name in first if (match := _NUMBERED.fullmatch(name)))
        for name, count in counts.items():
            numbered = property_names(name, count)
            if count > 1 and name not in names and all(member in first for member in numbered):
                yield name, tuple(first[member] for member in numbered)


def property_names(field: str, width: int) -> Sequence[str]:
    """Return the names of the properties behind a field of `width` columns; the inverse of `groups_of`."""
    members = dict(_GROUPS).get(field, ())
    return members if len(members) == width else [f"{field}_{i}" for i in range(width)]


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
        """Return whether these are the corner numbers of faces."""
        return self.is_list and self.field == "face" and self.element == "face"

    def __str__(self) -> str:
        """Return the type in words, which must agree between the files of a set."""
        width = f" x {len(self.properties)}" if len(self.properties) > 1 else ""
        return f"{'lists of ' if self.is_list else ''}{self.dtype}{width}"


# Sets have many files of few kinds.
@lru_cache(maxsize=64)
def rules_of(
    elements: tuple[Element, ...], cast: tuple[tuple[str, str], ...] = (), grouping: Grouping = _USUAL
) -> dict[str, Rule]:
    """Return the fields of files with these elements, by name.

    Args:
        elements: without counts.
        cast: names of fields, and the dtypes to convert them to.
        grouping: which properties become one field.

    Raises:
        SourceError: there is no vertex element, no property, a name that no field can have, or two fields of one name;
            says no path.
    """
    vertex = next((e for e in elements if e.name == "vertex"), None)
    if vertex is None:
        raise SourceError(f"has no vertex element; its elements: {', '.join(e.name for e in elements) or 'none'}")
    rules: dict[str, Rule] = {}
    taken: set[str] = set()
    used: set[tuple[str, int]] = set()
    dtypes = dict(cast)

    def add(name: str, element: Element, properties: tuple[int, ...], dtype: str | None = None) -> None:
        first = element.properties[properties[0]]
        is_list = first.count_dtype is not None
        # The lengths of lists may need a field of their own.
        names = {name, f"{name}_size"} if is_list else {name}
        if twice := names & taken:
            raise SourceError(f"two of its properties would be field {min(twice)}; rename one of them in its header")
        try:
            check_field_name(name)
        except ValueError as error:
            raise SourceError(str(error)) from None
        taken.update(names)
        rules[name] = Rule(name, element.name, properties, dtypes.get(name) or dtype or first.dtype, is_list)
        used.update((element.name, i) for i in properties)

    for name, numbers in groups_of(vertex, grouping):
        types = {vertex.properties[i].dtype for i in numbers}
        if len(types) > 1 and name not in dtypes:
            if name in dict(grouping.named):
                reason = f"--group {name}: its properties are {' and '.join(sorted(types))}"
                raise SourceError(f"{reason}; give it one type, as in --cast {name}={max(types)}")
            continue
        if name not in rules and not any(("vertex", i) in used for i in numbers):
            add(name, vertex, numbers)
    face = next((e for e in elements if e.name == "face"), Element("face", ()))
    for i, p in enumerate(face.properties):
        if p.name in _FACE_LISTS and p.count_dtype and not p.dtype.startswith("float"):
            add("face", face, (i,), "int32")
            break
    names = _names_of(vertex, rules) if grouping.numbered else [p.name for p in vertex.properties]
    for element in (vertex, *(e for e in elements if e is not vertex)):
        for i, p in enumerate(element.properties):
            if (element.name, i) not in used:
                add(names[i] if element is vertex else f"{element.name}_{p.name}", element, (i,))
    if not rules:
        raise SourceError("its header declares no properties")
    return rules


def _names_of(vertex: Element, taken: Iterable[str]) -> list[str]:
    """Return the field of each property that is in no group: its name, or NAME of scalar_NAME if that is free."""
    names = [p.name for p in vertex.properties]
    short = [name.removeprefix(_SCALAR).lower() if name.startswith(_SCALAR) else name for name in names]
    counts = Counter([*short, *taken, "face", "face_size"])
    return [new if new and counts[new] == 1 else name for name, new in zip(names, short, strict=True)]


def corners_of(rules: Mapping[str, Rule]) -> Rule | None:
    """Return the rule of the corner numbers of faces; None if a file has none."""
    return next((rule for rule in rules.values() if rule.is_face), None)
