"""Boxes of objects in crops: moved, resized, turned and clipped with the pixels, and left out where hardly visible.

    ds = PackedDataset(path, crop=Crop(512, of="image", flips=True, boxes="boxes", min_visible=0.2))
    ds = PackedDataset(path, crop=ResizedCrop(640, of="image", boxes="boxes"))       # resized with the pixels, too

Fields with a row for each box, such as labels, keep the rows of the boxes that stay. How a box is written is the
`box_format` of the crop. All are turned into edges (left, top, right, bottom) in pixels, in float64, and back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.format import Field, Located, Numbers
from readers.batch import Ragged
from readers.draws import Asked, Visits
from readers.fields import Describe, FieldReader, LastResult, Places, WholeReader
from readers.gather import Allocate, fresh
from readers.points import check_rows, tied_fields
from readers.rows import part_field
from readers.valid import check_choice, check_read
from readers.windows import Reading

Edges = NDArray[np.float64]
#: How boxes may be written: `xywh` in pixels, as COCO has them; `xyxy`; `voc`, which counts pixels from 1, the last one
#: included; and `yolo`, middle and size as shares of the image.
BOX_FORMATS = "xywh", "xyxy", "voc", "yolo"
#: By how much the area of a box that is moved may be less, of what was there.
_ROUNDING = 1e-9


class Placed(NamedTuple):
    """Where the crops of samples (n,) lie.

    Attributes:
        size: lengths of the samples, (n, 2).
        crop: first pixels, (n, 2).
        side: lengths that are cropped, (n, 2), before they are resized.
        way: orientations, (n,), see `turning.py`.
    """

    size: Numbers
    crop: NDArray[Any]
    side: NDArray[Any]
    way: Numbers


#: Returns where the crops of samples, seen at some visits, lie.
Place = Callable[[Numbers, Visits | None], Placed]


class BoxCrop(NamedTuple):
    """What a crop says of its boxes.

    Attributes:
        name: of their field.
        shape: height and width of the crops, after they are resized; of volumes three sides.
        box_format: one of `BOX_FORMATS`; None if it is not known.
        min_visible: the least share of its area that a box keeps.
    """

    name: str
    shape: tuple[int, ...]
    box_format: str | None
    min_visible: float


def check_box_options(boxes: str, min_visible: Any, box_format: Any) -> None:
    """Raise UsageError if what a crop was given of boxes has no meaning."""
    if not isinstance(min_visible, int | float) or not 0 <= min_visible <= 1:
        raise UsageError(f"crop: min_visible {min_visible!r}: a number from 0 to 1 is expected")
    if box_format is not None:
        check_choice("crop: box_format", box_format, BOX_FORMATS)


def check_boxes(crop: BoxCrop, fields: Mapping[str, Field], is_windowed: bool) -> None:
    """Raise UsageError if a field cannot hold the boxes of a crop."""
    check_read("crop: boxes", [crop.name], fields)
    field = fields[crop.name]
    if field.kind != "array" or len(field.shape) != 2 or field.shape[1] != 4 or field.np_dtype.kind not in "iuf":
        raise UsageError(f"crop: boxes: field {field.name!r} is {field.in_words}; numbers (n, 4) are expected")
    if is_windowed or len(crop.shape) != 2:
        raise UsageError("crop: boxes are those of images; windows and volumes have none: leave boxes out")
    if crop.box_format is None:
        raise UsageError(
            f"crop: the dataset does not say how the boxes of {field.name!r} are written; give box_format=, one of "
            f"{', '.join(BOX_FORMATS)}"
        )
    if crop.box_format == "yolo" and field.np_dtype.kind != "f":
        raise UsageError(f"crop: boxes of yolo are shares of the image, but field {field.name!r} is {field.in_words}")


def make_box_readers(crop: BoxCrop, reading: Reading, cropped: Collection[str], place: Place) -> dict[str, FieldReader]:
    """Return the readers of the boxes, and of the fields that have a row for each box in all samples.

    Args:
        cropped: names of the fields that are cropped themselves.

    Raises:
        UsageError: a field has a row for each box in most samples alone.
    """
    boxes = reading.fields[crop.name]
    others = [
        field.name
        for field in reading.fields.values()
        if field.kind == "array" and field.ragged_axes == boxes.ragged_axes and field.shape[:1] == boxes.shape[:1]
    ]
    names = tied_fields(reading, [boxes.name, *(n for n in others if n not in (boxes.name, *cropped))], ())
    moving = Moving(crop, WholeReader(reading.places[crop.name]))
    return {name: BoxReader(reading.places[name], place, moving, reading.describe) for name in names}


class Moved(NamedTuple):
    """The boxes of a batch in its crops.

    Attributes:
        values: those that stay, (m, 4), as they are written.
        rows: their row numbers in the whole batch, (m,).
        offsets: where those of each sample begin, (B + 1,).
        lengths: boxes of each sample before, (B,).
    """

    values: NDArray[Any]
    rows: Numbers
    offsets: Numbers
    lengths: Numbers


class Moving:
    """Moves the boxes of batches; worked out once for all fields of a batch.

    Args:
        boxes: reads them.
    """

    def __init__(self, crop: BoxCrop, boxes: WholeReader) -> None:
        self.name = boxes.field.name
        self._crop, self._boxes = crop, boxes
        self.moved = LastResult(self._move)

    def _move(self, numbers: Numbers, *placed: NDArray[Any]) -> Moved:
        """Move the boxes of samples (n,) whose crops are placed as `Placed` says."""
        sizes, places, sides, ways = placed
        values, lengths = _read_rows(self._boxes, self._boxes.locate(Asked(numbers)))
        sample = np.repeat(np.arange(len(numbers)), lengths)
        crop, format_ = self._crop, str(self._crop.box_format)
        edges = to_edges(values, format_, sizes[sample, ::-1])
        before = _areas(edges)
        corners, sides, shape = places[sample, ::-1], sides[sample, ::-1], np.array(crop.shape[::-1])
        edges -= np.tile(corners, 2)
        first, last = np.maximum(-corners, 0), np.minimum(sizes[sample, ::-1] - corners, sides)  # the sample's pixels
        edges = np.clip(edges, np.tile(first, 2), np.tile(last, 2))
        after = _areas(edges)
        rows = np.flatnonzero((after > 0) & (after >= crop.min_visible * (1 - _ROUNDING) * before))
        edges = turn_edges((edges * np.tile(shape / sides, 2))[rows], ways[sample[rows]], shape)
        counts = np.bincount(sample[rows], minlength=len(numbers))
        written = from_edges(edges, format_, np.broadcast_to(shape, (len(rows), 2)))
        return Moved(written.astype(self._boxes.field.np_dtype), rows, np.append(0, counts.cumsum()), lengths)


class BoxReader(FieldReader):
    """The boxes that stay in their crops, or another field's rows of them. Reads like any other ragged field.

    Args:
        places: where the whole samples of the field lie.
        place: says where crops lie.
        moving: moves the boxes.
        describe: gives a sample in words, by its number.
    """

    def __init__(self, places: Places, place: Place, moving: Moving, describe: Describe) -> None:
        super().__init__(part_field(places.field, (None, *places.field.shape[1:])))
        self._whole, self._place, self._moving, self._describe = WholeReader(places), place, moving, describe
        self.run_bytes = 0  # how many boxes stay is known only when a sample is read

    @cached_property
    def sample_bytes(self) -> float:
        """Return the raw bytes of a sample, of all its boxes; the mean if they differ."""
        return self._whole.sample_bytes

    def keep(self, window: int, batch_size: int) -> None:
        """Make room for decoded frames, see `FieldReader`."""
        self._whole.keep(window, batch_size)

    def locate(self, asked: Asked) -> Located:
        """Return where samples lie, and their crops."""
        return self._whole.locate(asked).adding(**self._place(asked.samples, asked.visits)._asdict())

    def spans(self, located: Located) -> Numbers:
        """Return the first address of the frames of each sample and the one after the last, (n, 2)."""
        return located.spans

    def read(self, located: Located, allocate: Allocate | None = None) -> Ragged:
        """Return the rows of the boxes that stay, in new memory or in what `allocate` gives.

        Raises:
            UsageError: the field does not have a row for each box.
            DamagedError: a frame cannot be decoded.
        """
        moved: Moved = self._moving.moved(located.number, *(getattr(located, name) for name in Placed._fields))
        values = moved.values
        if self.field.name != self._moving.name:
            rows, lengths = _read_rows(self._whole, located)
            rule = "fields of boxes need a row for each"
            name, boxes = self.field.name, self._moving.name
            check_rows(self._describe, located.number, name, lengths, boxes, moved.lengths, rule)
            values = rows[moved.rows]
        flat = (allocate or fresh)(values.nbytes)
        kept = flat.view(self._dtype).view(len(values), *self._shape[1:])
        return Ragged(kept.copy_(torch.from_numpy(values)), torch.from_numpy(moved.offsets.copy()))


def _read_rows(reader: WholeReader, located: Located) -> tuple[NDArray[Any], Numbers]:
    """Return the rows of all samples, (m, ...), and how many each has, (n,)."""
    values: Any = reader.read(located)
    if isinstance(values, Ragged):
        return values.values.numpy(), values.lengths.numpy()
    return values.flatten(0, 1).numpy(), np.full(len(values), values.shape[1])


def to_edges(boxes: NDArray[Any], box_format: str, sizes: Numbers) -> Edges:
    """Return boxes (n, 4) as left, top, right and bottom edge in pixels.

    Args:
        sizes: width and height of the image of each, (n, 2).
    """
    first, second = np.split(boxes.astype(np.float64), 2, axis=1)
    if box_format == "xywh":
        second = first + second
    elif box_format == "voc":
        first = first - 1
    elif box_format == "yolo":
        first, second = (first - second / 2) * sizes, (first + second / 2) * sizes
    return np.concatenate([first, second], axis=1)


def from_edges(edges: Edges, box_format: str, sizes: Numbers) -> Edges:
    """Return boxes (n, 4) as they are written; arguments as for `to_edges`."""
    first, second = np.split(edges, 2, axis=1)
    if box_format == "xywh":
        second = second - first
    elif box_format == "voc":
        first = first + 1
    elif box_format == "yolo":
        first, second = (first + second) / 2 / sizes, (second - first) / sizes
    return np.concatenate([first, second], axis=1)


def turn_edges(edges: Edges, orientations: Numbers, shape: Numbers) -> Edges:
    """Return boxes turned and mirrored as `orient` turns and mirrors crops.

    Args:
        orientations: (n,), see `orient` of `turning.py`.
        shape: width and height of a crop; equal if it is turned.
    """
    width = shape[0]
    left, top, right, bottom = edges.T
    for quarter in (1, 2, 3):
        is_turned = orientations % 4 >= quarter  # by one more quarter each time
        turned = top, width - right, bottom, width - left
        left, top, right, bottom = np.where(is_turned, turned, (left, top, right, bottom))
    is_mirrored = orientations >= 4
    left, right = np.where(is_mirrored, (width - right, width - left), (left, right))
    return np.stack([left, top, right, bottom], axis=1)


def _areas(edges: Edges) -> NDArray[np.float64]:
    area: NDArray[np.float64] = np.maximum(edges[:, 2:] - edges[:, :2], 0).prod(axis=1)
    return area
