"""Loops over the frames of a batch, in machine code and without the interpreter's lock.

numba compiles these loops. They decode and hash by the C functions of the codecs' packages, with no Python in between.
Importing this module takes time, most of all for the first time on a machine: ask `compiled` for it. None of the loops
reads or writes beyond the arrays it is given, whatever the numbers in them say.
"""

from __future__ import annotations

import ctypes
from importlib import import_module
from typing import Any

import llvmlite.binding
import numba
import numpy as np
from numba import njit

from packer.codecs import compiled

types: Any = numba.types  # numba's own annotations do not know that types can be called

#: C functions by the module that has them, built in or in a library that it is linked with. This module cannot be
#: imported if one of those modules is missing or does not export its functions.
_FUNCTIONS = {
    "lz4.block._block": ("LZ4_decompress_safe",),
    "numcodecs.blosc": ("blosc_decompress_ctx",),
    "numcodecs.zstd": ("ZSTD_decompressDCtx", "ZSTD_findFrameCompressedSize", "ZSTD_getFrameContentSize"),
    "xxhash._xxhash": ("XXH3_64bits",),
}
for _module, _names in _FUNCTIONS.items():
    # The import has loaded this library already; CDLL opens the same one.
    _library = ctypes.CDLL(str(import_module(_module).__file__))
    for _name in _names:
        # A name of our own: code in numba's cache calls functions by name.
        llvmlite.binding.add_symbol(f"packer_{_name}", ctypes.cast(getattr(_library, _name), ctypes.c_void_p).value)

_zstd_library = ctypes.CDLL(str(import_module("numcodecs.zstd").__file__))

_int, _long, _word64, _pointer, _double = types.int32, types.int64, types.uint64, types.intp, types.float64
_lz4 = types.ExternalFunction("packer_LZ4_decompress_safe", _int(_pointer, _pointer, _int, _int))
_blosc = types.ExternalFunction("packer_blosc_decompress_ctx", _int(_pointer, _pointer, _pointer, _int))
_zstd_size = types.ExternalFunction("packer_ZSTD_getFrameContentSize", _long(_pointer, _pointer))
_zstd_length = types.ExternalFunction("packer_ZSTD_findFrameCompressedSize", _pointer(_pointer, _pointer))
_zstd = types.ExternalFunction("packer_ZSTD_decompressDCtx", _pointer(_pointer, _pointer, _pointer, _pointer, _pointer))
_xxh3 = types.ExternalFunction("packer_XXH3_64bits", types.uint64(_pointer, _pointer))
_copy = types.ExternalFunction("memcpy", _pointer(_pointer, _pointer, _pointer))

_MEMORY = types.Array(types.uint8, 1, "C", readonly=True)
_BYTES = types.Array(types.uint8, 1, "C")
_NUMBERS = types.Array(_long, 1, "C")
_SPANS = types.Array(_long, 2, "C")
_HASHES = types.Array(types.uint64, 1, "C")

#: As in `compiled.CODECS`. Written out, since numba's cache is renewed only when this file changes.
_LZ4, _BLOSC, _ZSTD = 0, 1, 2
#: Bytes before the block of an LZ4 frame, and of the header of a blosc frame.
_LZ4_SIZE, _BLOSC_HEADER = 4, 16
#: Of that header: bits of its third byte, whose upper three bits name the codec of the blocks.
_BY_BYTES, _COPIED, _BY_BITS, _UNKNOWN, _UNCUT = 1, 2, 4, 8, 16
_BLOSC_LZ4, _BLOSC_ZSTD = 1, 4
#: `decimal` stores strange values as integers below these, of 32 and of 64 bits.
_LEAST_32, _LEAST_64 = -(2**31) + 4, -(2**63) + 4
_STRANGE = (-0.0, np.nan, np.inf, -np.inf)
#: Decimals are restored in stretches of so many, which stay in the processor's nearest cache.
_STRETCH = 2048
#: Bytes of a frame, at most: the decoders take some of these numbers as 32 bits.
_MOST = 2**31 - 1
#: Largest blosc block, in bytes, that is decoded here: that takes two buffers of its size.
_MOST_SPARE = 2**22


class ZstdContext:
    """A decoder of zstd, for one thread at a time. To make one takes longer than to decode a small image.

    Attributes:
        address: of its state; 0 if there is no memory for it.
    """

    _make, _free = _zstd_library.ZSTD_createDCtx, _zstd_library.ZSTD_freeDCtx
    _make.restype, _free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]

    def __init__(self) -> None:
        self.address: int = self._make() or 0

    def __del__(self) -> None:
        self._free(self.address)


@njit
def _word(memory: Any, at: int) -> int:  # pragma: no cover
    """Return four bytes as a number, little-endian."""
    first, second = _long(memory[at]), _long(memory[at + 1])
    return first | second << 8 | _long(memory[at + 2]) << 16 | _long(memory[at + 3]) << 24


@njit
def _restore_photo(values: Any, row: int, channels: int) -> None:  # pragma: no cover
    """Do as `filters.restore_photo`, by two loops a row, in which no step waits for the one before."""
    number = values.dtype.type
    one = number(1)
    # Of each column, with room for a neighbour on both sides; green is the neighbour of red and of blue.
    sums = np.zeros(row + 2, values.dtype)
    red, blue = np.zeros(row, values.dtype), np.zeros(row, values.dtype)
    if channels == 3 or channels == 4:
        red[0::channels] = number(0xFFFF)
        blue[2::channels] = number(0xFFFF)
    for at in range(0, len(values), row):
        line = values[at : at + row]
        for i in range(row):
            stored = line[i]
            sums[i + 1] = number(sums[i + 1] + number(number(stored >> one) ^ number(number(0) - number(stored & one))))
        for i in range(row):
            line[i] = number(sums[i + 1] + number(sums[i + 2] & red[i]) + number(sums[i] & blue[i]))


@njit
def _weave(planes: Any, out: Any, element: int) -> None:  # pragma: no cover
    """Put the first bytes of all elements, then their second bytes, and so on, element by element into `out`."""
    count = len(out) // element
    for i in range(count):
        for j in range(element):
            out[element * i + j] = planes[j * count + i]


@njit
def _bytes_of_bits(block: Any, words: Any, element: int) -> None:  # pragma: no cover
    """Put the bits that blosc shuffled together into bytes: first bytes of all elements first, in `words` (n,) uint64.

    `block` is whole eights of elements. Of each byte of an element it has eight planes, one for each bit, in which a
    byte holds that bit of eight elements. Eight such bytes are a square of bits, whose rows become columns by three
    exchanges.
    """
    n = len(block) // element // 8
    for byte in range(element):
        planes = block[byte * 8 * n : (byte + 1) * 8 * n]
        out = words[byte * n : (byte + 1) * n]
        for i in range(n):
            square = _word64(0)
            for bit in range(8):
                square |= _word64(planes[bit * n + i]) << _word64(8 * bit)
            swap = (square ^ (square >> 7)) & 0x00AA00AA00AA00AA
            square ^= swap ^ (swap << 7)
            swap = (square ^ (square >> 14)) & 0x0000CCCC0000CCCC
            square ^= swap ^ (swap << 14)
            swap = (square ^ (square >> 28)) & 0x00000000F0F0F0F0
            out[i] = square ^ swap ^ (swap << 28)


@njit
def _unshuffle(stored: Any, words: Any, out: Any, element: int, by_bits: bool) -> None:  # pragma: no cover
    """Undo blosc's shuffle of a block; all arrays have its size. Bytes after the last whole element are only copied."""
    count = len(out) // element
    whole = count * element
    if by_bits and count % 8:  # c-blosc leaves such blocks as they are
        _copy(out.ctypes.data, stored.ctypes.data, len(out))
        return
    _copy(out.ctypes.data + whole, stored.ctypes.data + whole, len(out) - whole)
    planes, out = stored[:whole], out[:whole]
    if by_bits:
        _bytes_of_bits(planes, words, element)
        planes = words.view(np.uint8)[:whole]
    # The same call seven times: with a constant element size the compiler makes vector code.
    if element == 1:
        _weave(planes, out, 1)
    elif element == 2:
        _weave(planes, out, 2)
    elif element == 3:
        _weave(planes, out, 3)
    elif element == 4:
        _weave(planes, out, 4)
    elif element == 6:
        _weave(planes, out, 6)
    elif element == 8:
        _weave(planes, out, 8)
    else:
        _weave(planes, out, element)


@njit
def _decode_blosc(frame: Any, out: Any, spare: Any, words: Any, context: int) -> bool:  # pragma: no cover
    """Decode a frame into `out`; return whether it could be.

    Blocks of LZ4 and zstd are decoded here, all others by c-blosc, which is slower: it spends most of its time on the
    shuffle, and makes a zstd decoder for every block.

    Args:
        spare: room for a block, (bytes,) uint8.
        words: the same, (bytes / 8,) uint64.
        context: a decoder of zstd.
    """
    # As `stages.py` does: c-blosc believes the sizes in a header.
    if len(frame) < _BLOSC_HEADER or _word(frame, 4) != len(out) or _word(frame, 12) != len(frame):
        return False
    flags, element, block = _long(frame[2]), _long(frame[3]), _word(frame, 8)
    if not 0 < block <= len(out):
        return False
    kind, shuffle = flags >> 5, flags & (_BY_BYTES | _BY_BITS)
    is_known = frame[0] == 2 and frame[1] == 1 and not flags & (_COPIED | _UNKNOWN) and shuffle != _BY_BYTES | _BY_BITS
    is_known = is_known and kind in (_BLOSC_LZ4, _BLOSC_ZSTD)
    if not is_known or not element or block > len(spare) or (not flags & _UNCUT and block % element):
        return bool(_blosc(frame.ctypes.data, out.ctypes.data, len(out), 1) == len(out))
    blocks = -(-len(out) // block)
    if len(frame) < _BLOSC_HEADER + 4 * blocks:
        return False
    for number in range(blocks):
        part = out[number * block : min((number + 1) * block, len(out))]
        room = spare[: len(part)] if shuffle else part
        cuts = 1 if flags & _UNCUT or len(part) < block else element
        size = len(part) // cuts
        at = _word(frame, _BLOSC_HEADER + 4 * number)
        for cut in range(cuts):
            if not 0 < at <= len(frame) - 4:
                return False
            stored = _word(frame, at)
            at += 4
            if stored > len(frame) - at:
                return False
            source, target = frame.ctypes.data + at, room.ctypes.data + cut * size
            if stored == size:
                _copy(target, source, size)
            elif kind == _BLOSC_LZ4:
                if _lz4(source, target, stored, size) != size:
                    return False
            elif _zstd(context, target, size, source, stored) != size:
                return False
            at += stored
        if shuffle:
            _unshuffle(room, words[: len(part) // 8], part, element, shuffle == _BY_BITS)
    return True


@njit
def _bits(value: float, item: int) -> Any:  # pragma: no cover
    """Return the bits of a float of 4 or 8 bytes as an integer."""
    if item == 4:
        return np.int64(np.float32(value).view(np.int32))
    return np.float64(value).view(np.int64)


@njit(error_model="numpy")  # without a check for division by zero, which would keep loops from becoming vector code
def _restore_decimals(ints: Any, scale: float, item: int) -> None:  # pragma: no cover
    """Do as `filters.restore_decimals`, in place, for values of `item` bytes. Most stretches have no strange ones."""
    least = _LEAST_32 if item == 4 else _LEAST_64
    for at in range(0, len(ints), _STRETCH):
        some = ints[at : at + _STRETCH]
        lowest = some[0]
        for i in range(len(some)):
            lowest = min(lowest, some[i])
        if lowest >= least:
            for i in range(len(some)):
                some[i] = _bits(some[i] / scale, item)
            continue
        for i in range(len(some)):
            some[i] = _bits(_STRANGE[some[i] - (least - 4)] if some[i] < least else some[i] / scale, item)


@njit
def _decode_frame(codec: int, frame: Any, out: Any, spare: Any, words: Any, context: int) -> bool:  # pragma: no cover
    """Decode an encoded frame into `out`; return whether it could be.

    Args:
        codec, context: see `decode`.
        spare, words: see `_decode_blosc`.
    """
    source, stored, size = frame.ctypes.data, len(frame), len(out)
    if codec == _LZ4:
        if stored < _LZ4_SIZE or _word(frame, 0) != size:
            return False
        return bool(_lz4(source + _LZ4_SIZE, out.ctypes.data, stored - _LZ4_SIZE, size) == size)
    if codec == _BLOSC:
        return bool(_decode_blosc(frame, out, spare, words, context))
    # One frame, and one that says how much it holds.
    if _zstd_length(source, stored) != stored or _zstd_size(source, stored) != size:
        return False
    return bool(_zstd(context, out.ctypes.data, size, source, stored) == size)


@njit
def _restore(values: Any, item: int, height: int, channels: int, scale: float) -> bool:  # pragma: no cover
    """Undo the filter of the bytes of a frame; return whether it could be.

    Args:
        height: rows of the image.
        item, channels, scale: see `decode`.
    """
    if scale:
        if len(values) % item:
            return False
        if item == 4:
            _restore_decimals(values.view(np.int32), scale, 4)
        else:
            _restore_decimals(values.view(np.int64), scale, 8)
    if channels:
        row = len(values) // item // max(height, 1)
        if channels < 0 or row <= 0 or row % channels or len(values) != height * row * item:
            return False
        if item == 1:
            _restore_photo(values, row, channels)
        else:
            _restore_photo(values.view(np.uint16), row, channels)
    return True


@compiled.machine_code(
    _long(_long, _MEMORY, _SPANS, _NUMBERS, _NUMBERS, _NUMBERS, _long, _long, _double, _pointer, _BYTES)
)
def decode(
    codec: int,
    memory: Any,
    spans: Any,
    sizes: Any,
    places: Any,
    heights: Any,
    item: int,
    channels: int,
    scale: float,
    context: int,
    out: Any,
) -> int:  # pragma: no cover
    """Decode frames, and undo their filter, `photo` or `decimal`.

    Args:
        codec: a value of `compiled.CODECS`.
        memory: (bytes,) uint8, in which the frames lie.
        spans: first byte of each frame and the one after its last, (n, 2) int64.
        sizes: raw bytes of each, (n,) int64. A frame with as many stored bytes is not encoded.
        places: where in `out` each is to begin, (n,) int64; one after the other if it is empty.
        heights: rows of the image in each, (n,) int64; anything if `channels` is 0.
        item: bytes of a number: 1 or 2 if `photo` is to be undone, 4 or 8 if `decimal` is.
        channels: of a pixel if `photo` is to be undone; else 0.
        scale: 10**digits if `decimal` is to be undone; else 0.
        context: address of a `ZstdContext` that no other thread uses meanwhile; LZ4 needs none.
        out: (bytes,) uint8.

    Returns:
        the number of the first frame that cannot be decoded, or n.
    """
    if codec != _LZ4 and not context:
        return 0
    spare = max(0, min(sizes.max(), len(out), _MOST_SPARE)) if codec == _BLOSC and len(sizes) else 0
    room, words = np.empty(spare, np.uint8), np.empty(spare // 8, np.uint64)
    after = 0
    for number in range(len(sizes)):
        start, end, size = spans[number, 0], spans[number, 1], sizes[number]
        place = places[number] if len(places) else after
        if not (0 <= start <= end <= len(memory) and end - start <= _MOST):
            return number
        if not (0 <= place <= len(out) and 0 <= size <= min(len(out) - place, _MOST)):
            return number
        frame, raw = memory[start:end], out[place : place + size]
        is_encoded = len(frame) != size
        if not is_encoded:
            _copy(raw.ctypes.data, frame.ctypes.data, size)
        elif not _decode_frame(codec, frame, raw, room, words, context):
            return number
        # `decimal` is undone in encoded frames alone: in others it was not applied.
        if size and not _restore(raw, item, heights[number], channels, scale if is_encoded else 0.0):
            return number
        after = place + size
    return len(sizes)


@compiled.machine_code(_long(_MEMORY, _SPANS, _HASHES))
def hashes(memory: Any, spans: Any, found: Any) -> int:  # pragma: no cover
    """Put the xxh3 of each frame, as `decode` takes them, into (n,) uint64; return how many lie within the memory."""
    source = memory.ctypes.data
    for frame in range(len(found)):
        start, end = spans[frame, 0], spans[frame, 1]
        if not 0 <= start <= end <= len(memory):
            return frame
        found[frame] = _xxh3(source + start, end - start)
    return len(found)
