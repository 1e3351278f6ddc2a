"""Ragged fields: samples of different shapes, and text.

As in `fixed.py`, `locate` turns numbers into places for as many batches as the caller likes, and `read` copies or
decodes: one call for all frames of a batch, or one a sample where samples share frames.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packer.codecs.frames import FrameCodec, Frames
from packer.format.column import BEFORE, BYTES, DECODED, SHAPE, START, STORED
from readers.draws import Visits
from readers.fixed import TORCH_DTYPES, damaged
from readers.frame_cache import FrameStore
from readers.gather import Allocate, fresh, own_parts
from readers.places import Numbers, Places
from readers.ragged import Ragged


class Varied:
    """A field whose samples differ in shape."""

    def __init__(self, places: Places) -> None:
        self.field = places.field
        self._places = places
        self._memory = places.memory
        self._codec = FrameCodec(self.field.codec, self.field.np_dtype)
        self._raw = not self.field.codec
        self._axes = self.field.ragged_axes
        self._dtype = TORCH_DTYPES[self.field.dtype]
        self._rest: tuple[Any, ...] = self.field.shape[1:]
        self._unit = self.field.fixed_bytes
        self._per_frame = self.field.frame.samples
        self._kept = FrameStore()

    def keep(self, samples: int) -> None:
        """Makes room for the decoded frames of about `samples` samples, where frames hold several."""
        if self._per_frame is not None and self._per_frame > 1:
            # Half as much again, and a frame's worth, for frames that are larger than the mean.
            wanted = int(1.5 * self.sample_bytes() * (samples + self._per_frame))
            self._kept.limit = max(self._kept.limit, wanted)

    def sample_bytes(self) -> float:
        """Raw bytes of a sample, in the mean."""
        total = sum(int(index.arrays["sample_offsets"][-1]) for index in self._places.indexes)
        return total / max(int(self._places.first[-1]), 1)

    def locate(self, numbers: Numbers, visits: Visits | None = None) -> Numbers:
        """Return the places and shapes of samples, (n, SHAPE + axes).

        Raises:
            DamagedError: an index array is damaged.
        """
        return self._places.locate(numbers)

    def spans(self, located: Numbers) -> Numbers:
        """Return the address and size of the bytes that `read` will touch, (n, 2)."""
        return located[:, [START, STORED]]

    def raw_bytes(self, located: Numbers) -> Numbers:
        """Return the bytes of each sample when it is decoded, (n,)."""
        return located[:, BYTES]

    def read(self, located: Numbers, allocate: Allocate | None = None) -> Ragged | list[torch.Tensor] | list[str]:
        """The samples of a batch: `Ragged` where only the first axis differs, a list where others do, text as str.

        Raises:
            DamagedError: a frame cannot be decoded.
        """
        if self._axes == (0,) and self.field.kind == "array":
            return self._ragged(located, allocate or fresh)
        ends = _sums(located[:, BYTES])
        flat = (allocate or fresh)(int(ends[-1]))
        try:
            self._fill(located, ends, flat.numpy())
            if self.field.kind == "text":
                return _texts(flat, ends)
        except ValueError as error:
            raise damaged(self.field.name, error) from None
        return self._list(located, flat, ends)

    def _ragged(self, located: Numbers, allocate: Allocate) -> Ragged:
        offsets = _sums(located[:, SHAPE])
        count = int(offsets[-1])
        flat = allocate(count * self._unit)
        try:
            self._fill(located, offsets * self._unit, flat.numpy())
        except ValueError as error:
            raise damaged(self.field.name, error) from None
        return Ragged(flat.view(self._dtype).view(count, *self._rest), torch.from_numpy(offsets))

    def _fill(self, located: Numbers, ends: Numbers, flat: NDArray[np.uint8]) -> None:
        if self._raw:
            memory = self._memory.array
            # One copy a sample, by the system's memcpy: slices of the map, joined into place.
            spans = zip(located[:, START].tolist(), located[:, STORED].tolist(), strict=True)
            parts = [memory[at : at + size] for at, size in spans if size]
            if parts:
                np.concatenate(parts, out=flat)
        elif self._per_frame is None or self._per_frame == 1:
            self._decode_own(located, ends, flat)
        else:
            self._decode_shared(located, ends, flat)

    def _decode_own(self, located: Numbers, ends: Numbers, flat: NDArray[np.uint8]) -> None:
        """Decodes samples that have frames of their own."""
        frames = self._places.frames(located)
        rows = None
        if self._codec.filter:
            rows = (located[:, BYTES] // np.maximum(located[:, SHAPE], 1))[frames.item]
        undone = self._codec.decode_frames(self._memory.bytes, Frames(frames.spans, frames.sizes, rows=rows), flat)
        if self._codec.filter and not undone:
            self._undo_rows(located, ends, flat)

    def _undo_rows(self, located: Numbers, ends: Numbers, flat: NDArray[np.uint8]) -> None:
        values = flat.view(self.field.np_dtype)
        edges = (ends // self.field.itemsize).tolist()
        for shape, (start, end) in zip(located[:, SHAPE:].tolist(), itertools.pairwise(edges), strict=True):
            self._codec.undo_filter(values[start:end].reshape(1, *shape), self.field.frame.rows)

    def _decode_shared(self, located: Numbers, ends: Numbers, flat: NDArray[np.uint8]) -> None:
        """Decodes samples that share frames, each frame once if its samples are asked for together."""
        at, frame = -1, flat
        # By address, so that samples of one frame follow each other.
        for number in located[:, START].argsort().tolist():
            row, out = located[number].tolist(), flat[ends[number] : ends[number + 1]]
            stored = self._memory.bytes[row[START] : row[START] + row[STORED]]
            if not len(out):
                continue
            if row[DECODED] == len(out):
                self._codec.decode_into(stored, out)
                continue
            if row[START] != at:
                at, frame = row[START], self._kept.get(row[START], partial(self._decoded, stored, row[DECODED]))
            out[...] = frame[row[BEFORE] : row[BEFORE] + len(out)]
        if self._codec.filter:
            self._undo_rows(located, ends, flat)

    def _decoded(self, stored: memoryview, nbytes: int) -> NDArray[np.uint8]:
        frame = np.empty(nbytes, np.uint8)
        self._codec.decode_into(stored, frame)
        return frame

    def _list(self, located: Numbers, flat: torch.Tensor, ends: Numbers) -> list[torch.Tensor]:
        if not len(located):
            return []
        sizes, values = (np.diff(ends) // self.field.itemsize).tolist(), flat.view(self._dtype)
        # From a worker process they go as one piece of shared memory. Parts by `split` would share a version counter:
        # writing to one sample would fail the backward pass of another.
        together = flat.is_shared()  # type: ignore[no-untyped-call]
        parts = torch.unsafe_split_with_sizes(values, sizes) if together else own_parts(values, sizes)
        return [part.view(shape) for part, shape in zip(parts, located[:, SHAPE:].tolist(), strict=True)]


def _sums(lengths: Numbers) -> Numbers:
    """0 and the sums of the first 1, 2, ... lengths, (n + 1,)."""
    sums = np.zeros(len(lengths) + 1, np.int64)
    lengths.cumsum(out=sums[1:])
    return sums


def _texts(flat: torch.Tensor, ends: Numbers) -> list[str]:
    joined = flat.numpy().tobytes()
    edges = ends.tolist()
    try:
        return [joined[a:b].decode() for a, b in itertools.pairwise(edges)]
    except UnicodeDecodeError as error:
        raise ValueError(f"it is no UTF-8 text ({error.reason})") from None
