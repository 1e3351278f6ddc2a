"""Boxes as YOLO has them, a text beside each image: a line an object, of class, middle, width and height.

    packer convert image=images/train boxes=labels/train OUT --missing boxes=empty

`boxes` (n, 4) float32 are as in the files, shares of the image's width and height; `labels` (n,) int64 are the classes.
Files with numbers outside 0 to 1, which Ultralytics takes for damaged, are counted in a remark.
An image without objects has an empty file; of one without a file, `--missing boxes=empty` says that it has none.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.sources.boxes import as_float32
from packer.sources.files import decode_text, read_file
from packer.sources.kinds import Kind
from packer.sources.looking import Header
from packer.sources.options import SourceOptions
from packer.sources.table import LaidField, Row, SampleTable

#: How the boxes are written, for `Crop(boxes=...)` of the readers.
BOX_FORMAT = "yolo"
#: Numbers of a line, and what is said of others.
_NUMBERS = 5
_EXPECTED = (
    "class x y width height is expected in each line, the class a whole number; --columns boxes=NAMES:float32 packs "
    "other columns as one field, another name than boxes= packs texts"
)
#: Remark on numbers that are no shares.
_OUTSIDE = "boxes have numbers outside 0 to 1, and are packed as they are: shares of the image are expected, not pixels"


def look(row: Row, options: SourceOptions) -> Header:
    """Return how many objects a file has, all of which are read."""
    ((field, (path,)),) = row.paths.items()
    boxes, labels = _objects(path)
    notes = (_OUTSIDE,) if ((boxes < 0) | (boxes > 1)).any() else ()
    layout = (
        LaidField(field, "float32", ("objects", 4), "boxes of YOLO", notes=notes),
        LaidField("labels", "int64", ("objects",), "classes"),
    )
    return Header(layout, {"objects": len(labels)})


def read(row: Row, options: SourceOptions) -> dict[str, Any]:
    """Return the boxes and classes of a file."""
    ((field, (path,)),) = row.paths.items()
    boxes, labels = _objects(path)
    return {field: boxes, "labels": labels}


def _objects(path: str) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the boxes and classes of all lines, (n, 4) and (n,)."""
    data, _ = read_file(path)
    try:
        lines = [line.split() for line in decode_text(data).splitlines() if line.strip()]
    except UnicodeDecodeError:
        raise SourceError(f"is not text; {_EXPECTED}", path) from None
    objects, classes = np.empty((len(lines), _NUMBERS)), np.empty(len(lines), np.int64)
    for number, line in enumerate(lines):
        try:
            objects[number] = [float(word) for word in line]
            classes[number] = int(line[0])
        except (ValueError, IndexError, OverflowError):
            words = " ".join(line[: _NUMBERS + 1])
            raise SourceError(f"line {number + 1} is {words!r}, {len(line)} words; {_EXPECTED}", path) from None
    return as_float32(objects[:, 1:], "the box of object", path), classes


def origin(options: SourceOptions, table: SampleTable) -> dict[str, Any]:
    """Return how boxes are written."""
    return {"box_format": BOX_FORMAT}


KIND = Kind("yolo", (), look, read, units=(), lies_beside=True, may_be_missing=True, are_ragged=True, origin=origin)
