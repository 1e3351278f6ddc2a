"""The scan lines of a PNG, as they are before they are deflated."""

from __future__ import annotations

import struct

from isal import isal_zlib

from packer.errors import SourceError
from packer.sources.images.png import SAMPLES, Png, PngHeader

#: First row and column of every pass of an interlaced picture, and the distance to the next ones.
_PASSES = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))

#: Bytes inflated at a time of what is thrown away.
_PIECE_BYTES = 2**20

_ZLIB_HEADER = b"\x78\x01"
#: Of a stored block, of so many bytes at most: whether it is the last one, its length, and the complement of that.
_BLOCK_HEADER = struct.Struct("<BHH")
_BLOCK_BYTES = 2**16 - 1


def line_bytes(header: PngHeader) -> int:
    """Bytes of all scan lines before they are deflated, each with the number of its filter in front."""
    if not header.interlaced:
        return header.height * _line(header, header.width)
    total = 0
    for row, column, down, across in _PASSES:
        rows, columns = -(-(header.height - row) // down), -(-(header.width - column) // across)
        total += rows * _line(header, columns) if rows > 0 and columns > 0 else 0
    return total


def _line(header: PngHeader, columns: int) -> int:
    return 1 + (columns * header.depth * SAMPLES[header.colour] + 7) // 8


def inflate(png: Png, path: str) -> bytes:
    """The scan lines of a picture (`line_bytes`,), each behind the number of its filter.

    The data are read to their end, where a checksum stands; what comes behind the last line is thrown away, as by all
    who read PNG. ISA-L inflates twice as fast as zlib: the 55 kB of an RGB photograph of 192 px in 250 instead of
    580 us.

    Raises:
        SourceError: the data end too early, or hold fewer scan lines than the header says.
        isal_zlib.IsalError: they cannot be inflated, or have a wrong checksum.
    """
    expected = line_bytes(png.header)
    stream = isal_zlib.decompressobj()
    lines = stream.decompress(png.pixels, expected)
    if len(lines) < expected:
        size = f"{png.header.width} x {png.header.height} pixels"
        reason = (
            f"damaged PNG: its data hold {len(lines)} bytes of scan lines, and {size} take {expected}; get it again"
        )
        raise SourceError(reason, path)
    while not stream.eof:
        left = stream.unconsumed_tail
        if not stream.decompress(left, _PIECE_BYTES) and not left:
            raise SourceError("damaged PNG: its data end before their checksum; get the file again", path)
    return lines


def deflated(lines: bytes) -> list[bytes | memoryview]:
    """Scan lines for a decoder that takes zlib's format alone (RFC 1950): in blocks that are stored as they are.

    Returns the parts to be joined: the header, each block behind its own, the checksum.
    """
    parts: list[bytes | memoryview] = [_ZLIB_HEADER]
    for at in range(0, len(lines), _BLOCK_BYTES):
        block = memoryview(lines)[at : at + _BLOCK_BYTES]
        last = at + _BLOCK_BYTES >= len(lines)
        parts += [_BLOCK_HEADER.pack(last, len(block), len(block) ^ 0xFFFF), block]
    return [*parts, isal_zlib.adler32(lines).to_bytes(4, "big")]
