"""Boxes of COCO's json (`instances_train2017.json`): each image that it lists is a sample, also one without objects.

    packer convert image=train2017 boxes=annotations/instances_train2017.json OUT

    boxes          (n, 4) float32, [x, y, width, height] in pixels, as the json has them
    labels         (n,) int64, the number of the category among all of the json, by ascending id
    category_ids   (n,) int64, ids, iscrowd, (n,) float32 areas: as the json has them
    image_id       int64

The objects of an image come in the order of the json. Samples are named by `file_name`, and `keyed.py` joins them to
those of the pictures.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError, first_few
from packer.sources.boxes import as_float32, not_packed, said_of_inside_out
from packer.sources.files import read_file, unreadable
from packer.sources.kinds import Kind, pair_in_order
from packer.sources.looking import Header
from packer.sources.options import SourceOptions
from packer.sources.pairing import stem
from packer.sources.table import LaidField, Row, SampleTable
from packer.sources.views import listed_sides
from packer.watcher import Watcher

#: How the boxes are written, for `Crop(boxes=...)` of the readers.
BOX_FORMAT = "xywh"
#: What else of an object is a field, if all objects have it: its name in the json, and its dtype.
_OF_OBJECTS = {"ids": ("id", "int64"), "iscrowd": ("iscrowd", "int64"), "areas": ("area", "float32")}
_LABELS, _CATEGORIES, _IMAGE, _COUNT, _FIRST = "labels", "category_ids", "image_id", "objects", "first"


#: What fits int64.
_Id = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class _Image(msgspec.Struct, gc=False):
    id: _Id
    file_name: str = ""
    coco_url: str = ""
    height: Any = 0
    width: Any = 0

    @property
    def name(self) -> str:
        """Return its name without suffix; LVIS has that of the file in `coco_url` alone."""
        return stem(self.file_name or self.coco_url.rpartition("/")[2])


class _Object(msgspec.Struct, gc=False):
    image_id: _Id
    category_id: _Id
    bbox: tuple[float, float, float, float]
    id: _Id | None = None
    iscrowd: int | bool | None = None
    area: float | None = None


class _Category(msgspec.Struct, gc=False):
    id: _Id
    name: str


class _Coco(msgspec.Struct):
    images: list[_Image]
    annotations: list[_Object]
    categories: list[_Category]


class _RawObjects(msgspec.Struct):
    annotations: list[msgspec.Raw]


class Boxes(NamedTuple):
    """What a json holds.

    Attributes:
        images: those that it lists.
        starts: where the objects of each image begin in `columns`, and the end, (images + 1,).
        columns: of all objects, image after image, by field.
        classes: names of the categories, by label.
        remarks: on what is left out.
    """

    images: list[_Image]
    starts: NDArray[np.int64]
    columns: dict[str, NDArray[Any]]
    classes: list[str]
    remarks: list[str]


def look(row: Row, options: SourceOptions) -> list[Header | SourceError]:
    """Return what each image of a json has."""
    ((field, (path,)),) = row.paths.items()
    boxes = _opened(path)
    layout = [LaidField(_IMAGE, "int64", (), "one whole number")]
    for name, column in boxes.columns.items():
        axes = (_COUNT, *column.shape[1:])
        in_words = f"{column.dtype.name} of {column.ndim} axes"
        layout.append(LaidField(name or field, column.dtype.name, axes, in_words, detail=name))
    starts = boxes.starts.tolist()
    return [
        Header(
            tuple(layout),
            {
                _COUNT: starts[n + 1] - starts[n],
                _FIRST: starts[n],
                _IMAGE: image.id,
                **listed_sides(image.height, image.width),
            },
            root=image.name,
        )
        for n, image in enumerate(boxes.images)
    ]


def read(row: Row, options: SourceOptions) -> dict[str, Any]:
    """Return the objects of an image."""
    columns, first = _opened(row.path).columns, row.numbers[_FIRST]
    of_image = slice(first, first + row.numbers[_COUNT])
    sample: dict[str, Any] = {
        laid.name: columns[laid.detail][of_image] for laid in row.layout if laid.detail is not None
    }
    return {_IMAGE: np.array(row.numbers[_IMAGE], np.int64), **sample}


def agree(table: SampleTable, options: SourceOptions, remarks: list[str], watcher: Watcher) -> SampleTable:
    """Return all samples."""
    boxes = _opened(table.row(0).path)
    remarks += boxes.remarks
    if empty := int((np.diff(boxes.starts) == 0).sum()):
        remarks.append(f"{empty:,} of {table.count:,} images {'has' if empty == 1 else 'have'} no object, and no box")
    return table


def origin(options: SourceOptions, table: SampleTable) -> dict[str, Any]:
    """Return the names of the categories, and how boxes are written."""
    return {"classes": _opened(table.row(0).path).classes, "box_format": BOX_FORMAT}


def _opened(path: str) -> Boxes:
    """Return what a json holds; it stays in memory as long as the file does not change."""
    try:
        status = Path(path).stat()
    except OSError as error:
        raise unreadable(error, path) from error
    return _decoded(path, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=2)
def _decoded(path: str, size: int, changed: int) -> Boxes:
    data, _ = read_file(path)
    try:
        coco = msgspec.json.decode(data, type=_Coco)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        expected = "images (id, file_name), annotations (image_id, category_id, bbox of 4 numbers) and categories"
        raise SourceError(f"is no json of COCO's instances: {error}; expected are {expected}", path) from None
    if unnamed := [image.id for image in coco.images if not image.name.strip("/")]:
        raise SourceError(f"the image of id {unnamed[0]} has no file_name", path)
    boxes = _grouped(coco, path)
    boxes.remarks.extend(not_packed(_other_keys(data)))
    return boxes


def _other_keys(data: bytes) -> list[str]:
    """Return what objects have that no field is made of, by its name in the json."""
    keys_of = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
    objects = msgspec.json.decode(data, type=_RawObjects).annotations
    keys = dict.fromkeys(chain.from_iterable(map(keys_of, objects)))
    return [key for key in keys if key not in _Object.__struct_fields__]


def _grouped(coco: _Coco, path: str) -> Boxes:
    """Return the objects image after image; those of one image in their order."""
    objects, categories = coco.annotations, sorted(coco.categories, key=lambda category: category.id)
    if not coco.images:
        raise SourceError("lists no image", path)
    image_of = _numbers([image.id for image in coco.images], [o.image_id for o in objects], "image", path)
    label_of = _numbers([category.id for category in categories], [o.category_id for o in objects], "category", path)
    columns: dict[str, NDArray[Any]] = {
        "": as_float32([o.bbox for o in objects], "bbox of annotation", path).reshape(-1, 4),
        _LABELS: label_of,
        _CATEGORIES: np.array([o.category_id for o in objects], np.int64),
    }
    classes = [category.name for category in categories]
    remarks = [f"field {_LABELS} is the number of the category, from 0, of {len(classes):,}: {first_few(classes)}"]
    if twice := [name for name, times in Counter(classes).items() if times > 1]:
        remarks.append(f"several categories have one name, {first_few(twice)}: only their numbers tell them apart")
    remarks += said_of_inside_out(int((columns[""][:, 2:] < 0).any(axis=1).sum()))
    for name, (key, dtype) in _OF_OBJECTS.items():
        values = [getattr(o, key) for o in objects]
        missing = values.count(None)
        if not missing:
            is_float = dtype == "float32"
            columns[name] = as_float32(values, f"{key} of annotation", path) if is_float else np.array(values, dtype)
        elif missing < len(values):
            remarks.append(f"{missing:,} of {len(values):,} objects have no {key}, so there is no field {name}")
    order = np.argsort(image_of, kind="stable")
    starts = np.append(0, np.cumsum(np.bincount(image_of, minlength=len(coco.images))))
    return Boxes(coco.images, starts, {name: column[order] for name, column in columns.items()}, classes, remarks)


def _numbers(ids: list[int], named: list[int], word: str, path: str) -> NDArray[np.int64]:
    """Return which of some ids each object names, (n,).

    Raises:
        SourceError: two have one id, or an object names none of them.
    """
    number_of = {one: number for number, one in enumerate(ids)}
    if len(number_of) < len(ids):
        raise SourceError(f"lists {len(ids) - len(number_of):,} ids of {word} twice", path)
    try:
        return np.array([number_of[one] for one in named], np.int64)
    except KeyError as error:
        at = named.index(error.args[0])
        raise SourceError(f"annotation {at:,} names {word}_id {error.args[0]}, which is not listed", path) from None


KIND = Kind(
    "coco",
    (),
    look,
    read,
    units=(),
    pair=pair_in_order,
    agree=agree,
    are_ragged=True,
    origin=origin,
)
