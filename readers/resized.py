"""Crops of photographs, resized to one size: batches of one shape, as torchvision's `RandomResizedCrop` makes them.

    ds = PackedDataset(path, crop=ResizedCrop(224, of="image"))
    ds = PackedDataset(path, crop=ResizedCrop(224, of="image", at="center", short=256))      # for validation
    ds = PackedDataset(path, crop=ResizedCrop(224, of="image", views=2))             # two crops of every sample

Random crops are drawn again each time that a sample is read (see `draws.py`). Of a JPEG file no more is decoded than
needed: no rows below the crop; and a crop of twice the size or more at half, a quarter or an eighth of its size. Sides
and places of such crops are multiples of 2, 4 or 8, so that they lie on whole pixels of the smaller image. Several
crops of a sample are cut from one decoded image, at the least of their factors.

Every image is resized by one thread. torch would share some of the work out to its own threads, which then wait for
more in a loop, and take the processors from the other reading threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from packer.codecs import decode_jpeg, file_of_frame
from packer.errors import UsageError
from packer.format import Field, Located, Numbers
from readers.boxes import BoxCrop, Placed, check_box_options, check_boxes, make_box_readers
from readers.crop import remark_left
from readers.draws import RESIZED, Asked, Visits, draw_below, draw_words
from readers.fields import Describe, FieldReader, LastResult, Places
from readers.gather import MEMORY, Allocate, fresh
from readers.rows import RegionReader, part_field
from readers.valid import check_choice, check_count, check_flags, check_read, check_seed, make_tuples
from readers.windows import Reading, Steps, WindowReader

#: Crops are drawn this many times at most; then the largest one in the middle is taken, as torchvision does it.
_TRIALS = 10
#: Random words of a visit: area and shape of each trial; row, column and mirroring of the crop.
_WORDS = 2 * _TRIALS + 3
#: Values up to which torch works in the calling thread alone.
_ALONE = 2**15
#: How many times as small libjpeg decodes.
_FACTORS = (2, 4, 8)
#: What resizes with antialiasing, by interpolation: `torch.nn.functional.interpolate` calls these, too.
_RESIZING: dict[str, Callable[..., Any]] = {
    "bilinear": torch.ops.aten._upsample_bilinear2d_aa.out,
    "bicubic": torch.ops.aten._upsample_bicubic2d_aa.out,
}


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
        check_choice("ResizedCrop: interpolation", self.interpolation, tuple(_RESIZING))
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
            self.of: ResizedReader(places, self, reading.describe, reading.steps.get(self.of))
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
        crops = self._place(sizes, visits)
        if self._draws:
            return Placed(sizes, crops.corners, crops.sides, 4 * crops.mirrored)
        resized = self._resized_sides(sizes)
        corners = np.rint((resized - self._shape) / 2)
        return Placed(sizes, corners * sizes / resized, self._shape * sizes / resized, 4 * crops.mirrored)

    def _resized_sides(self, sizes: Numbers) -> Numbers:
        """Return the heights and widths of samples, (n, 2), after the shorter one is resized to `short`."""
        short, least = self.short or max(self._shape), sizes.min(axis=1, keepdims=True)
        return np.where(sizes == least, short, short * sizes // least)

    def _place(self, sizes: Numbers, visits: Visits | None) -> Crops:
        """Return the crops of samples with heights and widths `sizes` (n, 2).

        With `views`, arrays have a second axis, of all crops of a sample: (n, views, ...).
        """
        if self.at == "center":
            zeros = np.zeros(len(sizes), np.int64)
            short = np.full((1, 2), self.short or max(self._shape))
            return Crops(np.zeros_like(sizes), sizes, self._factors(sizes.min(axis=1, keepdims=True), short), zeros > 0)
        assert visits is not None, "random crops are drawn by their visits"
        sets, samples = self._view_sets.values(), len(sizes)
        counts = [views.count for views in sets]
        shapes, scales = (
            np.tile(np.repeat(values, counts, axis=0), (samples, 1))
            for values in ([views.shape for views in sets], [views.scale for views in sets])
        )
        sizes = np.repeat(sizes, sum(counts), axis=0)
        words = draw_words(visits, self.seed, RESIZED, _WORDS * sum(counts)).reshape(-1, _WORDS)
        sides = self._random_sides(sizes, scales, (words >> np.uint64(11)).astype(np.float64) * 2.0**-53)
        factors = self._factors(sides, shapes)
        pixel = factors[:, None]  # of the smaller image
        sides = np.minimum((sides + pixel // 2) // pixel, sizes // pixel) * pixel
        corners = draw_below(words[:, -3:-1], (sizes - sides) // pixel + 1) * pixel
        mirrored = (words[:, -1] >> np.uint64(63)).astype(bool) & self.flips
        if self.views is None:
            return Crops(corners, sides, factors, mirrored)
        many = samples, sum(counts)
        return Crops(corners.reshape(*many, 2), sides.reshape(*many, 2), factors.reshape(many), mirrored.reshape(many))

    def _random_sides(self, sizes: Numbers, scales: NDArray[np.float64], shares: NDArray[np.float64]) -> Numbers:
        """Return height and width of random crops, (n, 2).

        Args:
            sizes: heights and widths of what is cropped, (n, 2).
            scales: least and largest share of the area, (n, 2).
            shares: random numbers below 1, (n, 2 * trials or more).
        """
        least, largest = scales[:, :1], scales[:, 1:]
        area = sizes.prod(axis=1)[:, None] * (least + shares[:, :_TRIALS] * (largest - least))
        low, high = np.log(self.ratio)
        shapes = np.exp(low + shares[:, _TRIALS : 2 * _TRIALS] * (high - low))
        trials = np.rint(np.sqrt(np.stack([area / shapes, area * shapes], axis=2))).astype(np.int64)
        good = ((trials > 0) & (trials <= sizes[:, None])).all(axis=2)
        sides: Numbers = trials[np.arange(len(sizes)), good.argmax(axis=1)]
        # No trial fits a sample that is very high or wide: it is cut to the nearest shape.
        height, width = sizes.T
        limits = np.stack([np.rint(width / self.ratio[0]), np.rint(height * self.ratio[1])], axis=1).astype(np.int64)
        return np.where(good.any(axis=1)[:, None], sides, np.minimum(sizes, limits).clip(1))

    def _factors(self, sides: Numbers, wanted: Numbers) -> Numbers:
        """Return how many times as small crops may be decoded that have the sides (n, axes), (n,)."""
        factors = np.ones(len(sides), np.int64)
        for factor in () if self.exact else _FACTORS:
            factors[(sides // factor >= wanted).all(axis=1)] = factor
        return factors


@dataclass(frozen=True)
class ViewSet:
    """Some crops of every sample that have one size.

    Attributes:
        count: how many.
        shape: height and width of the results.
        scale: the least and the largest share of the sample's area.
    """

    count: int
    shape: tuple[int, int]
    scale: tuple[float, ...]


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


class Crops(NamedTuple):
    """The crops of n samples; with several views, of (n, views).

    Attributes:
        corners: first row and column of each, (n, 2).
        sides: height and width of each, (n, 2).
        factors: how many times as small it may be decoded, (n,).
        mirrored: whether it is mirrored, (n,).
    """

    corners: Numbers
    sides: Numbers
    factors: Numbers
    mirrored: NDArray[np.bool_]


class ResizedReader(FieldReader):
    """Resized crops of one field. Reads like any other field of fixed shape; several views have an axis of their own.

    All steps of a window are cropped at one place.

    Args:
        places: where the whole samples lie.
        describe: gives a sample in words, by its number.
        steps: of the windows of clips; None if samples are images.
    """

    def __init__(self, places: Places, crop: ResizedCrop, describe: Describe, steps: Steps | None = None) -> None:
        sets, channels = crop._view_sets, places.field.shape[-1] or 0
        lengths = () if steps is None else (len(steps.offsets),)
        super().__init__(part_field(places.field, (*lengths, *next(iter(sets.values())).shape, channels)))
        self._places, self._crop, self._describe, self._steps = places, crop, describe, steps
        #: Reads whole windows; None if samples are images.
        self._windows = None if steps is None else WindowReader(places, steps)
        #: By name of the views: how many, steps of a window, height, width and channels.
        self._shapes = {name: (views.count, *lengths, *views.shape, channels) for name, views in sets.items()}
        self._fixed_bytes = sum(map(math.prod, self._shapes.values()))

    @property
    def in_words(self) -> str:
        """Return what is read of a sample in a few words."""
        if self._crop.views is None:
            return super().in_words
        return ", ".join(f"{name} {self.field.dtype} {[*shape]}".strip() for name, shape in self._shapes.items())

    def locate(self, asked: Asked) -> Located:
        """Return where samples lie, the anchor steps of their windows, and their crops.

        Raises:
            UsageError: a sample has no pixels.
        """
        located = self._places.locate(asked.samples) if self._windows is None else self._windows.locate(asked)
        if not located.nbytes.all():
            number = int(asked.samples[located.nbytes.argmin()])
            raise UsageError(f"{self._describe(number)}: field {self.field.name!r} has no pixels to be resized")
        crops = self._crop._place(located.shape[:, -3:-1], asked.visits)
        return located.adding(**crops._asdict())

    def spans(self, located: Located) -> Numbers:
        """Return the first address of the frames of each sample, or window, and the one after the last, (n, 2)."""
        return located.spans if self._windows is None else self._windows.spans(located)

    def read(self, located: Located, allocate: Allocate | None = None) -> Any:
        """Return the crops in new memory or in what `allocate` gives.

        Returns:
            (n, *shape), of windows (n, T, *shape); with a number of views (n, views, ...); with a dict a dict of these.

        Raises:
            DamagedError: a frame cannot be decoded.
        """
        crops = {
            name: (allocate or fresh)(len(located) * math.prod(shape)).view(len(located), *shape)
            for name, shape in self._shapes.items()
        }
        for number in range(len(located)):
            self._resize(located[number : number + 1], [image for views in crops.values() for image in views[number]])
        if self._steps is not None:
            for views in crops.values():
                self._steps.fill(views.transpose(1, 2), located)
        if isinstance(self._crop.views, Mapping):
            return crops
        (values,) = crops.values()
        return values.squeeze(1) if self._crop.views is None else values

    def _resize(self, sample: Located, images: Sequence[torch.Tensor]) -> None:
        """Put the resized crops of a sample (1,) into their images (..., height, width, channels)."""
        corners, sides = sample.corners.reshape(-1, 2), sample.sides.reshape(-1, 2)
        first, stop = corners.min(axis=0), (corners + sides).max(axis=0)
        for number, (pixels, factor) in enumerate(self._decode(sample, first, stop)):
            of_step = images if self._steps is None else [image[number] for image in images]
            starts, stops = (corners - first) // factor, -(-(corners + sides - first) // factor)
            for image, start, end, is_mirrored in zip(of_step, starts, stops, sample.mirrored.reshape(-1), strict=True):
                crop = pixels[start[0] : end[0], start[1] : end[1]]
                if self._crop._draws:
                    self._interpolate(crop, image)
                else:
                    self._cut_middle(crop, image, sides[0].tolist(), factor)
                if is_mirrored:
                    rows = max(1, _ALONE // image[0].numel())
                    for row in range(0, len(image), rows):
                        image[row : row + rows] = image[row : row + rows].flip(1)

    def _cut_middle(self, pixels: NDArray[np.uint8], image: torch.Tensor, sides: list[int], factor: int) -> None:
        """Resize a whole sample, and put its middle into an image (height, width, channels).

        Args:
            sides: its height and width.
            factor: how many times as small its pixels were decoded.
        """
        size = self._crop._shape
        (resized_sides,) = self._crop._resized_sides(np.array([sides])).tolist()
        resized = torch.empty((*resized_sides, image.shape[2]), dtype=torch.uint8)
        self._interpolate(pixels, resized, [side / factor for side in sides])
        top, left = (round((side - crop_side) / 2) for side, crop_side in zip(resized_sides, size, strict=True))
        image.numpy()[:] = resized[top : top + size[0], left : left + size[1]].numpy()

    def _decode(self, sample: Located, first: Numbers, stop: Numbers) -> Iterator[tuple[NDArray[np.uint8], int]]:
        """Yield a region of a sample (1,), or of each step of its window: (h, w, channels), and a factor.

        The factor says how many times as small it was decoded.

        Args:
            first: its first row and column, (2,).
            stop: the row and the column after its last, (2,).
        """
        rows, columns = (slice(*ends) for ends in zip(first.tolist(), stop.tolist(), strict=True))
        if not self._places.codec.is_jpeg:
            if self._windows is None:
                images = RegionReader(self._places, rows, columns).read(sample).numpy()
            else:
                (window,) = self._windows.read(sample)
                images = window.numpy()[:, rows, columns]
            yield from ((image, 1) for image in images)
            return
        steps = np.zeros(1, np.int64) if self._steps is None else self._steps.rows(sample)[0]
        frames = self._places.frames(sample, np.zeros_like(steps), steps)
        for number, (start, end) in enumerate(frames.spans.tolist()):
            nbytes, shape = int(frames.decoded[number]), frames.shape[number, -3:].tolist()
            file = file_of_frame(MEMORY.array.data[start:end], nbytes)
            if not file:
                yield MEMORY.array[start:end].reshape(shape)[rows, columns].copy(), 1
                continue
            factor = int(sample.factors.min())
            try:
                image = decode_jpeg(file, shape, factor=factor, rows=rows.stop)
            except ValueError:
                self._places.decode_frames(frames[number : number + 1], np.empty(nbytes, np.uint8))  # says the sample
                raise
            # The last row may stand for fewer than `factor`; then it is in no random crop.
            yield image[tuple(slice(ends.start // factor, -(-ends.stop // factor)) for ends in (rows, columns))], factor

    def _interpolate(self, pixels: NDArray[np.uint8], out: torch.Tensor, sides: Sequence[float] | None = None) -> None:
        """Resize (h, w, C) of uint8 to the size of `out` (H, W, C), as `torch.nn.functional.interpolate` does it.

        Args:
            sides: height and width that are resized, if the last row or column of `pixels` lies partly outside.
        """
        size = list(out.shape[:2])
        scales = (None, None) if sides is None else (size[0] / sides[0], size[1] / sides[1])
        images = torch.from_numpy(np.ascontiguousarray(pixels)).permute(2, 0, 1)[None]
        resize = _RESIZING[self._crop.interpolation]
        resize(images, size, False, *scales, out=out.permute(2, 0, 1)[None])
