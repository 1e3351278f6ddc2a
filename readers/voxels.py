"""One point a voxel: clouds of even density, the same points of every field.

    ds = PackedDataset(path, points=VoxelSample(0.05))

Voxels are the cells of a grid with a corner at the origin: a point lies in the cell floor(x / size), floor(y / size),
floor(z / size), worked out in float64. Pointcept's GridSample (pointcept/datasets/transform.py) does the same, and then
counts the cells from the lowest one of the cloud on. A loop in machine code looks the cells up in a hash table, so the
work grows with the number of points alone.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.format import Field, Located, Numbers, take_rows
from readers.batch import Ragged
from readers.compiled import loading
from readers.draws import VOXELS, Asked, Words, draw_below, draw_words, words_at
from readers.fields import Describe, FieldReader, LastResult, Places, WholeReader
from readers.gather import Allocate, fresh
from readers.points import CHOICES, CloudPart, check_rows, names_of_rows, tied_fields
from readers.valid import check_choice
from readers.windows import Reading

#: Cells further than this from the origin have no number that fits the loop.
_FURTHEST = 2.0**62


@dataclass(frozen=True)
class VoxelSample(CloudPart):
    """Reads one point of every voxel of each cloud, the same points of all fields of the cloud's element.

    Batches are `Ragged`. The points of a sample are in the order in which their voxels first occur in the cloud. An
    empty cloud stays empty. A point whose coordinates are NaN or infinite lies in no voxel and is an error; negative
    and large coordinates are fine, as far as float64 tells their voxels apart.

    Args:
        size: edge of a voxel, in the unit of the coordinates.
        choose: `random`: any of the voxel's points, all equally likely, drawn again each time that a sample is read
            (see `draws.py`); `first`: the one that stands first in the cloud.
        of: the field of coordinates, (n, 3) or more columns, of which the first three are used. The same points are
            read of all fields that are ragged in their first axis alone and as long as this one in every sample.

    Raises:
        UsageError: an argument has no meaning.
    """

    size: float
    choose: Literal["random", "first"] = "random"
    of: str = "xyz"

    def __post_init__(self) -> None:
        is_number = isinstance(self.size, int | float | np.integer | np.floating) and not isinstance(self.size, bool)
        if not (is_number and 0 < self.size < math.inf):
            raise UsageError(f"VoxelSample: size {self.size!r}: the edge of a voxel, a number above 0, is expected")
        check_choice("VoxelSample: choose", self.choose, CHOICES)

    def _make_readers(self, reading: Reading, taken: Collection[str]) -> dict[str, FieldReader]:
        names = tied_fields(reading, self._candidates(reading.fields), taken)
        voxels = Voxels(self, WholeReader(reading.places[names[0]]), reading.describe)
        return {name: VoxelReader(reading.places[name], voxels) for name in names}

    def _candidates(self, fields: Mapping[str, Field]) -> list[str]:
        if self.of not in fields:
            raise UsageError(
                f"VoxelSample: no field {self.of!r} is read; there are {', '.join(fields)}; name the field of "
                f'coordinates: VoxelSample({self.size}, of="coord")'
            )
        coordinates = fields[self.of]
        is_ragged = coordinates.kind == "array" and coordinates.ragged_axes == (0,)
        is_real = np.dtype(coordinates.np_dtype).kind in "iuf"
        if not (is_ragged and is_real and len(coordinates.shape) == 2 and (coordinates.shape[1] or 0) >= 3):
            raise UsageError(
                f"VoxelSample: field {self.of!r} is {coordinates.dtype} of shape {list(coordinates.shape)}; points of "
                "3 coordinates or more, and any number of them, [None, 3], are expected"
            )
        return names_of_rows(fields, self.of)


@dataclass
class ChosenPoints:
    """The chosen points of a batch.

    Attributes:
        rows: their row numbers in the whole batch, (m,).
        offsets: where those of each sample begin, (B + 1,).
        lengths: points of each sample, (B,).
        cloud: the field of coordinates of the batch, until it was read.
    """

    rows: Numbers
    offsets: Numbers
    lengths: Numbers
    cloud: Ragged | None


class Voxels:
    """Chooses the points of batches by their coordinates.

    Args:
        cloud_reader: reads that field.
        describe: gives a sample in words, by its number.
    """

    def __init__(self, sample: VoxelSample, cloud_reader: WholeReader, describe: Describe) -> None:
        self.name = cloud_reader.field.name
        self._sample = sample
        self._cloud_reader = cloud_reader
        self._describe = describe
        self._dtype = np.float32 if cloud_reader.field.np_dtype == np.float32 else np.float64
        loading.prepare()
        self.chosen = LastResult(self._choose)

    def _choose(self, visits: Numbers, numbers: Numbers) -> ChosenPoints:
        """Return the points of a batch of samples (n,) at some visits (n,).

        Raises:
            UsageError: a point lies in no voxel.
            DamagedError: a frame cannot be decoded.
        """
        cloud = self._cloud_reader.read(self._cloud_reader.locate(Asked(numbers)))
        assert isinstance(cloud, Ragged), "the field of coordinates is ragged in its first axis"
        coordinates, starts = cloud.values.numpy(), cloud.offsets.numpy()
        words = draw_words(visits.view(np.uint64), 0, VOXELS, 1).reshape(-1)
        rows, offsets = np.empty(len(coordinates), np.int64), np.zeros(len(starts), np.int64)
        # Slots: a power of two, more than twice the points of any sample.
        table = np.full(2 << int(np.diff(starts).max(initial=0)).bit_length(), -1)
        wrong = _choose_points(
            np.ascontiguousarray(coordinates, self._dtype),
            starts,
            float(self._sample.size),
            words,
            self._sample.choose == "random",
            table,
            rows,
            offsets,
        )
        if wrong >= 0:
            item = int(starts.searchsorted(wrong, "right")) - 1
            raise UsageError(
                f"{self._describe(int(numbers[item]))}: field {self.name!r}, point {wrong - int(starts[item])}: "
                f"{coordinates[wrong, :3].tolist()} lies in no voxel of size {self._sample.size}: NaN, infinite or too "
                "far away; leave the sample out, by torch.utils.data.Subset or Loader's sampler, or fix the file"
            )
        return ChosenPoints(rows[: offsets[-1]].copy(), offsets, np.diff(starts), cloud)

    def check_rows(self, name: str, located: Located, chosen: ChosenPoints) -> None:
        """Raise UsageError if a field does not have a row for each point of the samples (n,)."""
        check_rows(self._describe, located.number, name, located.shape[:, 0], self.name, chosen.lengths)


class VoxelReader(WholeReader):
    """The chosen points of one field. Reads like any other field that is ragged in its first axis."""

    def __init__(self, places: Places, voxels: Voxels) -> None:
        super().__init__(places)
        self.run_bytes = 0  # the number of chosen points is known only when a sample is read
        self._voxels = voxels

    def locate(self, asked: Asked) -> Located:
        """Return where samples lie, and their `visit`."""
        return super().locate(asked).adding(visit=asked.visit_numbers)

    def read(self, located: Located, allocate: Allocate | None = None) -> Ragged:
        """Return the points, in new memory or in what `allocate` gives.

        Raises:
            UsageError: a point lies in no voxel, or the field does not have a row for each point.
            DamagedError: a frame cannot be decoded.
        """
        chosen: ChosenPoints = self._voxels.chosen(located.visit, located.number)
        cloud: Any = None
        if self.field.name == self._voxels.name:
            cloud, chosen.cloud = chosen.cloud, None  # it would stay as long as the last batch is remembered
        if cloud is None:
            cloud = super().read(located)
        assert isinstance(cloud, Ragged), "fields of one element are ragged in their first axis"
        self._voxels.check_rows(self.field.name, located, chosen)
        count, row = len(chosen.rows), self.field.fixed_bytes
        flat = (allocate or fresh)(count * row)
        if len(flat):
            take_rows(cloud.values.numpy().reshape(-1).view(np.uint8), chosen.rows, flat.view(count, row).numpy())
        values = flat.view(self._dtype).view(count, *self._shape[1:])
        return Ragged(values, torch.from_numpy(chosen.offsets.copy()))


def _choose_by_numpy(
    points: NDArray[Any],
    starts: Numbers,
    size: float,
    words: Words,
    random: bool,
    _: Numbers,
    rows: Numbers,
    offsets: Numbers,
) -> int:
    """Do as `choose` of loops.py, by sorting, ten times slower; no table is needed."""
    with np.errstate(all="ignore"):
        floors = np.floor(points[:, :3] / np.float64(size))
        outside = ~(abs(floors) < _FURTHEST).all(1)
    if outside.any():
        return int(outside.argmax())
    if not len(points):
        return -1
    sample = np.repeat(np.arange(len(words)), np.diff(starts))
    cells = np.vstack([sample, floors.T.astype(np.int64)])
    cells -= cells.min(1, keepdims=True)
    # Points of a voxel follow one another, in the order of the cloud.
    try:
        key = np.ravel_multi_index(tuple(cells), tuple(cells.max(1) + 1))
        order = np.argsort(key, kind="stable")
    except ValueError:  # more cells than an integer counts
        order = np.lexsort(cells)
    sorted_cells = cells[:, order]
    first = np.flatnonzero(np.r_[True, (sorted_cells[:, 1:] != sorted_cells[:, :-1]).any(0)])
    chosen = order[first]
    ranks = np.argsort(chosen)
    if random:
        counts = np.arange(len(order)) - np.repeat(first, np.diff(np.r_[first, len(order)])) + 1
        drawn = words_at(words[sample[order]], (order - starts[sample[order]]).astype(np.uint64))
        chosen = np.maximum.reduceat(np.where(draw_below(drawn, counts) == 0, order, -1), first)
    rows[: len(first)] = chosen[ranks]
    offsets[1:] = np.bincount(sample[chosen], minlength=len(words)).cumsum()
    return -1


_choose_points = loading.loop("choose", _choose_by_numpy)
