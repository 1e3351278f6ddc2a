"""The stages of codecs: bytes to fewer bytes, one class for each kind, and numcodecs for all that have none here.

A new kind is a class like these and an entry in `STAGES`. Sizes in the headers of frames come from disk. Given a
damaged header, a decoder may allocate the claimed size, leave the end of its output unwritten (zstd), or read past the
end of its input (c-blosc). So these sizes are compared with the expected ones before decoding.
"""

from __future__ import annotations

import contextlib
import json
import struct
import threading
import zlib
from collections.abc import Callable
from typing import Any

import lz4.block
import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError

Config = dict[str, Any]
Buffer = bytes | bytearray | memoryview

#: Settings of blosc's `shuffle`.
_NOT, _BY_BYTES, _BY_BITS = 0, 1, 2
#: The header of a blosc frame: bytes of an element, of all that it decodes to, of a block, and of the frame.
_BLOSC_HEADER = struct.Struct("<3xBIII")
#: The header of an LZ4 frame: the bytes that it decodes to.
_LZ4_SIZE = struct.Struct("<I")


class Stage:
    """A codec of numcodecs' registry.

    Raises:
        UsageError: there is no such codec, or its settings are wrong.
    """

    #: Codecs that give back every bit of any input; the output of others is decoded and compared.
    _EXACT = ("blosc", "bz2", "gzip", "lz4", "lz4hc", "lzma", "shuffle", "zlib", "zstd")

    def __init__(self, config: Config) -> None:
        self.id: str = config["id"]
        self.is_exact = self.id in self._EXACT
        self.codec = self._made(config)

    def encode(self, value: Any) -> Any:
        """Return the encoded bytes of a buffer.

        Raises:
            Exception: of many kinds, if the codec cannot take these values.
        """
        return self.codec.encode(value)

    def decode(self, stored: memoryview, most: int, least: int = 0) -> memoryview:
        """Return what a frame decodes to: `least` to `most` bytes, if its header says how many.

        Raises:
            ValueError: the frame claims another number.
            Exception: of many kinds, if it is damaged.
        """
        claimed = self._claimed(stored)
        if claimed is not None and not least <= claimed <= most:
            expected = most if least == most else f"at most {most}"
            raise ValueError(f"a {self.id} header claims {claimed} bytes, {expected} expected")
        return flat_bytes(self._decoded(stored))

    def _made(self, config: Config) -> Any:
        return _registered(config)

    def _claimed(self, stored: memoryview) -> int | None:
        """Return the decoded bytes that the header of `stored` (format B) claims; None if it claims none.

        Raises:
            Exception: of many kinds, if the header cannot be right.
        """
        return None

    def _decoded(self, stored: memoryview) -> Any:
        return self.codec.decode(stored)


class Lz4(Stage):
    """`lz4` and `lz4hc`: a little-endian 4-byte size, then an LZ4 block.

    The bytes are those of numcodecs' `lz4`; the `lz4` package reads them with a third of the call overhead.
    """

    def _made(self, config: Config) -> dict[str, Any]:
        if self.id == "lz4hc":
            return {"mode": "high_compression", "compression": config.get("level", 9)}
        return {"mode": "fast", "acceleration": config.get("acceleration", 1)}

    def encode(self, value: Any) -> bytes:
        return bytes(lz4.block.compress(flat_bytes(value), **self.codec))

    def _claimed(self, stored: memoryview) -> int:
        return int(_LZ4_SIZE.unpack_from(stored)[0])

    def _decoded(self, stored: memoryview) -> bytes:
        return bytes(lz4.block.decompress(stored))


class Blosc(Stage):
    """c-blosc."""

    def encode(self, value: Any) -> Any:
        """Return the encoded bytes of a buffer.

        c-blosc shuffles by bits only blocks that hold a multiple of eight elements, and leaves others unshuffled. So
        frames of other blocks are shuffled by bytes: that shrinks clouds, which are mostly one block of any number of
        points. Elements of one byte are shuffled only if that makes the frame smaller: it does for photographs, not for
        images of few colours.
        """
        stored = _by_one_thread(self.codec.encode, value)
        if self.codec.shuffle == _BY_BITS:
            element, _, block, _ = _BLOSC_HEADER.unpack_from(stored)
            if element == 1:
                return min(self._shuffled(_NOT, value), stored, key=len)
            if block % (8 * element):
                return self._shuffled(_BY_BYTES, value)
        return stored

    def _shuffled(self, shuffle: int, value: Any) -> Any:
        """Return the encoded bytes of a buffer, with another setting of `shuffle`."""
        return _by_one_thread(_registered({**self.codec.get_config(), "shuffle": shuffle}).encode, value)

    def _decoded(self, stored: memoryview) -> Any:
        return _by_one_thread(self.codec.decode, stored)

    def _claimed(self, stored: memoryview) -> int:
        _, claimed, block, nbytes = _BLOSC_HEADER.unpack_from(stored)
        if nbytes != len(stored) or block > max(claimed, 1):
            raise ValueError(f"the blosc header claims {claimed} bytes in {nbytes}, there are {len(stored)}")
        return int(claimed)


class BloscOfPixels(Blosc):
    """c-blosc, given whole pixels as elements, in blocks of about the same size that it can shuffle by bits.

    c-blosc uses the block size that it is given, unless it splits each block by the bytes of its elements, as it does
    with elements of up to 16 bytes and any codec but zstd. Then a frame is one block. It is shuffled if it holds a
    multiple of eight elements; other frames take several pixels as one element.
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
        settings = self.codec.cname.encode(), self.codec.clevel, self.codec.shuffle, block
        return _by_one_thread(blosc.compress, values, *settings, **more)


class Zstd(Stage):
    """Zstandard, decoded by the `zstandard` package, which keeps its state from frame to frame."""

    def _claimed(self, stored: memoryview) -> int:
        import zstandard

        claimed = int(zstandard.frame_content_size(stored))
        if claimed < 0:
            raise ValueError("its zstd frame does not say how large it is")
        return claimed

    def _decoded(self, stored: memoryview) -> Any:
        return _decompressor().decompress(stored, allow_extra_data=False)


class Stream(Stage):
    """`zlib`, `gzip`, `bz2` and `lzma`: their frames do not say how large they are, so decoding stops at a limit."""

    def decode(self, stored: memoryview, most: int, least: int = 0) -> memoryview:
        decoder = self._decoder()
        raw = decoder.decompress(stored, most + 1)
        if len(raw) > most:
            raise ValueError(f"a {self.id} frame holds more than the {most} bytes that are expected")
        if not decoder.eof or decoder.unused_data:
            raise ValueError(f"a {self.id} frame is cut short, or something follows it")
        return flat_bytes(raw)

    def _decoder(self) -> Any:
        if self.id == "bz2":
            import bz2

            return bz2.BZ2Decompressor()
        if self.id == "lzma":
            import lzma

            return lzma.LZMADecompressor(self.codec.format, filters=self.codec.filters)
        return zlib.decompressobj(wbits=zlib.MAX_WBITS + 16 * (self.id == "gzip"))


#: Kinds of stages by id; all others are `Stage`.
STAGES: dict[str, type[Stage]] = {
    "blosc": Blosc,
    "lz4": Lz4,
    "lz4hc": Lz4,
    "zstd": Zstd,
    **dict.fromkeys(("zlib", "gzip", "bz2", "lzma"), Stream),
}


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


def _registered(config: Config) -> Any:
    """Return the numcodecs codec of a config; imported late, since that takes a tenth of a second."""
    if config["id"] == "pickle":
        raise UsageError("codec pickle cannot be used: reading it would run whatever code a file holds")
    import numcodecs

    try:
        return numcodecs.get_codec(dict(config))
    except Exception as error:  # numcodecs raises whatever the codec's constructor raises
        raise UsageError(f"codec {json.dumps(config)} cannot be used: {error}") from None


def _by_one_thread(function: Callable[..., Any], *arguments: Any, **settings: Any) -> Any:
    """Call a function of blosc without blosc's own threads.

    They gain nothing on frames of 16 to 64 KiB, and write the blocks of a larger frame in the order in which they are
    done: its bytes would be left to chance. numcodecs uses them in the main thread alone, unless it is told otherwise.
    """
    from numcodecs import blosc

    if threading.current_thread() is not threading.main_thread():
        return function(*arguments, **settings)
    before, blosc.use_threads = blosc.use_threads, False
    try:
        return function(*arguments, **settings)
    finally:
        blosc.use_threads = before


_of_thread = threading.local()


def _decompressor() -> Any:
    """Return the decompressor of zstd of this thread: it holds state while it works."""
    if not hasattr(_of_thread, "zstd"):
        import zstandard

        _of_thread.zstd = zstandard.ZstdDecompressor()
    return _of_thread.zstd
