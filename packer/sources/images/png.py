"""The structure of a PNG file: its header, and the checks that Pillow does not make.

A PNG is a signature and chunks (length, type, data, checksum), from IHDR to IEND. Pillow accepts a file
with a wrong checksum in a chunk it skips, or with bytes behind IEND; here every chunk is checked before
a pixel is decoded. Pixels are decoded in `png_pixels`.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from isal import isal_zlib

from packer.errors import SourceError

SIGNATURE = b"\x89PNG\r\n\x1a\n"

GRAY, RGB, PALETTE, GRAY_ALPHA, RGBA = 0, 2, 3, 4, 6

#: Bit depths that the PNG specification allows for each colour type.
DEPTHS = {GRAY: (1, 2, 4, 8, 16), RGB: (8, 16), PALETTE: (1, 2, 4, 8), GRAY_ALPHA: (8, 16), RGBA: (8, 16)}

#: Values that one pixel has in the file.
SAMPLES = {GRAY: 1, RGB: 3, PALETTE: 1, GRAY_ALPHA: 2, RGBA: 4}

#: Bytes of the one transparent colour (tRNS) of pictures without alpha or palette.
_KEY_BYTES = {GRAY: 2, RGB: 6}

#: Bytes read of a file to see its header: the signature and IHDR are 33, most files reach IDAT within this.
HEAD_BYTES = 1024

_CRITICAL = (b"IHDR", b"PLTE", b"IDAT", b"IEND")
_BEFORE_PIXELS = (b"IHDR", b"PLTE", b"tRNS")
_CHUNK = struct.Struct(">I4s")
IHDR = struct.Struct(">IIBBBBB")
_MAX_LENGTH = 2**31 - 1


class PngHeader(NamedTuple):
    """What stands before the pixels. `transparent`: there is a tRNS chunk (colours marked as see-through)."""

    width: int
    height: int
    depth: int
    colour: int
    interlaced: bool
    transparent: bool = False


class Png(NamedTuple):
    """A checked file: its header, and the data of the chunks that make the picture."""

    header: PngHeader
    palette: bytes
    alpha: bytes
    pixels: bytes | memoryview


def read_header(file: BinaryIO, head: bytes, path: str) -> PngHeader:
    """The header of an open file whose first bytes are `head`, read up to the first IDAT and no further.

    Raises:
        SourceError: not a PNG, cut short before the pixels, values that PNG does not know, or animated.
    """
    header = parse_ihdr(head, path)
    before, position = 8, 33
    while True:
        kind, length = _chunk_head(file, head, position, before, path)
        if kind == b"IDAT":
            return header
        if kind == b"IEND":
            raise _no_pixels(path)
        if kind == b"tRNS":
            header = header._replace(transparent=True)
        _check_kind(kind, position, path)
        before, position = position, position + 12 + length


def _chunk_head(file: BinaryIO, head: bytes, position: int, before: int, path: str) -> tuple[bytes, int]:
    """Type and length of the chunk at `position`; the chunk at `before` says that it begins there."""
    if position + 8 <= len(head):
        length, kind = _CHUNK.unpack_from(head, position)
    else:
        file.seek(position)
        raw = file.read(8)
        if len(raw) < 8:
            size = file.seek(0, io.SEEK_END)
            if position <= size:
                raise _cut_short(position, path)
            file.seek(before)
            length, kind = _CHUNK.unpack(file.read(8))
            raise _overlong(kind, before, length, size, path)
        length, kind = _CHUNK.unpack(raw)
    return kind, length


def parse_ihdr(head: bytes, path: str) -> PngHeader:
    """The header from the first 33 bytes of a file.

    Raises:
        SourceError: these are not the first bytes of a PNG, or IHDR holds values that PNG does not know.
    """
    if head[:8] != SIGNATURE:
        raise SourceError("is not a PNG: the signature of a PNG is missing; save it as PNG again", path)
    if len(head) < 33:
        raise _cut_short(len(head), path)
    if _CHUNK.unpack_from(head, 8) != (13, b"IHDR"):
        raise SourceError("damaged PNG: it does not begin with an IHDR chunk of 13 bytes; get it again", path)
    _check_crc(memoryview(head), 8, 13, b"IHDR", path)
    width, height, depth, colour, compression, filtering, interlace = IHDR.unpack_from(head, 16)
    _check_values(width, height, depth, colour, path)
    if compression or filtering or interlace > 1:
        methods = f"compression {compression}, filter {filtering}, interlace {interlace}"
        raise SourceError(f"IHDR names a method that PNG does not know ({methods}); get the file again", path)
    return PngHeader(width, height, depth, colour, bool(interlace))


def _check_values(width: int, height: int, depth: int, colour: int, path: str) -> None:
    if not (0 < width <= _MAX_LENGTH and 0 < height <= _MAX_LENGTH):
        raise SourceError(f"IHDR says {width} x {height} pixels, which PNG does not allow; get the file again", path)
    if depth not in DEPTHS.get(colour, ()):
        reason = f"IHDR says colour type {colour} with {depth} bits, which PNG does not know; get the file again"
        raise SourceError(reason, path)


def chunk_parts(kind: bytes, body: bytes | memoryview) -> tuple[bytes | memoryview, ...]:
    """A chunk to be written, in parts that are joined or written one by one: its head, its body, its checksum."""
    return _CHUNK.pack(len(body), kind), body, isal_zlib.crc32(body, isal_zlib.crc32(kind)).to_bytes(4, "big")


def check(data: bytes, path: str) -> Png:
    """The parts of a whole file, after every chunk was checked.

    Raises:
        SourceError: a wrong checksum, a file cut short, data behind IEND, chunks missing or animated.
    """
    header = parse_ihdr(data, path)
    single: dict[bytes, memoryview] = {}
    pixels: list[memoryview] = []
    before = b""
    for kind, body in _chunks(data, path):
        late = bool(pixels) and (kind in _BEFORE_PIXELS or (kind == b"IDAT" and before != b"IDAT"))
        if late or kind in single:
            reason = f"damaged PNG: a {kind.decode()} chunk stands where PNG allows none; save it as PNG again"
            raise SourceError(reason, path)
        if kind == b"IDAT":
            pixels.append(body)
        elif kind in _BEFORE_PIXELS:
            single[kind] = body
        before = kind
    if not pixels:
        raise _no_pixels(path)
    palette = bytes(single.get(b"PLTE", b""))
    if (header.colour == PALETTE and not 0 < len(palette) <= 768) or len(palette) % 3:
        reason = f"damaged PNG: a palette of {len(palette)} bytes, 3 to 768 in threes are expected; get it again"
        raise SourceError(reason, path)
    alpha = bytes(single.get(b"tRNS", b""))
    if b"tRNS" in single and len(alpha) < _KEY_BYTES.get(header.colour, 0):
        reason = (
            f"damaged PNG: a tRNS chunk of {len(alpha)} bytes, {_KEY_BYTES[header.colour]} are expected; get it again"
        )
        raise SourceError(reason, path)
    joined = pixels[0] if len(pixels) == 1 else b"".join(pixels)
    header = header._replace(transparent=b"tRNS" in single)
    return Png(header, palette, alpha, joined)


def _chunks(data: bytes, path: str) -> Iterator[tuple[bytes, memoryview]]:
    """Type and data of every chunk, each with a right checksum."""
    view, end, position, kind = memoryview(data), len(data), 8, b""
    while kind != b"IEND":
        if position + 12 > end:
            raise _cut_short(position, path)
        length, kind = _CHUNK.unpack_from(data, position)
        if position + 12 + length > end:
            raise _overlong(kind, position, length, end, path)
        _check_kind(kind, position, path)
        _check_crc(view, position, length, kind, path)
        yield kind, view[position + 8 : position + 8 + length]
        position += 12 + length
    if position < end:
        reason = f"{end - position} bytes of data stand behind IEND, where a PNG ends; save it as PNG again"
        raise SourceError(reason, path)


def _check_kind(kind: bytes, position: int, path: str) -> None:
    if kind == b"acTL":
        raise SourceError("is an animated PNG; save the frame that is wanted as a PNG of its own", path)
    # Bit 5 of the first letter clear: a critical chunk, without which the picture is not what was meant.
    if not kind.isalpha() or (kind[0] < 0x60 and kind not in _CRITICAL):
        reason = f"damaged PNG: chunk {kind!r} at byte {position} is not one that PNG knows; get the file again"
        raise SourceError(reason, path)


def _check_crc(view: memoryview, position: int, length: int, kind: bytes, path: str) -> None:
    stop = position + 8 + length
    if isal_zlib.crc32(view[position + 4 : stop]) != int.from_bytes(view[stop : stop + 4], "big"):
        reason = f"damaged PNG: chunk {kind.decode()} at byte {position} has a wrong checksum; get the file again"
        raise SourceError(reason, path)


def _no_pixels(path: str) -> SourceError:
    return SourceError("damaged PNG: it holds no IDAT chunk, so no pixels; get the file again", path)


def _overlong(kind: bytes, position: int, length: int, size: int, path: str) -> SourceError:
    name = kind.decode() if kind.isalpha() else repr(kind)
    claim = f"chunk {name} at byte {position} claims {length:,} bytes of data, and the file has {size:,} in all"
    return SourceError(
        f"damaged PNG: the file is cut short, or that length is wrong: {claim}; get the file again", path
    )


def _cut_short(position: int, path: str) -> SourceError:
    reason = f"damaged PNG: the file is cut short, in the chunk that begins at byte {position}; get the file again"
    return SourceError(reason, path)
