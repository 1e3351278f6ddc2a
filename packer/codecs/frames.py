"""Frames: encoded and decoded by the codec of their column, and hashed; many by one call of machine code.

Frames come from disk, so decoding never allocates what a stored size claims: the caller says how many bytes it
expects, and any other number is a `ValueError`.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from packer.codecs import compiled
from packer.codecs.filters import FILTERS
from packer.codecs.stages import BloscOfPixels, Buffer, Config, Lz4, ZstdOfDifferences, flat_bytes, make_stage
from packer.errors import UsageError

#: A frame is kept raw unless encoding saves this part of it: decoding one that saves 3% costs
#: more time than reading the 3%.
LEAST_SAVING = 1 / 16
#: LZ4 is chosen for speed: keeping frames raw below this saving leaves a quarter fewer to decode of photographs,
#: which take hardly more space.
LEAST_LZ4_SAVING = 1 / 8
#: An earlier stage hands on at most this many times the raw bytes (numbers widened, text of numbers).
_MOST_BETWEEN = 16
#: Bytes that are hashed by one call of machine code, about: Ctrl-C waits for its end.
CALL_BYTES = 2**26


class Frames(NamedTuple):
    """Frames that are decoded by one call.

    Attributes:
        spans: first byte of each and the one after its last, (n, 2) int64.
        sizes: raw bytes of each, (n,) int64.
        places: first byte of what each decodes to, (n,) int64; one after the other if None.
        rows: bytes of a row of each, (n,) int64, where they hold differences between rows that may be undone.
    """

    spans: NDArray[np.int64]
    sizes: NDArray[np.int64]
    places: NDArray[np.int64] | None = None
    rows: NDArray[np.int64] | None = None


class FrameCodec:
    """Encodes and decodes the frames of one column.

    Its filter is the caller's to apply before `encode` and to undo after decoding, unless `decode_frames` says that it
    has done so. Instances hold no state between calls and may be used by several threads.

    Args:
        channels: of the images of the column; 0 if they differ, or it has no images.

    Attributes:
        filter: what is done to the values of images; None if nothing is.
        is_raw: whether bytes are stored as they are.
    """

    def __init__(self, configs: Sequence[Config], dtype: np.dtype[Any], channels: int = 0) -> None:
        self.dtype = dtype
        self._channels = channels
        self.filter = FILTERS.get(configs[0]["id"]) if configs else None
        coding = list(configs[1:] if self.filter else configs)
        self._stages = [make_stage(config) for config in coding]
        if configs and configs[0]["id"] == "rowdelta" and coding == [{"id": "zstd", "level": 1}]:
            self._stages = [ZstdOfDifferences(coding[0])]
        if self.filter and self.filter.by_pixel and coding and coding[0]["id"] == "blosc":
            self._stages[0] = BloscOfPixels(coding[0], channels * dtype.itemsize)
        self.is_raw = not coding
        self._least_saving = LEAST_LZ4_SAVING if [type(stage) for stage in self._stages] == [Lz4] else LEAST_SAVING
        self._number = compiled.number_of(configs)

    def encode(self, frame: NDArray[Any]) -> Buffer:
        """Return the stored bytes of a frame (C-contiguous): the raw bytes if encoding saves too little.

        Raises:
            UsageError: the codec cannot take this frame, or loses bits of it.
        """
        raw = frame.reshape(-1).view(np.uint8).data
        if self.is_raw or not frame.nbytes:
            return raw
        value: Any = frame.reshape(-1).view(self.dtype)
        try:
            for stage in self._stages:
                value = stage.encode(value)
            stored = flat_bytes(value)
        except Exception as error:  # numcodecs raises many kinds for numbers that do not suit a codec
            raise UsageError(f"codec {self._name} cannot encode {self.dtype.name}: {error}; take another one") from None
        if not all(stage.is_exact for stage in self._stages):
            self._check_exact(stored, raw)
        return stored if len(stored) <= frame.nbytes * (1 - self._least_saving) else raw

    def decode(self, stored: memoryview, nbytes: int) -> Buffer:
        """Return the `nbytes` raw bytes of a stored frame.

        Raises:
            ValueError: the frame is damaged.
        """
        if len(stored) == nbytes:
            return stored
        try:
            out = np.empty(nbytes, np.uint8)
        except (MemoryError, OverflowError) as error:
            raise ValueError(str(error)) from None
        self.decode_into(stored, out)
        return out.data

    def decode_into(self, stored: memoryview, out: memoryview | NDArray[np.uint8]) -> None:
        """Decode a stored frame into `out` (nbytes,), contiguous.

        Raises:
            ValueError: the frame is damaged.
        """
        room = out.data if isinstance(out, np.ndarray) else out
        if len(stored) == len(room):
            room[:] = stored
            return
        if self.is_raw:
            raise ValueError(f"{len(stored)} bytes stored, {len(room)} expected")
        self._run_stages(stored, room)

    def _run_stages(self, stored: memoryview, room: memoryview) -> None:
        first, *others = self._stages
        try:
            for stage in reversed(others):
                stored = stage.decode(stored, _MOST_BETWEEN * (len(room) + 256))
            first.decode_into(stored, room)
        except ValueError:
            raise
        except MemoryError as error:
            if self._number is not None:  # no frame is to blame: its size was known
                raise
            raise ValueError(str(error)) from None
        except Exception as error:  # numcodecs raises RuntimeError, TypeError and others for damaged input
            raise ValueError(f"{type(error).__name__}: {error}") from None

    def decode_frames(self, memory: memoryview, frames: Frames, out: NDArray[np.uint8]) -> bool:
        """Decode frames of `memory` into `out` (bytes,), C-contiguous.

        Returns:
            whether the filter is undone as well, while a frame is in the processor's cache: if machine code decodes
            and the frames say what a row is. Else that is left to the caller.

        Raises:
            ValueError: a frame is damaged.
        """
        places = frames.sizes.cumsum() - frames.sizes if frames.places is None else frames.places
        loops = compiled.loops()
        # A single frame of zstd is left to Python, which has no decoder to make.
        if (
            loops is not None
            and self._number is not None
            and (len(places) > 1 or self._number != compiled.CODECS["zstd"])
        ):
            channels = self._channels if self.filter is not None and self.filter.by_pixel else 0
            undoes = self._is_undone_by_loops() and frames.rows is not None
            item = self.dtype.itemsize if undoes else 0
            rows = frames.sizes if frames.rows is None else frames.rows
            numbers = map(np.ascontiguousarray, (frames.spans, frames.sizes, places, rows))
            done = loops.decode(self._number, np.frombuffer(memory, np.uint8), *numbers, item, channels, out)
            if done == len(places):
                return undoes
        # One that is damaged is found once more, and named, by what Python calls.
        began = time.perf_counter()
        room = out.data
        for (start, end), size, place in _inside(frames, places, len(memory), len(out)):
            self.decode_into(memory[start:end], room[place : place + size])
        if self._number is not None:
            compiled.note_since(began)
        return False

    def _is_undone_by_loops(self) -> bool:
        """Return whether machine code can undo the filter, if it is told the rows of images."""
        return self.filter is not None and self.filter.in_loops and (not self.filter.by_pixel or self._channels > 0)

    def undo_filter(self, images: NDArray[Any], band: int | None = None) -> None:
        """Undo the filter of images (n, rows, ...) in place, if there is one; it begins anew with every `band` rows."""
        if self.filter is None:
            return
        n, rows = images.shape[:2]
        if band is None or rows <= band:
            self.filter.undo(images)
            return
        whole = rows // band * band
        # Bands of one height at once.
        self.filter.undo(images[:, :whole].reshape(n, whole // band, band, *images.shape[2:]), axis=2)
        self.filter.undo(images[:, whole:])

    def _check_exact(self, stored: memoryview, raw: memoryview) -> None:
        back = np.empty(len(raw), np.uint8)
        with contextlib.suppress(ValueError):
            self._run_stages(stored, back.data)
            if back.data == raw:
                return
        raise UsageError(f"codec {self._name} does not give back every bit of {self.dtype.name}; take another one")

    @property
    def _name(self) -> str:
        return "+".join(stage.id for stage in self._stages)


def _inside(
    frames: Frames, places: NDArray[np.int64], held: int, room: int
) -> Iterator[tuple[tuple[int, int], int, int]]:
    """Return the span, raw bytes and place of each frame; ValueError if one is not within `held` bytes, or `room`.

    Python would count numbers below zero from the end, and cut what goes beyond it.
    """
    for (start, end), size, place in zip(frames.spans.tolist(), frames.sizes.tolist(), places.tolist(), strict=True):
        if not (0 <= start <= end <= held and 0 <= size <= room - place <= room):
            raise ValueError("an index points outside of the stored or the decoded bytes")
        yield (start, end), size, place


def frame_hashes(memory: memoryview, spans: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return the xxh3 (64 bits) of each frame of `memory`, (n,).

    Args:
        spans: first byte of each frame and the one after its last, (n, 2).
    """
    found = np.empty(len(spans), np.uint64)
    loops = compiled.loops()
    if loops is not None:
        data, ends = np.frombuffer(memory, np.uint8), (spans[:, 1] - spans[:, 0]).cumsum()
        edges = [0, *(np.flatnonzero(np.diff(ends // CALL_BYTES)) + 1).tolist(), len(spans)]
        parts = [slice(a, b) for a, b in itertools.pairwise(edges)]
        if all(loops.hashes(data, np.ascontiguousarray(spans[p]), found[p]) == len(found[p]) for p in parts):
            return found
    began = time.perf_counter()
    digest = xxhash.xxh3_64_intdigest
    found[:] = [digest(memory[start:end]) for start, end in spans.tolist()]
    compiled.note_since(began)
    return found
