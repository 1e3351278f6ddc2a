"""What each field is drawn as: a picture, a cloud of points, curves, or words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from packer.cli.showing.samples import Sample
from packer.format.schema import FieldSpec

Kind = Literal["image", "cloud", "curves", "grid", "text", "value"]

_POINTS = ("xyz", "points", "pos", "position", "positions", "coords", "vertices", "cloud")
_COLOURS = ("rgb", "rgba", "color", "colour", "colors", "colours")
#: A last axis up to this long is a few curves, where the axis before it is this many times as long; else a picture.
_MOST_CURVES = 8
_LONGER = 4
#: Rows from which on (n, 3) of one shape is a cloud rather than a matrix.
_LEAST_POINTS = 64


@dataclass(frozen=True)
class View:
    """One thing to draw of every sample.

    Attributes:
        field: the field that is drawn.
        colour: of a cloud: the field that colours it; None for its height.
        others: of a cloud: further fields that belong to its points, and are not drawn.
    """

    kind: Kind
    field: str
    colour: str | None = None
    others: tuple[str, ...] = ()


def views(fields: Sequence[FieldSpec], samples: Sequence[Sample]) -> list[View]:
    """The views of all fields, those of single values last."""
    cloud = next((field for field in fields if _is_cloud(field)), None)
    found: list[View] = []
    members: list[FieldSpec] = []
    if cloud is not None:
        members = [field for field in fields if field is not cloud and _belongs(field, cloud, samples)]
        found.append(_cloud(cloud, members))
    found += [View(_kind(field), field.name) for field in fields if field is not cloud and field not in members]
    return sorted(found, key=lambda view: view.kind == "value")


def _kind(field: FieldSpec) -> Kind:
    axes = len(field.shape)
    if field.kind != "array":
        return "image" if field.kind == "image" else "text"
    last = field.shape[-1] if axes else None
    few = last is not None and last <= _MOST_CURVES
    if axes == 0 or (axes == 1 and few):
        return "value"
    if axes == 1 or (axes == 2 and few and (field.shape[0] is None or field.shape[0] >= _LONGER * (last or 1))):
        return "curves"
    return "image" if axes == 3 and field.dtype == "uint8" and last in (1, 3, 4) else "grid"


def _is_cloud(field: FieldSpec) -> bool:
    if field.kind != "array" or len(field.shape) != 2 or (field.shape[1] or 0) < 3:
        return False
    many = field.shape[0] is None or field.shape[0] >= _LEAST_POINTS
    return field.name in _POINTS or (many and field.shape[1] == 3 and str(field.dtype).startswith("float"))


def _belongs(field: FieldSpec, cloud: FieldSpec, samples: Sequence[Sample]) -> bool:
    """Whether a field has a value for each point of a cloud."""
    if field.kind != "array" or not 1 <= len(field.shape) <= 2 or field.shape[0] != cloud.shape[0]:
        return False
    return all(len(sample.values[field.name]) == len(sample.values[cloud.name]) for sample in samples)


def _cloud(cloud: FieldSpec, members: Sequence[FieldSpec]) -> View:
    colours = [f.name for f in members if f.name in _COLOURS and len(f.shape) == 2 and f.shape[1] in (3, 4)]
    scalars = [f.name for f in members if len(f.shape) == 1]
    colour = next(iter([*colours, *scalars]), None)
    return View("cloud", cloud.name, colour, tuple(f.name for f in members if f.name != colour))
