"""PNG files: structure checks and pixels, against an encoder written here and the files of PngSuite."""

from __future__ import annotations

import io
import random
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from picture_files import chunk
from PIL import Image
from real_files import real_files

from packer.errors import SourceError
from packer.sources.images import png

KINDS = [(colour, depth) for colour, depths in png.DEPTHS.items() for depth in depths]
# Those that kornia_rs decodes.
PLAIN = [(colour, depth) for colour in (png.GRAY, png.RGB, png.RGBA) for depth in (8, 16)]
#: Gray with alpha of 16 bits, which Pillow opens as 8-bit RGBA.
(DEEP,) = real_files("png_odd/**/basn4a16.png")
SMALL = png.PngHeader(4, 3, 8, png.RGB, False)
# First row, first column, row step and column step of the seven passes of an interlaced PNG.
PASSES = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]


def pack_row(row: np.ndarray, depth: int) -> bytes:
    if depth == 16:
        return row.astype(">u2").tobytes()
    bits = np.unpackbits(row.astype(np.uint8).reshape(-1, 1), axis=1)[:, 8 - depth :]
    return np.packbits(bits.ravel()).tobytes()


def predict(kind: int, left: int, up: int, corner: int) -> int:
    """What the five row filters of PNG take off a byte."""
    if kind == 4:
        guess = left + up - corner
        return min((left, up, corner), key=lambda byte: abs(guess - byte))
    return (0, left, up, (left + up) // 2)[kind]


def filter_row(kind: int, row: bytes, above: bytes, step: int) -> bytes:
    padded, above = bytes(step) + row, bytes(step) + above
    out = [byte - predict(kind, padded[i], above[i + step], above[i]) & 255 for i, byte in enumerate(row)]
    return bytes([kind, *out])


def filter_rows(image: np.ndarray, depth: int, kinds: list[int]) -> bytes:
    if 0 in image.shape:
        return b""
    rows = [pack_row(row.ravel(), depth) for row in image]
    step = max(1, image.shape[2] * depth // 8)
    above = [bytes(len(rows[0])), *rows]
    return b"".join(filter_row(kinds[i % len(kinds)], row, above[i], step) for i, row in enumerate(rows))


def packed(header: png.PngHeader, *parts: bytes) -> bytes:
    """A PNG of this header and these chunks."""
    width, height, depth, colour, interlaced, *_ = header
    ihdr = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlaced))
    return b"".join((png.SIGNATURE, ihdr, *parts, chunk(b"IEND")))


def encode(values, colour, depth, *, kinds=(0,), interlaced=False, before=b"") -> bytes:
    """A PNG of (H, W, C) values as they are numbered in the file."""
    height, width = values.shape[:2]
    passes = [values[r::rs, c::cs] for r, c, rs, cs in PASSES] if interlaced else [values]
    data = zlib.compress(b"".join(filter_rows(part, depth, list(kinds)) for part in passes))
    half = len(data) // 2
    pixels = chunk(b"IDAT", data[:half]) + chunk(b"IDAT", data[half:])
    return packed(png.PngHeader(width, height, depth, colour, interlaced), before, pixels)


def palette_of(count: int) -> bytes:
    return chunk(b"PLTE", bytes(range(3 * count % 256)) if count < 86 else bytes(i % 251 for i in range(3 * count)))


def decode(data: bytes, **options: bool) -> np.ndarray:
    return png.decode(png.check(data), **options)


def small(colour: int = png.RGB, depth: int = 8, **options) -> bytes:
    shape = (3, 4, png.SAMPLES[colour])
    values = np.random.default_rng(1).integers(0, 2 ** min(depth, 3), shape, dtype=np.uint16)
    return encode(values, colour, depth, **options)


def line_bytes(header: png.PngHeader) -> int:
    """How long the scan lines of an image are, with the number of its filter before each."""
    passes = [np.empty((header.height, header.width), bool)]
    if header.interlaced:
        passes = [passes[0][r::rs, c::cs] for r, c, rs, cs in PASSES]
    bits = png.SAMPLES[header.colour] * header.depth
    return sum(len(part) * (1 + (part.shape[1] * bits + 7) // 8) for part in passes if part.size)


def with_data(header: png.PngHeader, data: bytes, pieces: int = 1) -> bytes:
    """A PNG with these data, deflated already, in several IDAT chunks."""
    step = -(-len(data) // pieces)
    pixels = [chunk(b"IDAT", data[at : at + step]) for at in range(0, len(data), step)]
    return packed(header, chunk(b"PLTE", bytes(range(256)) * 3) if header.colour == png.PALETTE else b"", *pixels)


def with_lines(header: png.PngHeader, lines: bytes, pieces: int = 1) -> bytes:
    """A PNG with these bytes of scan lines, in several IDAT chunks."""
    return with_data(header, zlib.compress(lines), pieces)


LIARS = (b"iCCP", b"IDAT")


def lying(kind: bytes) -> bytes:
    """A PNG whose first chunk after IHDR says that it holds more bytes than the file."""
    return small()[:33] + struct.pack(">I", 10**9) + kind + small()[41:]


@settings(max_examples=120, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    height=st.integers(1, 11),
    width=st.integers(1, 11),
    filters=st.lists(st.integers(0, 4), min_size=1, max_size=5),
    interlaced=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_every_kind_keeps_every_bit(kind, height, width, filters, interlaced, seed):
    """Every colour type, depth, filter and interlacing comes back as it was, 16 bits included."""
    colour, depth = kind
    values = np.random.default_rng(seed).integers(0, 2**depth, (height, width, png.SAMPLES[colour]), dtype=np.uint16)
    before = palette_of(2**depth) if colour == png.PALETTE else b""
    data = encode(values, colour, depth, kinds=filters, interlaced=interlaced, before=before)
    image = decode(data, as_index=True)
    scale = 255 // (2**depth - 1) if colour == png.GRAY and depth < 8 else 1
    assert image.dtype == (np.uint16 if depth == 16 else np.uint8)
    assert image.flags.c_contiguous
    np.testing.assert_array_equal(image, values * scale)


@pytest.mark.parametrize("depth", [8, 16])
@pytest.mark.parametrize("colour", [png.GRAY, png.RGB])
def test_no_other_chunk_changes_the_pixels(colour, depth):
    """Gamma, significant bits, profiles, a transparent colour and damage within chunks that are not needed."""
    values = np.random.default_rng(2).integers(0, 2**depth, (3, 4, png.SAMPLES[colour]), dtype=np.uint16)
    said = [
        chunk(b"gAMA", struct.pack(">I", 45455)) + chunk(b"sBIT", b"\1" * png.SAMPLES[colour]),
        chunk(b"iCCP", b"no profile") + chunk(b"cHRM", b"short") + chunk(b"zzZz", bytes(9)),
        chunk(b"tRNS", values[0, 0].astype(">u2").tobytes()),
    ]
    for before in said:
        np.testing.assert_array_equal(decode(encode(values, colour, depth, before=before)), values)


@pytest.mark.parametrize(("colour", "depth"), [kind for kind in KINDS if kind not in PLAIN])
def test_the_checksum_of_all_data_is_read(colour, depth):
    """Where Pillow decodes, which reads none: a wrong or missing one is an error, though those of chunks are right."""
    header = png.PngHeader(4, 3, depth, colour, False)
    data = zlib.compress(bytes(line_bytes(header)))
    decode(with_data(header, data))
    with pytest.raises(SourceError, match="incorrect data check"):
        decode(with_data(header, data[:-1] + bytes([data[-1] ^ 1])))
    for missing in (1, 3, 4):
        with pytest.raises(SourceError, match="damaged PNG: its data ends before its checksum"):
            decode(with_data(header, data[:-missing]))


def test_palette_gives_colours_with_alpha_where_there_is_transparency():
    """Palette images come out as RGB, as RGBA with tRNS (full alpha behind its end), or as indices."""
    values = np.array([[[0], [1], [2]]])
    plain = encode(values, png.PALETTE, 8, before=palette_of(3))
    clear = encode(values, png.PALETTE, 8, before=palette_of(3) + chunk(b"tRNS", b"\x00\x80"))
    assert decode(plain).tolist() == [[[0, 1, 2], [3, 4, 5], [6, 7, 8]]]
    assert decode(clear).tolist() == [[[0, 1, 2, 0], [3, 4, 5, 128], [6, 7, 8, 255]]]
    assert decode(clear, as_index=True).tolist() == [[[0], [1], [2]]]


def test_numbers_need_no_palette():
    """Masks mark pixels to ignore by 255, beyond a palette of all classes; as colours such an image is damaged."""
    mask = encode(np.array([[[0], [20], [255]]]), png.PALETTE, 8, before=palette_of(21))
    assert decode(mask, as_index=True).tolist() == [[[0], [20], [255]]]
    with pytest.raises(SourceError, match=r"colour number 255 is used, but the palette has 21; .* --palette index"):
        decode(mask)


@pytest.mark.parametrize(("colour", "depth"), [kind for kind in KINDS if kind[0] in (png.GRAY, png.RGB)])
def test_the_transparent_colour_is_one_of_the_pixels(colour, depth):
    """tRNS is given as the pixels are decoded, for every depth, whatever its bits above the depth are."""
    shape = (3, 4, png.SAMPLES[colour])
    values = np.random.default_rng(depth).integers(0, 2**depth, shape, dtype=np.uint16)
    for above in (0, 2**depth % 2**16):
        key = chunk(b"tRNS", (values[1, 2] | above).astype(">u2").tobytes())
        data = png.check(encode(values, colour, depth, before=key))
        assert png.transparent_colour(data) == tuple(png.decode(data)[1, 2].tolist())
    assert png.transparent_colour(png.check(encode(values, colour, depth))) is None


@pytest.mark.parametrize("path", [path for path in real_files("png_odd/**/*.png") if path != DEEP], ids=str)
def test_pngsuite_files_equal_pillow(path):
    """PngSuite files equal Pillow's decoding; where Pillow gives 8 of 16 bits, those are the high ones."""
    image = decode(path.read_bytes())
    picture = Image.open(path)
    if picture.mode == "P":
        picture = picture.convert("RGBA" if "transparency" in picture.info else "RGB")
    expected = np.asarray(picture.convert("L") if picture.mode == "1" else picture)
    high = image >> 8 if image.dtype == np.uint16 and expected.dtype == np.uint8 else image
    np.testing.assert_array_equal(high.squeeze(), expected)


def test_pngsuite_16_bit_colour_has_its_known_values():
    """basn2c16 holds ramps of all 16 bits: 31 even steps from full to none."""
    (path,) = real_files("png_odd/**/basn2c16.png")
    image = decode(path.read_bytes())
    assert image[0, :4, 0].tolist() == [65535, 63421, 61307, 59193]
    assert image.dtype == np.uint16


@pytest.mark.parametrize("path", real_files("png_bad/**/*.png"), ids=lambda path: path.name)
def test_pngsuite_bad_files_are_refused(path):
    """The corrupt files of PngSuite are errors."""
    with pytest.raises(SourceError):
        png.check(path.read_bytes())


@pytest.mark.parametrize("colour", [png.RGB, png.PALETTE])
def test_any_changed_byte_is_found(colour):
    """A PNG with any one byte changed is refused: nothing in it goes unchecked."""
    data = bytearray(small(colour, 8, before=palette_of(8) + chunk(b"tEXt", b"a\0b")))
    for position in range(len(data)):
        data[position] ^= 0x20
        with pytest.raises(SourceError, match=r"damaged PNG: |is not a PNG: |IHDR says|is an animated"):
            decode(bytes(data))
        data[position] ^= 0x20
    decode(bytes(data))


def test_a_file_cut_anywhere_is_found():
    """A PNG cut short at any byte is refused."""
    data = small()
    for length in range(len(data)):
        with pytest.raises(SourceError):
            png.check(data[:length])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (small() + b"more", "4 bytes follow IEND"),
        (small(before=chunk(b"acTL", bytes(8))), "animated"),
        (small(before=chunk(b"ABCD")), "chunk b'ABCD' at byte 33"),
        (small(png.PALETTE), "palette of 0 bytes"),
        (small(before=chunk(b"PLTE", bytes(4))), "palette of 4 bytes"),
        (small(before=chunk(b"tRNS", bytes(5))), "tRNS chunk of 5 bytes; 6 are expected"),
        (small(png.GRAY, before=chunk(b"tRNS", bytes(1))), "tRNS chunk of 1 bytes; 2 are expected"),
        (small(before=palette_of(2) + palette_of(2)), "PLTE chunk is where"),
        (small(before=chunk(b"IDAT") + chunk(b"tEXt", b"a\0b")), "IDAT chunk is where"),
        *((lying(kind), f"{kind.decode()} at byte 33 claims 1,000,000,000 .* the whole file has") for kind in LIARS),
        (packed(SMALL, chunk(b"acTL", struct.pack(">II", 1, 0)), chunk(b"IDAT"), chunk(b"fdAT", bytes(9))), "animated"),
        (packed(SMALL), "no IDAT"),
        (encode(np.zeros((3, 4, 3)), png.RGB, 8, kinds=[2]).replace(b"x\x9c", b"x\x9d"), "wrong checksum"),
        (
            with_lines(SMALL._replace(width=13000, height=13000), bytes(9000)),
            r"\d+ bytes of data cannot hold 13000 x 13000 pixels",
        ),
        (with_lines(SMALL, bytes(26)), "its data holds 26 bytes of scan lines, but 4 x 3 pixels need 39"),
        (with_lines(SMALL, b"\x09" * 39), "cannot be decoded"),
        (with_data(SMALL, b"x\x9c" + bytes(range(30))), "cannot be decoded"),
        (b"\xff\xd8\xff\xe0 a JPEG, and long enough to hold a header", "signature"),
    ],
)
def test_damage_is_said(data, message):
    """The error of a damaged PNG names what is wrong."""
    with pytest.raises(SourceError, match=message):
        decode(data)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ((0, 4, 8, 2, 0, 0, 0), "0 x 4 pixels"),
        ((4, 2**31, 8, 2, 0, 0, 0), "pixels, which PNG does not allow"),
        ((4, 4, 3, 0, 0, 0, 0), "colour type 0 with 3 bits"),
        ((4, 4, 16, 3, 0, 0, 0), "colour type 3 with 16 bits"),
        ((4, 4, 8, 5, 0, 0, 0), "colour type 5"),
        ((4, 4, 8, 2, 0, 0, 2), "interlace 2"),
        ((4, 4, 8, 2, 1, 0, 0), "compression 1"),
        ((4, 4, 16, 4, 0, 0, 0), "gray with alpha of 16 bits, which cannot be kept; save it as RGBA"),
    ],
)
def test_header_values_that_png_does_not_know_are_refused(fields, message):
    """IHDR is believed only where PNG allows what it says."""
    head = png.SIGNATURE + chunk(b"IHDR", struct.pack(">IIBBBBB", *fields))
    with pytest.raises(SourceError, match=message):
        png.read_header(head, len(head))


def test_a_header_needs_no_pixels():
    """The header is read from the bytes before the pixels, also if they are many."""
    for extra in (b"", chunk(b"zTXt", bytes(5000)) + chunk(b"tRNS", bytes(6))):
        data = small(before=extra)
        start = data.index(b"IDAT")
        assert png.read_header(data[:start], len(data)) is None
        header = png.read_header(data[: start + 4], len(data))
        assert header == png.PngHeader(4, 3, 8, png.RGB, False, transparent=bool(extra))


@pytest.mark.parametrize("at", [33, 1015])  # and so that the head of the file, 1,024 bytes, ends within the chunk
def test_an_animation_of_one_frame_is_a_picture(at):
    """Programs save still images so."""
    note = chunk(b"teXt", bytes(at - 45)) if at > 45 else b""
    data = small(before=note + chunk(b"acTL", struct.pack(">II", 1, 0)))
    assert png.read_header(data[:1024], len(data)) in (SMALL, None)
    np.testing.assert_array_equal(decode(data), decode(small()))


def test_a_header_without_pixels_behind_it_is_refused():
    """A file that ends before its pixels, or says it is animated, is found by its header alone."""
    animated = small(before=chunk(b"acTL", bytes(8)))
    for data, message in ((small()[:33], "cut short"), (packed(SMALL), "no IDAT"), (animated, "animated")):
        with pytest.raises(SourceError, match=message):
            png.read_header(data, len(data))


@pytest.mark.parametrize("interlaced", [False, True])
@pytest.mark.parametrize(("colour", "depth"), KINDS)
def test_missing_lines_are_never_zeros(colour: int, depth: int, interlaced: bool) -> None:
    """Of all lengths up to that of the image, whole lines or not, only the whole image decodes."""
    for width, height in ((5, 6), (1, 1), (9, 2)):
        header = png.PngHeader(width, height, depth, colour, interlaced)
        most = line_bytes(header)
        for fill in (b"\0", b"\1"):
            for length in range(most):
                with pytest.raises(SourceError, match="damaged PNG: "):
                    decode(with_lines(header, fill * length, 3))
        data = with_lines(header, bytes(most), 3)
        image = decode(data)
        assert image.shape[:2] == (height, width)
        with Image.open(io.BytesIO(data)) as picture:
            assert (picture.height, picture.width) == image.shape[:2]
            picture.load()


@pytest.mark.parametrize("more", [1, 7, 3 * 2**20])
@pytest.mark.parametrize("colour", [png.RGB, png.GRAY_ALPHA])
def test_what_follows_the_last_line_is_thrown_away(more: int, colour: int) -> None:
    """The pixels are those of a file without it."""
    header = SMALL._replace(colour=colour)
    data = zlib.compress(bytes(line_bytes(header)) + random.Random(more).randbytes(more))
    assert not decode(with_data(header, data)).any()
    if colour == png.GRAY_ALPHA:  # where the data are read to their checksum, damage in what follows is found too
        with pytest.raises(SourceError, match="damaged PNG: "):
            decode(with_data(header, data[:-1] + bytes([data[-1] ^ 1])))


#: Decodes a PNG from stdin with more and more memory; prints what came of it each time.
WITHIN = """
import sys
from packer.errors import SourceError
from packer.sources.images import png
from packer.workers import memory_within
checked = png.check(sys.stdin.buffer.read())
for mib in range(4, 80, 4):
    with memory_within(mib * 2**20):
        try:
            print(png.decode(checked).shape)
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
    ended = subprocess.run([sys.executable, "-c", WITHIN], input=file, capture_output=True, check=False, timeout=100)
    assert ended.returncode == 0, ended.stderr.decode()
    size = f"2500 x {header.height}"
    said = set(ended.stdout.decode().splitlines())
    assert said == {f"({header.height}, 2500, 3)", f"{size} pixels do not fit into memory"}
