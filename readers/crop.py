"""Crops: batches of one shape from pictures of different sizes, their partners cropped at the same place.

    ds = PackedDataset(path, crop=Crop(size=64, of="hr", aligned={"lr": 4}))

Random places, flips and turns are drawn anew each time that a sample is read (see `draws.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packer.errors import UsageError
from packer.format.schema import Field
from readers.order import check_seed


@dataclass(frozen=True, eq=False)
class Crop:
    """What is cut from every sample.

    The field `of` is cropped to `size`; a field in `aligned` to `size / scale`, at the place divided by `scale`,
    where `of` must be exactly `scale` times as high and as wide. Other fields stay as they are.

    Args:
        size: pixels of a crop of `of`: an int for a square, or (height, width).
        of: name of the field that is cropped: an image, or an array of two axes or more.
        aligned: scale of each field that is cropped along: how many pixels of `of` lie on one of its own, 1 or more.
        seed: of places, flips and turns. Two datasets with different seeds are cropped differently in the same epoch.
        flips: mirrors half of the samples left to right, all their cropped fields alike.
        turns: turns samples by 0 to 3 quarters, all their cropped fields alike; with `flips`, all eight ways to lay a
            square are equally likely.
        at: where crops begin. None: anywhere, at random; with `aligned` at multiples of the scales. `"center"`: in the
            middle. (row, column): there, in every sample. An array (samples, 2): there, by sample number.

    Raises:
        UsageError: these cannot be or do not go together.
    """

    size: int | tuple[int, int]
    of: str
    aligned: Mapping[str, int] = field(default_factory=dict)
    seed: int = 0
    flips: bool = False
    turns: bool = False
    at: str | ArrayLike | None = None

    def __post_init__(self) -> None:
        check_seed(self.seed)
        sizes = self.size if isinstance(self.size, tuple) else (self.size, self.size)
        if len(sizes) != 2 or not all(isinstance(n, int) and n >= 1 for n in sizes):
            raise UsageError(f"crop: size {self.size!r}: pixels, or (height, width), from 1 on are expected")
        height, width = self.shape
        for name, scale in self.aligned.items():
            if not isinstance(scale, int) or scale < 1:
                raise UsageError(f"crop: the scale of {name!r} is {scale!r}; a whole number from 1 on is expected")
            if height % scale or width % scale:
                raise UsageError(f"crop: {height} x {width} pixels cannot be divided by {scale}, the scale of {name!r}")
        if self.turns and height != width:
            raise UsageError(f"crop: turns need squares, not {height} x {width} pixels")
        if self.of in self.aligned:
            raise UsageError(f"crop: {self.of!r} is what the others are aligned with; leave it out of aligned")
        self.given()

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of a crop of `of`."""
        return (self.size, self.size) if isinstance(self.size, int) else self.size

    @property
    def step(self) -> int:
        """Places are multiples of this, so that they fall on whole pixels of every field."""
        return math.lcm(*self.aligned.values())

    @property
    def scales(self) -> dict[str, int]:
        """Scale of every field that is cropped."""
        return {self.of: 1, **self.aligned}

    def given(self) -> NDArray[np.int64] | None:
        """The places in `at`, (2,) or (samples, 2); None where there are none."""
        if self.at is None or isinstance(self.at, str):
            if self.at not in (None, "center"):
                raise UsageError(f"crop: at {self.at!r}: None, 'center', (row, column) or an array of them is expected")
            return None
        places = np.asarray(self.at)
        if places.dtype.kind not in "iu" or places.ndim not in (1, 2) or places.shape[-1] != 2:
            raise UsageError("crop: at is a (row, column) of int, or an array of them of shape (samples, 2)")
        return places.astype(np.int64)

    def check(self, fields: Mapping[str, Field], samples: int) -> None:
        """Raises UsageError where fields or samples of a dataset cannot be cropped like this."""
        for name in self.scales:
            if name not in fields:
                raise UsageError(f"crop: no field {name!r} is read; there are {', '.join(fields)}")
            found = fields[name]
            if found.kind == "text" or len(found.shape) < 2 or None in found.shape[2:]:
                axes: Any = list(found.shape)
                raise UsageError(
                    f"crop: field {name!r} is {found.kind} of shape {axes}; rows, columns and fixed axes behind them "
                    "are expected"
                )
        places = self.given()
        if places is not None and places.ndim == 2 and len(places) != samples:
            raise UsageError(f"crop: at holds {len(places)} places for {samples} samples")


def is_random(crop: Crop) -> bool:
    """Whether two visits of a sample may be cropped differently: places, flips or turns are drawn."""
    return crop.at is None or crop.flips or crop.turns
