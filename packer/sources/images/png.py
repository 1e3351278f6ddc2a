"""PNG files: the header for the plan, and the pixels with every bit they have.

A PNG is a signature and chunks (length, type, data, checksum), from IHDR to IEND. Gray, RGB and RGBA of 8 and 16 bits
are decoded by kornia_rs (the `png` crate of Rust). It gets only IHDR, the pixels and IEND, so that no other chunk can
change the result. `check` looks at the rest: the checksum of every chunk, chunks that PNG does not know or that are in
the wrong place, animations, and bytes after IEND. kornia_rs checks the compressed pixels, except for their Adler-32
checksum; the checksums of the chunks cover these bytes. Errors say what is wrong with the bytes, without a path.

Pillow decodes palette images, gray of 1, 2 and 4 bits, and gray with alpha. It takes missing scan lines for zeros and
reads no Adler-32 checksum, so the data are inflated and counted first. It cannot keep gray with alpha of 16 bits, which
is refused.
"""

from __future__ import annotations

import contextlib
import functools
import io
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from kornia_rs import io as kornia
from numpy.typing import NDArray

from packer.errors import SourceError

SIGNATURE = b"\x89PNG\r\n\x1a\n"

GRAY, RGB, PALETTE, GRAY_ALPHA, RGBA = 0, 2, 3, 4, 6

#: Bit depths that the PNG specification allows for each colour type; gray with alpha of 16 bits is refused.
DEPTHS = {GRAY: (1, 2, 4, 8, 16), RGB: (8, 16), PALETTE: (1, 2, 4, 8), GRAY_ALPHA: (8,), RGBA: (8, 16)}

#: Values that one pixel has in the file.
SAMPLES = {GRAY: 1, RGB: 3, PALETTE: 1, GRAY_ALPHA: 2, RGBA: 4}

#: Bytes of the one transparent colour (tRNS) of images without alpha or palette.
_KEY_BYTES = {GRAY: 2, RGB: 6}

#: Chunks beside the pixels whose bytes the header has, and under which name.
_KEPT = {b"eXIf": "exif", b"iCCP": "profile", b"cICP": "code_points", b"sRGB": "intent", b"gAMA": "gamma"}
#: What cICP holds of sRGB, and gAMA of what looks like it: 100,000 by 2.2, give or take a twentieth.
SRGB_POINTS, SRGB_GAMMAS = bytes((1, 13, 0, 1)), range(43_200, 47_800)
_CRITICAL = (b"IHDR", b"PLTE", b"IDAT", b"IEND")
_BEFORE_PIXELS = (b"IHDR", b"PLTE", b"tRNS")
#: How the acTL chunk of an animation begins that has only one image.
_ONE_IMAGE = b"\0\0\0\1"
_CHUNK = struct.Struct(">I4s")
IHDR = struct.Struct(">IIBBBBB")
_IHDR_END = 33
_IEND = b"\0\0\0\0IEND\xaeB`\x82"
_MAX_LENGTH = 2**31 - 1

#: Deflate makes data at most 1032 times smaller.
_MOST_INFLATED = 1032
#: Bytes inflated at a time while they are counted.
_PIECE_BYTES = 2**20

#: First row and column of every pass of an interlaced image, and the distance to the next ones.
_PASSES = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))

#: Names of the colour types in kornia_rs; by depth its function, the dtype, and how many copies of an image it holds.
_KORNIA = {GRAY: "mono", RGB: "rgb", RGBA: "rgba"}
_KORNIA_DEPTHS: dict[int, tuple[Callable[..., NDArray[Any]], type[np.generic], int]] = {
    8: (kornia.decode_image_png_u8, np.uint8, 1),
    16: (kornia.decode_image_png_u16, np.uint16, 2),
}


_COLOURS = {1: "gray", 2: "gray with alpha", 3: "RGB", 4: "RGBA"}


def pixels_in_words(channels: int, dtype: str | np.dtype[Any]) -> str:
    """Return what the pixels of an image are called, such as `RGB uint8`."""
    return f"{_COLOURS.get(channels, f'{channels} channels')} {dtype}"


def shown_in_words(channels: int, dtype: str, stack: str = "") -> str:
    """Return what images are called, or stacks of them, which have a letter for each axis before height."""
    if stack:
        return f"a stack of axes {', '.join(stack + ('YX' if channels == 1 else 'YXS'))}, {dtype}"
    return pixels_in_words(channels, dtype)


class PngHeader(NamedTuple):
    """The header of a PNG.

    Attributes:
        transparent: whether there is a tRNS chunk (colours marked as transparent).
        exif: what an eXIf chunk before the pixels holds; empty if there is none.
        profile, code_points, intent, gamma: what the chunks iCCP, cICP, sRGB and gAMA hold, likewise.
    """

    width: int
    height: int
    depth: int
    colour: int
    interlaced: bool
    transparent: bool = False
    exif: bytes = b""
    profile: bytes = b""
    code_points: bytes = b""
    intent: bytes = b""
    gamma: bytes = b""


class Png(NamedTuple):
    """A checked file.

    Attributes:
        data: the whole file.
        pixels: data of the IDAT chunks.
        pixels_at: where these chunks start and stop in the file.
        exif_behind: what an eXIf chunk after the pixels holds; empty if there is none.
    """

    header: PngHeader
    palette: bytes
    alpha: bytes
    data: bytes
    pixels: list[memoryview]
    pixels_at: tuple[int, int]
    exif_behind: bytes = b""


def read_header(head: bytes, nbytes: int) -> PngHeader | None:
    """Return the header of a file of `nbytes` that begins with `head`; None if that does not reach its pixels.

    Raises:
        SourceError: not a PNG, cut short before the pixels, values that PNG does not know, or animated.
    """
    header = _parse_ihdr(head[:_IHDR_END])
    for kind, start, stop in _chunks(head, nbytes):
        if kind == b"IDAT":
            return header
        if kind == b"IEND":
            raise _no_pixels()
        if kind == b"tRNS":
            header = header._replace(transparent=True)
        if kind in _KEPT:
            if stop > len(head):
                return None
            header = _keeping(header, kind, head[start + 8 : stop - 4])
    return None


def _keeping(header: PngHeader, kind: bytes, body: bytes) -> PngHeader:
    """Return a header with what one of the chunks `_KEPT` holds."""
    kept: dict[str, Any] = {_KEPT[kind]: body}
    return header._replace(**kept)


@functools.lru_cache
def _parse_ihdr(head: bytes) -> PngHeader:
    """Return the header from the first 33 bytes of a file; cached, since the images of a set have few different ones.

    Raises:
        SourceError: these are not the first bytes of a PNG, or IHDR holds values that PNG does not know.
    """
    if head[:8] != SIGNATURE:
        raise SourceError("is not a PNG: the signature of a PNG is missing; save it as PNG")
    if len(head) < _IHDR_END:
        raise _cut_short(len(head))
    if _CHUNK.unpack_from(head, 8) != (13, b"IHDR"):
        raise _damaged("it does not begin with an IHDR chunk of 13 bytes")
    _check_crc(memoryview(head), 8, _IHDR_END, b"IHDR")
    width, height, depth, colour, compression, filtering, interlace = IHDR.unpack_from(head, 16)
    if not (0 < width <= _MAX_LENGTH and 0 < height <= _MAX_LENGTH):
        raise SourceError(f"IHDR says {width} x {height} pixels, which PNG does not allow; download it again")
    if (colour, depth) == (GRAY_ALPHA, 16):
        raise SourceError("is gray with alpha of 16 bits, which cannot be kept; save it as RGBA of 16 bits")
    if depth not in DEPTHS.get(colour, ()):
        reason = f"IHDR says colour type {colour} with {depth} bits, which PNG does not know; download it again"
        raise SourceError(reason)
    if compression or filtering or interlace > 1:
        methods = f"compression {compression}, filter {filtering}, interlace {interlace}"
        raise SourceError(f"IHDR names a method that PNG does not know ({methods}); download it again")
    return PngHeader(width, height, depth, colour, bool(interlace))


def _chunks(data: bytes, nbytes: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield type, start and stop of each chunk after IHDR, up to IEND, of a file of `nbytes` that begins with `data`.

    If `data` is not the whole file, the last chunk yielded is the last one whose type is in `data`.

    Raises:
        SourceError: the file is cut short, or has a chunk that no still image has.
    """
    kind, stop = b"IHDR", _IHDR_END
    while kind != b"IEND":
        start = stop
        if start + 12 > nbytes:
            raise _cut_short(start)
        if start + 8 > len(data):
            return
        length, kind = _CHUNK.unpack_from(data, start)
        if kind == b"acTL" and start + 12 > len(data):
            return
        stop = start + 12 + length
        # Pixels that are cut short are an error when they are read: the header comes before them.
        if stop > nbytes and kind != b"IDAT":
            raise _overlong(kind, start, length, nbytes)
        if kind == b"fdAT" or (kind == b"acTL" and data[start + 8 : start + 12] != _ONE_IMAGE):
            raise SourceError("is an animated PNG; save the wanted frame as a PNG of its own")
        if kind not in _CRITICAL:
            _check_kind(kind, start)
        yield kind, start, stop


def chunk_parts(kind: bytes, body: bytes | memoryview) -> tuple[bytes | memoryview, ...]:
    """Return a chunk to be written, in parts to be joined or written one by one: its head, its body, its checksum."""
    return _CHUNK.pack(len(body), kind), body, zlib.crc32(body, zlib.crc32(kind)).to_bytes(4, "big")


def check(data: bytes) -> Png:
    """Check every chunk of a whole file, and return its parts.

    Raises:
        SourceError: a wrong checksum, a file cut short, data after IEND, chunks missing or animated.
    """
    header = _parse_ihdr(data[:_IHDR_END])
    view, nbytes = memoryview(data), len(data)
    length, kind = _CHUNK.unpack_from(data, _IHDR_END) if nbytes > _IHDR_END + len(_IEND) else (0, b"")
    if kind == b"IDAT" and length == nbytes - _IHDR_END - 24 and data.endswith(_IEND) and header.colour != PALETTE:
        _check_crc(view, _IHDR_END, nbytes - len(_IEND), kind)  # one chunk, as in most small images
        pixels_at = (_IHDR_END, nbytes - len(_IEND))
        return Png(header, b"", b"", data, [view[_IHDR_END + 8 : pixels_at[1] - 4]], pixels_at)
    single: dict[bytes, bytes] = {}
    pixels: list[memoryview] = []
    first, last, exif_behind = 0, 0, b""
    for kind, start, stop in _chunks(data, nbytes):
        if stop > nbytes:
            raise _overlong(kind, start, stop - start - 12, nbytes)
        _check_crc(view, start, stop, kind)
        if kind == b"IDAT":
            if pixels and last != start:
                raise _misplaced(kind)
            first, last = first or start, stop
            pixels.append(view[start + 8 : stop - 4])
        elif kind in _BEFORE_PIXELS:
            if pixels or kind in single or kind == b"IHDR":
                raise _misplaced(kind)
            single[kind] = data[start + 8 : stop - 4]
        elif kind in _KEPT and not pixels:
            header = _keeping(header, kind, data[start + 8 : stop - 4])
        elif kind == b"eXIf":
            exif_behind = data[start + 8 : stop - 4]
    if stop < nbytes:
        reason = f"{nbytes - stop:,} bytes follow IEND, where a PNG ends; save it as PNG again"
        raise SourceError(reason)
    if not pixels:
        raise _no_pixels()
    palette, alpha = single.get(b"PLTE", b""), single.get(b"tRNS")
    if (header.colour == PALETTE and not 0 < len(palette) <= 768) or len(palette) % 3:
        raise _damaged(f"a palette of {len(palette)} bytes; 3 to 768 are expected, a multiple of 3")
    if alpha is not None and len(alpha) < _KEY_BYTES.get(header.colour, 0):
        raise _damaged(f"a tRNS chunk of {len(alpha)} bytes; {_KEY_BYTES[header.colour]} are expected")
    if alpha is not None:
        header = header._replace(transparent=True)
    return Png(header, palette, alpha or b"", data, pixels, (first, last), exif_behind)


def _check_kind(kind: bytes, position: int) -> None:
    # Bit 5 of the first letter is clear in critical chunks, without which an image cannot be decoded rightly.
    if not kind.isalpha() or (kind[0] < 0x60 and kind not in _CRITICAL):
        raise _damaged(f"chunk {kind!r} at byte {position} is not one that PNG knows")


def _check_crc(view: memoryview, position: int, after: int, kind: bytes) -> None:
    if zlib.crc32(view[position + 4 : after - 4]) != int.from_bytes(view[after - 4 : after], "big"):
        raise _damaged(f"chunk {kind.decode()} at byte {position} has a wrong checksum")


def _damaged(problem: str, advice: str = "download it again") -> SourceError:
    return SourceError(f"damaged PNG: {problem}; {advice}")


def _misplaced(kind: bytes) -> SourceError:
    return _damaged(f"a {kind.decode()} chunk is where PNG allows none", "save it as PNG again")


def _no_pixels() -> SourceError:
    return _damaged("it has no IDAT chunk, so no pixels")


def _overlong(kind: bytes, position: int, length: int, size: int) -> SourceError:
    name = kind.decode() if kind.isalpha() else repr(kind)
    claim = f"chunk {name} at byte {position} claims {length:,} bytes of data, but the whole file has {size:,}"
    return _damaged(f"the file is cut short, or that length is wrong: {claim}")


def _cut_short(position: int) -> SourceError:
    return _damaged(f"the file is cut short, in the chunk that begins at byte {position}")


def decode(png: Png, *, as_index: bool = False) -> NDArray[Any]:
    """Return the image as (H, W, C), uint8 or uint16; palette images as RGB or RGBA, or as indices (C = 1).

    Gray of 1, 2 and 4 bits comes out as 8 bits, 0 for black and 255 for white, as Pillow converts it to "L".

    Raises:
        SourceError: the pixel data is damaged or too short, or the palette lacks a colour that is asked for.
    """
    header = png.header
    # Checked before memory is allocated for the size that the header says.
    stored_bytes, row = sum(map(len, png.pixels)), (header.width * header.depth * SAMPLES[header.colour] + 7) // 8
    if header.height * row > _MOST_INFLATED * stored_bytes:
        raise _damaged(f"{stored_bytes:,} bytes of data cannot hold {header.width} x {header.height} pixels")
    try:
        if header.colour in _KORNIA and header.depth in _KORNIA_DEPTHS:
            return _by_kornia(png)
        _check_lines(png)
        return _by_pillow(png, as_index)
    except SourceError:
        raise
    except MemoryError as error:
        raise SourceError(f"{header.width} x {header.height} pixels do not fit into memory") from error
    except Exception as error:  # kornia_rs raises no class of its own
        with contextlib.suppress(zlib.error):
            _check_lines(png)  # which says how many scan lines are missing
        raise _damaged(f"its pixels cannot be decoded ({error})") from error


def transparent_colour(png: Png) -> tuple[int, ...] | None:
    """Return the colour that is marked as transparent (tRNS) in gray or RGB, as `decode` gives it; None if none is."""
    header = png.header
    if not header.transparent or header.colour not in (GRAY, RGB):
        return None
    # Bits above the depth of the image are ignored, as the specification says.
    largest = 2**header.depth - 1
    values = (int.from_bytes(png.alpha[i : i + 2], "big") & largest for i in range(0, 2 * SAMPLES[header.colour], 2))
    return tuple(value * (255 // largest) if header.depth < 8 else value for value in values)


def _by_kornia(png: Png) -> NDArray[Any]:
    header = png.header
    start, stop = png.pixels_at
    end = len(png.data) - 12
    whole = start == _IHDR_END and stop == end
    file = png.data if whole else b"".join((png.data[:_IHDR_END], png.data[start:stop], png.data[end:]))
    decode_png, dtype, times = _KORNIA_DEPTHS[header.depth]
    # Too little memory is a MemoryError here, but would end the process within kornia_rs.
    np.empty((times, header.height, header.width, SAMPLES[header.colour]), dtype)
    return decode_png(file, (header.height, header.width), _KORNIA[header.colour])


def _by_pillow(png: Png, as_index: bool) -> NDArray[Any]:
    start, stop = png.pixels_at
    chunks = [(b"PLTE", png.palette), (b"tRNS", png.alpha)] if png.header.colour == PALETTE else []
    parts = [part for kind, body in chunks if body for part in chunk_parts(kind, body)]
    file = b"".join((png.data[:_IHDR_END], *parts, png.data[start:stop], png.data[-12:]))
    from PIL import PngImagePlugin

    with PngImagePlugin.PngImageFile(io.BytesIO(file)) as image:
        pixels = np.asarray(image)
        if png.header.colour == PALETTE and not as_index:
            largest, colours = int(pixels.max()), len(png.palette) // 3
            if largest >= colours:
                advice = "download it again, or pack the numbers, as of masks, with --palette index"
                raise _damaged(f"colour number {largest} is used, but the palette has {colours}", advice)
            pixels = np.asarray(image.convert("RGBA" if png.header.transparent else "RGB"))
        if pixels.dtype == bool:
            pixels = pixels.astype(np.uint8) * np.uint8(255)
    return pixels[:, :, None] if pixels.ndim == 2 else pixels


def _check_lines(png: Png) -> None:
    """Inflate the data to their checksum, and count them. Bytes after the last line are ignored, as all readers do.

    Raises:
        SourceError: the data end too early, or hold fewer scan lines than the header says.
        zlib.error: they cannot be inflated, or have a wrong checksum.
    """
    stream, left, nbytes = zlib.decompressobj(), b"".join(png.pixels), 0
    while not stream.eof:
        piece = stream.decompress(left, _PIECE_BYTES)
        if not piece and not stream.eof and not stream.unconsumed_tail:
            break
        left, nbytes = stream.unconsumed_tail, nbytes + len(piece)
    if nbytes < (expected := _line_bytes(png.header)):
        size = f"{png.header.width} x {png.header.height} pixels"
        raise _damaged(f"its data holds {nbytes:,} bytes of scan lines, but {size} need {expected:,}")
    if not stream.eof:
        raise _damaged("its data ends before its checksum")


def _line_bytes(header: PngHeader) -> int:
    """Return the bytes of all scan lines before they are deflated, each with the number of its filter."""
    total = 0
    for row, column, down, across in _PASSES if header.interlaced else ((0, 0, 1, 1),):
        rows, columns = -(-(header.height - row) // down), -(-(header.width - column) // across)
        if rows > 0 and columns > 0:
            total += rows * (1 + (columns * header.depth * SAMPLES[header.colour] + 7) // 8)
    return total
