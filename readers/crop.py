"""Crops: batches of one shape from images of different sizes, their partners cropped at the same place.

    ds = PackedDataset(path, crop=Crop(size=64, of="hr", aligned={"lr": 4}))
    ds = PackedDataset(path, crop=Crop(size=512, of="image", flips=True, boxes="boxes"))

Random places, flips and turns are drawn again each time that a sample is read (see `draws.py`): once for all steps of
a window, and for all fields that are cropped.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from packer.errors import UsageError
from packer.format import Field, Located, Numbers
from readers.boxes import BOX_FORMATS, BoxCrop, check_boxes, make_box_readers
from readers.draws import CROPS, PLACES, Asked, Visits, draw_below, draw_words
from readers.fields import Describe, FieldReader, KnownReader, LastResult, Places
from readers.gather import Allocate, fresh
from readers.indexing import Items
from readers.rows import PartReader, RowRanges, part_field
from readers.valid import check_choice, check_count, check_flags, check_read, check_seed, make_tuples, remark
from readers.windows import Reading, Steps

#: Names of the axes that can be cropped, for messages.
AXES = "slice", "row", "column"
#: Bytes of crops that are turned at once.
CACHED_BYTES = 2**18
#: Samples whose sizes are compared at once.
_CHECKED = 2**18
#: What functions that place crops returned or raised, by visit, while batches may be located again.
_ANSWERS: ContextVar[dict[int, Any]] = ContextVar("_ANSWERS")
#: Words in names of fields that say where something is in an image, or which way it moves there.
_TURNED = {"flow", "normals"}
_MOVED = _TURNED | {"box", "boxes", "bbox", "bboxes", "keypoint", "keypoints", "landmark", "landmarks"}
#: Suffix of the field that says which pixels of a padded crop are the sample's own.
IS_DATA = "_is_data"


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
        make_tuples(self, "size", "axes")
        sizes = self.size if isinstance(self.size, tuple) else (self.size, self.size)
        if len(sizes) not in (2, 3) or not all(map(_is_length, sizes)):
            raise UsageError(
                f"crop: size {self.size!r}: a number of pixels, (height, width), or (depth, height, width), of 1 or "
                "more is expected"
            )
        for name, scale in self.aligned.items():
            check_count(f"crop: scale of {name!r}", scale)
            if any(n % scale for n in self.shape):
                raise UsageError(
                    f"crop: {size_text(self.shape)} pixels cannot be divided by {scale}, the scale of {name!r}"
                )
        check_count("crop: multiple", self.multiple)
        if self.turns and (len(sizes) == 3 or len(set(sizes)) > 1):
            raise UsageError(f"crop: turns need squares, not {size_text(self.shape)} pixels")
        if self.of in self.aligned:
            raise UsageError(f"crop: {self.of!r} is what the others are aligned with; leave it out of aligned")
        axes = (0,) if self.axes is None else self.axes
        are_axes = isinstance(axes, tuple) and len(axes) > 0 and isinstance(axes[0], int | np.integer)
        following = tuple(range(axes[0], axes[0] + len(sizes))) if are_axes else ()
        if self.axes is not None and (not are_axes or axes != following or following[0] < 0 <= following[-1]):
            raise UsageError(
                f"crop: axes {self.axes!r}: the axis of rows and the next, of columns, are expected: (-2, -1); of "
                "volumes three: (1, 2, 3)"
            )
        self._check_pad()
        if self.pad and self.turns:
            raise UsageError("crop: pad and turns do not go together; leave out one")
        if not isinstance(self.min_visible, int | float) or not 0 <= self.min_visible <= 1:
            raise UsageError(f"crop: min_visible {self.min_visible!r}: a number from 0 to 1 is expected")
        if self.box_format is not None:
            check_choice("crop: box_format", self.box_format, BOX_FORMATS)
        _ = self.given  # once, here: to check a list of places takes longer than to read the crops
        if self.outside and (self.pad is None or self.at is None or isinstance(self.at, str)):
            raise UsageError(
                "crop: outside=True lets places of your own lie outside: give them by at=, and pad= for what is there"
            )

    def _check_pad(self) -> None:
        if not isinstance(self.pad, Mapping):
            if self.pad not in (None, "zero", "edge"):
                raise UsageError(
                    f"crop: pad {self.pad!r}: None, 'zero', 'edge' or a dict of the value of each field is expected"
                )
            return
        if self.of and set(self.pad) != set(self.scales):
            raise UsageError(
                f"crop: pad has values of {', '.join(self.pad) or 'no field'}; one of each cropped field is expected: "
                f"{', '.join(self.scales)}"
            )
        for name, value in self.pad.items():
            if value != "edge" and not isinstance(value, int | float | np.number | np.bool_):
                raise UsageError(f"crop: pad {value!r} of {name!r}: a number or 'edge' is expected")

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the height and width of a crop of `of`, of volumes depth, height and width."""
        sizes = self.size if isinstance(self.size, tuple) else (self.size, self.size)
        return tuple(map(int, sizes))

    @property
    def step(self) -> int:
        """Return the number whose multiples places are, so that they fall on whole pixels of every field."""
        return math.lcm(self.multiple, *self.aligned.values())

    @property
    def scales(self) -> dict[str, int]:
        """Return the scale of every field that is cropped."""
        return {self.of: 1, **self.aligned}

    @property
    def fills(self) -> dict[str, Any]:
        """Return what lies around the samples of every cropped field: a value or "edge"; none without `pad`."""
        if isinstance(self.pad, Mapping):
            return dict(self.pad)
        return {} if self.pad is None else dict.fromkeys(self.scales, 0 if self.pad == "zero" else "edge")

    @cached_property
    def given(self) -> NDArray[np.int64] | None:
        """Return the places in `at`, (axes,) or (samples, axes); None if there are none.

        Raises:
            UsageError: `at` is a text other than `center`, or no places.
        """
        if self.at is None or isinstance(self.at, str) or callable(self.at):
            if isinstance(self.at, str) and self.at != "center":
                raise UsageError(f"crop: at {self.at!r}: None, 'center', (row, column) or an array of them is expected")
            return None
        return self.as_places(self.at)

    def as_places(self, given: ArrayLike) -> NDArray[np.int64]:
        """Return a caller's places as int64, (axes,) or (samples, axes); raises UsageError if they are no places."""
        places, axes = np.asarray(given), len(self.shape)
        if places.dtype.kind not in "iu" or places.ndim not in (1, 2) or places.shape[-1] != axes:
            words = f"({', '.join(AXES[-axes:])})"
            raise UsageError(f"crop: at is a {words} of int, or an array of them of shape (samples, {axes})")
        return places.astype(np.int64)

    def first_axis(self, cropped: Field, has_windows: bool) -> int:
        """Return the first axis of a field that is cropped; the others are the next ones."""
        if self.axes is not None:
            return self.axes[0] + (len(cropped.shape) if self.axes[0] < 0 else 0)
        return 1 if has_windows or (len(cropped.shape) == 4 and len(self.shape) == 2) else 0

    @property
    def _box_crop(self) -> BoxCrop:
        return BoxCrop(self.boxes, self.shape, self.box_format, self.min_visible)

    @property
    def _draws(self) -> bool:
        return self.at is None or callable(self.at) or self.flips or self.turns

    @property
    def _asks(self) -> bool:
        return callable(self.at)

    def _check(self, fields: Mapping[str, Field], samples: int, windowed: Collection[str]) -> list[str]:
        check_read("crop", self.scales, fields)
        for name in self.scales:
            self._check_axes(fields[name], name in windowed)
        for name, value in self.fills.items():
            if value != "edge" and not _can_hold(fields[name].np_dtype, value):
                raise UsageError(
                    f"crop: pad {value} of field {name!r}: its dtype {fields[name].dtype} cannot hold that value; give "
                    "another one, or pack the field again with a dtype that can"
                )
        places = self.given
        if places is not None and places.ndim == 2 and len(places) != samples:
            raise UsageError(f"crop: at holds {len(places):,} places for {samples:,} samples; one for each is expected")
        if self.boxes:
            check_read("crop: boxes", [self.boxes], fields)
            check_boxes(self._box_crop, fields[self.boxes], bool({self.of, self.boxes}.intersection(windowed)))
        remark_left(fields, [*self.scales, self.boxes], self.flips or self.turns)
        return [name + IS_DATA for name in self.scales] if self.pad else []

    def _make_readers(self, reading: Reading, taken: Collection[str]) -> dict[str, FieldReader]:
        readers: dict[str, FieldReader] = {}
        axes = {name: self.first_axis(reading.fields[name], name in reading.steps) for name in self.scales}
        placing = Placing(self, reading.places[self.of], axes[self.of], reading.describe, reading.samples)
        for name, scale in self.scales.items():
            steps = reading.steps.get(name)
            readers[name] = crops = CropReader(reading.places[name], axes[name], placing, scale, steps)
            if name != self.of and reading.compared is None:
                crops.check_sizes(reading.samples)
            if self.pad:
                readers[name + IS_DATA] = make_is_data_reader(crops)
        if self.boxes:
            readers |= make_box_readers(self._box_crop, reading, self.scales, placing.place)
        return readers

    def _check_axes(self, cropped: Field, has_windows: bool) -> None:
        first, shape = self.first_axis(cropped, has_windows), cropped.shape
        end = first + len(self.shape)
        described = f"crop: field {cropped.name!r} is {cropped.kind} of shape {list(shape)}"
        if cropped.kind == "text" or not has_windows <= first or end > len(shape) or None in shape[end:]:
            words = " and ".join(f"{name}s" for name in AXES[-len(self.shape) :])
            raise UsageError(f"{described}; a field with {words}, and only fixed axes after them, is expected")
        if cropped.kind == "image" and (first, end) != (0, 2):
            raise UsageError(f"{described}, stored as (H, W, C): rows and columns are axes 0 and 1; leave axes out")
        if None in shape[has_windows:first]:
            raise UsageError(
                f"{described}; axes before the cropped ones must be fixed; if the first is steps, give "
                "windows=Windows(...)"
            )


def remark_left(fields: Iterable[str], cropped: Collection[str], mirrors: bool) -> None:
    """Say which fields look as if a crop had to change them, by their names, and stay as they are."""
    for name in fields:
        words = set(re.split(r"[\W_]+", name.lower()))
        if words & _MOVED and name not in cropped:
            remark(f"field {name!r} stays as it is beside a crop, whose place and flips it does not follow")
        elif words & _TURNED and name in cropped and mirrors:
            remark(f"field {name!r} is flipped or turned with the crop, and the signs of its values stay as they are")


class Placing:
    """Where crops lie, in pixels of the field `crop.of`; worked out once a batch.

    Args:
        places: where the samples of that field lie; an attribute, too.
        first: its first axis that is cropped; an attribute, too.
        describe: gives a sample in words, by its number.
        samples: those of the dataset, or of its split; an array of places is indexed by their numbers.
    """

    def __init__(self, crop: Crop, places: Places, first: int, describe: Describe, samples: Items) -> None:
        self.crop = crop
        self.describe = describe
        self.places, self.first, self._samples = places, first, samples
        self.place = LastResult(self._place)

    def sizes(self, numbers: Numbers) -> Numbers:
        """Return the lengths of the cropped axes of samples (n,), (n, axes)."""
        return self.places.locate(numbers).shape[:, self.first : self.first + len(self.crop.shape)]

    def _place(self, numbers: Numbers, visits: Visits | None) -> tuple[Numbers, Numbers, Numbers]:
        """Place the crops of samples (n,).

        Returns:
            Lengths of the cropped axes of the samples, (n, axes); first pixels of the crops, (n, axes), below 0 where
            something lies before a sample; their orientations, (n,), see `orient`.

        Raises:
            UsageError: a sample is smaller than a crop; or a given place does not lie within its sample, or not on
                whole pixels of the others.
        """
        crop, axes = self.crop, len(self.crop.shape)
        sizes = self.sizes(numbers)
        step, slack, fixed_places = crop.step, sizes - crop.shape, crop.given
        small = (sizes == 0 if crop.pad else slack < 0).any(axis=1)
        if small.any():
            item = int(small.argmax())
            raise UsageError(
                f"{self.describe(int(numbers[item]))}: field {crop.of!r} has {size_text(sizes[item])} pixels, less "
                f"than a crop of {size_text(crop.shape)}; take smaller crops, leave the sample out, or give pad='zero'"
            )
        if crop._draws:
            assert visits is not None, "random crops are drawn by their visits"
            words = draw_words(visits, crop.seed, CROPS, 2 * axes)
        if callable(crop.at) and visits is not None:
            places = self._call_placing(crop.at, numbers, visits)
        elif fixed_places is not None:
            of_each = fixed_places if fixed_places.ndim == 1 else fixed_places[self._samples.in_split(numbers)]
            places = np.broadcast_to(of_each, sizes.shape)
        elif crop.at is None:
            places = draw_below(words[:, :axes], np.maximum(slack, 0) // step + 1) * step
        else:
            places = slack // 2 // step * step
        if crop.outside:  # a pixel of the sample is in the crop
            first, last = np.broadcast_to(1 - np.array(crop.shape), sizes.shape), sizes - 1
        else:
            first, last = np.minimum(slack, 0), np.maximum(slack, 0)
            places = np.where(slack < 0, -(-slack // 2 // step * step), places)
        wrong = ((places < first) | (places > last) | (places % step != 0)).any(axis=1)
        if wrong.any():
            item = int(wrong.argmax())
            limits = zip(AXES[-axes:], first[item].tolist(), last[item].tolist(), strict=True)
            ranges = [f"{name}s {low} to {high}" for name, low, high in limits]
            raise UsageError(
                f"{self.describe(int(numbers[item]))}: no crop can begin at {places[item].tolist()}; "
                f"{' and '.join(ranges)} are expected, in multiples of {step}"
            )
        ways = np.zeros(len(numbers), np.int64)
        if crop.turns:
            ways += draw_below(words[:, 3], np.full(len(numbers), 4))
        if crop.flips:
            mirrored = words[:, axes : 2 * axes - (axes == 2)]  # of images left to right alone
            ways += draw_below(mirrored, np.full(mirrored.shape, 2)) @ np.array([4] if axes == 2 else [1, 2, 4])
        return sizes, places, ways

    def _call_placing(self, function: Callable[..., Any], numbers: Numbers, visits: Visits) -> Numbers:
        """Return the places that a function of the caller gives, (n, axes): each visit has a generator of its own."""
        seeds = draw_words(visits, self.crop.seed, PLACES, 1)[:, 0].tolist()
        sample_numbers = self._samples.in_split(numbers)
        places = np.zeros((len(numbers), len(self.crop.shape)), np.int64)
        answers = _ANSWERS.get({})
        for number, (visit, seed) in enumerate(zip(visits.tolist(), seeds, strict=True)):
            if visit not in answers:
                generator = np.random.Generator(np.random.PCG64(seed))
                try:
                    answers[visit] = self.crop.as_places(function(sample_numbers[number : number + 1], generator))
                except Exception as error:
                    answers[visit] = error
            if isinstance(answers[visit], Exception):
                raise answers[visit]
            places[number] = answers[visit]
        return places


@contextmanager
def call_once_a_visit(answers: dict[int, Any]) -> Iterator[None]:
    """Let functions that place crops be called once a visit here, also where the same batches are located again.

    Args:
        answers: keeps what they returned or raised, by visit.
    """
    token = _ANSWERS.set(answers)
    try:
        yield
    finally:
        _ANSWERS.reset(token)


class CropReader(PartReader):
    """Crops of one field. Reads like any other field of fixed shape.

    Rows are counted through all axes before the last cropped one; a stretch of each row is read.

    Args:
        places: where the whole samples lie.
        first: the first axis that is cropped.
        scale: how many times as high and as wide the field `crop.of` is.
        steps: of its windows; None if all of a sample is cropped.
    """

    def __init__(self, places: Places, first: int, placing: Placing, scale: int, steps: Steps | None = None) -> None:
        shape, crop = places.field.shape, tuple(n // scale for n in placing.crop.shape)
        axes_before, axes_after = shape[:first], shape[first + len(crop) :]
        if steps is not None:
            axes_before = len(steps.offsets), *shape[1:first]
        super().__init__(part_field(places.field, (*axes_before, *crop, *axes_after)), places, first + len(crop) - 2)
        self._placing = placing
        self._fill = placing.crop.fills.get(places.field.name)
        self._scale = scale
        self._steps = steps
        self._cropped = slice(first, first + len(crop))
        #: Planes that are cropped at one place, of a sample or of a step: the channels of (C, H, W), say.
        self._planes = math.prod(n or 0 for n in shape[steps is not None : first])
        self._crop = crop
        #: Values of a pixel.
        self._cell = math.prod(n or 0 for n in axes_after)
        self._is_whole = True

    def check_sizes(self, samples: Items) -> None:
        """Raise UsageError if a sample does not have the size that the scale asks for; called before any is read.

        Args:
            samples: those that may be read.
        """
        own, of = self._cropped, self._placing
        axes = zip(range(own.start, own.stop), range(of.first, of.first + len(self._crop)), strict=True)
        if self._places.is_scaled(of.places, self._scale, axes):
            return
        for first in range(0, samples.samples, _CHECKED):
            numbers = samples.in_whole(np.arange(first, min(first + _CHECKED, samples.samples)))
            self._check_sizes(self._places.locate(numbers), self._placing.sizes(numbers))

    def _check_sizes(self, located: Located, sizes: Numbers) -> None:
        """Raise UsageError if samples do not have the size that the scale asks for.

        Args:
            sizes: of the same samples of the field `crop.of`, (n, axes).
        """
        lengths = located.shape[:, self._cropped]
        wrong = (lengths * self._scale != sizes).any(axis=1)
        if wrong.any():
            item = int(wrong.argmax())
            note = f" (one of {int(wrong.sum()):,} such samples)" if wrong.sum() > 1 else ""
            raise UsageError(
                f"{self._placing.describe(int(located.number[item]))}: field {self.field.name!r} has "
                f"{size_text(lengths[item])} pixels and {self._placing.crop.of!r} {size_text(sizes[item])}; "
                f"exactly {self._scale} times as many are expected on {'both' if len(self._crop) == 2 else 'all'} "
                f"axes{note}; read a split without it, or convert again with --on-error skip"
            )

    def locate(self, asked: Asked) -> Located:
        """Return where samples lie, their anchor steps, and the first pixels and orientations of their crops.

        Raises:
            UsageError: a sample is smaller than a crop, or does not have the size that the scale asks for.
        """
        located = super().locate(asked)
        sizes, places, ways = self._placing.place(asked.samples, asked.visits)
        self._check_sizes(located, sizes)
        anchors = np.zeros_like(asked.samples) if asked.anchors is None else asked.anchors
        return located.adding(crop=places // self._scale, way=ways, anchor=anchors)

    def read(self, located: Located, allocate: Allocate | None = None) -> torch.Tensor:
        """Return the crops, (n, *shape), in new memory or in what `allocate` gives.

        Raises:
            DamagedError: a frame cannot be decoded.
        """
        if self._fill is None or not self._is_whole:
            return super().read(located, allocate)
        own_columns = own_pixels(located, self._cropped, self._crop)[:, -1]
        if (own_columns == (0, self._crop[-1])).all():
            return super().read(located, allocate)
        # Padded: rows whose own pixels lie alike are read together, and put there.
        parts, part_of_sample = np.unique(own_columns, axis=0, return_inverse=True)
        crops = self._shaped((allocate or fresh)(len(located) * self.field.fixed_bytes), len(located))
        target = self._as_planes(crops, len(located), self._crop)
        for number, (left, right) in enumerate(parts.tolist()):
            samples, narrow = np.flatnonzero(part_of_sample.reshape(-1) == number), copy(self)
            narrow._crop, narrow._is_whole = (*self._crop[:-1], right - left), False
            values = self._as_planes(narrow.read(located[samples]), len(samples), narrow._crop)
            target[samples, ..., left:right, :] = values
            target[samples, ..., :left, :] = values[..., :1, :]
            target[samples, ..., right:, :] = values[..., -1:, :]
        return self._finish(crops.view(-1).view(torch.uint8), located)

    def _row_ranges(self, located: Located) -> RowRanges:
        """Return the rows of the crops, counted through all axes before the last."""
        rows, lengths, last = np.arange(self._planes)[None], located.shape[:, self._cropped], len(self._crop) - 1
        if self._steps is not None:
            steps = self._steps.rows(located)
            rows = (steps[:, :, None] * self._planes + rows).reshape(len(steps), steps.shape[1] * self._planes)
        for axis, size in enumerate(self._crop[:last]):
            pixels = located.crop[:, axis, None] + np.arange(size)
            pixels = np.maximum(np.minimum(pixels, lengths[:, axis, None] - 1), 0)  # beyond an edge, the outermost
            rows = rows * lengths[:, axis, None]
            rows = (rows[:, :, None] + pixels[:, None]).reshape(len(located), rows.shape[1] * size)
        pixel = self._cell * self.field.itemsize
        return RowRanges(rows, np.maximum(located.crop[:, last], 0) * pixel, self._crop[last] * pixel)

    def _finish(self, flat: torch.Tensor, located: Located) -> torch.Tensor:
        if not self._is_whole:
            return flat.view(self._dtype)
        crops = super()._finish(flat, located)
        values = self._as_planes(crops, len(located), self._crop)
        if self._fill not in (None, "edge"):
            for axis, (first, stop) in enumerate(own_pixels(located, self._cropped, self._crop).transpose(1, 2, 0)):
                pixels = np.arange(self._crop[axis])
                outside = (pixels < first[:, None]) | (pixels >= stop[:, None])
                np.moveaxis(values, 2 + axis, 1)[outside] = self._fill
        orient(values, located.way)
        return crops if self._steps is None else self._steps.fill(crops, located)

    def _as_planes(self, crops: torch.Tensor, count: int, crop: tuple[int, ...]) -> NDArray[Any]:
        """Return `count` crops as (count, planes, *crop, values of a pixel), a view."""
        return crops.numpy().reshape(count, math.prod(self._shape[: self._cropped.start]), *crop, self._cell)


def make_is_data_reader(crops: CropReader) -> KnownReader:
    """Return the reader of which pixels of padded crops are the sample's own, int64 (n, axes, 2)."""

    def locate_own(asked: Asked) -> Numbers:
        located, crop = crops.locate(asked), crops._crop
        pixels = own_pixels(located, crops._cropped, crop)
        bits = [located.way >= 4] if len(crop) == 2 else [located.way & 1, located.way & 2, located.way & 4]
        for axis, mirrored in zip(range(len(crop) - len(bits), len(crop)), bits, strict=True):
            mirrored_samples = np.flatnonzero(mirrored)
            pixels[mirrored_samples, axis] = crop[axis] - pixels[mirrored_samples, axis, ::-1]
        return pixels

    return KnownReader(Field(name=crops.field.name + IS_DATA, dtype="int64", shape=(len(crops._crop), 2)), locate_own)


def own_pixels(located: Located, cropped: slice, crop: tuple[int, ...]) -> Numbers:
    """Return the first pixel of crops that is the sample's own and the one after the last, (n, axes, 2)."""
    lengths = located.shape[:, cropped]
    return np.stack([np.maximum(-located.crop, 0), np.minimum(lengths - located.crop, crop)], axis=2)


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


def orient(crops: NDArray[np.generic], orientations: Numbers) -> None:
    """Turn and mirror crops in place.

    Args:
        crops: (n, planes, h, w, ...), or (n, planes, d, h, w, ...) of volumes.
        orientations: (n,). Of images: quarter turns against the clock, and then 4 more if they are mirrored. Of
            volumes: 1, 2 and 4 for the axes that are mirrored.
    """
    for orientation in range(1, 8):
        chosen = np.flatnonzero(orientations == orientation)
        if len(chosen) and crops.ndim > 5:
            steps = [slice(None, None, -1 if orientation >> axis & 1 else 1) for axis in range(3)]
            mirrored = (slice(None), slice(None), *steps)
            crops[chosen] = crops[chosen][mirrored]
        elif len(chosen):
            # Few at a time, which stay in the processor's cache while their channels are copied.
            step = max(1, CACHED_BYTES // max(1, crops[0].nbytes))
            for first in range(0, len(chosen), step):
                _turn(crops, chosen[first : first + step], orientation)


def _turn(crops: NDArray[np.generic], chosen: Numbers, orientation: int) -> None:
    """Turn and mirror the crops `chosen` (k,) in place."""
    copied = crops[chosen]
    # Pixels of a few values are copied one after another, the values of one channel many at once.
    is_split = crops.ndim == 5 and crops.shape[4] <= 4
    for channel in range(crops.shape[4]) if is_split else [slice(None)]:
        turned = np.rot90(copied[..., channel], orientation % 4, axes=(2, 3))
        crops[chosen, ..., channel] = turned[:, :, :, ::-1] if orientation > 3 else turned


def size_text(size: NDArray[np.int64] | tuple[int, ...]) -> str:
    """Return a height and width in words, for messages."""
    return " x ".join(map(str, size))
