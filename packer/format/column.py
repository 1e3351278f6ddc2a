"""Reads one column of one shard, for verifying, exporting and packing again: all of it, or some samples at a time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.codecs import EncodedImage, check_jpeg, file_of_frame
from packer.format.arrays import Numbers, starts_of
from packer.format.column_index import ColumnIndex
from packer.format.frame_cache import FrameCache
from packer.format.locator import Located, Locator

#: Frames checked at a time: enough that the array of their checksums costs nothing, few enough for a progress bar.
_CHECKED = 4096
#: Bytes of decoded frames that a column keeps.
_COLUMN_BYTES = 2**22


class Column(Locator):
    """Reads one column of one shard: decodes its samples, and checks its frames."""

    def __init__(self, index: ColumnIndex, file: memoryview) -> None:
        memory = np.frombuffer(file, np.uint8)
        super().__init__(index.field, [index.samples], memory, lambda _: [(index, 0)], FrameCache(_COLUMN_BYTES))
        self.index = index

    def frames_of(self, numbers: Numbers) -> Located:
        """Return the frames that hold some samples of the shard (n,), each once.

        Raises:
            DamagedError: an index array is damaged.
        """
        return self.frames(self.locate(np.unique(numbers // self._together) * self._together))

    def check_samples(self) -> None:
        """Check that shape, size and frames of every sample agree, if samples differ in them.

        Raises:
            DamagedError: they do not; the message names the first sample of the shard that is wrong.
        """
        if self.field.is_ragged:
            for start in range(0, self.index.samples, _CHECKED):
                self.locate(np.arange(start, min(start + _CHECKED, self.index.samples)))

    def check_frames(self) -> Iterator[tuple[int, dict[int, str]]]:
        """Check all frames, some at a time: their checksums, and what JPEG files say of themselves.

        Yields:
            how many bytes were checked, and of the frames that are wrong what is wrong with each, by their numbers.

        Raises:
            DamagedError: an index array is damaged.
        """
        for start in range(0, self.index.samples, _CHECKED * self._together):
            stop = min(start + _CHECKED * self._together, self.index.samples)
            frames = self.frames_of(np.arange(start, stop, self._together))
            is_wrong = self.are_wrong(frames)
            wrong = {frame: f"the checksum of frame {frame} is wrong" for frame in frames.frame[is_wrong].tolist()}
            if self.codec.is_jpeg:
                wrong |= self._wrong_files(frames[~is_wrong])
            yield int(frames.stored.sum()), wrong

    def _wrong_files(self, frames: Located) -> Iterator[tuple[int, str]]:
        """Yield the number of each frame with a JPEG file that a reader refuses, and why."""
        for index, (start, end) in enumerate(frames.spans.tolist()):
            if file := file_of_frame(self._bytes.data[start:end], int(frames.decoded[index])):
                try:
                    check_jpeg(file, self.codec.image_shape(frames.shape[index].tolist()))
                except ValueError as error:
                    yield int(frames.frame[index]), f"the JPEG file in frame {int(frames.frame[index])}: {error}"

    def read(self, start: int, stop: int) -> Any:
        """Return the samples start..stop, as `take` does."""
        return self.take(range(start, stop))

    def take(self, numbers: Numbers | range) -> Any:
        """Return some samples (m,), in this order: one new array (m, *shape); of a ragged field a list.

        Each array of a list owns its memory. With the codecs `jpeg` and `h264` it is a list, too, of `EncodedImage`.

        Raises:
            DamagedError: a frame cannot be decoded; the message names the samples it holds.
        """
        field = self.field
        if not (field.is_ragged or self.codec.keeps_files):
            out = np.empty((len(numbers), *(n or 0 for n in field.shape)), field.np_dtype)
            for first in range(0, len(numbers), _CHECKED):  # so that places of many small samples take little memory
                located = self.locate(np.asarray(numbers[first : first + _CHECKED], np.int64))
                self.decode(located, out[first : first + _CHECKED].reshape(-1).view(np.uint8))
            return out
        located = self.locate(np.asarray(numbers, np.int64))
        whole = np.empty(int(located.nbytes.sum()), np.uint8)
        self.decode(located, whole)
        flat = whole.view(field.np_dtype)
        edges = starts_of(located.nbytes // field.itemsize).tolist()
        parts = zip(itertools.pairwise(edges), located.shape.tolist(), strict=True)
        samples = [flat[first:last].reshape(shape).copy() for (first, last), shape in parts]
        if not self.codec.keeps_files:
            return samples
        frames = self.frames(located)
        spans = zip(frames.spans.tolist(), frames.decoded.tolist(), strict=True)
        files = [bytes(file_of_frame(self._bytes.data[start:end], nbytes)) for (start, end), nbytes in spans]
        steps = itertools.pairwise(starts_of(located.frames).tolist())
        of_samples = zip(samples, steps, strict=True)
        return [EncodedImage.of(image, *files[a:b], steps=self.codec.steps) for image, (a, b) in of_samples]

    def bands(self, number: int) -> Iterator[NDArray[Any]]:
        """Yield the bands of one sample in order, if frames hold rows; each owns its memory.

        Raises:
            DamagedError: as `read`.
        """
        frames = self.frames_of(np.array([number]))
        for index, shape in enumerate(frames.shape.tolist()):
            band = np.empty(shape, self.field.np_dtype)
            self.decode_frames(frames[index : index + 1], band.reshape(-1).view(np.uint8))
            yield band
