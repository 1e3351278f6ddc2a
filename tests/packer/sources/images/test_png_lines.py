"""A PNG whose data end before its last scan line is refused, with right checksums too; never filled up with zeros."""

from __future__ import annotations

import io
import random
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
from picture_files import chunk
from PIL import Image

from packer.errors import SourceError
from packer.sources.images import png, png_pixels
from packer.sources.images.png_lines import deflated, line_bytes

KINDS = [(colour, depth) for colour, depths in png.DEPTHS.items() for depth in depths]


def with_lines(header: png.PngHeader, lines: bytes, pieces: int = 1) -> bytes:
    """A PNG with these bytes of scan lines, in several IDAT chunks."""
    width, height, depth, colour, interlaced, _ = header
    data = zlib.compress(lines)
    step = -(-len(data) // pieces)
    pixels = b"".join(chunk(b"IDAT", data[at : at + step]) for at in range(0, len(data), step))
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlaced))
    palette = chunk(b"PLTE", bytes(range(256)) * 3) if colour == png.PALETTE else b""
    return png.SIGNATURE + head + palette + pixels + chunk(b"IEND")


def decode(header: png.PngHeader, data: bytes) -> np.ndarray:
    """The pixels of a PNG with these data, deflated already."""
    file = with_lines(header, b"")
    at = file.index(b"IDAT") - 4
    return png_pixels.decode(png.check(file[:at] + chunk(b"IDAT", data) + chunk(b"IEND"), "x.png"), "x.png")


@pytest.mark.parametrize("interlaced", [False, True])
@pytest.mark.parametrize(("colour", "depth"), KINDS)
def test_missing_lines_are_never_zeros(colour: int, depth: int, interlaced: bool) -> None:
    """Of all lengths up to that of the picture, whole lines or not, only the whole picture decodes."""
    for width, height in ((5, 6), (1, 1), (9, 2)):
        header = png.PngHeader(width, height, depth, colour, interlaced)
        most = line_bytes(header)
        for fill in (b"\0", b"\1"):
            for length in range(most):
                with pytest.raises(SourceError, match=r"x\.png: damaged PNG: "):
                    png_pixels.decode(png.check(with_lines(header, fill * length, 3), "x.png"), "x.png")
        data = with_lines(header, bytes(most), 3)
        image = png_pixels.decode(png.check(data, "x.png"), "x.png")
        assert image.shape[:2] == (height, width)
        with Image.open(io.BytesIO(data)) as picture:
            assert (picture.height, picture.width) == image.shape[:2]
            picture.load()


def test_the_message_counts() -> None:
    """How many bytes there are and how many the size in the header takes."""
    header = png.PngHeader(4, 3, 8, png.RGB, False)
    with pytest.raises(SourceError, match="its data hold 26 bytes of scan lines, and 4 x 3 pixels take 39"):
        png_pixels.decode(png.check(with_lines(header, bytes(26)), "x.png"), "x.png")


@pytest.mark.parametrize("more", [1, 7, 3 * 2**20])
def test_what_follows_the_last_line_is_thrown_away(more: int) -> None:
    """The pixels are those of a file without it; damage in what follows is an error all the same."""
    header = png.PngHeader(4, 3, 8, png.RGB, False)
    lines = bytes(line_bytes(header))
    data = zlib.compress(lines + random.Random(more).randbytes(more))
    assert not decode(header, data).any()
    with pytest.raises(SourceError, match=r"x\.png: damaged PNG: "):
        decode(header, data[:-1] + bytes([data[-1] ^ 1]))


def test_data_without_their_checksum_are_refused() -> None:
    """All pixels are there, but nobody can say whether they are right."""
    header = png.PngHeader(4, 3, 8, png.RGB, False)
    data = zlib.compress(bytes(line_bytes(header)))
    decode(header, data)
    for missing in (1, 3, 4, 5):
        with pytest.raises(SourceError, match="damaged PNG: its data end before their checksum"):
            decode(header, data[:-missing])


@pytest.mark.parametrize("length", [1, 2**16 - 2, 2**16 - 1, 2**16, 3 * (2**16 - 1), 200_000])
def test_stored_blocks_are_what_zlib_reads(length: int) -> None:
    """One block, several, and a last one that is full."""
    lines = random.Random(length).randbytes(length)
    assert zlib.decompress(b"".join(deflated(lines))) == lines


#: Decodes a PNG from stdin with more and more memory; prints what came of it each time.
WITHIN = """
import sys
from packer.errors import SourceError
from packer.sources.images import png, png_pixels
from packer.sources.apart import memory_within
checked = png.check(sys.stdin.buffer.read(), "x.png")
for mib in range(4, 80, 4):
    with memory_within(mib * 2**20):
        try:
            print(png_pixels.decode(checked, "x.png").shape)
        except SourceError as error:
            print(error.reason)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux alone keeps limits of memory")
@pytest.mark.parametrize("depth", [8, 16])
def test_a_lack_of_memory_is_an_error(depth: int) -> None:
    """Wherever it comes: neither a panic nor an abort of the decoder, which would end the process."""
    header = png.PngHeader(2500, 16000 // depth, depth, png.RGB, False)
    file = with_lines(header, bytes(line_bytes(header)))
    # An interpreter of its own: this one holds memory that it would use again, whatever the limit.
    ended = subprocess.run([sys.executable, "-c", WITHIN], input=file, capture_output=True, check=False, timeout=60)
    assert ended.returncode == 0, ended.stderr.decode()
    size = f"2500 x {header.height}"
    said = set(ended.stdout.decode().splitlines())
    assert said == {f"({header.height}, 2500, 3)", f"{size} pixels do not fit into memory"}


def test_black_pictures_are_pictures() -> None:
    """Zeros that are in the file are pixels, in a large picture too."""
    for interlaced in (False, True):
        header = png.PngHeader(700, 600, 8, png.RGB, interlaced)
        data = with_lines(header, bytes(line_bytes(header)))
        image = png_pixels.decode(png.check(data, "x.png"), "x.png")
        np.testing.assert_array_equal(image, np.zeros((600, 700, 3), np.uint8))
