"""One point a voxel: clouds of even density, the same points of every field.

    ds = PackedDataset(path, sample_points=VoxelSample(0.05))

Voxels are the cells of a grid with a corner at the origin: a point lies in the cell floor(x / size), floor(y / size),
floor(z / size), worked out in float64. So does Pointcept's GridSample (pointcept/datasets/transform.py), which then
counts the cells from the lowest one of the cloud on. A loop in machine code looks the cells up in a table of hashes, so
that the work grows with the number of points alone.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from packer.codecs.compiled import machine_code
from packer.errors import UsageError
from packer.format.column import SHAPE
from packer.format.schema import Field
from readers.arrays import TORCH_DTYPES, Allocate, Numbers
from readers.batch import Ragged
from readers.draws import MIX, MIX_AGAIN, STEP, VOXELS, Draws, Visits, Words
from readers.fields import Varied
from readers.gather import fresh, take_rows

#: Cells further than this from the origin have no number that fits the loop.
_FURTHEST = 2.0**62


@dataclass(frozen=True)
class VoxelSample:
    """One point of every voxel of each cloud, the same points of all fields of the cloud's element.

    Batches are `Ragged`. The points of a sample stand in the order in which the cloud first comes to their voxels. A
    cloud without points stays one. A point whose coordinates are NaN or infinite lies in no voxel and is an error;
    negative and large coordinates are as good as others, as far as float64 tells their voxels apart.

    Args:
        size: edge of a voxel, in the unit of the coordinates.
        choose: `random`: any of the voxel's points, all equally likely, drawn anew each time that a sample is read (see
            `draws.py`); `first`: the one that stands first in the cloud.
        of: the field of coordinates, (n, 3) or more columns, of which the first three are taken. Fields that are ragged
            in their first axis alone and as long as this one in every sample give the same points.

    Raises:
        UsageError: these cannot be.
    """

    size: float
    choose: Literal["random", "first"] = "random"
    of: str = "xyz"

    def __post_init__(self) -> None:
        is_number = isinstance(self.size, (int, float)) and not isinstance(self.size, bool)
        if not (is_number and 0 < self.size < math.inf):
            raise UsageError(f"VoxelSample: size {self.size!r}; the edge of a voxel is a number above 0")
        if self.choose not in ("random", "first"):
            raise UsageError(f"VoxelSample: choose {self.choose!r}; 'random' or 'first' is expected")

    def candidates(self, fields: Mapping[str, Field]) -> list[str]:
        """Return the names of the fields that may hold one row a point, first the one of coordinates.

        Raises:
            UsageError: that one is not read, or holds no coordinates.
        """
        if self.of not in fields:
            raise UsageError(f"VoxelSample: no field {self.of!r} is read; there are {', '.join(fields)}")
        coordinates = fields[self.of]
        is_ragged = coordinates.kind == "array" and coordinates.ragged_axes == (0,)
        is_real = np.dtype(coordinates.np_dtype).kind in "iuf"
        if not (is_ragged and is_real and len(coordinates.shape) == 2 and (coordinates.shape[1] or 0) >= 3):
            raise UsageError(
                f"VoxelSample: field {self.of!r} is {coordinates.dtype} of shape {list(coordinates.shape)}; one row of "
                "3 coordinates or more a point, and any number of points, [None, 3], is expected"
            )
        found = [f.name for f in fields.values() if f.kind == "array" and f.ragged_axes == (0,)]
        found.sort(key=lambda name: name != self.of)
        return found


class Chosen(NamedTuple):
    """The points that a batch gives.

    Attributes:
        rows: which of all rows of the batch they are, (m,).
        offsets: where those of each sample begin, (B + 1,).
        coordinates: what the field of coordinates holds of them, as bytes, (m, bytes of a row).
    """

    rows: Numbers
    offsets: Numbers
    coordinates: torch.Tensor


class Voxels:
    """Chooses the points of batches, by what the field of coordinates holds.

    Args:
        whole: reads that field.
        describe: a sample in words, by its number.
    """

    def __init__(self, sample: VoxelSample, whole: Varied, describe: Callable[[int], str]) -> None:
        self.name = whole.field.name
        self._sample = sample
        self._whole = whole
        self._describe = describe
        self._dtype = np.float32 if whole.field.np_dtype == np.float32 else np.float64
        self._loop = _loop(np.dtype(self._dtype).name)
        self._draws = Draws(0, VOXELS, 1)
        self._last = threading.local()

    def locate(self, numbers: Numbers, visits: Visits | None) -> Numbers:
        """Return the places of samples in the field of coordinates, and their visits and numbers, (n, m)."""
        drawn = np.zeros(len(numbers), np.int64) if visits is None else visits.view(np.int64)
        return np.concatenate([self._whole.locate(numbers), drawn[:, None], numbers[:, None]], axis=1)

    def chosen(self, located: Numbers) -> Chosen:
        """Return the points of a batch whose samples are `located`.

        Raises:
            UsageError: a point lies in no voxel.
            DamagedError: a frame cannot be decoded.
        """
        # All fields of a batch ask for the same, one after another in one thread.
        key = located.tobytes()
        if getattr(self._last, "key", None) != key:
            self._last.chosen = self._choose(located)
            self._last.key = key
        chosen: Chosen = self._last.chosen
        return chosen

    def _choose(self, located: Numbers) -> Chosen:
        whole = self._whole.read(located)
        assert isinstance(whole, Ragged), "the field of coordinates is ragged in its first axis"
        coordinates, before = whole.values.numpy(), whole.offsets.numpy()
        random = self._sample.choose == "random"
        words = self._draws.words(located[:, -2].view(np.uint64))[:, 0] if random else np.zeros(len(located), np.uint64)
        rows, offsets = np.empty(len(coordinates), np.int64), np.zeros(len(before), np.int64)
        points = np.ascontiguousarray(coordinates, self._dtype)
        wrong = self._loop(points, before, float(self._sample.size), np.ascontiguousarray(words), random, rows, offsets)
        if wrong >= 0:
            item = int(before.searchsorted(wrong, "right")) - 1
            raise UsageError(
                f"{self._describe(int(located[item, -1]))}: field {self.name!r}, point {wrong - int(before[item])}: "
                f"{coordinates[wrong, :3].tolist()} lies in no voxel of size {self._sample.size}: NaN, infinite or too "
                "far away; leave the sample out, by torch.utils.data.Subset or Loader's sampler, or mend the file"
            )
        rows = rows[: offsets[-1]]
        return Chosen(rows, offsets, taken(whole.values, rows))


class VoxelReader:
    """The chosen points of one field. Reads like any other field that is ragged in its first axis.

    Args:
        whole: reads the field.
    """

    def __init__(self, whole: Varied, voxels: Voxels) -> None:
        self.field = whole.field
        self._whole = whole
        self._voxels = voxels
        self._own = SHAPE + len(self.field.shape)

    def locate(self, numbers: Numbers, visits: Visits | None = None, anchors: Numbers | None = None) -> Numbers:
        """Return the places of samples, and after them what `Voxels.locate` gives, (n, m)."""
        return np.concatenate([self._whole.locate(numbers), self._voxels.locate(numbers, visits)], axis=1)

    def spans(self, located: Numbers) -> Numbers:
        """Return address and size of the bytes of the samples, (n, 2): all of them are read."""
        return self._whole.spans(located[:, : self._own])

    def read(self, located: Numbers, allocate: Allocate | None = None) -> Ragged:
        """Return the points, in new memory or in what `allocate` gives.

        Raises:
            UsageError: a point lies in no voxel.
            DamagedError: a frame cannot be decoded.
        """
        chosen = self._voxels.chosen(located[:, self._own :])
        if self.field.name == self._voxels.name:
            flat = (allocate or fresh)(chosen.coordinates.numel())
            flat.numpy()[...] = chosen.coordinates.numpy().reshape(-1)  # torch's threads wait for a busy processor
        else:
            whole = self._whole.read(located[:, : self._own])
            assert isinstance(whole, Ragged), "fields of one element are ragged in their first axis"
            flat = taken(whole.values, chosen.rows, allocate).view(-1)
        shape = (len(chosen.rows), *(n or 0 for n in self.field.shape[1:]))
        return Ragged(flat.view(TORCH_DTYPES[self.field.dtype]).view(shape), torch.from_numpy(chosen.offsets.copy()))


def taken(values: torch.Tensor, rows: Numbers, allocate: Allocate | None = None) -> torch.Tensor:
    """Return rows (m,) of `values` (n, ...) as bytes, (m, bytes of a row); in what `allocate` gives, if anything."""
    width = values.itemsize * math.prod(values.shape[1:])
    out = (allocate or fresh)(len(rows) * width).view(len(rows), width)
    if out.numel():
        take_rows(values.view(-1).view(torch.uint8), rows, out)
    return out


@cache
def _loop(dtype: str) -> Any:
    """Return `_choose` in machine code, for coordinates of a dtype. Half a second passes when it is first called."""
    from numba import types  # here: whoever reads whole clouds needs none of it

    points = types.Array(getattr(types, dtype), 2, "C")
    numbers, words = types.Array(types.int64, 1, "C"), types.Array(types.uint64, 1, "C")
    signature = types.int64(points, numbers, types.float64, words, types.boolean, numbers, numbers)
    return machine_code(signature)(_choose)


def _choose(
    points: NDArray[Any],
    before: Numbers,
    size: float,
    words: Words,
    random: bool,
    rows: Numbers,
    offsets: Numbers,
) -> int:
    """Find the voxels of all samples of a batch, and a point of each.

    Args:
        points: coordinates of all points, (n, 3) or more columns.
        before: where the points of each sample begin, (B + 1,).
        size: edge of a voxel.
        words: a random word a sample, (B,), from which a stream of them begins.
        random: whether any point of a voxel is taken, else the first.
        rows: gets the number of the chosen points, from 0 on, (n,).
        offsets: gets where those of each sample begin, (B + 1,), zeros at first.

    Returns:
        -1, or the number of a point that lies in no voxel.
    """
    longest = 0
    for item in range(len(before) - 1):
        longest = max(longest, before[item + 1] - before[item])
    slots = 1
    while slots < 2 * longest:
        slots *= 2
    # Number of the voxel in each slot, -1 if there is none; a slot that is taken sends on to the next one.
    table = np.empty(slots, np.int64)
    cells = np.empty((longest, 3), np.int64)
    counts = np.empty(longest, np.int64)
    for item in range(len(before) - 1):
        start, end, first = before[item], before[item + 1], offsets[item]
        slots = 1
        while slots < 2 * (end - start):
            slots *= 2
        table[:slots] = -1
        found = 0
        for row in range(start, end):
            x, y, z = np.floor(points[row, 0] / size), np.floor(points[row, 1] / size), np.floor(points[row, 2] / size)
            if not (abs(x) < _FURTHEST and abs(y) < _FURTHEST and abs(z) < _FURTHEST):
                return row  # also if one is NaN
            i, j, k = np.int64(x), np.int64(y), np.int64(z)
            mixed = (np.uint64(i) * STEP + np.uint64(j)) * MIX + np.uint64(k)
            mixed = (mixed ^ (mixed >> np.uint64(32))) * MIX_AGAIN
            slot = np.int64(mixed >> np.uint64(32)) & (slots - 1)
            voxel = table[slot]
            while voxel >= 0 and not (cells[voxel, 0] == i and cells[voxel, 1] == j and cells[voxel, 2] == k):
                slot = (slot + 1) & (slots - 1)
                voxel = table[slot]
            if voxel < 0:
                table[slot] = found
                cells[found, 0], cells[found, 1], cells[found, 2] = i, j, k
                counts[found] = 1
                rows[first + found] = row
                found += 1
            elif random:
                # The n-th point of a voxel takes the place of the one before with a chance of 1 / n.
                counts[voxel] += 1
                word = words[item] + np.uint64(row - start + 1) * STEP
                word = (word ^ (word >> np.uint64(30))) * MIX
                word = (word ^ (word >> np.uint64(27))) * MIX_AGAIN
                word = word ^ (word >> np.uint64(31))
                if ((word >> np.uint64(32)) * np.uint64(counts[voxel])) >> np.uint64(32) == np.uint64(0):
                    rows[first + voxel] = row
        offsets[item + 1] = first + found
    return -1
