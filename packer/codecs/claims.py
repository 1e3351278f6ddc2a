"""The decoded size that a stored frame claims in its header, read before a decoder believes it.

A decoder given a damaged header may allocate what the header says, leave the end of its output unwritten
(zstd), or read past the end of its input (c-blosc), so the claim is compared with what is expected first.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

_BLOSC_HEADER = struct.Struct("<4xIII")  # decoded bytes, block bytes, stored bytes
_LZ4_SIZE = struct.Struct("<I")
_ZSTD_MAGIC = 0xFD2FB528
_ZSTD_START = struct.Struct("<IB")
#: Bytes of the dictionary's number, by the lowest two bits of the frame's descriptor.
_ZSTD_DICTIONARY_BYTES = (0, 1, 2, 4)
#: Bytes of the content size, by its highest two bits.
_ZSTD_SIZE_BYTES = (0, 2, 4, 8)


def claimed_bytes(codec_id: str, stored: memoryview) -> int | None:
    """Bytes that `stored` (bytes, format B) says it decodes to; None where its codec writes no size.

    Raises:
        ValueError: the header cannot be right.
    """
    read = _READERS.get(codec_id)
    return read(stored) if read else None


def _blosc(stored: memoryview) -> int:
    if len(stored) < _BLOSC_HEADER.size:
        raise ValueError("a blosc frame has a header of 16 bytes")
    claimed, block, held = _BLOSC_HEADER.unpack_from(stored)
    if held != len(stored) or block > max(claimed, 1):
        raise ValueError(f"the blosc header claims {claimed} bytes in {held}, there are {len(stored)}")
    return int(claimed)


def _lz4(stored: memoryview) -> int:
    if len(stored) < _LZ4_SIZE.size:
        raise ValueError("an LZ4 frame begins with its size in 4 bytes")
    return int(_LZ4_SIZE.unpack_from(stored)[0])


def _zstd(stored: memoryview) -> int:
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


_READERS: dict[str, Callable[[memoryview], int]] = {"blosc": _blosc, "lz4": _lz4, "zstd": _zstd}
