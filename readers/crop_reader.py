"""Reads crops of one field; where they lie is worked out from the field that all are aligned with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.format.column import SHAPE
from readers.crop import Crop, is_random
from readers.draws import CROPS, Draws, Visits, below
from readers.fixed import TORCH_DTYPES, Allocate
from readers.places import Numbers
from readers.rows import SampleRows, Wanted, part_of

#: Words that a crop takes: row, column, flip, turn.
COUNT = 4

#: A sample in words, by its number.
Describe = Callable[[int], str]


@dataclass(frozen=True)
class Placing:
    """Where crops lie, in pixels of the field that the others are aligned with.

    Attributes:
        source: that field.
    """

    crop: Crop
    source: SampleRows
    describe: Describe

    def sizes(self, numbers: Numbers) -> Numbers:
        """Height and width of samples (n,), (n, 2).

        Raises:
            UsageError: one is smaller than a crop.
        """
        sizes = self.source.locate(numbers)[:, SHAPE : SHAPE + 2]
        small = (sizes < self.crop.shape).any(axis=1)
        if small.any():
            at = int(small.argmax())
            raise UsageError(
                f"{self.describe(int(numbers[at]))}: field {self.crop.of!r} has {_by(sizes[at])} pixels, less than a "
                f"crop of {_by(self.crop.shape)}; take smaller crops or leave the sample out"
            )
        return sizes

    def places(self, numbers: Numbers, sizes: Numbers, visits: Visits | None) -> Numbers:
        """Row, column, and orientation (quarter turns, and 4 where it is mirrored) of samples, (n, 3).

        Raises:
            UsageError: a given place does not lie within its sample, or not on whole pixels of the others.
        """
        out = np.zeros((len(numbers), 3), np.int64)
        step, room = self.crop.step, sizes - self.crop.shape
        given = self.crop.given()
        if is_random(self.crop):
            assert visits is not None, "random crops are drawn by their visits"
            words = Draws(self.crop.seed, CROPS, COUNT).words(visits)
        if given is not None:
            out[:, :2] = given if given.ndim == 1 else given[numbers]
            self._check(numbers, out[:, :2], room)
        elif self.crop.at is None:
            out[:, :2] = below(words[:, :2], room // step + 1) * step
        else:
            out[:, :2] = room // 2 // step * step
        if self.crop.turns:
            out[:, 2] = below(words[:, 3], np.full(len(numbers), 4))
        if self.crop.flips:
            out[:, 2] += 4 * below(words[:, 2], np.full(len(numbers), 2))
        return out

    def _check(self, numbers: Numbers, places: Numbers, room: Numbers) -> None:
        wrong = ((places < 0) | (places > room) | (places % self.crop.step != 0)).any(axis=1)
        if wrong.any():
            at = int(wrong.argmax())
            raise UsageError(
                f"{self.describe(int(numbers[at]))}: no crop can begin at {places[at].tolist()}; rows 0 to "
                f"{room[at, 0]} and columns 0 to {room[at, 1]} are expected, in multiples of {self.crop.step}"
            )


class CropReader:
    """Crops of one field. Reads like any other field of fixed shape.

    Args:
        source: the field.
        scale: how many pixels of the field that it is aligned with lie on one of its own.
    """

    def __init__(self, source: SampleRows, placing: Placing, scale: int) -> None:
        self._source = source
        self._placing = placing
        self._scale = scale
        stored = source.field
        height, width = (n // scale for n in placing.crop.shape)
        self.field = part_of(stored, (height, width, *stored.shape[2:]))
        self._shape = (height, width, *(n or 0 for n in stored.shape[2:]))
        self._cell = self.field.fixed_bytes // (height * width)

    def locate(self, numbers: Numbers, visits: Visits | None = None) -> Numbers:
        """Places of samples, and row, column and orientation of their crops, (n, m + 3).

        Raises:
            UsageError: a sample is smaller than a crop, or not of the size that the scale asks for.
        """
        located = self._source.locate(numbers)
        sizes = self._placing.sizes(numbers)
        self._check(numbers, located[:, SHAPE : SHAPE + 2], sizes)
        places = self._placing.places(numbers, sizes, visits)
        places[:, :2] //= self._scale
        return np.concatenate([located, places], axis=1)

    def spans(self, located: Numbers) -> Numbers:
        """Address and size of the rows of the crops, or of the frames that hold them, (n, 2)."""
        top = located[:, -3]
        return self._source.spans(located[:, :-3], top, top + self._shape[0] - 1)

    def read(self, located: Numbers, allocate: Allocate | None = None) -> torch.Tensor:
        """The crops, (n, height, width, ...), in new memory or in what `allocate` gives.

        Raises:
            DamagedError: a frame cannot be decoded.
        """
        rows = located[:, -3, None] + np.arange(self._shape[0])
        wanted = Wanted(rows, located[:, -2] * self._cell, self._shape[1] * self._cell)
        flat = self._source.read(located[:, :-3], wanted, allocate)
        crops = flat.view(TORCH_DTYPES[self.field.dtype]).view(len(located), *self._shape)
        orient(crops.numpy(), located[:, -1])
        return crops

    def _check(self, numbers: Numbers, own: Numbers, sizes: Numbers) -> None:
        wrong = (own * self._scale != sizes).any(axis=1)
        if wrong.any():
            at, of = int(wrong.argmax()), self._placing.crop.of
            raise UsageError(
                f"{self._placing.describe(int(numbers[at]))}: field {self.field.name!r} has {_by(own[at])} pixels and "
                f"{of!r} {_by(sizes[at])}; exactly {self._scale} times as many are expected on both axes"
            )


def orient(crops: NDArray[np.generic], orientations: Numbers) -> None:
    """Turns crops (n, h, w, ...) by quarters against the clock, then mirrors those of 4 and more, in place."""
    for orientation in range(1, 8):
        chosen = np.flatnonzero(orientations == orientation)
        if len(chosen):
            turned = np.rot90(crops[chosen], orientation % 4, axes=(1, 2))
            crops[chosen] = turned[:, :, ::-1] if orientation > 3 else turned


def _by(size: NDArray[np.int64] | tuple[int, int]) -> str:
    return f"{size[0]} x {size[1]}"
