"""The codecs of `numcodecs`, one stage at a time, and how their frames are decoded where they are wanted.

Encoding is numcodecs' own, with two exceptions that any decoder reads. To decode, zstd and blosc are called without
what numcodecs wraps around them (7 to 10 us a frame), and zstd by the `zstandard` package, which keeps its state from
frame to frame. A frame of 7 kB takes 14 us so, 28 by numcodecs' function and 35 by its codec; one of 110 kB
129, 145 and 145.
"""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError

#: Settings of blosc's `shuffle`.
_NOT, _BY_BYTES, _BY_BITS = 0, 1, 2
#: Bytes of an element and of a block, in the header of a blosc frame.
_BLOSC_SIZES = struct.Struct("<3xB4xI")


@lru_cache(maxsize=64)
def stage(config: str) -> Any:
    """The numcodecs codec of a config as JSON; imported only where one is used, since that takes a tenth of a second.

    Raises:
        UsageError: there is no such codec, or its settings are wrong.
    """
    if json.loads(config)["id"] == "pickle":
        raise UsageError("codec pickle cannot be used: reading it would run whatever code a file holds")
    import numcodecs
    import numcodecs.blosc

    # blosc's own threads break at fork and gain nothing on frames of 16 to 64 KiB.
    numcodecs.blosc.use_threads = False
    try:
        return numcodecs.get_codec(json.loads(config))
    except Exception as error:  # numcodecs raises whatever the codec's constructor raises
        raise UsageError(f"codec {config} cannot be used: {error}") from None


def encode(codec: Any, value: Any) -> Any:
    """What one stage makes of a buffer.

    c-blosc leaves blocks as they are that it cannot shuffle by bits: those that hold no multiple of eight elements. It
    is told to shuffle such frames by bytes: clouds of any number of points, which are mostly one block, shrink
    1.30-fold so, and 1.03-fold without. Bytes are shuffled by bits where that makes them smaller: photographs are
    (1.13-fold and 1.03), few colours are not (2.2 and 2.3, decoded in 29 us a cloud and in 19).

    Raises:
        Exception: of many kinds, where the codec cannot take these values.
    """
    stored = codec.encode(value)
    if codec.codec_id == "blosc" and codec.shuffle == _BY_BITS:
        element, block = _BLOSC_SIZES.unpack_from(stored)
        if element == 1:
            return min(_shuffled(codec, _NOT, value), stored, key=len)
        if block % (8 * element):
            return _shuffled(codec, _BY_BYTES, value)
    return stored


def _shuffled(codec: Any, shuffle: int, value: Any) -> Any:
    """What blosc makes of a buffer with another setting of `shuffle`."""
    return stage(json.dumps({**codec.get_config(), "shuffle": shuffle})).encode(value)


def encode_differences(value: NDArray[Any]) -> bytes:
    """What zstd, level 1, makes of differences between rows: a frame for any zstd.

    Noise repeats itself by chance. Only matches of 7 bytes and more are looked for, level 1 takes 5: photographs of
    192 px take 0.6% more space so, and are encoded in 300 instead of 335 us and decoded in 109 instead of 123.
    """
    return _zstd().encode_differences(value)


def decode(codec: Any, stored: memoryview, most: int) -> Any:
    """What one stage decodes to: at most `most` bytes, where its frames say how many.

    Raises:
        ValueError: the frame claims more.
        Exception: of many kinds, where it is damaged.
    """
    _check_claim(codec.codec_id, stored, 0, most)
    return codec.decode(stored)


def decode_into(codec: Any, stored: memoryview, out: NDArray[np.uint8]) -> None:
    """Decodes the frame of one stage into `out` (nbytes,), C-contiguous.

    Raises:
        ValueError: the frame holds another number of bytes.
        Exception: of many kinds, where it is damaged.
    """
    _check_claim(codec.codec_id, stored, out.nbytes, out.nbytes)
    direct = _into_place(codec.codec_id)
    if direct is not None:
        direct(stored, out)
        return
    decoded = np.frombuffer(flat_bytes(codec.decode(stored)), np.uint8)
    if decoded.nbytes != out.nbytes:
        raise ValueError(f"{decoded.nbytes} bytes decoded, {out.nbytes} expected")
    out[...] = decoded


def flat_bytes(value: Any) -> memoryview:
    """The bytes of a buffer or an array; memoryview alone cannot cast arrays of complex numbers."""
    flat = value if isinstance(value, (bytes, bytearray, memoryview)) else np.ascontiguousarray(value).reshape(-1)
    return np.frombuffer(flat, np.uint8).data


def _check_claim(codec_id: str, stored: memoryview, least: int, most: int) -> None:
    """Compares the size in a frame's header with what is expected, before a decoder believes it."""
    claimed = claimed_bytes(codec_id, stored)
    if claimed is not None and not least <= claimed <= most:
        expected = most if least == most else f"at most {most}"
        raise ValueError(f"a {codec_id} header claims {claimed} bytes, {expected} expected")


class _Zstd(threading.local):
    """One compressor and one decompressor a thread: they hold state while they work."""

    def __init__(self) -> None:
        import zstandard

        self.decompressor = zstandard.ZstdDecompressor()
        coarse = zstandard.ZstdCompressionParameters.from_level(1, min_match=7, hash_log=13)
        self._compressor = zstandard.ZstdCompressor(compression_params=coarse)

    def encode_differences(self, value: NDArray[Any]) -> bytes:
        return self._compressor.compress(value.data)

    def decode_into(self, stored: memoryview, out: NDArray[np.uint8]) -> None:
        out.data[:] = self.decompressor.decompress(stored, allow_extra_data=False)


@lru_cache(maxsize=1)
def _zstd() -> _Zstd:
    return _Zstd()


@lru_cache(maxsize=16)
def _into_place(codec_id: str) -> Callable[[memoryview, NDArray[np.uint8]], Any] | None:
    """What decodes frames of a codec straight into memory; None for those that return memory of their own."""
    if codec_id == "zstd":
        return _zstd().decode_into
    if codec_id == "blosc":
        import numcodecs.blosc

        blosc: Callable[[memoryview, NDArray[np.uint8]], Any] = numcodecs.blosc.decompress
        return blosc
    return None


_BLOSC_HEADER = struct.Struct("<4xIII")  # decoded bytes, block bytes, stored bytes
_LZ4_SIZE = struct.Struct("<I")
_ZSTD_MAGIC = 0xFD2FB528
_ZSTD_START = struct.Struct("<IB")
#: Bytes of the dictionary's number, by the lowest two bits of the frame's descriptor.
_ZSTD_DICTIONARY_BYTES = (0, 1, 2, 4)
#: Bytes of the content size, by its highest two bits.
_ZSTD_SIZE_BYTES = (0, 2, 4, 8)


def claimed_bytes(codec_id: str, stored: memoryview) -> int | None:
    """Return the bytes that `stored` (format B) says in its header it decodes to, or None if its codec writes no size.

    A decoder given a damaged header may allocate what the header says, leave the end of its output unwritten
    (zstd), or read past the end of its input (c-blosc), so the claim is compared with what is expected first.

    Raises:
        ValueError: the header cannot be right.
    """
    read = _READERS.get(codec_id)
    return read(stored) if read else None


def _blosc_claim(stored: memoryview) -> int:
    if len(stored) < _BLOSC_HEADER.size:
        raise ValueError("a blosc frame has a header of 16 bytes")
    claimed, block, held = _BLOSC_HEADER.unpack_from(stored)
    if held != len(stored) or block > max(claimed, 1):
        raise ValueError(f"the blosc header claims {claimed} bytes in {held}, there are {len(stored)}")
    return int(claimed)


def _lz4_claim(stored: memoryview) -> int:
    if len(stored) < _LZ4_SIZE.size:
        raise ValueError("an LZ4 frame begins with its size in 4 bytes")
    return int(_LZ4_SIZE.unpack_from(stored)[0])


def _zstd_claim(stored: memoryview) -> int:
    if len(stored) < _ZSTD_START.size:
        raise ValueError("it ends within the header of its zstd frame")
    magic, descriptor = _ZSTD_START.unpack_from(stored)
    if magic != _ZSTD_MAGIC:
        raise ValueError("it does not begin as a zstd frame does")
    one_segment = descriptor >> 5 & 1
    size = _ZSTD_SIZE_BYTES[descriptor >> 6] or one_segment
    if not size:
        raise ValueError("its zstd frame does not say how large it is")
    at = _ZSTD_START.size + (not one_segment) + _ZSTD_DICTIONARY_BYTES[descriptor & 3]
    if len(stored) < at + size:
        raise ValueError("it ends within the header of its zstd frame")
    # Sizes of two bytes count from 256: smaller ones take one byte.
    return int.from_bytes(stored[at : at + size], "little") + (256 if size == 2 else 0)


_READERS: dict[str, Callable[[memoryview], int]] = {"blosc": _blosc_claim, "lz4": _lz4_claim, "zstd": _zstd_claim}
