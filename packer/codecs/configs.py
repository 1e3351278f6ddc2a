"""Codecs of frames: names for the common ones, any numcodecs config as JSON, one class that runs them.

A codec is a tuple of configs, applied first to last when encoding. Two ids are our own:

- `rowdelta`: each row of an image less the row above, modulo 2**bits. It changes values, not sizes, so
  the reader undoes it behind the codec (see `rowdelta.py`). Only as the first stage.
- `lz4` and `lz4hc`: a little-endian 4-byte size, then an LZ4 block. The bytes are those of numcodecs' `lz4`; the
  `lz4` package reads them with a third of the call overhead (3 us against 9 us for 12 kB).

Frames come from disk, so decoding never allocates what a stored size claims: the caller says how many
bytes it expects, and any other number is a `ValueError`.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import lz4.block
import numpy as np
from numpy.typing import NDArray

from packer.codecs import compiled, stages
from packer.errors import UsageError
from packer.format.schema import MAX_STAGES, ROWDELTA_DTYPES, FieldSpec

Config = dict[str, Any]
Buffer = bytes | bytearray | memoryview

#: The codecs that have a name on the command line.
NAMED: dict[str, tuple[Config, ...]] = {
    "none": (),
    "lz4": ({"id": "lz4"},),
    "lz4hc": ({"id": "lz4hc", "level": 9},),
    "zstd": ({"id": "zstd", "level": 3},),
    "bitshuffle": ({"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 2},),
    "shuffle+lz4": ({"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1},),
    "shuffle+zstd": ({"id": "blosc", "cname": "zstd", "clevel": 3, "shuffle": 1},),
    "rowdelta+zstd": ({"id": "rowdelta"}, {"id": "zstd", "level": 1}),
}

#: A frame is kept raw unless encoding saves this part of it: decoding one that saves 3% (lz4 on
#: photographs) costs more time than reading the 3%.
LEAST_SAVING = 1 / 16
#: LZ4 is chosen for speed: keeping frames raw below this saving leaves a quarter fewer to decode, for 0.5% more space
#: on photographs (ratio 1.117 instead of 1.123).
LEAST_LZ4_SAVING = 1 / 8

#: Ids of the two that write blocks of LZ4: fast ones, and small ones.
LZ4 = ("lz4", "lz4hc")
#: Stages that give back every bit of whatever they are given; what others encode is decoded and compared.
_EXACT = (*LZ4, "blosc", "bz2", "gzip", "lzma", "shuffle", "zlib", "zstd")
#: An earlier stage hands on at most this many times the raw bytes (numbers widened, text of numbers).
_MOST_BETWEEN = 16


def parse_codec(text: str) -> tuple[Config, ...]:
    """The configs that `text` names: one of `NAMED`, or a numcodecs config (or a list of them) as JSON.

    Raises:
        UsageError: no codec of that name, or not a config.
    """
    if text in NAMED:
        return NAMED[text]
    if not text.lstrip().startswith(("{", "[")):
        raise UsageError(f"no codec {text!r}; there are auto, {', '.join(NAMED)}, or a numcodecs config as JSON")
    try:
        value = json.loads(text)
    except ValueError as error:
        raise UsageError(f"codec {text!r} is not JSON: {error}") from None
    configs = value if isinstance(value, list) else [value]
    if not all(isinstance(c, dict) and isinstance(c.get("id"), str) for c in configs):
        raise UsageError(f'codec {text!r}: an object such as {{"id": "zstd", "level": 5}} is expected')
    if len(configs) > MAX_STAGES:
        raise UsageError(f"codec {text!r} has {len(configs)} stages; {MAX_STAGES} are the most")
    _try(tuple(configs))
    return tuple(configs)


def _try(configs: tuple[Config, ...]) -> None:
    """Raises UsageError where a codec cannot encode bytes; zeros, which no codec for numbers changes."""
    codec = FrameCodec(configs, np.dtype("u1"))
    try:
        codec.encode(np.zeros(256, np.uint8))
    except Exception as error:  # numcodecs raises many kinds for a wrong setting
        raise UsageError(f"codec {json.dumps(configs)} cannot be used: {error}") from None


def codec_name(configs: Sequence[Config]) -> str:
    """The short name of a codec, for people."""
    for name, named in NAMED.items():
        if tuple(configs) == named:
            return name
    return "+".join(str(c["id"]) for c in configs)


def check_fits(configs: Sequence[Config], spec: FieldSpec) -> None:
    """Raises UsageError where a codec cannot be used for a field."""
    has_delta = any(c["id"] == "rowdelta" for c in configs)
    if has_delta and not (spec.kind == "image" and spec.dtype in ROWDELTA_DTYPES):
        raise UsageError(
            f"field {spec.name!r}: rowdelta is for images of uint8 or uint16, not {spec.kind} {spec.dtype}"
        )


class Frames(NamedTuple):
    """Frames that are decoded by one call.

    Attributes:
        spans: first byte of each and the one behind its last, (n, 2) int64.
        sizes: raw bytes of each, (n,) int64.
        places: first byte of what each decodes to, (n,) int64; one behind the other where None.
        rows: bytes of a row of each, (n,) int64, where they hold differences between rows that may be undone.
    """

    spans: NDArray[np.int64]
    sizes: NDArray[np.int64]
    places: NDArray[np.int64] | None = None
    rows: NDArray[np.int64] | None = None


class FrameCodec:
    """Encodes and decodes the frames of one column.

    `rowdelta` tells whether samples are differenced by rows before `encode` and after decoding; that step is the
    caller's, unless `decode_frames` says that it has done it. Instances hold no state between calls and may be used by
    several threads.
    """

    def __init__(self, configs: Sequence[Config], dtype: np.dtype[Any]) -> None:
        self.rowdelta = bool(configs) and configs[0]["id"] == "rowdelta"
        coding = list(configs[1:] if self.rowdelta else configs)
        self.dtype = dtype
        self.is_raw = not coding
        #: One plain LZ4 stage, which the lz4 package runs.
        self._lz4 = coding[0] if len(coding) == 1 and coding[0]["id"] in LZ4 else None
        self._stages = [] if self._lz4 is not None else [stages.stage(json.dumps(c, sort_keys=True)) for c in coding]
        self._of_differences = self.rowdelta and coding == list(NAMED["rowdelta+zstd"][1:])
        self._number = compiled.number_of(configs)
        self._is_exact = all(c["id"] in _EXACT for c in coding)

    def encode(self, frame: NDArray[Any]) -> Buffer:
        """The stored bytes of a frame (C-contiguous); the raw bytes where encoding saves too little.

        Raises:
            UsageError: the codec cannot take this frame, or loses bits of it.
        """
        raw = frame.reshape(-1).view(np.uint8).data
        if self.is_raw or not frame.nbytes:
            return raw
        if self._lz4 is not None:
            stored: Buffer = _lz4_encode(raw, self._lz4)
        elif self._of_differences:
            stored = stages.encode_differences(frame.reshape(-1).view(np.uint8))
        else:
            stored = self._encode_stages(frame.reshape(-1).view(self.dtype))
            if not self._is_exact:
                self._check_exact(stored, raw)
        least = LEAST_SAVING if self._lz4 is None else LEAST_LZ4_SAVING
        return stored if len(stored) <= frame.nbytes * (1 - least) else raw

    def decode(self, stored: memoryview, nbytes: int) -> Buffer:
        """The `nbytes` raw bytes of a stored frame.

        Raises:
            ValueError: the frame is damaged.
        """
        if len(stored) == nbytes:
            return stored
        try:
            if self._lz4 is not None:
                return _lz4_frame(stored, nbytes)
            out = np.empty(nbytes, np.uint8)
        except (MemoryError, OverflowError) as error:
            raise ValueError(str(error)) from None
        self.decode_into(stored, out)
        return out.data

    def decode_into(self, stored: memoryview, out: NDArray[np.uint8]) -> None:
        """Decodes a stored frame into `out` (nbytes,), C-contiguous.

        Raises:
            ValueError: the frame is damaged.
        """
        if len(stored) == out.nbytes:
            out[...] = np.frombuffer(stored, np.uint8)
        elif self.is_raw:
            raise ValueError(f"{len(stored)} bytes stored, {out.nbytes} expected")
        elif self._lz4 is not None:
            out[...] = np.frombuffer(_lz4_frame(stored, out.nbytes), np.uint8)
        else:
            self._run_stages(stored, out)

    def decode_frames(self, memory: memoryview, frames: Frames, out: NDArray[np.uint8]) -> bool:
        """Decodes frames of `memory` into `out` (bytes,), C-contiguous.

        Returns:
            whether differences between rows are undone as well, while a frame is in the processor's cache: where
            machine code decodes and the frames say what a row is. Else that is left to the caller.

        Raises:
            ValueError: a frame is damaged.
        """
        places = frames.sizes.cumsum() - frames.sizes if frames.places is None else frames.places
        loops = compiled.loops()
        # One frame is left to Python: of zstd it takes 7 us less, since there is no decoder to be made.
        if loops is not None and self._number is not None and len(places) > 1:
            item = self.dtype.itemsize if self.rowdelta and frames.rows is not None else 0
            rows = frames.sizes if frames.rows is None else frames.rows
            numbers = map(np.ascontiguousarray, (frames.spans, frames.sizes, places, rows))
            done = loops.decode(self._number, np.frombuffer(memory, np.uint8), *numbers, item, out)
            if done == len(places):
                return item > 0
        # One that is damaged is found once more, and named, by what Python calls.
        began = time.perf_counter()
        each = _inside(frames, places, len(memory), len(out))
        if self._lz4 is not None:
            _decode_lz4(memory, each, out.data)
        else:
            for (start, end), size, place in each:
                self.decode_into(memory[start:end], out[place : place + size])
        if self._number is not None:
            compiled.note_since(began)
        return False

    def _encode_stages(self, frame: NDArray[Any]) -> memoryview:
        value: Any = frame
        try:
            for codec in self._stages:
                value = stages.encode(codec, value)
            return stages.flat_bytes(value)
        except Exception as error:  # numcodecs raises many kinds for numbers that do not suit a codec
            raise UsageError(f"codec {self._name} cannot encode {self.dtype.name}: {error}; take another one") from None

    def _run_stages(self, stored: memoryview, out: NDArray[np.uint8]) -> None:
        value = stored
        try:
            for codec in reversed(self._stages[1:]):
                value = stages.flat_bytes(stages.decode(codec, value, _MOST_BETWEEN * (out.nbytes + 256)))
            stages.decode_into(self._stages[0], value, out)
        except ValueError:
            raise
        except MemoryError as error:
            if self._number is not None:  # no frame is to blame: its size was known
                raise
            raise ValueError(str(error)) from None
        except Exception as error:  # numcodecs raises RuntimeError, TypeError and others for damaged input
            raise ValueError(f"{type(error).__name__}: {error}") from None

    def _check_exact(self, stored: memoryview, raw: memoryview) -> None:
        back = np.empty(len(raw), np.uint8)
        with contextlib.suppress(ValueError):
            self._run_stages(stored, back)
            if back.data == raw:
                return
        raise UsageError(f"codec {self._name} does not give back every bit of {self.dtype.name}; take another one")

    @property
    def _name(self) -> str:
        return "+".join(codec.codec_id for codec in self._stages)


def _lz4_frame(stored: memoryview, nbytes: int) -> bytes:
    """Decodes one LZ4 frame of `nbytes` raw bytes; ValueError where it is damaged."""
    try:
        raw: bytes = lz4.block.decompress(stored[4:], uncompressed_size=nbytes)
    except (lz4.block.LZ4BlockError, OverflowError) as error:
        raise ValueError(str(error)) from None
    if len(raw) != nbytes:
        raise ValueError(f"{len(raw)} bytes decoded, {nbytes} expected")
    return raw


def _inside(
    frames: Frames, places: NDArray[np.int64], held: int, room: int
) -> Iterator[tuple[tuple[int, int], int, int]]:
    """Span, raw bytes and place of each frame; ValueError where one is not within `held` bytes, or `room`.

    Python would count numbers below zero from the end, and cut what goes beyond it.
    """
    for (start, end), size, place in zip(frames.spans.tolist(), frames.sizes.tolist(), places.tolist(), strict=True):
        if not (0 <= start <= end <= held and 0 <= size <= room - place <= room):
            raise ValueError("a frame does not lie, or does not go, where an index says")
        yield (start, end), size, place


def _decode_lz4(memory: memoryview, frames: Iterable[tuple[tuple[int, int], int, int]], out: memoryview) -> None:
    for (start, end), size, place in frames:
        stored = memory[start:end]
        out[place : place + size] = stored if end - start == size else _lz4_frame(stored, size)


def _lz4_encode(raw: memoryview, config: Config) -> bytes:
    if config["id"] == "lz4hc":
        return bytes(lz4.block.compress(raw, mode="high_compression", compression=config.get("level", 9)))
    return bytes(lz4.block.compress(raw, mode="fast", acceleration=config.get("acceleration", 1)))
