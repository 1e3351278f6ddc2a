"""Images as JPEG files, those that they came in or, with a quality, new ones: a frame is one file, decoded when read.

libjpeg-turbo decodes with its defaults (exact integer DCT, smooth upsampling of colours), as Pillow does: pixels are
the same bit for bit. It lets go of the interpreter's lock, so that threads decode side by side.

A frame of a clip is stored as an image is. One that is no such file is stored as its pixels, or, if the codec has a
quality, as a file that is made of it, which changes values. The length of a frame tells files and pixels
apart: pixels have their own number of bytes; a file that has as many or more is followed by one byte of 0.

Nothing is decoded before the size that a file declares, its colours and the number of its scans were looked at: a
file of 60 kB can ask for gigabytes, or for seconds of work.
"""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

#: The id of the codec in the schema, and the dtype and channels that it is for.
JPEG, JPEG_DTYPE, JPEG_CHANNELS = "jpeg", "uint8", (1, 3)
#: By channels of the field: the names of its colours in simplejpeg and in Pillow, and how many components files have.
_COLOURS = {1: ("GRAY", "L", (1,)), 3: ("RGB", "RGB", (1, 3))}
#: Most pixels of a side of a file, as libjpeg allows them.
MOST_SIDE = 65500
#: Most scans of a file. Programs write one, or some ten if it is progressive; each decodes the whole image again.
MOST_SCANS = 300
#: A marker, wherever the next one is: libjpeg skips other bytes before it, too.
_MARKER = re.compile(rb"\xff+([\x01-\xfe])")
#: Markers without a length: of restarts and others, start of image, end of image.
_SINGLE, _START, _END, _END_MARK = {0x01, *range(0xD0, 0xDA)}, 0xD8, 0xD9, b"\xff\xd9"
#: A marker and the length of its segment, and the markers that have one in files that are not damaged.
_SEGMENT, _USUAL = struct.Struct(">BBH"), {*range(0xC0, 0xFF)} - _SINGLE
#: Markers of a frame, which has the size; of frames that are sequential; and of a scan.
_FRAME, _SEQUENTIAL, _SCAN = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}, (0xC0, 0xC1), 0xDA
#: Markers of what does not change pixels once colours are left aside: all of applications, and comments.
_ASIDE = (*range(0xE0, 0xF0), 0xFE)
#: What a scan of a sequential file has to say of itself.
_WHOLE_SPECTRUM = b"\0\x3f\0"
#: Rows that are decoded below the last one that is wanted: those whose colours smooth it.
_SPARE_ROWS = 16
#: Warnings of libjpeg about what lies around the data of scans: no pixel is lost. All other messages mean lost pixels.
_HARMLESS = re.compile(
    r"extraneous bytes before marker 0x(?!d[0-7])|bad ICC marker|unknown JFIF revision|Unknown Adobe color transform"
    r"|Invalid SOS parameters for sequential|Inconsistent progression sequence"
)
#: Those of them that the markers and data of scans alone still give.
_AT_THE_END = re.compile(r"extraneous bytes before marker 0xd9|Inconsistent progression sequence")
#: What simplejpeg says of chroma that is sampled in an unusual way, which it does not decode; and of errors before the
#: first scan. If it warns of something there, it decodes nothing either. Pillow does.
_NO_SAMPLING = "Could not determine subsampling"


def encode_jpeg(image: NDArray[Any], quality: int) -> bytes:
    """Return an image (H, W, C) of 1 or 3 channels as a JPEG file, its colours at half the height and width (4:2:0).

    Raises:
        ValueError: a side is too long.
    """
    import simplejpeg

    height, width, channels = image.shape
    if max(height, width) > MOST_SIDE:
        raise ValueError(f"an image of {height} x {width} pixels; a JPEG file holds {MOST_SIDE} a side at most")
    sampling = "Gray" if channels == 1 else "420"
    file: bytes = simplejpeg.encode_jpeg(
        np.ascontiguousarray(image), quality, _COLOURS[channels][0], sampling, fastdct=False
    )
    return file


def frame_of_file(file: bytes, nbytes: int) -> bytes:
    """Return a file as it is stored, given the bytes of its pixels."""
    return file if len(file) < nbytes else file + b"\0"


def file_of_frame(stored: memoryview, nbytes: int) -> memoryview:
    """Return the file in a stored frame, given the bytes of its pixels; an empty one if these themselves are stored."""
    return stored[: len(stored) - (len(stored) > nbytes)] if len(stored) != nbytes else stored[:0]


class Head(NamedTuple):
    """What a JPEG file says of itself before its data.

    Attributes:
        frame_at: where in the file the marker of the frame begins; its height is 5 bytes behind.
        is_sequential: whether rows lie in the file one after another.
        scan_at: where in the file the segment of the first scan begins.
        has_one_scan: whether the first scan holds all components of a sequential frame: then there is no other.
    """

    height: int
    width: int
    components: int
    frame_at: int
    is_sequential: bool
    scan_at: int = 0
    has_one_scan: bool = False


def _markers(file: memoryview | bytes) -> Iterator[tuple[int, int, int, int]]:
    """Yield each marker behind the start of a file: its code, its first byte, and start and stop of its segment."""
    at, last = 2, len(file) - _SEGMENT.size
    while True:
        mark, code, length = _SEGMENT.unpack_from(file, at) if at <= last else (0, 0, 0)
        if mark == 0xFF and code in _USUAL:  # no search, which takes longer
            yield code, at, at + 2, at + 2 + max(2, length)
            at += 2 + max(2, length)
        elif found := _MARKER.search(file, at):
            at, start, code = found.start(), found.end(), found[1][0]
            stop = start if code in _SINGLE else start + max(2, int.from_bytes(file[start : start + 2], "big"))
            yield code, at, start, stop
            at = stop
        else:
            return


def bytes_after_jpeg(file: bytes) -> int:
    """Return how many bytes follow the image of a JPEG file; 0 if it has no end."""
    with suppress(ValueError):  # it has no scan
        # Of most files the last bytes are the only end behind the head: to walk all markers takes ten times as long.
        if file.find(_END_MARK, _head_of(file).scan_at) == len(file) - len(_END_MARK):
            return 0
    return next((len(file) - start for code, _, start, _ in _markers(file) if code == _END), 0)


#: The head that was read last, and all bytes of its file up to the data of the first scan. Small pictures of one
#: program begin alike, and to look through these bytes takes as long as to decode them.
_last: tuple[bytes, Head] | None = None


def _head_of(file: memoryview | bytes) -> Head:
    """Return the head of a JPEG file; raises ValueError if it has no frame or no scan."""
    global _last
    if (last := _last) is not None and bytes(file[: len(last[0])]) == last[0]:
        return last[1]
    head = None
    for code, _, start, stop in _markers(file):
        if code in _FRAME and head is None and start + 8 <= stop <= len(file):
            height, width = (int.from_bytes(file[i : i + 2], "big") for i in (start + 3, start + 5))
            head = Head(height, width, file[start + 7], start - 2, code in _SEQUENTIAL)
        if code == _SCAN and head is not None and start + 3 <= stop <= len(file):
            head = head._replace(scan_at=start, has_one_scan=head.is_sequential and file[start + 2] >= head.components)
            _last = bytes(file[:stop]), head
            return head
        if code in (_SCAN, _END) or stop > len(file):
            break
    raise ValueError("it ends before its pixels begin")


def check_jpeg(file: memoryview | bytes, shape: Sequence[int] | None = None) -> Head:
    """Return the head of a JPEG file, and check it before anything is decoded.

    Args:
        shape: that the image must have, (H, W, C); any by default.

    Raises:
        ValueError: it has no frame or no scan, has too many scans, or holds an image of another shape or other colours.
    """
    head = _head_of(file)
    if shape is not None:
        height, width, channels = shape
        if (head.height, head.width) != (height, width) or head.components not in _COLOURS[channels][2]:
            raise ValueError(
                f"the file says {head.height} x {head.width} pixels of {head.components} components; "
                f"{height} x {width} of {' or '.join(map(str, _COLOURS[channels][2]))} are expected"
            )
    if not head.has_one_scan:
        scans = 1 + bytes(file[head.scan_at :]).count(bytes([0xFF, _SCAN]))
        if scans > MOST_SCANS:
            raise ValueError(f"it has {scans:,} scans, more than {MOST_SCANS}, which would take long to decode")
    return head


def decode_jpeg(
    file: memoryview,
    shape: Sequence[int],
    out: NDArray[np.uint8] | None = None,
    factor: int = 1,
    rows: int | None = None,
) -> NDArray[np.uint8]:
    """Return the pixels of a JPEG file; those of a gray file may have three channels.

    Args:
        shape: that the image must have, (H, W, C).
        out: memory for the pixels, (bytes,); new memory by default.
        factor: 2, 4 or 8 decodes the image this many times as small, its sides rounded up.
        rows: how many of the first rows are wanted; of those below, some or all may lack. None for all.

    Raises:
        ValueError: the file is damaged, has too many scans, or holds an image of another shape or of other colours.
    """
    head = check_jpeg(file, shape)
    height, width, channels = shape
    if rows is not None and head.is_sequential and rows + _SPARE_ROWS < height:
        # libjpeg decodes as many rows as the header says, and skips the rest of the data. A progressive file holds the
        # whole image several times, more exact each time.
        shorter, height = bytearray(file), rows + _SPARE_ROWS
        shorter[head.frame_at + 5 : head.frame_at + 7] = height.to_bytes(2, "big")
        file = memoryview(shorter)
    small = -(-height // factor), -(-width // factor), channels
    image = _decode(file, channels, factor, small, out)
    if image.shape != small:
        raise ValueError(f"an image of {' x '.join(map(str, image.shape))}; {' x '.join(map(str, small))} is expected")
    return image


def _decode(
    file: memoryview | bytes,
    channels: int,
    factor: int = 1,
    small: Sequence[int] = (0, 0),
    out: NDArray[np.uint8] | None = None,
    *,
    strict: bool = False,
) -> NDArray[np.uint8]:
    """Return what `decode_jpeg` does, of any size; `strict` makes an error of each warning."""
    import simplejpeg

    colours, mode, _ = _COLOURS[channels]
    least = (small[0], small[1], factor) if factor > 1 else ()
    try:
        image: NDArray[np.uint8] = simplejpeg.decode_jpeg(
            file, colours, False, False, *least, buffer=out, strict=strict
        )
    except ValueError as error:
        if "Insufficient memory" in str(error):
            raise MemoryError(str(error)) from None
        if _NO_SAMPLING not in str(error) and (strict or not _HARMLESS.search(str(error))):
            raise
        image = _decode_by_pillow(file, mode, factor)
        if out is not None and image.nbytes == out.nbytes:
            out[:] = image.reshape(-1)
    return image


def _decode_by_pillow(file: memoryview | bytes, mode: str, factor: int) -> NDArray[np.uint8]:
    """Return what `_decode` does, of a file that simplejpeg does not decode: sampled as 4:1:0, or with an odd head."""
    from PIL import JpegImagePlugin

    try:
        with JpegImagePlugin.JpegImageFile(io.BytesIO(file)) as image:
            if factor > 1:
                image.draft(image.mode, (max(1, image.width // factor), max(1, image.height // factor)))
            pixels = np.array(image.convert(mode))  # which may be written to
    except (OSError, SyntaxError) as error:
        raise ValueError(str(error)) from None
    return pixels if pixels.ndim == 3 else pixels[:, :, None]


def checked_jpeg(file: bytes, channels: int) -> tuple[NDArray[np.uint8], str]:
    """Return the pixels of a JPEG file as `decode_jpeg` gives them.

    Returns:
        the pixels (H, W, C), and what libjpeg warns of that lies around the data of the image; empty if nothing.

    Raises:
        ValueError: pixels are lost: the file is cut short, or bytes of it were changed; or it has too many scans.
    """
    check_jpeg(file)
    try:
        return _decode(file, channels, strict=True), ""
    except ValueError as error:
        # libjpeg tells its error, or else its first warning, which may hide others.
        warning = str(error)
        if not _HARMLESS.search(warning):
            raise
    try:
        _decode(_bare(file), channels, strict=True)
    except ValueError as error:
        if not _AT_THE_END.search(str(error)):
            raise
    return _decode(file, channels), warning


def _bare(file: bytes) -> bytes:
    """Return a file with the same data of scans, but nothing around them that libjpeg warns of."""
    parts, data_at, is_sequential = [bytes([0xFF, _START])], 0, False
    for code, at, start, stop in _markers(file):
        if data_at and code in range(0xD0, 0xD8):
            continue  # restarts are within the data
        parts.append(file[data_at or at : at])
        data_at, segment = 0, file[start:stop]
        is_sequential |= code in _SEQUENTIAL
        if code == _SCAN:
            data_at = stop
            segment = segment[:-3] + _WHOLE_SPECTRUM if is_sequential else segment
        if code not in _ASIDE:
            parts += [bytes([0xFF, code]), segment]
        if code == _END:
            break
    return b"".join([*parts, file[data_at:] if data_at else b""])
