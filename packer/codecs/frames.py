"""Encodes, decodes and hashes frames, with the codec of their column; many by one call of machine code.

Frames come from disk, so decoding never allocates what a stored size claims: the caller says how many bytes it
expects, and any other number is a `ValueError`.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from packer.codecs import compiled
from packer.codecs.encoded import bands_of, file_of
from packer.codecs.filters import DECIMAL, PHOTO, restore_decimals, restore_photo, store_decimals, store_photo
from packer.codecs.h264 import GROUP_STEPS, H264, decode_h264, encode_h264
from packer.codecs.jpeg import JPEG, decode_jpeg, encode_jpeg, file_of_frame, frame_of_file
from packer.codecs.stages import BloscOfPixels, Buffer, Config, Lz4, flat_bytes, make_stage
from packer.errors import UsageError

#: A frame is kept raw unless encoding saves this part of it: below that, decoding costs more time than reading the
#: bytes that it saves.
LEAST_SAVING = 1 / 16
#: LZ4 is chosen for speed: below this saving it leaves more frames raw, which take hardly more space.
LEAST_LZ4_SAVING = 1 / 8
#: An earlier stage hands on at most this many times the raw bytes (numbers widened, text of numbers).
_MOST_BETWEEN = 16
#: Of frames that are decoded one after the other.
_NO_PLACES = np.empty(0, np.int64)
#: Bytes that are hashed by one call of machine code, about: Ctrl-C waits for its end.
CALL_BYTES = 2**26


class FrameError(ValueError):
    """The frame `number` of several cannot be decoded."""

    def __init__(self, number: int, reason: object) -> None:
        super().__init__(str(reason))
        self.number = number


class Frames(NamedTuple):
    """Frames that are decoded by one call.

    Attributes:
        spans: first byte of each and the one after its last, (n, 2) int64.
        sizes: raw bytes of each, (n,) int64.
        places: first byte of each when decoded, (n,) int64; one after the other if None.
        shapes: of the image or band in each, (n, 3) int64, if the filter is to be undone; frames then lie one after
            the other.
    """

    spans: NDArray[np.int64]
    sizes: NDArray[np.int64]
    places: NDArray[np.int64] | None = None
    shapes: NDArray[np.int64] | None = None


def loss_of(configs: Sequence[Config]) -> int | None:
    """Return how much values are changed when they are stored: a quality, or a rate factor; None if they are not."""
    first: Config = configs[0] if configs else {"id": ""}
    return {JPEG: first.get("quality"), H264: first.get("crf")}.get(first["id"])


class FrameCodec:
    """Encodes and decodes the frames of one column.

    The caller applies the filter of images before `encode`, by `filtered`. `decode_frames` undoes it if it is given the
    shapes of images; else `undo_filter` does. Instances hold no state between calls and may be used by several threads.

    Args:
        channels: of the images of the column; 0 if they differ, or it has no images.
        image_axes: how many of the last axes are one image of `jpeg`, 2 or 3; an attribute, too.

    Attributes:
        is_photo: whether it begins with `photo`, the filter of images.
        is_jpeg: whether frames are JPEG files, or raw images.
        is_h264: whether frames are groups of steps in H.264, or raw ones.
        loss: the quality of the JPEG files that are made of images, or the rate factor of H.264; None if values stay.
        is_raw: whether bytes are stored as they are.
    """

    def __init__(self, configs: Sequence[Config], dtype: np.dtype[Any], channels: int = 0, image_axes: int = 3) -> None:
        self.dtype, self.image_axes = dtype, image_axes
        first = configs[0]["id"] if configs else ""
        self.is_photo, self.is_jpeg, self.is_h264 = first == PHOTO, first == JPEG, first == H264
        self.loss: int | None = loss_of(configs)
        #: That one file of a clip holds.
        self.steps = GROUP_STEPS if self.is_h264 else 1
        self._digits: int | None = configs[0]["digits"] if first == DECIMAL else None
        self._scale = 0.0 if self._digits is None else float(10**self._digits)
        coding = list(configs[1:] if first in (DECIMAL, H264, JPEG, PHOTO) else configs)
        self._stages = [make_stage(config) for config in coding]
        if self.is_photo and coding and coding[0]["id"] == "blosc":
            self._stages[0] = BloscOfPixels(coding[0], channels * dtype.itemsize)
        self.is_raw = not coding and not self.keeps_files
        self._least_saving = LEAST_LZ4_SAVING if [type(stage) for stage in self._stages] == [Lz4] else LEAST_SAVING
        self._number = compiled.number_of(configs)
        #: The channels of images whose filter the loops can undo; else 0.
        self._channels = channels if self.is_photo else 0

    def encode(self, frame: NDArray[Any]) -> Buffer:
        """Return the stored bytes of a frame (C-contiguous): the raw bytes if encoding saves too little.

        Of an `EncodedImage`, `jpeg` and `h264` store its file or stream. Of other images (..., H, W, C) they make one;
        `jpeg` does if it has a quality.

        Raises:
            UsageError: the codec cannot take this frame, or loses bits of it.
        """
        if self.keeps_files and (file := file_of(frame, self.steps)):
            return frame_of_file(file, frame.nbytes) if self.is_jpeg else file
        raw = frame.reshape(-1).view(np.uint8).data
        if self.is_raw or (self.is_jpeg and self.loss is None) or not frame.nbytes:
            return raw
        if self.loss is not None:
            try:
                if self.is_h264:
                    made = encode_h264(frame, self.loss)
                else:
                    made = encode_jpeg(frame.reshape(self.image_shape(frame.shape)), self.loss)
            except ValueError as error:
                raise UsageError(f"codec {H264 if self.is_h264 else JPEG}: {error}; take another one") from None
            return made if len(made) <= frame.nbytes * (1 - self._least_saving) else raw
        value: Any = frame.reshape(-1).view(self.dtype)
        if self._digits is not None and (value := store_decimals(value, self._digits)) is None:
            return raw
        try:
            for stage in self._stages:
                value = stage.encode(value)
            stored = flat_bytes(value)
        except Exception as error:  # numcodecs raises many kinds for numbers that do not suit a codec
            raise UsageError(f"codec {self._name} cannot encode {self.dtype.name}: {error}; take another one") from None
        is_exact = all(stage.is_exact for stage in self._stages)
        with contextlib.suppress(ValueError):
            is_exact = is_exact or self._decoded(stored, len(raw)) == raw
        if not is_exact:
            raise UsageError(f"codec {self._name} does not give back every bit of {self.dtype.name}; take another one")
        return stored if len(stored) <= frame.nbytes * (1 - self._least_saving) else raw

    def image_shape(self, shape: Sequence[int]) -> list[int]:
        """Return height, width and channels of the image in a frame, or of those in a clip, of some shape."""
        return [*shape[-self.image_axes :], 1][:3]

    @property
    def keeps_files(self) -> bool:
        """Return whether a frame is a whole file or stream of another format, which is not made anew."""
        return self.is_jpeg or self.is_h264

    def pieces(self, values: NDArray[Any]) -> Iterator[NDArray[Any]]:
        """Yield what is one frame each, of an image or a clip that `jpeg` or `h264` stores."""
        return bands_of(values, self.steps) if values.ndim > self.image_axes else iter([values])

    def is_kept(self, piece: NDArray[Any]) -> bool:
        """Return whether a piece comes back as it is, since its file or stream is stored as it is."""
        return bool(file_of(piece, self.steps))

    def as_stored(self, value: Any) -> Any:
        """Return a value as it comes back once it was stored: an image or a clip is changed if there is a loss."""
        if self.loss is None:
            return value
        values = np.asanyarray(value)
        stored = np.array(values)
        for out, piece in zip(self.pieces(stored), self.pieces(values), strict=True):
            frame = memoryview(self.encode(piece))
            if not self.is_kept(piece) and len(frame) != out.nbytes:
                self._decode_picture(frame, out.shape, out.reshape(-1))
        return stored

    def _decode_picture(self, frame: memoryview, shape: Sequence[int], out: NDArray[np.uint8]) -> None:
        """Decode a JPEG file or a stream of H.264, in a frame of some shape, into `out` (bytes,)."""
        if self.is_h264:
            decode_h264(frame, shape, out)
        else:
            decode_jpeg(frame, self.image_shape(shape), out)

    def decode(self, stored: memoryview, nbytes: int) -> Buffer:
        """Return the `nbytes` raw bytes of a stored frame.

        Raises:
            ValueError: the frame is damaged.
        """
        if len(stored) == nbytes:
            return stored
        if self.is_raw:
            raise ValueError(f"{len(stored)} bytes stored, {nbytes} expected")
        return self._decoded(stored, nbytes)

    def _decoded(self, stored: memoryview, nbytes: int) -> memoryview:
        first, *others = self._stages
        try:
            for stage in reversed(others):
                stored = stage.decode(stored, _MOST_BETWEEN * (nbytes + 256))
            raw = first.decode(stored, nbytes, nbytes)
        except ValueError:
            raise
        except MemoryError as error:
            if self._number is not None:  # no frame is to blame: its size was known
                raise
            raise ValueError(str(error)) from None
        except Exception as error:  # numcodecs raises RuntimeError, TypeError and others for damaged input
            raise ValueError(f"{type(error).__name__}: {error}") from None
        if len(raw) != nbytes:
            raise ValueError(f"{len(raw)} bytes decoded, {nbytes} expected")
        if self._digits is None:
            return raw
        values = np.empty(nbytes // self.dtype.itemsize, self.dtype)
        restore_decimals(np.frombuffer(raw, f"<i{self.dtype.itemsize}"), self._digits, values)
        return flat_bytes(values)

    def decode_frames(self, memory: NDArray[np.uint8], frames: Frames, out: NDArray[np.uint8]) -> None:
        """Decode frames of `memory` into `out` (bytes,), C-contiguous; undo the filter if `frames` has their shapes.

        Raises:
            FrameError: a frame is damaged, or lies outside of the memory.
        """
        loops = None if self._number is None else compiled.loading.loops()
        # If the loops find a damaged frame, decoding by Python finds it again, and names it.
        if loops is None or not self._decode_by_loops(loops, memory, frames, out):
            self._decode_by_python(memory, frames, out)

    def _decode_by_loops(
        self, loops: ModuleType, memory: NDArray[np.uint8], frames: Frames, out: NDArray[np.uint8]
    ) -> bool:
        """Do as `decode_frames`; return whether all frames could be decoded."""
        spans, sizes, places, shapes = frames
        # The filter is undone while a frame is in the processor's cache.
        channels = 0 if shapes is None else self._channels
        heights = shapes[:, 0] if shapes is not None and channels else sizes
        numbers = map(np.ascontiguousarray, (spans, sizes, _NO_PLACES if places is None else places, heights))
        context = _zstd_context(loops)
        settings = self.dtype.itemsize, channels, self._scale, context.address
        if loops.decode(self._number, memory, *numbers, *settings, out) < len(sizes):
            return False
        if not channels:
            self.undo_filter(out, shapes)
        return True

    def _decode_by_python(self, memory: NDArray[np.uint8], frames: Frames, out: NDArray[np.uint8]) -> None:
        """Do as `decode_frames`, frame by frame."""
        spans, sizes, places, shapes = frames
        if places is None:
            places = sizes.cumsum() - sizes
        began = time.perf_counter()
        view = memory.data
        each = zip(spans.tolist(), sizes.tolist(), places.tolist(), strict=True)
        for number, ((start, end), size, place) in enumerate(each):
            # Slices of Python would count negative numbers from the end, and stop at the end.
            if not (0 <= start <= end <= len(memory) and size >= 0 and 0 <= place <= len(out) - size):
                raise FrameError(number, "an index points outside of the stored or the decoded bytes")
            try:
                if self.keeps_files and end - start != size:
                    assert shapes is not None, "each frame holds one image, or steps of one clip"
                    frame = file_of_frame(view[start:end], size)
                    self._decode_picture(frame, shapes[number].tolist(), out[place : place + size])
                else:
                    out.data[place : place + size] = self.decode(view[start:end], size)
            except ValueError as error:
                raise FrameError(number, error) from None
        if self._number is not None:
            compiled.loading.seconds += time.perf_counter() - began
        self.undo_filter(out, shapes)

    def filtered(self, images: NDArray[Any]) -> NDArray[Any]:
        """Return whole images, or bands of them, (n, rows, width, channels), ready for `encode`."""
        return store_photo(images) if self.is_photo else images

    def undo_filter(self, out: NDArray[np.uint8], shapes: NDArray[np.int64] | None) -> None:
        """Undo the filter of images or bands of some shapes (n, 3), which lie one after another in `out` (bytes,)."""
        if not self.is_photo or shapes is None:
            return
        values = out.view(self.dtype)
        if len(shapes) and (shapes == shapes[0]).all():
            restore_photo(values.reshape(len(shapes), *shapes[0].tolist()))
            return
        ends = shapes.prod(axis=1).cumsum().tolist()
        for start, end, shape in zip([0, *ends], ends, shapes.tolist(), strict=False):
            restore_photo(values[start:end].reshape(1, *shape))

    @property
    def _name(self) -> str:
        return "+".join(stage.id for stage in self._stages)


#: What a thread keeps from call to call.
_of_thread = threading.local()


def _zstd_context(loops: ModuleType) -> Any:
    """Return this thread's decoder of zstd for machine code, a `ZstdContext`.

    The caller refers to it while it decodes: a process that ends drops what its threads keep, and they may still work.
    """
    if not hasattr(_of_thread, "context"):
        _of_thread.context = loops.ZstdContext()
    return _of_thread.context


def frame_hashes(memory: memoryview, spans: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return the xxh3 (64 bits) of each frame of `memory`, (n,).

    Args:
        spans: first byte of each frame and the one after its last, (n, 2).
    """
    digests = np.empty(len(spans), np.uint64)
    loops = compiled.loading.loops()
    if loops is not None:
        data, ends = np.frombuffer(memory, np.uint8), (spans[:, 1] - spans[:, 0]).cumsum()
        edges = np.flatnonzero(np.diff(ends // CALL_BYTES)) + 1
        parts = zip(np.split(np.ascontiguousarray(spans), edges), np.split(digests, edges), strict=True)
        if all(loops.hashes(data, part, into) == len(into) for part, into in parts):
            return digests
    began = time.perf_counter()
    digests[:] = [xxhash.xxh3_64_intdigest(memory[start:end]) for start, end in spans.tolist()]
    compiled.loading.seconds += time.perf_counter() - began
    return digests
