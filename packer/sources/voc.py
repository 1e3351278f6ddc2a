"""Boxes as Pascal VOC has them, an XML file beside each image.

    packer convert image=JPEGImages boxes=Annotations OUT

`boxes` (n, 4) float32 are xmin, ymin, xmax, ymax as in the files; `labels` (n,) int64 the numbers of the names of
objects, in the order of the alphabet; `difficult` (n,) int64. What else objects have, such as parts, is not packed.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from xml.etree import ElementTree

import msgspec
import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError, first_few
from packer.sources.agreeing import agree_on_most
from packer.sources.boxes import as_float32, not_packed, said_of_inside_out
from packer.sources.files import read_file
from packer.sources.kinds import Kind
from packer.sources.looking import Header
from packer.sources.options import SourceOptions
from packer.sources.table import LaidField, Row, SampleTable
from packer.sources.views import listed_sides
from packer.watcher import Watcher

#: How the boxes are written, for `Crop(boxes=...)` of the readers.
BOX_FORMAT = "voc"
_SIDES = "xmin", "ymin", "xmax", "ymax"
_LABELS, _INSIDE_OUT = "labels", "boxes inside out"
#: What of an object is packed.
_PACKED = "name", "bndbox", "difficult"


class _Objects(NamedTuple):
    """The objects of a file: boxes are (n, 4)."""

    names: list[str]
    boxes: NDArray[np.float32]
    difficult: list[int]


def look(row: Row, options: SourceOptions) -> Header:
    """Return how many objects a file has, and their names; all of it is read."""
    ((field, (path,)),) = row.paths.items()
    root = _root(path)
    objects = _objects(root, path)
    layout = (
        LaidField(field, "float32", ("objects", 4), "boxes of VOC", detail=_others(root)),
        LaidField(_LABELS, "int64", ("objects",), "classes", detail=tuple(sorted(set(objects.names)))),
        LaidField("difficult", "int64", ("objects",), "whole numbers"),
    )
    listed = listed_sides(root.findtext("size/height"), root.findtext("size/width"))
    inside_out = int((objects.boxes[:, 2:] < objects.boxes[:, :2]).any(axis=1).sum())
    return Header(
        layout, {"objects": len(objects.names), **({_INSIDE_OUT: inside_out} if inside_out else {}), **listed}
    )


def agree(table: SampleTable, options: SourceOptions, remarks: list[str], watcher: Watcher) -> SampleTable:
    """Return all samples, with the names of the objects of all."""
    names: dict[bool, set[str]] = {True: set(), False: set()}
    for layout in table.layouts:
        for laid in layout:
            names[laid.name == _LABELS].update(laid.detail or ())
    classes = tuple(sorted(names[True]))
    table = table.relaid(lambda laid: laid._replace(detail=classes if laid.name == _LABELS else None))
    numbers = dict(table.numbers)
    remarks += said_of_inside_out(int(np.sum(numbers.pop(_INSIDE_OUT, 0))))
    remarks += not_packed(sorted(names[False]))
    remarks.append(f"field {_LABELS} is the number of the name, from 0, of {len(classes):,}: {first_few(classes)}")
    table = msgspec.structs.replace(table, layouts=list(dict.fromkeys(table.layouts)), layout_of=None, numbers=numbers)
    return agree_on_most(table, watcher)


def read(row: Row, options: SourceOptions) -> dict[str, Any]:
    """Return the boxes and labels of a file."""
    ((field, (path,)),) = row.paths.items()
    objects = _objects(_root(path), path)
    (classes,) = (laid.detail for laid in row.layout if laid.name == _LABELS)
    try:
        labels = [classes.index(name) for name in objects.names]
    except ValueError as error:
        raise SourceError("has other objects than when it was looked at; run again", path) from error
    return {
        field: objects.boxes,
        _LABELS: np.array(labels, np.int64),
        "difficult": np.array(objects.difficult, np.int64),
    }


def _root(path: str) -> ElementTree.Element:
    """Return the annotation in a file."""
    data, _ = read_file(path)
    try:
        root = ElementTree.fromstring(data)
    except ElementTree.ParseError as error:
        raise SourceError(f"is no XML: {error}; get the file again", path) from None
    if root.tag != "annotation":
        raise SourceError(f"is XML of {root.tag}; an annotation of VOC is expected", path)
    return root


def _others(root: ElementTree.Element) -> tuple[str, ...]:
    """Return the names of what objects have that is not packed."""
    return tuple(sorted({child.tag for element in root.iterfind("object") for child in element} - {*_PACKED}))


def _objects(root: ElementTree.Element, path: str) -> _Objects:
    """Return name, box and difficulty of every object."""
    names, boxes, difficult = list[str](), list[list[float]](), list[int]()
    for number, element in enumerate(root.iterfind("object")):
        try:
            for tag in ("name", "bndbox"):
                if len(element.findall(tag)) > 1:
                    raise ValueError(f"it has {tag} twice")
            boxes.append([float(element.findtext(f"bndbox/{side}", "")) for side in _SIDES])
            names.append(element.findtext("name", "").strip())
            if not names[-1]:
                raise ValueError("it has no name")
            difficult.append(int(element.findtext("difficult", "0") or 0))
        except ValueError as error:
            reason = f"object {number}: {error}; name, difficult and bndbox of {', '.join(_SIDES)} are expected"
            raise SourceError(reason, path) from None
    return _Objects(names, as_float32(boxes, "the box of object", path).reshape(-1, 4), difficult)


def origin(options: SourceOptions, table: SampleTable) -> dict[str, Any]:
    """Return the names of objects, and how boxes are written."""
    (classes,) = (laid.detail for laid in table.layouts[0] if laid.name == _LABELS)
    return {"classes": list(classes), "box_format": BOX_FORMAT}


KIND = Kind(
    "voc",
    (),
    look,
    read,
    units=(),
    lies_beside=True,
    may_be_missing=True,
    are_ragged=True,
    agree=agree,
    origin=origin,
)
