"""Windows: some steps of a sample, at fixed offsets from an anchor step, in batches of one shape.

    ds = PackedDataset(path, windows=Windows(16, stride=4))
    ds = PackedDataset(path, windows=Windows({"image": [-1, 0], "actions": range(16)}, pad="edge"))
    ds = PackedDataset(path, windows=Windows({"image": [0], "actions": range(16)}, pad="zero", one=True))

An item of such a dataset is a window: `len(ds)` counts them, sample by sample and anchor by anchor. With `one=True` an
item is a sample, of which one window is drawn at each visit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from operator import index
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.format import MAX_AXIS, Field, Located, Numbers
from readers.draws import Asked
from readers.fields import Describe, FieldReader, KnownReader, Places
from readers.gather import Allocate, split_with_own_storage
from readers.indexing import Anchors, Items
from readers.rows import PartReader, RowRanges, part_field
from readers.valid import check_count, check_flags, check_read

#: Suffix of the field that says which steps of windows are padding.
IS_PAD = "_is_pad"


@dataclass(frozen=True, eq=False)
class Windows:
    """Reads windows: steps of a sample at fixed offsets from an anchor step.

    A step is one index of the first axis of a field. There is a window for each anchor: the steps 0, `stride`, 2 *
    `stride`, ... that all fields with windows have; if fields differ in length, the shortest decides. A window never
    holds steps of another sample. A field that is ragged in other axes, too, comes as a list of tensors (T, ...).

    Args:
        steps: how many steps to read, from the anchor on, of every field that is ragged in its first axis. If no field
            is ragged, it applies to every array, provided that their first axes are equally long. Or the offsets from
            the anchor by name of the field, in any order; fields of fixed shape can be named too. Other fields come
            whole, with every window.
        stride: steps from one anchor to the next.
        step: steps from one offset to the next: offsets are multiplied by it.
        pad: None leaves out the windows that do not lie within their sample in every field. `"edge"` keeps all, and
            repeats the first or last step of the field; `"zero"` fills with zeros. Then `batch[field + "_is_pad"]`
            (B, T) bool says which steps are not the sample's own.
        pad_before: how many steps before the first step of a sample a window may begin; its anchor may lie as far
            outside. Steps outside are filled by `pad`, or by `"edge"` if that is None; `_is_pad` is there even if it is
            0. None leaves the limit to `pad`.
        pad_after: how many steps after the last step of a sample a window may end, likewise.

            `Windows(16, pad_before=1, pad_after=7)` are the windows of diffusion_policy's `SequenceSampler`,
            `Windows({"obs": range(-1, 10)}, pad_before=1, pad_after=9)` those of robomimic's `SequenceDataset` with
            `frame_stack=2`, `seq_length=10` and both its paddings.
        one: an item is a sample: at each visit one of its windows is drawn, all equally likely. `len(dataset)` is then
            the number of samples, and names mean items. Every sample must have a window.

            `Windows({"qpos": [0], "action": range(longest)}, pad="zero", one=True)` are the items of ACT's
            `EpisodicDataset` of simulated episodes; those of real robots begin with the action before.

    Raises:
        UsageError: an argument has no meaning.
    """

    steps: int | Mapping[str, Sequence[int] | NDArray[np.integer]]
    _: KW_ONLY
    stride: int = 1
    step: int = 1
    pad: Literal["edge", "zero"] | None = None
    pad_before: int | None = None
    pad_after: int | None = None
    one: bool = False

    def __post_init__(self) -> None:
        for name in ("stride", "step"):
            check_count(f"windows: {name}", getattr(self, name), MAX_AXIS)
        if self.pad not in (None, "edge", "zero"):
            raise UsageError(f"windows: pad {self.pad!r}: None, 'edge' or 'zero' is expected")
        for name in ("pad_before", "pad_after"):
            if getattr(self, name) is not None:
                check_count(f"windows: {name}", getattr(self, name), MAX_AXIS, minimum=0)
        check_flags("windows", one=self.one)
        if not isinstance(self.steps, Mapping):
            check_count("windows: steps", self.steps, MAX_AXIS)
            if index(self.steps) * index(self.step) > MAX_AXIS:
                raise UsageError(f"windows: {self.steps} steps, {self.step} apart, reach further than any sample does")
        elif not self.steps:
            raise UsageError('windows: no field is named; name those that have steps: Windows({"actions": range(16)})')
        else:
            for name, offsets in self.steps.items():
                _check_offsets(name, offsets, self.step)

    def _offsets(self, fields: Mapping[str, Field]) -> dict[str, Numbers]:
        """Return the offsets from the anchor step of every field that has windows, (T,) int64 each, by field.

        Raises:
            UsageError: there is none, or a named one has no steps.
        """
        if not isinstance(self.steps, Mapping):
            return dict.fromkeys(_with_steps(fields, self.steps), np.arange(self.steps) * self.step)
        check_read("windows", self.steps, fields)
        for name in self.steps:
            if fields[name].kind != "array" or not fields[name].shape:
                raise UsageError(
                    f"windows: field {name!r} has no steps: it is text, an image or a single value; leave it out"
                )
        return {name: np.array([*offsets], np.int64) * self.step for name, offsets in self.steps.items()}

    @property
    def _fill(self) -> str | None:
        """Return how steps outside of a sample are filled: "edge", "zero", or None if there are none."""
        has_limits = self.pad_before is not None or self.pad_after is not None
        return self.pad or ("edge" if has_limits else None)

    @property
    def _draws(self) -> bool:
        return self.one

    def _check(self, fields: Mapping[str, Field], samples: int, windowed: Collection[str]) -> list[str]:
        offsets = self._offsets(fields)
        low, high = _reach(offsets)
        for pad in (self.pad_before, self.pad_after):
            if pad is not None and pad > high - low:
                raise UsageError(
                    f"windows: {pad} steps outside of a sample, of windows that span {high - low + 1}: some would have "
                    "no step of the sample; let fewer lie outside"
                )
        return [name + IS_PAD for name in offsets] if self._fill else []

    def _make_readers(self, reading: Reading, taken: Collection[str]) -> dict[str, FieldReader]:
        readers: dict[str, FieldReader] = {}
        for name, steps in reading.steps.items():
            if name not in taken:
                readers[name] = WindowReader(reading.places[name], steps)
            if steps.pad:
                readers[name + IS_PAD] = make_pad_reader(reading.places[name], steps)
        return readers

    def _steps_of(self, fields: Mapping[str, Field]) -> dict[str, Steps]:
        """Return the steps of every field that has windows."""
        return {name: Steps(offsets, self._fill) for name, offsets in self._offsets(fields).items()}

    def _anchors(self, offsets: Mapping[str, Numbers], lengths: Mapping[str, Numbers]) -> Anchors:
        """Return the anchor steps of samples (n,).

        Args:
            offsets: of each field with windows.
            lengths: of each field with windows, steps of the samples, (n,).
        """
        shortest = np.minimum.reduce(list(lengths.values()))
        first, stop = np.zeros_like(shortest), shortest
        inside = None if self.pad else 0  # with pad alone, only the anchor has to be a step of the sample
        before, after = (inside if pad is None else pad for pad in (self.pad_before, self.pad_after))
        if before is not None:
            first = first - _reach(offsets)[0] - before
        if after is not None:
            stop = np.minimum.reduce([lengths[name] - max(steps.max(), 0) for name, steps in offsets.items()]) + after
        first = -(-first // self.stride) * self.stride
        counts = np.maximum(-(-(stop - first) // self.stride), 0)
        return Anchors(first, np.where(shortest > 0, counts, 0), self.stride, self.one)


def _reach(offsets: Mapping[str, Numbers]) -> tuple[int, int]:
    """Return the lowest and the highest offset from the anchor, which has offset 0."""
    lowest = min(0, *(int(steps.min()) for steps in offsets.values()))
    return lowest, max(0, *(int(steps.max()) for steps in offsets.values()))


def _with_steps(fields: Mapping[str, Field], steps: int) -> list[str]:
    """Return the names of the fields that a plain number of steps is for; raises UsageError if that is not clear."""
    arrays = [field for field in fields.values() if field.kind == "array" and field.shape]
    ragged = [field.name for field in arrays if field.ragged_axes[:1] == (0,)]
    if ragged:
        return ragged
    # Rows of a table may also hold arrays of one axis, which are not steps.
    if any(len(field.shape) > 1 for field in arrays) and len({field.shape[0] for field in arrays}) == 1:
        return [field.name for field in arrays]
    shapes = ", ".join(f"{field.name} {list(field.shape)}" for field in arrays) or "no array"
    raise UsageError(
        f"windows: which fields have steps? None is ragged in its first axis ({shapes}); name those "
        f'that have steps: Windows({{"{next((field.name for field in arrays), "actions")}": range({steps})}})'
    )


def _check_offsets(name: str, offsets: Sequence[int] | NDArray[np.integer], step: int) -> None:
    try:
        numbers = [index(offset) for offset in offsets] if len(offsets) else []
    except TypeError:
        numbers = []
    if not numbers or max(map(abs, numbers)) * step > MAX_AXIS:
        raise UsageError(f"windows: offsets {offsets!r} of {name!r}: a list of whole numbers is expected, or range(16)")


@dataclass(frozen=True)
class Steps:
    """The steps of the windows of one field.

    Attributes:
        offsets: from the anchor step, (T,).
        pad: how steps beyond the ends of a sample are filled: "edge", "zero", or None if there are none.
    """

    offsets: Numbers
    pad: str | None

    @cached_property
    def are_together(self) -> bool:
        """Return whether the steps follow one another."""
        return bool((np.diff(self.offsets) == 1).all())

    def rows(self, located: Located) -> Numbers:
        """Return the steps of the windows at the anchors, (n, T); beyond an end, the sample's first or last step."""
        steps: Numbers = located.anchor[:, None] + self.offsets
        return np.maximum(np.minimum(steps, located.shape[:, :1] - 1), 0)

    def beyond(self, located: Located) -> NDArray[np.bool_]:
        """Return whether the steps of windows lie beyond the ends of their samples, (n, T)."""
        steps = located.anchor[:, None] + self.offsets
        outside: NDArray[np.bool_] = (steps < 0) | (steps >= located.shape[:, :1])
        return outside

    def fill(self, values: torch.Tensor, located: Located) -> torch.Tensor:
        """Return the values of windows (n, T, ...); with pad "zero", steps beyond an end are set to 0 in place."""
        if self.pad == "zero":
            values.numpy()[self.beyond(located)] = 0
        return values


@dataclass(frozen=True)
class Reading:
    """What a part of samples makes its readers of.

    Attributes:
        fields: those that are read.
        places: by field, where its samples lie.
        samples: those of the whole dataset, or of a split.
        describe: gives a sample in words, by its number.
        compared: samples whose shapes are compared, (n,), by numbers in the whole dataset; None for all. Others are
            compared when they are read.
        steps: of the fields that have windows.
    """

    fields: Mapping[str, Field]
    places: Mapping[str, Places]
    samples: Items
    describe: Describe
    compared: Numbers | None
    steps: Mapping[str, Steps]


class WindowReader(PartReader):
    """Windows of one field. Reads like any other field: of fixed shape, or as a list if it is ragged in other axes.

    Args:
        places: where the whole samples lie.
        shape: of a step; by default as the schema has it.
    """

    def __init__(self, places: Places, steps: Steps, shape: Sequence[int | None] | None = None) -> None:
        shape = places.field.shape[1:] if shape is None else shape
        super().__init__(part_field(places.field, (len(steps.offsets), *shape)), places)
        self._steps = steps
        self._length = self.field.fixed_bytes // len(steps.offsets)

    def locate(self, asked: Asked) -> Located:
        """Return where samples lie, and the `anchor` steps of their windows."""
        assert asked.anchors is not None, "windows lie at anchor steps"
        return self._places.locate(asked.samples).adding(anchor=asked.anchors)

    def read(self, located: Located, allocate: Allocate | None = None) -> Any:
        """Return the windows, (n, T, ...), in new memory or in what `allocate` gives; a list if their shapes differ.

        Raises:
            DamagedError: a frame cannot be decoded.
        """
        if not self.is_ragged:
            return super().read(located, allocate)
        shapes, shape_of_sample = np.unique(located.shape[:, 1:], axis=0, return_inverse=True)
        windows: list[Any] = [None] * len(located)
        for number, shape in enumerate(shapes.tolist()):
            samples = np.flatnonzero(shape_of_sample == number)
            same_shape = WindowReader(self._places, self._steps, shape).read(located[samples], allocate)
            parts = split_with_own_storage(same_shape.flatten(0, 1), [same_shape.shape[1]] * len(samples))
            for place, window in zip(samples.tolist(), parts, strict=True):
                windows[place] = window
        return windows

    def _row_ranges(self, located: Located) -> RowRanges:
        none, offsets = np.zeros(len(located), np.int64), self._steps.offsets
        if self._steps.are_together:
            first = located.anchor + offsets[0]
            if len(first) and (first >= 0).all() and (first + len(offsets) <= located.shape[:, 0]).all():
                return RowRanges(first[:, None], none, self._length, len(offsets))
        return RowRanges(self._steps.rows(located), none, self._length)

    def _finish(self, flat: torch.Tensor, located: Located) -> torch.Tensor:
        return self._steps.fill(super()._finish(flat, located), located)


def make_pad_reader(places: Places, steps: Steps) -> KnownReader:
    """Return the reader of which steps of windows lie beyond the ends of their samples, (n, T) bool."""

    def beyond(asked: Asked) -> Numbers:
        assert asked.anchors is not None, "windows lie at anchor steps"
        return steps.beyond(places.locate(asked.samples).adding(anchor=asked.anchors)).astype(np.int64)

    return KnownReader(Field(name=places.field.name + IS_PAD, dtype="bool", shape=(len(steps.offsets),)), beyond)
