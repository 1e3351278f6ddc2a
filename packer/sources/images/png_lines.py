"""Are all scan lines of a PNG there? Pillow takes data that end behind any whole line, and leaves the rest 0."""

from __future__ import annotations

import zlib

from packer.errors import SourceError
from packer.sources.images.png import SAMPLES, Png, PngHeader

#: First row and column of every pass of an interlaced picture, and the distance to the next ones.
_PASSES = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))
_PIECE_BYTES = 2**16


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


def check_lines(png: Png, path: str) -> None:
    """Raises SourceError where the data of a picture hold fewer scan lines than its header says."""
    expected, found = line_bytes(png.header), 0
    inflate = zlib.decompressobj()
    left: bytes | memoryview = png.pixels
    try:
        while found < expected and not inflate.eof:
            piece = inflate.decompress(left, _PIECE_BYTES)
            left = inflate.unconsumed_tail
            if not piece and not left:
                break
            found += len(piece)
    except zlib.error as error:
        raise SourceError(f"damaged PNG: its pixels cannot be decoded ({error}); get the file again", path) from error
    if found < expected:
        size = f"{png.header.width} x {png.header.height} pixels"
        reason = f"damaged PNG: its data hold {found} bytes of scan lines, and {size} take {expected}; get it again"
        raise SourceError(reason, path)
