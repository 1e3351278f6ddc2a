"""One image file: its format, its header and its pixels.

PNG is read by `png`, TIFF that Pillow does not read as it is meant by `tiff`, the rest by Pillow (`pillow`).
"""

from __future__ import annotations

import functools
import io
import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from packer.codecs import EncodedImage, bytes_after_jpeg, check_jpeg
from packer.errors import SourceError
from packer.sources.base import faults_of
from packer.sources.ends import bytes_after
from packer.sources.files import IMAGES, READ_ONLY, open_raw, read_file, refuse_pointer, suffix_of, unreadable
from packer.sources.images import pillow, png, tiff
from packer.sources.images.options import ImageOptions, reading_of
from packer.sources.images.pixels import (
    CHANNELS,
    COLOUR_KEY,
    COLOURS,
    FEW_BITS,
    NOT_TURNED,
    PROFILE,
    SEVERAL,
    TURNS,
    ImageHeader,
    check_mode,
    convert,
    inflated,
    is_srgb,
    oriented,
    oriented_header,
    turn_in,
)
from packer.sources.options import SourceOptions

#: Bytes that are read of a file to see its header; the pixels of most PNG files begin within this.
HEAD_BYTES = 1024
#: Bytes of a JPEG that lies in another file that are read for its header; of few it is longer.
JPEG_HEAD_BYTES = 2**16

#: Options where none are given.
_USUAL = SourceOptions()
_JPEG_END, _MPO = b"\xff\xd9", b"MPF\0"
#: Other formats whose bytes say where they end; a PNG that goes on is refused.
_WITH_END = ("WebP", "BMP", "GIF")
#: What the bytes of an image have that may be turned, in front of its tags.
_TAGS, _TAGS_WITHIN = re.compile(rb"Exif|eXIf|^II[*+]\0|^MM\0[*+]"), 4096
#: Formats, named as in `packer.sources.files.IMAGES` if they are those of images, and how their files begin.
_STARTS = {
    "PNG": rb"\x89PNG\r\n\x1a\n",
    "JPEG": rb"\xff\xd8\xff",
    "TIFF": rb"II[*+]\x00|MM\x00[*+]",
    "WebP": rb"RIFF.{4}WEBP",
    "BMP": rb"BM",
    "GIF": rb"GIF8[79]a",
    "AVIF or HEIC": rb".{4}ftyp",
    "HDF5": rb"\x89HDF",
    "HTML": rb"<",
}


#: How files of the usual formats begin: most are, and this is quicker to see.
_USUAL_STARTS = {"PNG": (png.SIGNATURE,), "JPEG": (b"\xff\xd8\xff",), "TIFF": (b"II*\0", b"MM\0*")}


class ByteRange(NamedTuple):
    """Where the bytes of an image lie, if it is no file of its own."""

    file: str
    offset: int
    size: int


def read_header(path: str, options: ImageOptions, place: ByteRange | bytes | None = None) -> ImageHeader:
    """Return the header of an image; nothing is decoded. Several threads may read at once within `pillow.quiet`.

    Args:
        path: of its file; if there is a `place`, a name for errors, which do not show its suffix.
        place: where the bytes lie, or these themselves, if the image is no file of its own.

    Raises:
        SourceError: the file has another format than its name says, is damaged, too large or cannot be kept without
            loss.
    """
    kind = IMAGES[suffix_of(path)] if place is None else ""
    head, nbytes = read_bytes(path, place, JPEG_HEAD_BYTES if kind == "JPEG" else HEAD_BYTES)
    kind = kind or _kind(path, place, head)
    with faults_of(_shown(path, place)):
        _check_content(head, kind)
        if kind == "JPEG":
            return _jpeg_header(path, place, head, nbytes, options)
        if kind != "PNG":
            data = head if len(head) == nbytes else b"" if place is None else read_bytes(path, place)[0]
            found = pillow.header_of(io.BytesIO(data) if data else path, kind, options)
            end = 0
            if found is None:
                header_of_tiff = tiff.look(io.BytesIO(data) if data else path, options.palette == "index")
                found, end = _tiff_header(header_of_tiff, options), header_of_tiff.end
            if place is not None or found.is_whole:
                return found
            with io.BytesIO(data) if data else open_raw(path) as file:
                return found._replace(after=bytes_after(file, end))
        while (header := png.read_header(head, nbytes)) is None:
            head, nbytes = read_bytes(path, place, 2 * len(head))
        return _png_header(header, options)


def _jpeg_header(
    path: str, place: ByteRange | bytes | None, head: bytes, nbytes: int, options: ImageOptions
) -> ImageHeader:
    """Return the header of a JPEG, given its first bytes and how many there are; of a file, the bytes after its end."""
    if len(head) < min(nbytes, JPEG_HEAD_BYTES):
        head, nbytes = read_bytes(path, place, JPEG_HEAD_BYTES)
    try:
        header = pillow.header_of(io.BytesIO(head), "JPEG", options)
    except SourceError:
        if len(head) == nbytes:
            raise
        header = pillow.header_of(io.BytesIO(read_bytes(path, place)[0]), "JPEG", options)  # it is longer
    assert header is not None, "only of TIFF there is none"
    if place is not None:
        return header
    is_whole = len(head) == nbytes
    end = head[-2:] if is_whole else read_bytes(path, ByteRange(path, nbytes - 2, 2))[0]
    if end == _JPEG_END and (SEVERAL in header.note or not is_whole):  # of a large file, `read_image` says it
        return header
    return header._replace(after=bytes_after_jpeg(head if is_whole else read_bytes(path)[0]))


def read_image(path: str, options: ImageOptions, place: ByteRange | bytes | None = None) -> NDArray[Any]:
    """Return the pixels of an image as (H, W, C), C-contiguous, native-endian; arguments as for `read_header`.

    It is an `EncodedImage` if these are the pixels of a JPEG file.

    Raises:
        SourceError: the file cannot be read or is damaged.
    """
    data, _ = read_bytes(path, place)
    kind = _kind(path, place, data)
    with faults_of(_shown(path, place)):
        pixels = _decode(data, kind, options)
    if _goes_on(data, kind, is_file=place is None):
        pillow.say_once(pillow.GOES_ON, _shown(path, place))
    return pixels


def _goes_on(data: bytes, kind: str, *, is_file: bool) -> bool:
    """Return whether an image has more behind its end that no header says: of a file, or of bytes within another one.

    The plan says it of files, but not of a large JPEG that ends as one does; and it says which have an index (MPO).
    """
    if kind != "JPEG":
        return not is_file and kind in _WITH_END and bytes_after(io.BytesIO(data)) > 0
    is_said = is_file and (len(data) <= JPEG_HEAD_BYTES or not data.endswith(_JPEG_END))
    return not is_said and bytes_after_jpeg(data) > 0 and _MPO not in data[: check_jpeg(data).scan_at]


def read_stack(
    path: str, options: ImageOptions, place: ByteRange | bytes | None = None, start: int = 0, stop: int | None = None
) -> NDArray[Any]:
    """Return the rows start..stop of the first axis of a stack of images; arguments and errors as for `read_image`."""
    with faults_of(_shown(path, place)):
        file = path if place is None else io.BytesIO(read_bytes(path, place)[0])
        return tiff.read(file, options.palette == "index", start, stop)[0]


def _decode(data: bytes, kind: str, options: ImageOptions) -> NDArray[Any]:
    """Return the pixels in the bytes of a file, which should have this format."""
    _check_content(data, kind)
    if kind == "JPEG":
        return pillow.jpeg_image(data, options)
    if kind != "PNG":
        found = pillow.image_of(data, kind, options)
        return _tiff_image(data, options) if found is None else found
    checked = png.check(data)
    options.check_size(checked.header.width, checked.header.height)
    image = png.decode(checked, as_index=options.palette == "index")
    image = convert(image, options.mode, png.transparent_colour(checked)) if options.mode else image
    if not options.orient:
        return image
    with pillow.quiet():
        if turn_in(checked.exif_behind) in TURNS:
            raise SourceError(
                "has its orientation tag (EXIF) behind the pixels, where --orient does not see it in time"
            )
        return oriented(image, turn_in(checked.header.exif)) if checked.header.exif else image


def as_image(value: Any, field: str) -> EncodedImage | None:
    """Return the pixels of a PIL image, or of the bytes of a file of an image; None if it is neither.

    A dict of `bytes` and `path`, as Hugging Face has undecoded images, counts as a file.

    Args:
        field: its name says whether palettes give colours or, of masks, numbers.

    Raises:
        SourceError: it cannot be decoded, or not without loss.
    """
    options = reading_of(field, _USUAL)
    if isinstance(value, Mapping) and {"bytes", "path"} >= value.keys():
        value = value.get("bytes") or read_bytes(str(value.get("path")))[0]
    if isinstance(value, Image.Image):
        pillow.check_as_meant(value)
        if pillow.turn_of(value) in TURNS:
            pillow.say_once(pillow.IS_TURNED, f"an image of field {field}")
        return EncodedImage.of(
            np.ascontiguousarray(pillow.pixels_of(value, pillow.decoding_of(value, options), options)), b""
        )
    if isinstance(value, bytes | bytearray | memoryview):
        data = bytes(value)
        if (kind := _format(data)) in pillow.READERS or kind == "PNG":
            pixels = _decode(data, kind, options)
            if _TAGS.search(data[:_TAGS_WITHIN]) and NOT_TURNED in read_header(field, options, data).note:
                pillow.say_once(pillow.IS_TURNED, f"an image of field {field}")
            return pixels if isinstance(pixels, EncodedImage) else EncodedImage.of(pixels, b"")
    return None


def read_bytes(path: str, place: ByteRange | bytes | None = None, most: int | None = None) -> tuple[bytes, int]:
    """Return all bytes of an image, or the first `most`, and how many there are; arguments as for `read_header`.

    Raises:
        SourceError: the file cannot be read, or has become shorter than the place says.
    """
    if place is None:
        return read_file(path, most)
    if isinstance(place, bytes):
        return place[:most], len(place)
    try:
        descriptor = os.open(place.file, READ_ONLY)
        try:
            os.lseek(descriptor, place.offset, os.SEEK_SET)
            count = place.size if most is None else min(most, place.size)
            data = os.read(descriptor, count)
            while len(data) < count and (more := os.read(descriptor, count - len(data))):
                data += more  # a call gives 2 GiB at most
        finally:
            os.close(descriptor)
    except OSError as error:
        raise unreadable(error, path) from error
    if len(data) < count:
        raise SourceError("was cut short while it was read; run again when nothing writes to it", path)
    return data, place.size


def _shown(path: str, place: ByteRange | bytes | None) -> str:
    """Return the name of an image for errors: a key has no suffix, whatever `path` gives it."""
    return path.rpartition(".")[0] if isinstance(place, ByteRange) else path


def _kind(path: str, place: ByteRange | bytes | None, head: bytes) -> str:
    """Return the format that an image should have: by its suffix; of a key by its bytes, empty if they are no image."""
    if place is None:
        return IMAGES[suffix_of(path)]
    kind = _format(head)
    return kind if kind in IMAGES.values() else ""


def _format(head: bytes) -> str:
    return next((name for name, start in _STARTS.items() if re.match(start, head, re.DOTALL)), "")


def _check_content(head: bytes, expected: str) -> None:
    """Raise SourceError if a file that begins with `head` does not hold the `expected` format; empty for any image."""
    if expected in _USUAL_STARTS and head.startswith(_USUAL_STARTS[expected]):
        return
    if not head:
        raise SourceError("is empty (0 bytes); download it again")
    refuse_pointer(head)
    actual = _format(head)
    if not actual and expected in ("PNG", "") and head[1:4] == b"PNG":
        raise SourceError("damaged PNG: the signature it begins with was changed; download it again")
    if not actual:
        beginning = "with zeros" if not any(head[:HEAD_BYTES]) else "like no format that is known here"
        is_no = f"is not a {expected}" if expected else "is no image"
        raise SourceError(f"{is_no}: it begins {beginning}; download it again")
    if not expected:
        raise SourceError(f"holds {actual} data, which is no image that can be packed; take it out")
    if actual != expected:
        raise SourceError(
            f"holds {actual} data, but has the suffix of a {expected}; rename it or save it as {expected}"
        )


@functools.lru_cache(1024)
def _png_header(header: png.PngHeader, options: ImageOptions) -> ImageHeader:
    """Return shape and dtype of a PNG when it is read; raises SourceError if it is too large.

    Cached, since the images of a set have few different headers.
    """
    options.check_size(header.width, header.height)
    channels = png.SAMPLES[header.colour]
    notes = []
    if header.colour == png.PALETTE:
        channels = 1 if options.palette == "index" else 3 + header.transparent
    else:
        notes += [FEW_BITS] if header.depth < 8 else []
        notes += [COLOUR_KEY] if header.transparent and options.mode != "rgba" else []
    if options.mode:
        channels = CHANNELS[options.mode]
    dtype = "uint16" if header.depth == 16 else "uint8"
    if header.code_points:  # the first of these that is there holds
        notes += [] if header.code_points == png.SRGB_POINTS else [COLOURS]
    elif header.profile:
        mode = "L" if header.colour in (png.GRAY, png.GRAY_ALPHA) else "RGB"
        notes += [] if is_srgb(inflated(header.profile), mode) else [PROFILE]
    elif header.gamma and not header.intent:
        notes += [] if int.from_bytes(header.gamma, "big") in png.SRGB_GAMMAS else [COLOURS]
    turn = turn_in(header.exif) if header.exif else 1
    oriented = oriented_header(header.height, header.width, channels, dtype, notes, turn, options)
    return oriented._replace(has_palette=header.colour == png.PALETTE)


def _tiff_header(header: tiff.TiffHeader, options: ImageOptions) -> ImageHeader:
    """Return the header of a TIFF that tifffile reads."""
    options.check_size(header.width, header.height)
    if options.mode and (header.stack or header.channels > 4):
        what = "a stack of images" if header.stack else f"an image of {header.channels} channels"
        raise SourceError(f"holds {what}, which --mode does not convert; leave it out")
    check_mode(header.dtype, options)
    if options.orient and header.stack and header.turn in TURNS:
        raise SourceError("holds a stack of images with an orientation tag, which --orient does not turn; leave it out")
    notes = list(header.notes)
    if header.profile and not is_srgb(header.profile, "L" if header.channels < 3 else "RGB"):
        notes.append(PROFILE)
    if header.bits < 8 and header.photometric != "PALETTE":
        notes.append(FEW_BITS)
    channels = CHANNELS[options.mode] if options.mode else header.channels
    found = oriented_header(header.height, header.width, channels, header.dtype, notes, header.turn, options)
    has_palette = header.photometric == "PALETTE"
    return found._replace(has_palette=has_palette, axes=header.axes, stack=header.stack, unwritten=header.unwritten)


def _tiff_image(data: bytes, options: ImageOptions) -> NDArray[Any]:
    """Return the pixels of a TIFF that tifffile reads, and that holds one image."""
    values, header = tiff.read(io.BytesIO(data), options.palette == "index")
    if header.stack:
        raise SourceError("holds a stack of images where one is expected; save the wanted one as a file of its own")
    check_mode(header.dtype, options)
    values = convert(values, options.mode) if options.mode else values
    return oriented(values, header.turn if options.orient else 1)
