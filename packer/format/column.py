"""Reads one column of one shard: decodes its samples and checks its frames."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from packer.codecs import rowdelta
from packer.codecs.configs import FrameCodec
from packer.codecs.frame_hashes import frame_hashes
from packer.errors import DamagedError
from packer.format.column_index import ColumnIndex

#: What wrong numbers in an index lead to, wherever they are first used.
_DAMAGE = (ValueError, IndexError, OverflowError, MemoryError)
#: Frames checked at a time: enough that the array of their checksums costs nothing, few enough for a progress bar.
_CHECKED = 4096


class Column:
    """Samples of one column, decoded one by one or in runs; for verifying, exporting and packing again.

    Training reads through `readers`, which gathers whole batches over all shards.
    """

    def __init__(self, index: ColumnIndex, file: memoryview, path: str) -> None:
        self.index = index
        self.field = index.field
        self._file = file
        self._path = path
        self._codec = FrameCodec(self.field.codec, self.field.np_dtype)

    def check_frame(self, frame: int, span: tuple[int, int] | None = None) -> bool:
        """Whether the checksum of a frame is right; `span` is where it lies, if the caller knows.

        Raises:
            DamagedError: the index does not lead to the frame.
        """
        try:
            start, end = span or self.index.frame_span(frame)
        except _DAMAGE as error:
            raise self._damaged(f"frame {frame}", error) from None
        return bool(xxhash.xxh3_64_intdigest(self._file[start:end]) == int(self.index.arrays["checksums"][frame]))

    def check_frames(self) -> Iterator[tuple[int, list[tuple[int, int]]]]:
        """Checks all frames, some at a time: bytes that were checked, and where and which the wrong frames are.

        Raises:
            DamagedError: the index does not lead to the frames.
        """
        spans, checksums = self.frame_spans(), self.index.arrays["checksums"]
        for first in range(0, len(spans), _CHECKED):
            some = np.ascontiguousarray(spans[first : first + _CHECKED])
            wrong = np.flatnonzero(frame_hashes(self._file, some) != checksums[first : first + _CHECKED]).tolist()
            yield int((some[:, 1] - some[:, 0]).sum()), [(int(some[i, 0]), first + i) for i in wrong]

    def read(self, start: int, stop: int) -> list[NDArray[Any]]:
        """The samples start..stop, each of its own shape, as arrays that own their memory.

        Raises:
            DamagedError: a frame cannot be decoded; the message names the samples it holds.
        """
        try:
            return self._read(start, stop)
        except _DAMAGE as error:
            raise self._damaged(f"samples {start} to {stop - 1}", error) from None

    def array(self, start: int, stop: int) -> NDArray[Any]:
        """Return the samples start..stop of a field of fixed shape as one array (m, *shape), not to be written to.

        Raises:
            DamagedError: as `read`.
        """
        shape = tuple(n or 0 for n in self.field.shape)
        try:
            first, raw = self._frames_of(start, stop)
            values = np.frombuffer(raw, self.field.np_dtype, (stop - first) * math.prod(shape))
        except _DAMAGE as error:
            raise self._damaged(f"samples {start} to {stop - 1}", error) from None
        samples = values.reshape(stop - first, *shape)[start - first :]
        if self._codec.rowdelta:
            samples = samples.copy()
            step = self.field.frame.rows or max(shape[0], 1)
            for row in range(0, shape[0], step):
                rowdelta.accumulate(samples[:, row : row + step])
        return samples

    def _frames_of(self, start: int, stop: int) -> tuple[int, bytes]:
        """Number of the first sample in the frames that hold start..stop, and the bytes of these frames."""
        first, last = self.index.frame_range(start, stop)
        if not 0 <= first <= last <= self.index.frames:
            raise ValueError(f"frames {first} to {last} are not all there")
        together = self.field.frame.samples or 1
        return start // together * together, b"".join(self._decode(frame) for frame in range(first, last))

    def _read(self, start: int, stop: int) -> list[NDArray[Any]]:
        begin, raw = self._frames_of(start, stop)
        out = []
        at = 0
        for sample in range(begin, stop):
            shape = self.index.shape_of(sample)
            array = np.frombuffer(raw, self.field.np_dtype, math.prod(shape), at).reshape(shape)
            at += array.nbytes
            if sample >= start:
                out.append(self._undo_delta(array))
        return out

    def _decode(self, frame: int) -> bytes | bytearray | memoryview:
        start, end = self.index.frame_span(frame)
        try:
            return self._codec.decode(self._file[start:end], self.index.frame_bytes(frame))
        except ValueError as error:
            first, last = self.index.sample_range(frame)
            raise self._damaged(f"samples {first} to {last - 1}", error) from None

    def frame_spans(self) -> NDArray[np.int64]:
        """Start and end in the file of every frame, (frames, 2).

        Raises:
            DamagedError: the index does not lead to the frames.
        """
        try:
            return self.index.frame_spans(0, self.index.frames)
        except _DAMAGE as error:
            raise self._damaged("all samples", error) from None

    def _damaged(self, where: str, error: Exception) -> DamagedError:
        return DamagedError(
            f"{self._path}: field {self.field.name!r}, {where} of the shard: {error}; "
            "run `packer verify`, then `packer repair`"
        )

    def _undo_delta(self, array: NDArray[Any]) -> NDArray[Any]:
        array = array.copy()
        if self._codec.rowdelta:
            step = self.field.frame.rows or max(len(array), 1)
            for row in range(0, len(array), step):
                rowdelta.accumulate(array[None, row : row + step])
        return array
