"""Crops of photographs, resized to one size: batches of one shape, as torchvision's `RandomResizedCrop` makes them.

    ds = PackedDataset(path, crop=ResizedCrop(224, of="image"))
    ds = PackedDataset(path, crop=ResizedCrop(224, of="image", at="center", short=256))      # for validation
    ds = PackedDataset(path, crop=ResizedCrop(224, of="image", views=2))             # two crops of every sample

Random crops are drawn again each time that a sample is read (see `draws.py`). Of a JPEG file no more is decoded than
needed: no rows below the crop; and a crop of twice the size or more at half, a quarter or an eighth of its size. Sides
and places of such crops are multiples of 2, 4 or 8, so that they lie on whole pixels of the smaller image. Here crops
are described; `resized_placing.py` draws them, and `resizing.py` decodes, cuts and resizes them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np

from packer.errors import UsageError
from packer.format import Field, Numbers
from readers.boxes import BoxCrop, Placed, check_box_options, check_boxes, make_box_readers
from readers.crop import remark_left
from readers.draws import Visits
from readers.fields import FieldReader, LastResult, Places
from readers.resized_placing import ResizedPlacing, ViewSet
from readers.resizing import RESIZING, ResizedReader
from readers.valid import check_choice, check_count, check_flags, check_read, check_seed, make_tuples
from readers.windows import Reading


@dataclass(frozen=True)
class ResizedCrop:
    """Cuts a crop of random area, shape and place from every sample, and resizes it; or the middle for validation.

    Pixels are interpolated as torchvision's `resized_crop(antialias=True)` and `Resize` do it.

    Args:
        size: pixels of the result: an int for a square, or (height, width). It may be left out if `views` has sizes.
        of: name of the field that is cropped: images of uint8; by default the only image that is read. Or clips of them
            (T, H, W, C) with windows: all frames of a window are cropped at one place. Other fields stay as they are.
        scale: the least and the largest share of the sample's area.
        ratio: the least and the largest width over height.
        flips: mirrors half of the samples left to right; not of crops in the middle.
        at: None for random crops; `"center"` for the middle of the sample, after its shorter side is resized to
            `short`.
        short: pixels of the shorter side, with `at="center"`; by default as many as fit `size`.
        exact: whether all pixels of JPEG files are decoded. By default a crop of twice the size or more is decoded at
            half, a quarter or an eighth of its size: values differ from the exact ones by less than one step of 255, on
            average.
        seed: of the random crops. Two datasets with different seeds are cropped differently in the same epoch.
        views: how many crops are cut from every sample, each drawn by itself; the sample is decoded once. A number
            gives (B, views, C, height, width). A dict gives a dict of such tensors, one for each name:
            `{"global": (2, 224, (0.4, 1)), "local": (8, 96, (0.05, 0.4))}` has the number of crops, their size and
            their scale; what is left out at the end is that of the other arguments. None gives (B, C, height, width).
        interpolation: `"bilinear"` or `"bicubic"`.
        boxes: as of `Crop`: they move, shrink and grow with the pixels. Not with `views`.
        min_visible: as of `Crop`.
        box_format: as of `Crop`.

    Raises:
        UsageError: an argument has no meaning, or two do not go together.
    """

    size: int | Sequence[int] | None = None
    of: str = ""
    scale: Sequence[float] = (0.08, 1.0)
    ratio: Sequence[float] = (3 / 4, 4 / 3)
    flips: bool = True
    at: Literal["center"] | None = None
    short: int | None = None
    exact: bool = False
    seed: int = 0
    views: int | Mapping[str, Sequence[Any]] | None = None
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"
    boxes: str = ""
    min_visible: float = 0.0
    box_format: Literal["xywh", "xyxy", "voc", "yolo"] | None = None

    def __post_init__(self) -> None:
        check_seed(self.seed)
        check_flags("ResizedCrop", flips=self.flips, exact=self.exact)
        make_tuples(self, "size", "scale", "ratio")
        if self.size is None and not isinstance(self.views, Mapping):
            raise UsageError("ResizedCrop: size is missing: give a number of pixels, such as ResizedCrop(224)")
        if self.size is not None:
            _check_size(self.size)
        _check_limits("scale", self.scale, 1)
        _check_limits("ratio", self.ratio, math.inf)
        check_choice("ResizedCrop: interpolation", self.interpolation, tuple(RESIZING))
        if self.at not in (None, "center"):
            raise UsageError(f"ResizedCrop: at {self.at!r}: None or 'center' is expected")
        if self.at is not None and self.views is not None:
            raise UsageError("ResizedCrop: several views are random crops, and at='center' is one; leave out one")
        check_box_options(self.boxes, self.min_visible, self.box_format)
        if self.boxes and self.views is not None:
            raise UsageError("ResizedCrop: boxes are those of one crop, and views are several; leave out one")
        _ = self._view_sets  # once, here: what is wrong with views is found before anything is read
        if self.short is not None:
            check_count("ResizedCrop: short", self.short)
            if self.at is None or self.short < max(self._shape):
                raise UsageError(
                    f"ResizedCrop: short {self.short} goes with at='center', and is {max(self._shape)} or more"
                )

    @property
    def _shape(self) -> tuple[int, int]:
        """Return height and width of the result; of views without a size of their own."""
        assert self.size is not None, "only views with sizes of their own go without"
        return _sides(self.size)

    @cached_property
    def _view_sets(self) -> dict[str, ViewSet]:
        """Return the crops of every sample by name; one set without a name if `views` is no dict.

        Raises:
            UsageError: `views` has no meaning.
        """
        if not isinstance(self.views, Mapping):
            if self.views is not None:
                check_count("ResizedCrop: views", self.views)
            return {"": ViewSet(self.views or 1, self._shape, tuple(self.scale))}
        if not self.views:
            raise UsageError("ResizedCrop: views is an empty dict; name one set of crops or more")
        sets = {}
        for name, given in self.views.items():
            values: Sequence[Any] = given if isinstance(given, Sequence) and not isinstance(given, str) else ()
            if not 1 <= len(values) <= 3 or (len(values) == 1 and self.size is None):
                raise UsageError(
                    f"ResizedCrop: views {name!r} is {given!r}; the number of crops, their size and their scale are "
                    "expected, such as (2, 224, (0.4, 1))"
                )
            defaults: list[Any] = [None, self.size, self.scale]
            count, size, scale = [*values, *defaults[len(values) :]]
            check_count(f"ResizedCrop: number of views {name!r}", count)
            _check_size(size)
            _check_limits("scale", scale, 1)
            sets[name] = ViewSet(count, _sides(size), tuple(scale))
        return sets

    @property
    def _placing(self) -> ResizedPlacing:
        short = None if self.at is None else self.short or max(self._shape)
        return ResizedPlacing(self._view_sets, short, self.views, self.ratio, self.flips, self.exact, self.seed)

    @property
    def _draws(self) -> bool:
        return self.at is None

    @property
    def _asks(self) -> bool:
        return False

    def _check(self, fields: Mapping[str, Field], samples: int, windowed: Collection[str]) -> list[str]:
        check_read("ResizedCrop", [self.of], fields)
        field = fields[self.of]
        are_images = len(field.shape) == 4 and field.kind == "array" if self.of in windowed else field.kind == "image"
        if not are_images or field.dtype != "uint8" or field.shape[-1] is None:
            raise UsageError(
                f"ResizedCrop: field {self.of!r} is {field.in_words}; images of uint8 with one number of channels are "
                "expected, or clips of them (T, H, W, C) with windows=Windows(...)"
            )
        if self.boxes:
            check_boxes(self._box_crop, fields, self.of in windowed)
        remark_left(fields, [self.of, self.boxes], self.flips)
        return []

    def _make_readers(self, reading: Reading, taken: Collection[str]) -> dict[str, FieldReader]:
        places = reading.places[self.of]
        readers: dict[str, FieldReader] = {
            self.of: ResizedReader(
                places, self._placing, self.interpolation, reading.describe, reading.steps.get(self.of)
            )
        }
        if self.boxes:
            place = LastResult(partial(self._placed, places))
            readers |= make_box_readers(self._box_crop, reading, [self.of], place)
        return readers

    @property
    def _box_crop(self) -> BoxCrop:
        return BoxCrop(self.boxes, self._shape, self.box_format, self.min_visible)

    def _placed(self, places: Places, numbers: Numbers, visits: Visits | None) -> Placed:
        """Return where the crops of samples (n,) lie in them, for their boxes."""
        sizes = places.locate(numbers).shape[:, -3:-1]
        crops = self._placing.place(sizes, visits)
        if self._draws:
            return Placed(sizes, crops.corners, crops.sides, 4 * crops.mirrored)
        resized = self._placing.resized_sides(sizes)
        corners = np.rint((resized - self._shape) / 2)
        return Placed(sizes, corners * sizes / resized, self._shape * sizes / resized, 4 * crops.mirrored)


def _sides(size: int | Sequence[int]) -> tuple[int, int]:
    """Return a size as height and width."""
    height, width = (size, size) if isinstance(size, int | np.integer) else size
    return int(height), int(width)


def _check_size(size: Any) -> None:
    sides = size if isinstance(size, Sequence) and not isinstance(size, str) else (size, size)
    if len(sides) != 2:
        raise UsageError(f"ResizedCrop: size {size!r}: a number of pixels, or (height, width), is expected")
    for side in sides:
        check_count("ResizedCrop: size", side)


def _check_limits(name: str, limits: Any, highest: float) -> None:
    is_pair = isinstance(limits, Sequence) and len(limits) == 2 and not isinstance(limits, str)
    if not (is_pair and 0 < limits[0] <= limits[1] <= highest and limits[1] < math.inf):
        raise UsageError(f"ResizedCrop: {name} {limits!r}: the least and the largest one are expected")
