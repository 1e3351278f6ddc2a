"""The stages of codecs: bytes to fewer bytes, one class for each kind, and numcodecs for all that have none here.

A new kind is a class like these and an entry in `STAGES`. Sizes in the headers of frames come from disk, so they are
compared with what is expected before a decoder believes them.
"""

from __future__ import annotations

import contextlib
import json
import struct
import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import lz4.block
import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError

Config = dict[str, Any]
Buffer = bytes | bytearray | memoryview

#: Settings of blosc's `shuffle`.
_NOT, _BY_BYTES, _BY_BITS = 0, 1, 2
#: Bytes of an element and of a block, in the header of a blosc frame.
_BLOSC_SIZES = struct.Struct("<3xB4xI")


class Stage:
    """A codec of numcodecs' registry.

    Raises:
        UsageError: there is no such codec, or its settings are wrong.
    """

    #: Those that give back every bit of whatever they are given; what others encode is decoded and compared.
    _EXACT = ("blosc", "bz2", "gzip", "lzma", "shuffle", "zlib", "zstd")

    def __init__(self, config: Config) -> None:
        self.id: str = config["id"]
        self.is_exact = self.id in self._EXACT
        self.codec = _registered(json.dumps(config, sort_keys=True))

    def encode(self, value: Any) -> Any:
        """Return the encoded bytes of a buffer.

        Raises:
            Exception: of many kinds, if the codec cannot take these values.
        """
        return self.codec.encode(value)

    def decode(self, stored: memoryview, most: int) -> memoryview:
        """Return what a frame decodes to: at most `most` bytes, if it says how many.

        Raises:
            ValueError: the frame claims more.
            Exception: of many kinds, if it is damaged.
        """
        _check_claim(self.id, stored, 0, most)
        return flat_bytes(self.codec.decode(stored))

    def decode_into(self, stored: memoryview, out: memoryview) -> None:
        """Decode a frame into `out`, writable bytes.

        Raises:
            ValueError: the frame holds another number of bytes.
            Exception: of many kinds, if it is damaged.
        """
        decoded = self.decode(stored, len(out))
        if len(decoded) != len(out):
            raise ValueError(f"{len(decoded)} bytes decoded, {len(out)} expected")
        out[:] = decoded


class Lz4(Stage):
    """`lz4` and `lz4hc`: a little-endian 4-byte size, then an LZ4 block.

    The bytes are those of numcodecs' `lz4`; the `lz4` package reads them with a third of the call overhead.
    """

    def __init__(self, config: Config) -> None:
        self.id = config["id"]
        self.is_exact = True
        if self.id == "lz4hc":
            self._options = {"mode": "high_compression", "compression": config.get("level", 9)}
        else:
            self._options = {"mode": "fast", "acceleration": config.get("acceleration", 1)}

    def encode(self, value: Any) -> bytes:
        return bytes(lz4.block.compress(flat_bytes(value), **self._options))

    def decode(self, stored: memoryview, most: int) -> memoryview:
        _check_claim("lz4", stored, 0, most)
        return self._block(stored, _lz4_claim(stored))

    def decode_into(self, stored: memoryview, out: memoryview) -> None:
        out[:] = self._block(stored, len(out))

    def _block(self, stored: memoryview, nbytes: int) -> memoryview:
        try:
            raw: bytes = lz4.block.decompress(stored[_LZ4_SIZE.size :], uncompressed_size=nbytes)
        except (lz4.block.LZ4BlockError, OverflowError) as error:
            raise ValueError(str(error)) from None
        if len(raw) != nbytes:
            raise ValueError(f"{len(raw)} bytes decoded, {nbytes} expected")
        return memoryview(raw)


class Blosc(Stage):
    """c-blosc, called to decode without what numcodecs wraps around it."""

    def encode(self, value: Any) -> Any:
        """Return the encoded bytes of a buffer.

        c-blosc leaves blocks as they are that it cannot shuffle by bits: those that hold no multiple of eight elements.
        It is told to shuffle such frames by bytes: clouds of any number of points, which are mostly one block, shrink
        by it. Bytes are shuffled by bits if that makes them smaller: photographs are, few colours are not.
        """
        stored = self.codec.encode(value)
        if self.codec.shuffle == _BY_BITS:
            element, block = _BLOSC_SIZES.unpack_from(stored)
            if element == 1:
                return min(self._shuffled(_NOT, value), stored, key=len)
            if block % (8 * element):
                return self._shuffled(_BY_BYTES, value)
        return stored

    def decode_into(self, stored: memoryview, out: memoryview) -> None:
        _check_claim(self.id, stored, len(out), len(out))
        _blosc_decompress()(stored, out)

    def _shuffled(self, shuffle: int, value: Any) -> Any:
        """Return what blosc makes of a buffer with another setting of `shuffle`."""
        return _registered(json.dumps({**self.codec.get_config(), "shuffle": shuffle}, sort_keys=True)).encode(value)


class BloscOfPixels(Blosc):
    """c-blosc, given whole pixels as elements, in blocks of about the same size that it can shuffle by bits.

    c-blosc takes the size of blocks that it is told, unless it cuts each block into the bytes of its elements: so it
    does with elements of up to 16 bytes and any codec but zstd. Such blocks are whole frames, which are shuffled if
    they hold eights of elements. The others are given several pixels as one element.
    """

    _BLOCK_BYTES = 2**16
    #: Bytes of an element up to which c-blosc cuts blocks, and of the largest that it takes.
    _CUT, _MOST = 16, 255

    def __init__(self, config: Config, pixel: int) -> None:
        super().__init__(config)
        self._pixel = pixel
        self._is_cut = pixel <= self._CUT and self.codec.cname != "zstd"

    def encode(self, value: Any) -> Any:
        """Return the encoded bytes of a buffer; of anything but whole pixels, or very large ones, as `Blosc` does."""
        flat = np.frombuffer(flat_bytes(value), np.uint8)
        if not 0 < self._pixel <= self._MOST or len(flat) % self._pixel:
            return super().encode(value)
        if self._is_cut and len(flat) % (8 * self._pixel):
            element = (self._CUT // self._pixel + 1) * self._pixel
            # Older numcodecs takes no element that does not fit; blocks stay as they are then.
            with contextlib.suppress(TypeError):
                return self._compressed(flat, element, typesize=element)
        return self._compressed(flat.view(f"V{self._pixel}"), self._pixel)

    def _compressed(self, values: NDArray[Any], element: int, **more: int) -> Any:
        from numcodecs import blosc

        blocks = max(1, -(-values.nbytes // self._BLOCK_BYTES))
        block = self.codec.blocksize or values.nbytes // blocks // (8 * element) * 8 * element
        codec = self.codec
        return blosc.compress(values, codec.cname.encode(), codec.clevel, codec.shuffle, block, **more)


class Zstd(Stage):
    """Zstandard, decoded by the `zstandard` package, which keeps its state from frame to frame."""

    def decode_into(self, stored: memoryview, out: memoryview) -> None:
        _check_claim(self.id, stored, len(out), len(out))
        out[:] = _zstd().decompressor.decompress(stored, allow_extra_data=False)


class ZstdOfDifferences(Zstd):
    """zstd, level 1, of differences between rows: frames for any zstd.

    Noise repeats itself by chance. Only matches of 7 bytes and more are looked for, level 1 takes 5: photographs are
    encoded and decoded faster, for hardly more space.
    """

    def encode(self, value: Any) -> bytes:
        return _zstd().coarse.compress(flat_bytes(value))


#: Kinds of stages by id; all others are `Stage`.
STAGES: dict[str, type[Stage]] = {"blosc": Blosc, "lz4": Lz4, "lz4hc": Lz4, "zstd": Zstd}


def make_stage(config: Config) -> Stage:
    """Return the stage of a config.

    Raises:
        UsageError: there is no such codec, or its settings are wrong.
    """
    return STAGES.get(config["id"], Stage)(config)


def flat_bytes(value: Any) -> memoryview:
    """Return the bytes of a buffer or an array; memoryview alone cannot cast arrays of complex numbers."""
    flat = value if isinstance(value, (bytes, bytearray, memoryview)) else np.ascontiguousarray(value).reshape(-1)
    return np.frombuffer(flat, np.uint8).data


@lru_cache(maxsize=64)
def _registered(config: str) -> Any:
    """Return the numcodecs codec of a config as JSON; imported late, since that takes a tenth of a second."""
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


class _ZstdState(threading.local):
    """One compressor and one decompressor a thread: they hold state while they work."""

    def __init__(self) -> None:
        import zstandard

        self.decompressor = zstandard.ZstdDecompressor()
        coarse = zstandard.ZstdCompressionParameters.from_level(1, min_match=7, hash_log=13)
        self.coarse = zstandard.ZstdCompressor(compression_params=coarse)


@lru_cache(maxsize=1)
def _zstd() -> _ZstdState:
    return _ZstdState()


@lru_cache(maxsize=1)
def _blosc_decompress() -> Callable[[memoryview, memoryview], Any]:
    import numcodecs.blosc

    decompress: Callable[[memoryview, memoryview], Any] = numcodecs.blosc.decompress
    return decompress


def _check_claim(codec_id: str, stored: memoryview, least: int, most: int) -> None:
    """Compare the size in a frame's header with what is expected, before a decoder believes it."""
    claimed = claimed_bytes(codec_id, stored)
    if claimed is not None and not least <= claimed <= most:
        expected = most if least == most else f"at most {most}"
        raise ValueError(f"a {codec_id} header claims {claimed} bytes, {expected} expected")


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
