"""One image file: what its header says, and its pixels; PNG chunk by chunk, the rest through Pillow."""

from __future__ import annotations

from typing import Any, NamedTuple

from numpy.typing import NDArray

from packer.errors import SourceError
from packer.sources.files import IMAGES, open_raw
from packer.sources.images import pillow as image_pillow
from packer.sources.images import png
from packer.sources.images.content import check_content
from packer.sources.images.modes import CHANNELS, COLOUR_KEY, FEW_BITS, ImageOptions, convert_mode


class ImageHeader(NamedTuple):
    """What an image will be when it is read: (height, width, channels) of dtype; `note` says what changes."""

    height: int
    width: int
    channels: int
    dtype: str
    note: str = ""


def read_header(path: str, options: ImageOptions) -> ImageHeader:
    """The header of an image file; nothing is decoded.

    Raises:
        SourceError: the file is not what its name says, is damaged, too large or cannot be kept without loss.
    """
    kind = _kind(path)
    try:
        with open_raw(path) as file:
            head = file.read(png.HEAD_BYTES)
            check_content(head, kind, path)
            if kind == "PNG":
                return png_image(png.read_header(file, head, path), path, options)
        height, width, layout = image_pillow.read_size(path, kind, options)
    except OSError as error:
        raise _unreadable(error, path) from error
    _check_mode(layout.dtype, path, options)
    channels = CHANNELS[options.mode] if options.mode else layout.channels
    return ImageHeader(height, width, channels, layout.dtype, layout.note)


def read_image(path: str, options: ImageOptions) -> NDArray[Any]:
    """The pixels as (H, W, C), C-contiguous, native-endian.

    Raises:
        SourceError: the file cannot be read or is damaged.
    """
    kind = _kind(path)
    try:
        with open_raw(path) as file:
            data = file.readall()
    except OSError as error:
        raise _unreadable(error, path) from error
    check_content(data[: png.HEAD_BYTES], kind, path)
    if kind == "PNG":
        checked = png.check(data, path)
        options.check_size(checked.header.width, checked.header.height, path)
        return png_pixels_of(checked, path, options)
    image = image_pillow.decode(data, path, kind, options)
    _check_mode(image.dtype.name, path, options)
    return convert_mode(image, options.mode) if options.mode else image


def png_pixels_of(checked: png.Png, path: str, options: ImageOptions) -> NDArray[Any]:
    """The pixels of a checked PNG, converted as the options ask for."""
    image = png.decode(checked, path, as_index=options.palette == "index")
    return convert_mode(image, options.mode, png.see_through(checked)) if options.mode else image


def _kind(path: str) -> str:
    return IMAGES[path[path.rindex(".") :].lower()]


def png_image(header: png.PngHeader, path: str, options: ImageOptions) -> ImageHeader:
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
    return ImageHeader(header.height, header.width, channels, dtype, "; ".join(notes))


def _check_mode(dtype: str, path: str, options: ImageOptions) -> None:
    if options.mode not in (None, "gray") and dtype not in ("uint8", "uint16"):
        reason = f"holds {dtype} values, which have no colours; leave out --mode {options.mode} for it"
        raise SourceError(reason, path)


def _unreadable(error: OSError, path: str) -> SourceError:
    return SourceError(f"cannot be read: {error.strerror or error}; check that it is there and may be read", path)
