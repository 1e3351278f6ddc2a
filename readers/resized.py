"""Crops of photographs, resized to one size: batches of one shape, as torchvision's `RandomResizedCrop` makes them.

    ds = PackedDataset(path, crop=ResizedCrop(224, of="image"))
    ds = PackedDataset(path, crop=ResizedCrop(224, of="image", at="center", short=256))      # for validation

Random crops are drawn again each time that a sample is read (see `draws.py`). Of a JPEG file no more is decoded than
needed: no rows below the crop; and a crop of twice the size or more at half, a quarter or an eighth of its size. Sides
and places of such crops are multiples of 2, 4 or 8, so that they lie on whole pixels of the smaller image.

Every image is resized by one thread. torch would share some of the work out to its own threads, which then wait for
more in a loop, and take the processors from the other reading threads.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from packer.codecs import decode_jpeg, file_of_frame
from packer.errors import UsageError
from packer.format import Field, Located, Numbers
from readers.crop import remark_left
from readers.draws import RESIZED, Asked, Visits, draw_below, draw_words
from readers.fields import Describe, FieldReader, Places
from readers.gather import MEMORY, Allocate, fresh
from readers.rows import RegionReader, part_field
from readers.valid import check_count, check_flags, check_read, check_seed, make_tuples
from readers.windows import Reading

#: Crops are drawn this many times at most; then the largest one in the middle is taken, as torchvision does it.
_TRIALS = 10
#: Random words of a visit: area and shape of each trial; row, column and mirroring of the crop.
_WORDS = 2 * _TRIALS + 3
#: Values up to which torch works in the calling thread alone.
_ALONE = 2**15
#: How many times as small libjpeg decodes.
_FACTORS = (2, 4, 8)


@dataclass(frozen=True)
class ResizedCrop:
    """Cuts a crop of random area, shape and place from every sample, and resizes it; or the middle for validation.

    Pixels are interpolated as torchvision's `resized_crop(antialias=True)` and `Resize` do it (bilinear).

    Args:
        size: pixels of the result: an int for a square, or (height, width).
        of: name of the field that is cropped: images of uint8; by default the only image that is read. Other fields
            stay as they are.
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

    Raises:
        UsageError: an argument has no meaning, or two do not go together.
    """

    size: int | Sequence[int]
    of: str = ""
    scale: Sequence[float] = (0.08, 1.0)
    ratio: Sequence[float] = (3 / 4, 4 / 3)
    flips: bool = True
    at: Literal["center"] | None = None
    short: int | None = None
    exact: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        check_seed(self.seed)
        check_flags("ResizedCrop", flips=self.flips, exact=self.exact)
        make_tuples(self, "size", "scale", "ratio")
        if isinstance(self.size, tuple) and len(self.size) != 2:
            raise UsageError(f"ResizedCrop: size {self.size!r}: a number of pixels, or (height, width), is expected")
        for side in self.shape:
            check_count("ResizedCrop: size", side)
        for name, limits, highest in (("scale", self.scale, 1), ("ratio", self.ratio, math.inf)):
            is_pair = isinstance(limits, tuple) and len(limits) == 2
            if not (is_pair and 0 < limits[0] <= limits[1] <= highest and limits[1] < math.inf):
                raise UsageError(f"ResizedCrop: {name} {limits!r}: the least and the largest one are expected")
        if self.at not in (None, "center"):
            raise UsageError(f"ResizedCrop: at {self.at!r}: None or 'center' is expected")
        if self.short is not None:
            check_count("ResizedCrop: short", self.short)
            if self.at is None or self.short < max(self.shape):
                raise UsageError(
                    f"ResizedCrop: short {self.short} goes with at='center', and is {max(self.shape)} or more"
                )

    @property
    def shape(self) -> tuple[int, int]:
        """Return height and width of the result."""
        height, width = self.size if isinstance(self.size, tuple) else (self.size, self.size)
        return height, width

    @property
    def _draws(self) -> bool:
        return self.at is None

    @property
    def _asks(self) -> bool:
        return False

    def _check(self, fields: Mapping[str, Field], samples: int, windowed: Collection[str]) -> list[str]:
        check_read("ResizedCrop", [self.of], fields)
        field = fields[self.of]
        if field.kind != "image" or field.dtype != "uint8" or field.shape[2] is None or self.of in windowed:
            raise UsageError(
                f"ResizedCrop: field {self.of!r} is {field.in_words}; images of uint8 with one number of channels are "
                "expected, without windows"
            )
        remark_left(fields, [self.of], self.flips)
        return []

    def _make_readers(self, reading: Reading, taken: Collection[str]) -> dict[str, FieldReader]:
        return {self.of: ResizedReader(reading.places[self.of], self, reading.describe)}

    def boxes(self, sizes: Numbers, visits: Visits | None) -> Boxes:
        """Return the crops of samples with heights and widths `sizes` (n, 2)."""
        if self.at == "center":
            zeros = np.zeros(len(sizes), np.int64)
            short = np.full((1, 2), self.short or max(self.shape))
            return Boxes(np.zeros_like(sizes), sizes, self._factors(sizes.min(axis=1, keepdims=True), short), zeros > 0)
        assert visits is not None, "random crops are drawn by their visits"
        words = draw_words(visits, self.seed, RESIZED, _WORDS)
        sides = self._random_sides(sizes, (words >> np.uint64(11)).astype(np.float64) * 2.0**-53)
        factors = self._factors(sides, np.array([self.shape]))
        pixel = factors[:, None]  # of the smaller image
        sides = np.minimum((sides + pixel // 2) // pixel, sizes // pixel) * pixel
        corners = draw_below(words[:, -3:-1], (sizes - sides) // pixel + 1) * pixel
        return Boxes(corners, sides, factors, (words[:, -1] >> np.uint64(63)).astype(bool) & self.flips)

    def _random_sides(self, sizes: Numbers, shares: NDArray[np.float64]) -> Numbers:
        """Return height and width of random crops, (n, 2), from random numbers `shares` (n, 2 or more) below 1."""
        area = sizes.prod(axis=1)[:, None] * (self.scale[0] + shares[:, :_TRIALS] * (self.scale[1] - self.scale[0]))
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


class Boxes(NamedTuple):
    """The crops of n samples.

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
    """Resized crops of one field. Reads like any other field of fixed shape.

    Args:
        places: where the whole samples lie.
        describe: gives a sample in words, by its number.
    """

    def __init__(self, places: Places, crop: ResizedCrop, describe: Describe) -> None:
        super().__init__(part_field(places.field, (*crop.shape, places.field.shape[2])))
        self._places, self._crop, self._describe = places, crop, describe

    def locate(self, asked: Asked) -> Located:
        """Return where samples lie, and their crops.

        Raises:
            UsageError: a sample has no pixels.
        """
        located = self._places.locate(asked.samples)
        if not located.nbytes.all():
            number = int(asked.samples[located.nbytes.argmin()])
            raise UsageError(f"{self._describe(number)}: field {self.field.name!r} has no pixels to be resized")
        boxes = self._crop.boxes(located.shape[:, :2], asked.visits)
        return located.adding(**boxes._asdict())

    def spans(self, located: Located) -> Numbers:
        """Return the first address of the frames of each sample and the one after the last, (n, 2)."""
        return located.spans

    def read(self, located: Located, allocate: Allocate | None = None) -> torch.Tensor:
        """Return the crops, (n, *shape), in new memory or in what `allocate` gives.

        Raises:
            DamagedError: a frame cannot be decoded.
        """
        flat = (allocate or fresh)(len(located) * self.field.fixed_bytes)
        images = self._shaped(flat, len(located))
        for number in range(len(located)):
            self._resize(located[number : number + 1], images[number])
        return images

    def _resize(self, sample: Located, image: torch.Tensor) -> None:
        """Put the resized crop of a sample (1,) into (height, width, channels)."""
        pixels, factor = self._decode_crop(sample)
        if self._crop._draws:
            _interpolate(pixels, image)
            if sample.mirrored[0]:
                step = max(1, _ALONE // image[0].numel())
                for start in range(0, len(image), step):
                    image[start : start + step] = image[start : start + step].flip(1)
            return
        sides, size = sample.sides[0].tolist(), self._crop.shape
        short = self._crop.short or max(size)
        resized_sides = [short if side == min(sides) else short * side // min(sides) for side in sides]
        resized = torch.empty((*resized_sides, image.shape[2]), dtype=torch.uint8)
        _interpolate(pixels, resized, [side / factor for side in sides])
        top, left = (round((side - crop_side) / 2) for side, crop_side in zip(resized_sides, size, strict=True))
        image.numpy()[:] = resized[top : top + size[0], left : left + size[1]].numpy()

    def _decode_crop(self, sample: Located) -> tuple[NDArray[np.uint8], int]:
        """Return the crop of a sample (1,), (h, w, channels), and how many times as small it was decoded."""
        nbytes, stored, start = int(sample.nbytes[0]), int(sample.stored[0]), int(sample.start[0])
        rows, columns = (
            slice(start_of_side, start_of_side + side)
            for start_of_side, side in zip(sample.corners[0], sample.sides[0], strict=True)
        )
        if not self._places.codec.is_jpeg or stored == nbytes:
            return RegionReader(self._places, rows, columns).read(sample)[0].numpy(), 1
        factor = int(sample.factors[0])
        file = file_of_frame(MEMORY.array.data[start : start + stored], nbytes)
        try:
            image = decode_jpeg(file, sample.shape[0].tolist(), factor=factor, rows=int(rows.stop))
        except ValueError:
            self._places.decode(sample, np.empty(nbytes, np.uint8))  # which says the sample
            raise
        # The last row may stand for fewer than `factor`; then it is in no random crop.
        rows, columns = (
            slice(pixel_range.start // factor, -(-pixel_range.stop // factor)) for pixel_range in (rows, columns)
        )
        return image[rows, columns], factor


def _interpolate(pixels: NDArray[np.uint8], out: torch.Tensor, sides: Sequence[float] | None = None) -> None:
    """Resize (h, w, C) of uint8 to the size of `out` (H, W, C), as `torch.nn.functional.interpolate` does it.

    Bilinear, with antialiasing.

    Args:
        sides: height and width that are resized, if the last row or column of `pixels` lies partly outside.
    """
    size = list(out.shape[:2])
    scales = (None, None) if sides is None else (size[0] / sides[0], size[1] / sides[1])
    images = torch.from_numpy(np.ascontiguousarray(pixels)).permute(2, 0, 1)[None]
    torch.ops.aten._upsample_bilinear2d_aa.out(images, size, False, *scales, out=out.permute(2, 0, 1)[None])
