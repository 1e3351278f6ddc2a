"""Crops: batches of one shape from images of different sizes, their partners cropped at the same place.

    ds = PackedDataset(path, crop=Crop(size=64, of="hr", aligned={"lr": 4}))
    ds = PackedDataset(path, crop=Crop(size=512, of="image", flips=True, boxes="boxes"))

Random places, flips and turns are drawn again each time that a sample is read (see `draws.py`): once for all steps of
a window, and for all fields that are cropped. `placing.py` works them out, `cropped.py` reads the crops.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packer.errors import UsageError
from packer.format import Field, Numbers
from readers.boxes import BoxCrop, Placed, check_box_options, check_boxes, make_box_readers
from readers.cropped import IS_DATA, CropReader, make_is_data_reader
from readers.draws import Visits
from readers.fields import FieldReader
from readers.placing import AXES, PlaceRules, Placing, as_places, size_text
from readers.valid import check_count, check_flags, check_read, check_seed, make_tuples, remark
from readers.windows import Reading

#: Words in names of fields that say where something is in an image, or which way it moves there.
_TURNED = {"flow", "normals"}
_MOVED = _TURNED | {"box", "boxes", "bbox", "bboxes", "keypoint", "keypoints", "landmark", "landmarks"}


@dataclass(frozen=True, eq=False)
class Crop:
    """Cuts crops of one size from every sample, or from every step of it.

    The field `of` is cropped to `size`, and a field in `aligned` to `size / scale`, at the same place divided by
    `scale`; `of` must be exactly `scale` times as high and as wide. Other fields stay as they are.

    Args:
        size: pixels of a crop of `of`: an int for a square, (height, width), or (depth, height, width) of volumes.
        of: name of the field that is cropped: an image, or an array of two axes or more, such as (H, W, C), or steps of
            them, (T, H, W, C); of three axes or more for volumes, (Z, Y, X) or (Z, Y, X, C). By default the only image
            that is read and not in `aligned`.
        aligned: fields that are cropped at the same place, each with its scale, 1 or more: `of` is that many times as
            high and as wide.
        seed: of places, flips and turns. Two datasets with different seeds are cropped differently in the same epoch.
        flips: mirrors half of the samples left to right, all their cropped fields alike; volumes along each axis.
        turns: turns samples by 0 to 3 quarters, all their cropped fields alike; with `flips`, all eight ways to lay a
            square are equally likely. Not for volumes.
        at: where crops begin. None: anywhere, at random; with `aligned` at multiples of the scales. `"center"`: in the
            middle. (row, column): there, in every sample. An array (samples, 2): there, by sample number. A function:
            it is called once a visit, with the number of the sample, (1,) int64, and a numpy Generator of its own, and
            returns the place, (1, 2) int. If it uses these two arguments alone, places do not depend on batch size,
            threads, ranks or resuming. In volumes a place has three numbers.
        axes: the axes of a sample that are cropped, one after another, in every cropped field: (1, 2) or (-2, -1) for
            (C, H, W), (1, 2, 3) for (C, Z, Y, X). By default the first ones; or those after the first, if the field has
            windows, or an array of four axes is cropped to (height, width).
        multiple: random places and those in the middle are multiples of this, such as 2 for a Bayer mosaic.
        pad: None raises an error for a sample that is smaller than the crop. `"zero"` or `"edge"` puts it into the
            middle of the crop, with zeros or its outermost pixels around. A dict gives each cropped field a value, or
            `"edge"`: `{"image": 0, "label": -1}`. `batch[field + "_is_data"]`, int64 (B, axes, 2), then says where the
            sample's own pixels lie on each cropped axis: the first, and the one after the last.
        outside: crops may hang over the border of their sample: places in `at` may be below 0 or as large as they like,
            as long as the crop holds a pixel of the sample. What lies outside is filled by `pad`. A sample that is
            smaller than the crop lies where `at` says, not in the middle.
        boxes: name of a field of boxes in pixels of `of`, (n, 4), which move, flip and turn with the crop, and are
            clipped to it. Those of which nothing is left are left out, and with them their rows of all fields that have
            a row for each box in every sample, such as labels. All these come as `Ragged`.
        min_visible: the least share of its area that a box keeps in the crop; one with less is left out.
        box_format: how boxes are written: `"xywh"` as COCO has them, `"xyxy"`, `"voc"`, which counts pixels from 1, or
            `"yolo"`: middle, width and height as shares of the image. By default as the dataset says, if it was packed
            from COCO, VOC or YOLO.

    Raises:
        UsageError: an argument has no meaning, or two do not go together.
    """

    size: int | Sequence[int]
    of: str = ""
    aligned: Mapping[str, int] = field(default_factory=dict)
    seed: int = 0
    flips: bool = False
    turns: bool = False
    at: str | ArrayLike | Callable[[Numbers, np.random.Generator], ArrayLike] | None = None
    axes: Sequence[int] | None = None
    multiple: int = 1
    pad: Literal["zero", "edge"] | Mapping[str, float | Literal["edge"]] | None = None
    outside: bool = False
    boxes: str = ""
    min_visible: float = 0.0
    box_format: Literal["xywh", "xyxy", "voc", "yolo"] | None = None

    def __post_init__(self) -> None:
        check_seed(self.seed)
        check_flags("crop", flips=self.flips, turns=self.turns, outside=self.outside)
        check_count("crop: multiple", self.multiple)
        make_tuples(self, "size", "axes")
        self._check_size()
        self._check_axes_given()
        self._check_pad()
        check_box_options(self.boxes, self.min_visible, self.box_format)
        _ = self._given  # once, here: to check a list of places takes longer than to read the crops
        if self.outside and (self.pad is None or self.at is None or isinstance(self.at, str)):
            raise UsageError(
                "crop: outside=True lets places of your own lie outside: give them by at=, and pad= for what is there"
            )

    def _check_size(self) -> None:
        sizes = self.size if isinstance(self.size, tuple) else (self.size, self.size)
        if len(sizes) not in (2, 3) or not all(map(_is_length, sizes)):
            raise UsageError(
                f"crop: size {self.size!r}: a number of pixels, (height, width), or (depth, height, width), of 1 or "
                "more is expected"
            )
        for name, scale in self.aligned.items():
            check_count(f"crop: scale of {name!r}", scale)
            if any(n % scale for n in self._shape):
                raise UsageError(
                    f"crop: {size_text(self._shape)} pixels cannot be divided by {scale}, the scale of {name!r}"
                )
        if self.of in self.aligned:
            raise UsageError(f"crop: {self.of!r} is what the others are aligned with; leave it out of aligned")
        if self.turns and (len(sizes) == 3 or len(set(sizes)) > 1):
            raise UsageError(f"crop: turns need squares, not {size_text(self._shape)} pixels")

    def _check_axes_given(self) -> None:
        axes = (0,) if self.axes is None else self.axes
        are_axes = isinstance(axes, tuple) and len(axes) > 0 and isinstance(axes[0], int | np.integer)
        following = tuple(range(axes[0], axes[0] + len(self._shape))) if are_axes else ()
        if self.axes is not None and (not are_axes or axes != following or following[0] < 0 <= following[-1]):
            raise UsageError(
                f"crop: axes {self.axes!r}: the axis of rows and the next, of columns, are expected: (-2, -1); of "
                "volumes three: (1, 2, 3)"
            )

    def _check_pad(self) -> None:
        if self.pad and self.turns:
            raise UsageError("crop: pad and turns do not go together; leave out one")
        if not isinstance(self.pad, Mapping):
            if self.pad not in (None, "zero", "edge"):
                raise UsageError(
                    f"crop: pad {self.pad!r}: None, 'zero', 'edge' or a dict of the value of each field is expected"
                )
            return
        if self.of and set(self.pad) != set(self._scales):
            raise UsageError(
                f"crop: pad has values of {', '.join(self.pad) or 'no field'}; one of each cropped field is expected: "
                f"{', '.join(self._scales)}"
            )
        for name, value in self.pad.items():
            if value != "edge" and not isinstance(value, int | float | np.number | np.bool_):
                raise UsageError(f"crop: pad {value!r} of {name!r}: a number or 'edge' is expected")

    @property
    def _shape(self) -> tuple[int, ...]:
        """Return the height and width of a crop of `of`, of volumes depth, height and width."""
        sizes = self.size if isinstance(self.size, tuple) else (self.size, self.size)
        return tuple(map(int, sizes))

    @property
    def _step(self) -> int:
        """Return the number whose multiples places are, so that they fall on whole pixels of every field."""
        return math.lcm(self.multiple, *self.aligned.values())

    @property
    def _scales(self) -> dict[str, int]:
        """Return the scale of every field that is cropped."""
        return {self.of: 1, **self.aligned}

    @property
    def _fills(self) -> dict[str, Any]:
        """Return what lies around the samples of every cropped field: a value or "edge"; none without `pad`."""
        if isinstance(self.pad, Mapping):
            return dict(self.pad)
        return {} if self.pad is None else dict.fromkeys(self._scales, 0 if self.pad == "zero" else "edge")

    @cached_property
    def _given(self) -> NDArray[np.int64] | None:
        """Return the places in `at`, (axes,) or (samples, axes); None if there are none.

        Raises:
            UsageError: `at` is a text other than `center`, or no places.
        """
        if self.at is None or isinstance(self.at, str) or callable(self.at):
            if isinstance(self.at, str) and self.at != "center":
                raise UsageError(f"crop: at {self.at!r}: None, 'center', (row, column) or an array of them is expected")
            return None
        return as_places(self.at, len(self._shape))

    def _first_axis(self, cropped: Field, has_windows: bool) -> int:
        """Return the first axis of a field that is cropped; the others are the next ones."""
        if self.axes is not None:
            return self.axes[0] + (len(cropped.shape) if self.axes[0] < 0 else 0)
        return 1 if has_windows or (len(cropped.shape) == 4 and len(self._shape) == 2) else 0

    @property
    def _box_crop(self) -> BoxCrop:
        return BoxCrop(self.boxes, self._shape, self.box_format, self.min_visible)

    @property
    def _place_rules(self) -> PlaceRules:
        draws, is_padded = self._draws, self.pad is not None
        return PlaceRules(
            self.of,
            self._shape,
            self._step,
            self.at,
            self._given,
            draws,
            self.seed,
            self.flips,
            self.turns,
            self.outside,
            is_padded,
        )

    @property
    def _draws(self) -> bool:
        return self.at is None or callable(self.at) or self.flips or self.turns

    @property
    def _asks(self) -> bool:
        return callable(self.at)

    def _check(self, fields: Mapping[str, Field], samples: int, windowed: Collection[str]) -> list[str]:
        check_read("crop", self._scales, fields)
        for name in self._scales:
            self._check_axes(fields[name], name in windowed)
        for name, value in self._fills.items():
            if value != "edge" and not _can_hold(fields[name].np_dtype, value):
                raise UsageError(
                    f"crop: pad {value} of field {name!r}: its dtype {fields[name].dtype} cannot hold that value; give "
                    "another one, or pack the field again with a dtype that can"
                )
        places = self._given
        if places is not None and places.ndim == 2 and len(places) != samples:
            raise UsageError(f"crop: at holds {len(places):,} places for {samples:,} samples; one for each is expected")
        if self.boxes:
            check_boxes(self._box_crop, fields, bool({self.of, self.boxes}.intersection(windowed)))
        remark_left(fields, [*self._scales, self.boxes], self.flips or self.turns)
        return [name + IS_DATA for name in self._scales] if self.pad else []

    def _make_readers(self, reading: Reading, taken: Collection[str]) -> dict[str, FieldReader]:
        readers: dict[str, FieldReader] = {}
        axes = {name: self._first_axis(reading.fields[name], name in reading.steps) for name in self._scales}
        placing = Placing(self._place_rules, reading.places[self.of], axes[self.of], reading.describe, reading.samples)
        for name, scale in self._scales.items():
            steps = reading.steps.get(name)
            readers[name] = crops = CropReader(
                reading.places[name], axes[name], placing, scale, self._fills.get(name), steps
            )
            if name != self.of and reading.compared is None:
                crops.check_sizes(reading.samples)
            if self.pad:
                readers[name + IS_DATA] = make_is_data_reader(crops)
        if self.boxes:
            readers |= make_box_readers(self._box_crop, reading, self._scales, partial(_placed, placing))
        return readers

    def _check_axes(self, cropped: Field, has_windows: bool) -> None:
        first, shape = self._first_axis(cropped, has_windows), cropped.shape
        end = first + len(self._shape)
        described = f"crop: field {cropped.name!r} is {cropped.kind} of shape {list(shape)}"
        if cropped.kind == "text" or not has_windows <= first or end > len(shape) or None in shape[end:]:
            words = " and ".join(f"{name}s" for name in AXES[-len(self._shape) :])
            raise UsageError(f"{described}; a field with {words}, and only fixed axes after them, is expected")
        if cropped.kind == "image" and (first, end) != (0, 2):
            raise UsageError(f"{described}, stored as (H, W, C): rows and columns are axes 0 and 1; leave axes out")
        if None in shape[has_windows:first]:
            raise UsageError(
                f"{described}; axes before the cropped ones must be fixed; if the first is steps, give "
                "windows=Windows(...)"
            )


def _placed(placing: Placing, numbers: Numbers, visits: Visits | None) -> Placed:
    sizes, places, ways = placing.place(numbers, visits)
    return Placed(sizes, places, np.broadcast_to(placing.rules.shape, places.shape), ways)


def remark_left(fields: Iterable[str], cropped: Collection[str], mirrors: bool) -> None:
    """Say which fields look as if a crop had to change them, by their names, and stay as they are."""
    for name in fields:
        words = set(re.split(r"[\W_]+", name.lower()))
        if words & _MOVED and name not in cropped:
            remark(f"field {name!r} stays as it is beside a crop, whose place and flips it does not follow")
        elif words & _TURNED and name in cropped and mirrors:
            remark(f"field {name!r} is flipped or turned with the crop, and the signs of its values stay as they are")


def _is_length(n: object) -> bool:
    return isinstance(n, int | np.integer) and not isinstance(n, bool) and bool(n >= 1)


def _can_hold(dtype: np.dtype[Any], value: float) -> bool:
    """Return whether values of a dtype can be `value`, but for the digits of floats."""
    if dtype.kind == "b":
        return value in (0, 1)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return float(value).is_integer() and limits.min <= value <= limits.max
    with np.errstate(over="ignore"):
        return math.isfinite(value) == bool(np.isfinite(dtype.type(value)))
