"""One picture file: what its first bytes say, its header, and its pixels; PNG by `png`, the rest by `pillow`."""

from __future__ import annotations

import os
from functools import partial
from typing import Any, NamedTuple

from numpy.typing import NDArray

from packer.errors import SourceError
from packer.sources.files import IMAGES, READ_ONLY, read_file, refuse_pointer, suffix_of
from packer.sources.images import pillow, png
from packer.sources.images.copies import mark_of
from packer.sources.images.pillow import CHANNELS, COLOUR_KEY, FEW_BITS, ImageOptions, convert_mode

#: First bytes and the format they stand for; image formats carry the names of `packer.sources.files.IMAGES`.
_STARTS = (
    (png.SIGNATURE, "PNG"),
    (b"\xff\xd8\xff", "JPEG"),
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
    (b"II+\0", "TIFF"),
    (b"MM\0+", "TIFF"),
    (b"BM", "BMP"),
    (b"GIF87a", "GIF"),
    (b"GIF89a", "GIF"),
    (b"\x89HDF", "HDF5"),
    (b"\x8bJNG", "JNG"),
    (b"\x8aMNG", "MNG"),
    (b"\0\0\0\x0cjP  ", "JPEG 2000"),
    (b"8BPS", "Photoshop"),
    (b"v/1\x01", "OpenEXR"),
    (b"\x93NUMPY", "NumPy"),
    (b"ply", "PLY"),
    (b"PK\x03\x04", "zip"),
    (b"\x1f\x8b", "gzip"),
    (b"%PDF", "PDF"),
    (b"<?xml", "XML"),
    (b"<svg", "SVG"),
    (b"<", "HTML"),
)


class ImageHeader(NamedTuple):
    """What a picture will be when it is read: (height, width, channels) of dtype.

    Attributes:
        note: what changes.
        mark: see `copies.mark_of`.
    """

    height: int
    width: int
    channels: int
    dtype: str
    note: str = ""
    mark: int = 0


def read_header(path: str, options: ImageOptions) -> ImageHeader:
    """Return the header of a picture file; nothing is decoded. Several threads may read at once within `pillow.quiet`.

    Raises:
        SourceError: the file is not what its name says, is damaged, too large or cannot be kept without loss.
    """
    kind = IMAGES[suffix_of(path)]
    try:
        file = os.open(path, READ_ONLY)
        try:
            nbytes, head = os.fstat(file).st_size, os.read(file, png.HEAD_BYTES)
            mark = mark_of(nbytes, head)
            check_content(head, kind, path)
            if kind == "PNG":
                header = png.read_header(head, nbytes, partial(_piece, file), path)
                return png_image(header, path, options, mark)
        finally:
            os.close(file)
        height, width, layout = pillow.read_size(path, kind, options)
    except OSError as error:
        raise unreadable(error, path) from error
    _check_mode(layout.dtype, path, options)
    channels = CHANNELS[options.mode] if options.mode else layout.channels
    return ImageHeader(height, width, channels, layout.dtype, layout.note, mark)


def _piece(file: int, size: int, position: int) -> bytes:
    os.lseek(file, position, os.SEEK_SET)
    return os.read(file, size)


def read_image(path: str, options: ImageOptions) -> NDArray[Any]:
    """Return the pixels as (H, W, C), C-contiguous, native-endian.

    Raises:
        SourceError: the file cannot be read or is damaged.
    """
    try:
        data = read_file(path)
    except OSError as error:
        raise unreadable(error, path) from error
    return decode(data, IMAGES[suffix_of(path)], path, options)


def decode(data: bytes, kind: str, path: str, options: ImageOptions) -> NDArray[Any]:
    """Return the pixels of the bytes of a file of this kind; as `read_image`."""
    check_content(data, kind, path)
    if kind == "PNG":
        checked = png.check(data, path)
        options.check_size(checked.header.width, checked.header.height, path)
        image = png.decode(checked, path, as_index=options.palette == "index")
        return convert_mode(image, options.mode, png.see_through(checked)) if options.mode else image
    image = pillow.decode(data, path, kind, options)
    _check_mode(image.dtype.name, path, options)
    return convert_mode(image, options.mode) if options.mode else image


def png_image(header: png.PngHeader, path: str, options: ImageOptions, mark: int) -> ImageHeader:
    """Return what a PNG will be when it is read; raises SourceError if it is too large."""
    options.check_size(header.width, header.height, path)
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
    return ImageHeader(header.height, header.width, channels, dtype, "; ".join(notes), mark)


def _check_mode(dtype: str, path: str, options: ImageOptions) -> None:
    if options.mode not in (None, "gray") and dtype not in ("uint8", "uint16"):
        reason = f"holds {dtype} values, which have no colours; leave out --mode {options.mode} for it"
        raise SourceError(reason, path)


def unreadable(error: OSError, path: str) -> SourceError:
    """Return the error of a file that the operating system does not give."""
    return SourceError(f"cannot be read: {error.strerror or error}; check that it is there and may be read", path)


def content(head: bytes) -> str:
    """Return the format of a file that begins with `head` (at least 16 bytes, or the whole file); empty if unknown."""
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "WebP"
    if head[4:8] == b"ftyp":
        return "AVIF or HEIC"
    return next((name for start, name in _STARTS if head.startswith(start)), "")


def check_content(head: bytes, expected: str, path: str) -> None:
    """Raise SourceError if a file that begins with `head` does not hold the `expected` format."""
    if head.startswith(png.SIGNATURE) and expected == "PNG":
        return
    if not head:
        raise SourceError("is empty (0 bytes); get the file again", path)
    refuse_pointer(head, path)
    found = content(head)
    if not found and expected == "PNG" and head[1:4] == b"PNG":
        raise SourceError("damaged PNG: the signature it begins with was changed; get the file again", path)
    if not found:
        what = "zeros" if not any(head[: png.HEAD_BYTES]) else "no format that is known here"
        raise SourceError(f"is no {expected}: it begins with {what}; get the file again", path)
    if found != expected:
        raise SourceError(
            f"holds {found} data under the name of a {expected}; rename it or save it as {expected}", path
        )
