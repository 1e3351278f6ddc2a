"""Reads the crops of one field, whatever way it is stored, and says which of their pixels are padding."""

from __future__ import annotations

import math
from copy import copy
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.format import Field, Located, Numbers
from readers.draws import Asked
from readers.fields import FieldReader, KnownReader, Places
from readers.gather import MEMORY, Allocate, fresh
from readers.indexing import Items
from readers.placing import Placing, size_text
from readers.rows import PartReader, RowRanges, part_field
from readers.turning import BYTES, COPIED, MIRRORED, copy_rows, orient
from readers.windows import Steps

#: Samples whose sizes are compared at once.
_CHECKED = 2**18
#: Suffix of the field that says which pixels of a padded crop are the sample's own.
IS_DATA = "_is_data"


class CropReader(PartReader):
    """Crops of one field. Reads like any other field of fixed shape.

    Rows are counted through all axes before the last cropped one; a stretch of each row is read.

    Args:
        places: where the whole samples lie.
        first: the first axis that is cropped.
        scale: how many times as high and as wide the field `of` of the crop is.
        fill: what lies around samples: a value or "edge"; None without padding.
        steps: of its windows; None if all of a sample is cropped.
    """

    def __init__(
        self, places: Places, first: int, placing: Placing, scale: int, fill: Any = None, steps: Steps | None = None
    ) -> None:
        shape, crop = places.field.shape, tuple(n // scale for n in placing.rules.shape)
        axes_before, axes_after = shape[:first], shape[first + len(crop) :]
        if steps is not None:
            axes_before = len(steps.offsets), *shape[1:first]
        super().__init__(part_field(places.field, (*axes_before, *crop, *axes_after)), places, first + len(crop) - 2)
        self._placing = placing
        self._fill = fill
        self._scale = scale
        self._steps = steps
        self._cropped = slice(first, first + len(crop))
        #: Planes that are cropped at one place, of a sample or of a step: the channels of (C, H, W), say.
        self._planes = math.prod(n or 0 for n in shape[steps is not None : first])
        self._crop = crop
        #: Values of a pixel.
        self._cell = math.prod(n or 0 for n in axes_after)
        self._is_whole = True

    def converting(self, dtype: str) -> FieldReader | None:
        """Return a reader that converts bytes while it copies them; None for padded crops, and other values."""
        if self._whole.dtype != BYTES or self._fill is not None or dtype not in COPIED:
            return None
        converted = copy(self)
        FieldReader.__init__(converted, replace(self.field, dtype=dtype))
        return converted

    @property
    def _converts(self) -> bool:
        return bool(self.field.dtype != self._whole.dtype)

    def check_sizes(self, samples: Items) -> None:
        """Raise UsageError if a sample does not have the size that the scale asks for; called before any is read.

        Args:
            samples: those that may be read.
        """
        own, of = self._cropped, self._placing
        axes = zip(range(own.start, own.stop), range(of.first, of.first + len(self._crop)), strict=True)
        if self._places.is_scaled(of.places, self._scale, axes):
            return
        for first in range(0, len(samples), _CHECKED):
            numbers = samples.in_whole(np.arange(first, min(first + _CHECKED, len(samples))))
            self._check_sizes(self._places.locate(numbers), self._placing.sizes(numbers))

    def _check_sizes(self, located: Located, sizes: Numbers) -> None:
        """Raise UsageError if samples do not have the size that the scale asks for.

        Args:
            sizes: of the same samples of the field `of` of the crop, (n, axes).
        """
        lengths = located.shape[:, self._cropped]
        wrong = (lengths * self._scale != sizes).any(axis=1)
        if wrong.any():
            item = int(wrong.argmax())
            note = f" (one of {int(wrong.sum()):,} such samples)" if wrong.sum() > 1 else ""
            raise UsageError(
                f"{self._placing.describe(int(located.number[item]))}: field {self.field.name!r} has "
                f"{size_text(lengths[item])} pixels and {self._placing.rules.of!r} {size_text(sizes[item])}; "
                f"exactly {self._scale} times as many are expected of {self._placing.rules.of!r}, the larger of a "
                f"pair, on {'both' if len(self._crop) == 2 else 'all'} axes{note}; read a split without it, or convert "
                "again with --on-error skip"
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
        if self._fill is None and self._whole.dtype == BYTES and (self._converts or (located.way >= MIRRORED).any()):
            return self._read_bytes(located, allocate)
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

    def _read_bytes(self, located: Located, allocate: Allocate | None) -> torch.Tensor:
        """Return crops of bytes, which are mirrored and converted while they are copied."""
        ranges = self._row_ranges(located)
        count, rows = ranges.rows.shape
        if self._is_raw(located):
            decoded, addresses = None, self._addresses(located, ranges)
        else:
            decoded = np.empty(ranges.rows.size * ranges.length, np.uint8)
            self._decode(located, ranges, decoded)
            first = MEMORY.address(decoded) if len(decoded) else 0
            addresses = first + ranges.length * np.arange(count * rows).reshape(count, rows)
        flat = (allocate or fresh)(count * self._fixed_bytes)
        copied = flat.numpy().view(self.field.np_dtype).reshape(count, rows, ranges.length)
        way = copy_rows(addresses, located.way, self._cell, copied, is_volume=len(self._crop) == 3)
        del decoded  # only now: the addresses are in there
        return self._finish(flat, located.adding(way=way))

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
        pixel = self._cell * self._whole.itemsize
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
