"""Ragged fields: samples of different shapes, and text.

As in `fixed.py`, `locate` turns numbers into places for as many batches as the caller likes, and `read` copies or
decodes. Index arrays are fetched for all samples of a call at once; the bytes themselves take one slice or one
decode call a sample, into place, or one call for all where machine code decodes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packer.codecs import rowdelta
from packer.codecs.configs import FrameCodec, Frames
from packer.format.limits import MAX_CHUNK_BYTES
from packer.format.schema import MAX_AXIS
from readers.draws import Visits
from readers.fixed import TORCH_DTYPES, Allocate, damaged
from readers.frame_cache import FrameStore
from readers.fresh import fresh, own_parts
from readers.places import Numbers, Places
from readers.ragged import Ragged

# Columns of what `locate` gives; lengths of the ragged axes follow. _FRAME_RAW: bytes of the decoded frame, or,
# for a sample in bands, the address of their ends.
_FIRST_FRAME, _END_FRAME, _ADDRESS, _STORED, _RAW, _BEFORE, _FRAME_RAW, _AXES = range(8)


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
        self._sample_offsets_at = places.array_at("sample_offsets")
        self._shapes_at = places.array_at("shapes")
        rule = self.field.frame
        self._per_frame = rule.samples
        self._kept = FrameStore()
        self._frames_at = places.array_at("sample_frames") if rule.rows is not None else None
        self._offsets_at = None if self._raw else places.array_at("frame_offsets")

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
        """Places and shapes of samples, (n, 7 + ragged axes).

        Raises:
            DamagedError: an index array is damaged.
        """
        shard = self._places.shard_of(numbers)
        local = numbers - self._places.first[shard]
        out = np.empty((len(numbers), _AXES + len(self._axes)), np.int64)
        span = self._memory.words(self._sample_offsets_at[shard] + 8 * local, 2)
        out[:, _RAW] = span[:, 1] - span[:, 0]
        width = len(self._axes)
        out[:, _AXES:] = self._memory.words(self._shapes_at[shard] + 8 * width * local, width)
        self._check_shapes(out)
        if self._raw:
            stored = self._places.stored_at(numbers, span)
            out[:, _FIRST_FRAME : _END_FRAME + 1] = 0
            out[:, _BEFORE] = 0
            out[:, _FRAME_RAW] = out[:, _RAW]
        elif self._per_frame is not None:
            stored = self._locate_shared(numbers, shard, local, span, out)
        else:
            stored = self._locate_bands(numbers, shard, local, out)
        out[:, _ADDRESS] = stored[:, 0]
        out[:, _STORED] = stored[:, -1] - stored[:, 0]
        return out

    def spans(self, located: Numbers) -> Numbers:
        """Address and size of the bytes that `read` will touch, (n, 2)."""
        return located[:, [_ADDRESS, _STORED]]

    def shapes(self, located: Numbers) -> Numbers:
        """Shape of each sample, (n, axes)."""
        out = np.empty((len(located), len(self.field.shape)), np.int64)
        out[:] = [n or 0 for n in self.field.shape]
        out[:, list(self._axes)] = located[:, _AXES:]
        return out

    def raw_bytes(self, located: Numbers) -> Numbers:
        """Bytes of each sample when it is decoded, (n,)."""
        return located[:, _RAW]

    def has_rows_of(self, other: Varied) -> bool:
        """Whether each sample has the same lengths of its ragged axes in another field of the dataset."""
        pairs = zip(self._places.indexes, other._places.indexes, strict=True)
        return all(np.array_equal(a.arrays["shapes"], b.arrays["shapes"]) for a, b in pairs)

    def frames(self, located: Numbers, item: Numbers, band: Numbers) -> Numbers:
        """Start and end of the frames with band `band` (m,) of the samples `item` (m,) of `located`, (m, 2).

        Raises:
            DamagedError: they do not lie within the bytes of their sample.
        """
        at, size = located[item, _ADDRESS], located[item, _STORED]
        if self._per_frame is not None:
            return np.stack([at, at + size], axis=1)
        edges_at = located[item, _FRAME_RAW]
        first = self._memory.words(edges_at, 1)
        edges = self._memory.words(edges_at + 8 * band, 2) - first
        known = (band >= 0) & (band < located[item, _END_FRAME] - located[item, _FIRST_FRAME])
        ascending = (edges[:, 0] >= 0) & (edges[:, 0] <= edges[:, 1]) & (edges[:, 1] <= size)
        if not (known & ascending).all():
            raise self._places.damaged()
        spans: Numbers = edges + at[:, None]
        return spans

    def inside(self, located: Numbers) -> Numbers:
        """Bytes before each sample in its decoded frame, and bytes of that frame, (n, 2); not for bands."""
        return located[:, [_BEFORE, _FRAME_RAW]]

    def read(self, located: Numbers, allocate: Allocate | None = None) -> Ragged | list[torch.Tensor] | list[str]:
        """The samples of a batch: `Ragged` where only the first axis differs, a list where others do, text as str.

        Raises:
            DamagedError: a frame cannot be decoded.
        """
        if self._axes == (0,) and self.field.kind == "array":
            return self._ragged(located, allocate or fresh)
        ends = _sums(located[:, _RAW])
        flat = (allocate or fresh)(int(ends[-1]))
        try:
            self._fill(located, ends, flat.numpy())
            if self.field.kind == "text":
                return _texts(flat, ends)
        except ValueError as error:
            raise damaged(self.field.name, error) from None
        return self._list(located, flat, ends)

    def _ragged(self, located: Numbers, allocate: Allocate) -> Ragged:
        offsets = _sums(located[:, _AXES])
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
            spans = zip(located[:, _ADDRESS].tolist(), located[:, _STORED].tolist(), strict=True)
            # One copy a sample, by the system's memcpy: slices of the map, joined into place.
            parts = [memory[at : at + size] for at, size in spans if size]
            if parts:
                np.concatenate(parts, out=flat)
            return
        if self._per_frame == 1:
            self._decode_own(located, ends, flat)
            return
        decode = self._decode_shared if self._per_frame is not None else self._decode_bands
        last: tuple[int, NDArray[np.uint8]] = (-1, flat)
        # By address, so that samples of one frame follow each other.
        order = located[:, _ADDRESS].argsort()
        places = zip(located[order].tolist(), ends[order].tolist(), ends[order + 1].tolist(), strict=True)
        for row, start, end in places:
            if end > start:
                last = decode(row, flat[start:end], last)

    def _decode_own(self, located: Numbers, ends: Numbers, flat: NDArray[np.uint8]) -> None:
        """Decodes samples that have frames of their own."""
        start = located[:, _ADDRESS]
        spans, sizes = np.stack([start, start + located[:, _STORED]], axis=1), located[:, _RAW]
        rows = sizes // np.maximum(self.shapes(located)[:, 0], 1) if self._codec.rowdelta else None
        undone = self._codec.decode_frames(self._memory.bytes, Frames(spans, sizes, rows=rows), flat)
        if self._codec.rowdelta and not undone:
            values = flat.view(self.field.np_dtype)
            edges = (ends // self.field.itemsize).tolist()
            for row, (first, behind) in zip(located.tolist(), itertools.pairwise(edges), strict=True):
                rowdelta.accumulate(values[first:behind].reshape(1, *self._shape(row)))

    def _decode_shared(
        self, row: list[int], out: NDArray[np.uint8], last: tuple[int, NDArray[np.uint8]]
    ) -> tuple[int, NDArray[np.uint8]]:
        """Decodes a sample that may share its frame; `last` holds address and bytes of the last frame decoded."""
        at, stored = row[_ADDRESS], self._memory.bytes[row[_ADDRESS] : row[_ADDRESS] + row[_STORED]]
        if row[_FRAME_RAW] == len(out):
            self._codec.decode_into(stored, out)
        else:
            if last[0] != at:

                def decoded() -> NDArray[np.uint8]:
                    frame = np.empty(row[_FRAME_RAW], np.uint8)
                    self._codec.decode_into(stored, frame)
                    return frame

                last = (at, self._kept.get(at, decoded))
            out[...] = last[1][row[_BEFORE] : row[_BEFORE] + len(out)]
        if self._codec.rowdelta:
            rowdelta.accumulate(out.view(self.field.np_dtype).reshape(1, *self._shape(row)))
        return last

    def _decode_bands(
        self, row: list[int], out: NDArray[np.uint8], last: tuple[int, NDArray[np.uint8]]
    ) -> tuple[int, NDArray[np.uint8]]:
        """Decodes the bands of rows of one sample."""
        shape = self._shape(row)
        rows = self.field.frame.rows or 1
        band = rows * (len(out) // max(shape[0], 1))
        offsets = self._memory.words(np.array([row[_FRAME_RAW]]), row[_END_FRAME] - row[_FIRST_FRAME] + 1)[0]
        edges = (offsets - offsets[0] + row[_ADDRESS]).tolist()
        if len(edges) - 1 != -(-shape[0] // rows) or any(a > b for a, b in itertools.pairwise(edges)):
            raise ValueError("its bands do not fit its shape")
        for number, (start, end) in enumerate(itertools.pairwise(edges)):
            self._codec.decode_into(self._memory.bytes[start:end], out[number * band : (number + 1) * band])
        if self._codec.rowdelta:
            image = out.view(self.field.np_dtype).reshape(1, *shape)
            for at in range(0, shape[0], rows):
                rowdelta.accumulate(image[:, at : at + rows])
        return last

    def _locate_shared(self, numbers: Numbers, shard: Numbers, local: Numbers, span: Numbers, out: Numbers) -> Numbers:
        """Ends of each sample's frame; fills in where in the decoded frame the sample lies."""
        assert self._offsets_at is not None
        step = self._per_frame or 1
        frame = local // step
        held = self._places.first[shard + 1] - self._places.first[shard]
        first, last = frame * step, np.minimum((frame + 1) * step, held)
        begin = self._memory.words(self._sample_offsets_at[shard] + 8 * first, 1)[:, 0]
        end = self._memory.words(self._sample_offsets_at[shard] + 8 * last, 1)[:, 0]
        out[:, _FIRST_FRAME], out[:, _END_FRAME] = frame, frame + 1
        out[:, _BEFORE] = span[:, 0] - begin
        out[:, _FRAME_RAW] = end - begin
        inside = (out[:, _BEFORE] >= 0) & (span[:, 1] <= end) & (out[:, _FRAME_RAW] <= MAX_CHUNK_BYTES)
        if not inside.all():
            raise self._places.damaged()
        return self._places.stored_at(numbers, self._memory.words(self._offsets_at[shard] + 8 * frame, 2))

    def _locate_bands(self, numbers: Numbers, shard: Numbers, local: Numbers, out: Numbers) -> Numbers:
        """First and last end of each sample's bands; fills in their numbers and where their ends are written."""
        assert self._offsets_at is not None
        assert self._frames_at is not None
        frames = self._memory.words(self._frames_at[shard] + 8 * local, 2)
        total = np.array([index.frames for index in self._places.indexes], np.int64)[shard]
        if not ((frames[:, 0] >= 0) & (frames[:, 0] <= frames[:, 1]) & (frames[:, 1] <= total)).all():
            raise self._places.damaged()
        out[:, _FIRST_FRAME], out[:, _END_FRAME] = frames[:, 0], frames[:, 1]
        out[:, _BEFORE] = 0
        out[:, _FRAME_RAW] = self._offsets_at[shard] + 8 * frames[:, 0]
        first = self._memory.words(self._offsets_at[shard] + 8 * frames[:, 0], 1)
        last = self._memory.words(self._offsets_at[shard] + 8 * frames[:, 1], 1)
        return self._places.stored_at(numbers, np.concatenate([first, last], axis=1))

    def _check_shapes(self, out: Numbers) -> None:
        """Checks that shapes and sizes agree, before anything is allocated by them."""
        size = np.full(len(out), float(self._unit))
        for axis in range(len(self._axes)):
            size *= out[:, _AXES + axis]
        axes = out[:, _AXES:]
        sound = (axes >= 0) & (axes <= MAX_AXIS)
        if not (sound.all() and (size == out[:, _RAW]).all() and (size <= MAX_CHUNK_BYTES).all()):
            raise self._places.damaged()

    def _shape(self, row: list[int]) -> tuple[int, ...]:
        ragged: Iterator[int] = iter(row[_AXES:])
        return tuple(next(ragged) if n is None else n for n in self.field.shape)

    def _list(self, located: Numbers, flat: torch.Tensor, ends: Numbers) -> list[torch.Tensor]:
        if not len(located):
            return []
        sizes, values = (np.diff(ends) // self.field.itemsize).tolist(), flat.view(self._dtype)
        # From a worker process they go as one piece of shared memory. Parts by `split` would share a version counter:
        # writing to one sample would fail the backward pass of another.
        together = flat.is_shared()  # type: ignore[no-untyped-call]
        parts = torch.unsafe_split_with_sizes(values, sizes) if together else own_parts(values, sizes)
        return [part.view(self._shape(row)) for part, row in zip(parts, located.tolist(), strict=True)]


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
