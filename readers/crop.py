"""Crops: batches of one shape from pictures of different sizes, their partners cropped at the same place.

    ds = PackedDataset(path, crop=Crop(size=64, of="hr", aligned={"lr": 4}))

Random places, flips and turns are drawn anew each time that a sample is read (see `draws.py`): once for all steps of
a window, and for all fields that are cropped.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from packer.errors import UsageError
from packer.format import Field, Located, Numbers
from readers.draws import CROPS, Visits, below, drawn
from readers.fields import Describe, Once, Places
from readers.indexing import Items
from readers.rows import PartReader, Wanted, part_of
from readers.valid import check_count, check_read, check_seed
from readers.windows import Steps

#: Words that a crop takes: row, column, flip, turn.
COUNT = 4


@dataclass(frozen=True, eq=False)
class Crop:
    """What is cut from every sample, or from every step of it.

    The field `of` is cropped to `size`, and a field in `aligned` to `size / scale`, at the same place divided by
    `scale`; `of` must be exactly `scale` times as high and as wide. Other fields stay as they are.

    Args:
        size: pixels of a crop of `of`: an int for a square, or (height, width).
        of: name of the field that is cropped: an image, or an array of two axes or more, such as (H, W, C), or steps of
            them, (T, H, W, C).
        aligned: fields that are cropped at the same place, each with its scale: how many pixels of `of` lie on one of
            its own, 1 or more.
        seed: of places, flips and turns. Two datasets with different seeds are cropped differently in the same epoch.
        flips: mirrors half of the samples left to right, all their cropped fields alike.
        turns: turns samples by 0 to 3 quarters, all their cropped fields alike; with `flips`, all eight ways to lay a
            square are equally likely.
        at: where crops begin. None: anywhere, at random; with `aligned` at multiples of the scales. `"center"`: in the
            middle. (row, column): there, in every sample. An array (samples, 2): there, by sample number.
        axes: which two axes of a sample are rows and columns, in every cropped field: (1, 2) or (-2, -1) for (C, H, W).
            By default the first two; or the two after the first, if the array has four axes or the field has windows.
        multiple: random places and those in the middle are multiples of this, such as 2 for a Bayer mosaic.

    Raises:
        UsageError: an argument has no meaning, or two do not go together.
    """

    size: int | tuple[int, int]
    of: str
    aligned: Mapping[str, int] = field(default_factory=dict)
    seed: int = 0
    flips: bool = False
    turns: bool = False
    at: str | ArrayLike | None = None
    axes: tuple[int, int] | None = None
    multiple: int = 1

    def __post_init__(self) -> None:
        check_seed(self.seed)
        sizes = self.size if isinstance(self.size, tuple) else (self.size, self.size)
        if len(sizes) != 2 or not all(isinstance(n, int | np.integer) and n >= 1 for n in sizes):
            raise UsageError(
                f"crop: size {self.size!r}: a number of pixels, or (height, width), of 1 or more is expected"
            )
        height, width = self.shape
        for name, scale in self.aligned.items():
            check_count(f"crop: scale of {name!r}", scale)
            if height % scale or width % scale:
                raise UsageError(f"crop: {height} x {width} pixels cannot be divided by {scale}, the scale of {name!r}")
        check_count("crop: multiple", self.multiple)
        if self.turns and height != width:
            raise UsageError(f"crop: turns need squares, not {height} x {width} pixels")
        if self.of in self.aligned:
            raise UsageError(f"crop: {self.of!r} is what the others are aligned with; leave it out of aligned")
        if self.axes is not None and (len(self.axes) != 2 or self.axes[1] - self.axes[0] != 1 or not self.axes[1]):
            raise UsageError(
                f"crop: axes {self.axes!r}: the axis of rows and the next, of columns, are expected: (-2, -1)"
            )
        _ = self.given  # once, here: a list of places takes longer to look at than to read

    @property
    def shape(self) -> tuple[int, int]:
        """Return the height and width of a crop of `of`."""
        height, width = self.size if isinstance(self.size, tuple) else (self.size, self.size)
        return int(height), int(width)

    @property
    def step(self) -> int:
        """Return what places are multiples of, so that they fall on whole pixels of every field."""
        return math.lcm(self.multiple, *self.aligned.values())

    @property
    def scales(self) -> dict[str, int]:
        """Return the scale of every field that is cropped."""
        return {self.of: 1, **self.aligned}

    @cached_property
    def given(self) -> NDArray[np.int64] | None:
        """Return the places in `at`, (2,) or (samples, 2); None if there are none."""
        if self.at is None or isinstance(self.at, str):
            if self.at not in (None, "center"):
                raise UsageError(f"crop: at {self.at!r}: None, 'center', (row, column) or an array of them is expected")
            return None
        places = np.asarray(self.at)
        if places.dtype.kind not in "iu" or places.ndim not in (1, 2) or places.shape[-1] != 2:
            raise UsageError("crop: at is a (row, column) of int, or an array of them of shape (samples, 2)")
        return places.astype(np.int64)

    def row_axis(self, found: Field, has_windows: bool) -> int:
        """Return which axis of a field holds rows; columns are the next one."""
        if self.axes is not None:
            return self.axes[0] + (len(found.shape) if self.axes[0] < 0 else 0)
        return 1 if has_windows or len(found.shape) == 4 else 0

    def check(self, fields: Mapping[str, Field], samples: int, windowed: Collection[str] = ()) -> None:
        """Raise UsageError if fields or samples of a dataset cannot be cropped like this.

        Args:
            windowed: names of the fields of which windows are read.
        """
        check_read("crop", self.scales, fields)
        for name in self.scales:
            self._check_axes(fields[name], name in windowed)
        places = self.given
        if places is not None and places.ndim == 2 and len(places) != samples:
            raise UsageError(f"crop: at holds {len(places):,} places for {samples:,} samples; one for each is expected")

    def _check_axes(self, found: Field, has_windows: bool) -> None:
        axis, shape = self.row_axis(found, has_windows), found.shape
        said = f"crop: field {found.name!r} is {found.kind} of shape {list(shape)}"
        if found.kind == "text" or not has_windows <= axis < len(shape) - 1 or None in shape[axis + 2 :]:
            raise UsageError(f"{said}; a field with rows, columns and only fixed axes after them is expected")
        if found.kind == "image" and axis:
            raise UsageError(f"{said}, stored as (H, W, C): rows and columns are axes 0 and 1; leave axes out")
        if None in shape[has_windows:axis]:
            raise UsageError(
                f"{said}; axes before the rows must be fixed; if the first is steps, give windows=Windows(...)"
            )


def is_random(crop: Crop) -> bool:
    """Return whether two visits of a sample may be cropped differently: places, flips or turns are drawn."""
    return crop.at is None or crop.flips or crop.turns


class Placing:
    """Where crops lie, in pixels of the field that the others are aligned with; worked out once for all of a batch.

    Args:
        of: where the samples of that field lie.
        axis: its axis of rows.
        describe: gives a sample in words, by its number.
        samples: of the dataset that is read, or of its split, by whose numbers places are given.
    """

    def __init__(self, crop: Crop, of: Places, axis: int, describe: Describe, samples: Items) -> None:
        self.crop = crop
        self.describe = describe
        self._of, self._axis, self._samples = of, axis, samples
        self.place = Once(self._place)

    def _place(self, numbers: Numbers, visits: Visits | None) -> tuple[Numbers, Numbers]:
        """Place the crops of samples (n,).

        Returns:
            Height and width of the samples, (n, 2); row, column and orientation of the crops, (n, 3): quarter turns,
            and 4 more if they are mirrored.

        Raises:
            UsageError: a sample is smaller than a crop; or a given place does not lie within its sample, or not on
                whole pixels of the others.
        """
        crop, sizes = self.crop, self._of.locate(numbers).shape[:, self._axis : self._axis + 2]
        step, room, given = crop.step, sizes - crop.shape, crop.given
        small = (room < 0).any(axis=1)
        if small.any():
            at = int(small.argmax())
            raise UsageError(
                f"{self.describe(int(numbers[at]))}: field {crop.of!r} has {by(sizes[at])} pixels, less than a "
                f"crop of {by(crop.shape)}; take smaller crops or leave the sample out"
            )
        out = np.zeros((len(numbers), 3), np.int64)
        if is_random(crop):
            assert visits is not None, "random crops are drawn by their visits"
            words = drawn(visits, crop.seed, CROPS, COUNT)
        if given is not None:
            out[:, :2] = given if given.ndim == 1 else given[self._samples.in_split(numbers)]
        elif crop.at is None:
            out[:, :2] = below(words[:, :2], room // step + 1) * step
        else:
            out[:, :2] = room // 2 // step * step
        wrong = ((out[:, :2] < 0) | (out[:, :2] > room) | (out[:, :2] % step != 0)).any(axis=1)
        if wrong.any():
            at = int(wrong.argmax())
            raise UsageError(
                f"{self.describe(int(numbers[at]))}: no crop can begin at {out[at, :2].tolist()}; rows 0 to "
                f"{room[at, 0]} and columns 0 to {room[at, 1]} are expected, in multiples of {step}"
            )
        if crop.turns:
            out[:, 2] = below(words[:, 3], np.full(len(numbers), 4))
        if crop.flips:
            out[:, 2] += 4 * below(words[:, 2], np.full(len(numbers), 2))
        return sizes, out


class CropReader(PartReader):
    """Crops of one field. Reads like any other field of fixed shape.

    Args:
        places: where the whole samples lie.
        axis: that of rows.
        scale: how many pixels of the field that it is aligned with lie on one of its own.
        steps: of its windows; None if all of a sample is cropped.
    """

    def __init__(self, places: Places, axis: int, placing: Placing, scale: int, steps: Steps | None = None) -> None:
        shape = places.field.shape
        height, width = (n // scale for n in placing.crop.shape)
        before = shape[:axis] if steps is None else (len(steps.offsets), *shape[1:axis])
        super().__init__(part_of(places.field, (*before, height, width, *shape[axis + 2 :])), places, axis)
        self._placing = placing
        self._scale = scale
        self._steps = steps
        #: Planes that are cropped at one place, of a sample or of a step: the channels of (C, H, W), say.
        self._planes = math.prod(n or 0 for n in shape[steps is not None : axis])
        self._crop = (height, width)
        #: Values of a pixel.
        self._cell = math.prod(n or 0 for n in shape[axis + 2 :])

    def locate(self, numbers: Numbers, visits: Visits | None = None, anchors: Numbers | None = None) -> Located:
        """Return where samples lie, their anchor steps, and `crop`: row, column and orientation, (n, 3).

        Raises:
            UsageError: a sample is smaller than a crop, or not of the size that the scale asks for.
        """
        located = super().locate(numbers)
        sizes, places = self._placing.place(numbers, visits)
        own = located.shape[:, self._axis : self._axis + 2]
        wrong = (own * self._scale != sizes).any(axis=1)
        if wrong.any():
            at = int(wrong.argmax())
            raise UsageError(
                f"{self._placing.describe(int(numbers[at]))}: field {self.field.name!r} has {by(own[at])} pixels and "
                f"{self._placing.crop.of!r} {by(sizes[at])}; exactly {self._scale} times as many are expected on both "
                "axes"
            )
        crop = np.column_stack([places[:, :2] // self._scale, places[:, 2]])
        return located.adding(crop=crop, anchor=np.zeros_like(numbers) if anchors is None else anchors)

    def _wanted(self, located: Located) -> Wanted:
        """Return the rows of the crops, counted through all planes of a sample."""
        tops, lefts, _ = located.crop.T
        planes, (height, width) = np.arange(self._planes)[None], self._crop
        if self._steps is not None:
            steps = self._steps.of(located)
            planes = (steps[:, :, None] * self._planes + planes).reshape(len(steps), steps.shape[1] * self._planes)
        first = planes * located.shape[:, self._axis, None] + tops[:, None]
        rows = (first[:, :, None] + np.arange(height)).reshape(len(located), first.shape[1] * height)
        pixel = self._cell * self.field.itemsize
        return Wanted(rows, lefts * pixel, width * pixel)

    def _finished(self, flat: torch.Tensor, located: Located) -> torch.Tensor:
        crops = super()._finished(flat, located)
        planes = math.prod(self._shape[: self._axis])
        orient(crops.view(len(crops), planes, *self._crop, self._cell).numpy(), located.crop[:, 2])
        return crops if self._steps is None else self._steps.fill(crops, located)


def orient(crops: NDArray[np.generic], orientations: Numbers) -> None:
    """Turn crops (n, planes, h, w, ...) by quarters against the clock, then mirror those of 4 and more, in place."""
    for orientation in range(1, 8):
        chosen = np.flatnonzero(orientations == orientation)
        if len(chosen):
            turned = np.rot90(crops[chosen], orientation % 4, axes=(2, 3))
            crops[chosen] = turned[:, :, :, ::-1] if orientation > 3 else turned


def by(size: NDArray[np.int64] | tuple[int, int]) -> str:
    """Return a height and width in words, for messages."""
    return f"{size[0]} x {size[1]}"
