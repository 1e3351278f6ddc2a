"""One image file: its format, its header and its pixels.

PNG is read by `png`, TIFF that Pillow does not read as it is meant by `tiff`, the rest by Pillow.

For JPEG, TIFF, WebP, BMP and GIF, Pillow's reader of the expected format is called directly, not `Image.open`: no other
format is tried on the bytes, and `max_pixels` replaces Pillow's process-wide limit of pixels (first a warning, then an
error). Pixels are those of `np.asarray(Image.open(path))`, except that signed 16 bits are int16 where Pillow widens
them.

The orientation tag (EXIF) is applied only if asked for (`--orient`): partners and labels rely on where the file has its
pixels. The plan counts files that have one.

Gray, RGB and RGBA are converted into each other (`--mode`) by Pillow's own arithmetic, so that 8-bit images come out
as `Image.convert` gives them; unlike Pillow, 16 bits stay 16.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import io
import logging
import mmap
import os
import re
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import BmpImagePlugin, GifImagePlugin, Image, JpegImagePlugin, TiffImagePlugin, WebPImagePlugin, _imaging

from packer.codecs import JPEG_CHANNELS, EncodedImage, bytes_after, checked_jpeg
from packer.errors import PackerError, SourceError, UsageError
from packer.sources.base import faults_of
from packer.sources.files import IMAGES, READ_ONLY, refuse_pointer, suffix_of, unreadable
from packer.sources.images import png, tiff

#: Channels of an image after conversion to a mode.
CHANNELS = {"gray": 1, "rgb": 3, "rgba": 4}

#: Pillow's own limit: an image with more pixels is more likely an attack on memory than an image.
MAX_PIXELS = 178_956_970

#: Bytes that are read of a file to see its header; the pixels of most PNG files begin within this.
HEAD_BYTES = 1024
#: Bytes of a JPEG that lies in another file that are read for its header; of few it is longer.
JPEG_HEAD_BYTES = 2**16

# Remarks of the plan on files whose pixels are not kept as they are.
FEW_BITS = "gray of 1, 2 or 4 bits is stored as 8 bits, 0 for black and 255 for white"
COLOUR_KEY = "one colour is marked as transparent: the pixels keep that colour, the mark is not kept"
NOT_TURNED = "an orientation tag (EXIF) is not applied: pixels stay where the file has them; --orient turns them"
TURNED = "turned as the orientation tag (EXIF) says"
SEVERAL = (
    "further pictures in the file (MPO of phones and cameras: gain maps, depth, stereo) are not packed, its first is"
)
PROFILE = "its colour profile (ICC) is not sRGB: values are packed as they are, the profile is not kept"
CMYK = "CMYK is turned into other colours by Pillow; codec jpeg stores their pixels, not the files"

_JPEG_END = b"\xff\xd9"
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

#: Mode of Pillow and channels wanted of the images that libjpeg decodes as they are.
_JPEG_MODES = (("L", 1), ("L", 3), ("RGB", 3))

_log = logging.getLogger(__name__)
#: Whether a remark was made, in memory that processes share which are forked.
_said = mmap.mmap(-1, 1)

_READERS: dict[str, Any] = {
    "JPEG": JpegImagePlugin.JpegImageFile,
    "TIFF": TiffImagePlugin.TiffImageFile,
    "WebP": WebPImagePlugin.WebPImageFile,
    "BMP": BmpImagePlugin.BmpImageFile,
    "GIF": GifImagePlugin.GifImageFile,
}

# Tags of TIFF, and values of them.
_BITS, _PHOTOMETRIC, _DESCRIPTION, _ORIENTATION, _SAMPLES, _EXTRA, _SAMPLE_FORMAT = 258, 262, 270, 274, 277, 338, 339
_STRIP_BYTES, _TILE_BYTES, _STRIPS, _TILES = 279, 325, 273, 324
_COMPRESSION, _JPEG, _JPEG_TABLES, _PLANES, _SEPARATE = 259, 7, 347, 284, 2
#: Tag of directories below that of an image: smaller copies of it.
_SUB_DIRECTORIES = 330
#: Descriptions of a TIFF whose one directory stands for a stack, by ImageJ and by tifffile.
_STACK = re.compile(r"^ImageJ=.*^images=(?!1\b)|\"truncated\": *true", re.DOTALL | re.MULTILINE)
#: How many colours show whether a profile is that of sRGB, how far it may move them on average; most bytes of one.
_PROBES, _LIKE_SRGB, _MOST_PROFILE_BYTES = 256, 4, 2**22
#: Modes of Pillow without colours.
_GRAYS = ("1", "L", "LA", "La", "I", "I;16", "I;16B", "F")
#: Tag of the index of an MPO: how many images it holds.
_MPO_IMAGES = 0xB001
_WHITE_IS_ZERO = 0
_MULTIPLIED_ALPHA = 1
_UNSIGNED, _SIGNED = 1, 2


@dataclass(frozen=True)
class ImageOptions:
    """How images are read.

    Attributes:
        mode: `gray`, `rgb` or `rgba` converts every image; None keeps the channels of the files.
        palette: `colour` gives palette images their colours, `index` keeps the numbers of the colours.
        max_pixels: larger images are refused.
        orient: whether the orientation tag (EXIF) is applied to the pixels.
    """

    mode: str | None = None
    palette: str = "colour"
    max_pixels: int = MAX_PIXELS
    orient: bool = False

    def __post_init__(self) -> None:
        if self.palette == "index" and self.mode:
            raise UsageError("palette indices have no colours to convert; leave out --mode or --palette index")

    def check_size(self, width: int, height: int) -> None:
        """Raise SourceError if an image has more than `max_pixels` pixels."""
        if width * height > self.max_pixels:
            reason = f"has {width} x {height} pixels, more than the limit of {self.max_pixels:,}"
            raise SourceError(f"{reason}; if that is right, raise the limit with --max-pixels {width * height}")


_MASKS = {"annotation", "annotations", "class", "classes", "label", "labels", "mask", "masks", "seg", "segmentation"}


def is_mask_name(field: str) -> bool:
    """Return whether images of a field of this name hold numbers of classes, such as `mask` or `gt_label`."""
    return not _MASKS.isdisjoint(re.split(r"[\W\d_]+", field.lower()))


class ByteRange(NamedTuple):
    """Where the bytes of an image lie, if it is no file of its own."""

    file: str
    offset: int
    size: int


class ImageHeader(NamedTuple):
    """Shape and dtype of an image when it is read: (height, width, channels) of dtype.

    Attributes:
        note: what is not kept as it is in the file, in words; empty if nothing.
        has_palette: whether the file holds numbers of colours.
        axes: of a stack of images, a letter for each axis before height, as tifffile names them.
        stack: the lengths of these axes.
        unwritten: how many pieces of the file were never written.
        after: how many bytes follow the image; 0 if it is not known.
    """

    height: int
    width: int
    channels: int
    dtype: str
    note: str
    has_palette: bool = False
    axes: str = ""
    stack: tuple[int, ...] = ()
    unwritten: int = 0
    after: int = 0

    @property
    def in_words(self) -> str:
        """Return what all images of a field have in common, such as `RGB uint8`."""
        return png.shown_in_words(self.channels, self.dtype, self.axes)


def read_header(path: str, options: ImageOptions, place: ByteRange | bytes | None = None) -> ImageHeader:
    """Return the header of an image; nothing is decoded. Several threads may read at once within `quiet`.

    Args:
        path: of its file; if there is a `place`, a name for errors, which do not show its suffix.
        place: where the bytes lie, or these themselves, if the image is no file of its own.

    Raises:
        SourceError: the file has another format than its name says, is damaged, too large or cannot be kept without
            loss.
    """
    head, nbytes = read_bytes(path, place, HEAD_BYTES)
    kind = _kind(path, place, head)
    with faults_of(_shown(path, place)):
        _check_content(head, kind)
        if kind != "PNG":
            if kind == "TIFF":
                file = path if place is None else io.BytesIO(read_bytes(path, place)[0])
                if not _is_for_pillow(file):
                    return _tiff_header(tiff.look(file, options.palette == "index"), options)
            if place is None:
                found = _pillow_header(path, kind, options)
                return found._replace(after=_bytes_after(path, nbytes)) if kind == "JPEG" else found
            if kind == "JPEG" and nbytes > JPEG_HEAD_BYTES:
                with contextlib.suppress(SourceError):  # the header may be longer
                    return _pillow_header(io.BytesIO(read_bytes(path, place, JPEG_HEAD_BYTES)[0]), kind, options)
            return _pillow_header(io.BytesIO(read_bytes(path, place)[0]), kind, options)
        while (header := png.read_header(head, nbytes)) is None:
            head, nbytes = read_bytes(path, place, 2 * len(head))
        return _png_header(header, options)


def _bytes_after(path: str, nbytes: int) -> int:
    """Return how many bytes follow the image of a JPEG file, such as a video of a phone; most files end with it."""
    if read_bytes(path, ByteRange(path, nbytes - 2, 2))[0] == _JPEG_END:
        return 0
    return bytes_after(read_bytes(path)[0])


def read_image(path: str, options: ImageOptions, place: ByteRange | bytes | None = None) -> NDArray[Any]:
    """Return the pixels of an image as (H, W, C), C-contiguous, native-endian; arguments as for `read_header`.

    It is an `EncodedImage` if these are the pixels of a JPEG file.

    Raises:
        SourceError: the file cannot be read or is damaged.
    """
    data, _ = read_bytes(path, place)
    with faults_of(_shown(path, place)):
        return _decode(data, _kind(path, place, data), options)


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
        return _jpeg_image(data, options)
    if kind == "TIFF" and not _is_for_pillow(io.BytesIO(data)):
        return _tiff_image(data, options)
    if kind != "PNG":
        return _pillow_image(data, kind, options)
    checked = png.check(data)
    options.check_size(checked.header.width, checked.header.height)
    image = png.decode(checked, as_index=options.palette == "index")
    image = _convert(image, options.mode, png.transparent_colour(checked)) if options.mode else image
    if not (options.orient and checked.header.exif):
        return image
    with quiet():
        return _oriented(image, _turn_in(checked.header.exif))


def as_image(value: Any, field: str) -> EncodedImage | None:
    """Return the pixels of a PIL image, or of the bytes of a file of an image; None if it is neither.

    A dict of `bytes` and `path`, as Hugging Face has undecoded images, counts as a file.

    Args:
        field: its name says whether palettes give colours or, of masks, numbers.

    Raises:
        SourceError: it cannot be decoded, or not without loss.
    """
    options = ImageOptions(palette="index" if is_mask_name(field) else "colour")
    if isinstance(value, Mapping) and {"bytes", "path"} >= value.keys():
        value = value.get("bytes") or read_bytes(str(value.get("path")))[0]
    if isinstance(value, Image.Image):
        return EncodedImage.of(np.ascontiguousarray(_pixels(value, _layout(value, options), options)), b"")
    if isinstance(value, bytes | bytearray | memoryview):
        data = bytes(value)
        if (kind := _format(data)) in _READERS or kind == "PNG":
            pixels = _decode(data, kind, options)
            return pixels if isinstance(pixels, EncodedImage) else EncodedImage.of(pixels, b"")
    return None


def read_bytes(path: str, place: ByteRange | bytes | None = None, most: int | None = None) -> tuple[bytes, int]:
    """Return all bytes of an image, or the first `most`, and how many there are; arguments as for `read_header`.

    No file object is made, which would take as long as reading a small image.

    Raises:
        SourceError: the file cannot be read, or has become shorter than the place says.
    """
    if isinstance(place, bytes):
        return place[:most], len(place)
    try:
        descriptor = os.open(path if place is None else place.file, READ_ONLY)
        try:
            nbytes = os.fstat(descriptor).st_size if place is None else place.size
            if place is not None:
                os.lseek(descriptor, place.offset, os.SEEK_SET)
            count = nbytes if most is None else min(most, nbytes)
            data = os.read(descriptor, count)
            while len(data) < count and (more := os.read(descriptor, count - len(data))):
                data += more  # a call gives 2 GiB at most
        finally:
            os.close(descriptor)
    except OSError as error:
        raise unreadable(error, path) from error
    if place is not None and len(data) < count:
        raise SourceError("was cut short while it was read; run again when nothing writes to it", path)
    return data, nbytes


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
    if head.startswith(png.SIGNATURE) and expected == "PNG":
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
    if header.profile and not _is_srgb(
        _inflated(header.profile), "L" if header.colour in (png.GRAY, png.GRAY_ALPHA) else "RGB"
    ):
        notes.append(PROFILE)
    turn = _turn_in(header.exif) if header.exif else 1
    oriented = _oriented_header(header.height, header.width, channels, dtype, notes, turn, options)
    return oriented._replace(has_palette=header.colour == png.PALETTE)


# ---------------------------------------------------------------- what Pillow reads


class _Layout(NamedTuple):
    """How an image is read: the Pillow mode it is converted to first, channels and dtype."""

    mode: str
    channels: int
    dtype: str


_LAYOUTS = {
    "1": _Layout("L", 1, "uint8"),
    "L": _Layout("L", 1, "uint8"),
    "LA": _Layout("LA", 2, "uint8"),
    "La": _Layout("LA", 2, "uint8"),
    "RGB": _Layout("RGB", 3, "uint8"),
    "RGBA": _Layout("RGBA", 4, "uint8"),
    "PA": _Layout("RGBA", 4, "uint8"),
    "I;16": _Layout("I;16", 1, "uint16"),
    "I;16B": _Layout("I;16B", 1, "uint16"),
    "I": _Layout("I", 1, "int32"),
    "F": _Layout("F", 1, "float32"),
}
#: Further modes of Pillow that it can make RGB of.
_CONVERTIBLE = ("CMYK", "YCbCr", "HSV")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence warnings about metadata that Pillow cannot read and nobody uses; to be called in one thread only."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _pillow_header(file: str | io.BytesIO, kind: str, options: ImageOptions) -> ImageHeader:
    with _opened(file, kind, options) as (image, layout):
        notes = [*_changes(image, with_alpha=layout.mode == "RGBA")]
        channels = CHANNELS[options.mode] if options.mode else layout.channels
        header = _oriented_header(image.height, image.width, channels, layout.dtype, notes, _turn_of(image), options)
        return header._replace(has_palette=image.mode == "P")


def _jpeg_image(data: bytes, options: ImageOptions) -> NDArray[Any]:
    """Return the pixels of a JPEG, with its file unless they are other ones: of CMYK, or gray made from colours."""
    with quiet(), _opened(io.BytesIO(data), "JPEG", options) as (image, layout):
        channels = CHANNELS[options.mode] if options.mode else layout.channels
        if (image.mode, channels) in _JPEG_MODES:
            try:
                pixels, warning = checked_jpeg(data, channels)
            except ValueError as error:
                raise SourceError(
                    f"damaged JPEG: {error}; download it again, or skip it with --on-error skip"
                ) from None
            if warning:
                _say_once(warning)
            return _oriented(EncodedImage.of(pixels, data), _turn_of(image) if options.orient else 1)
        return _pixels(image, layout, options)


def _say_once(warning: str) -> None:
    """Log what libjpeg warns of in a JPEG that is whole, of the first one of this process and of those it starts."""
    if not _said[0]:
        _said[0] = 1
        _log.info('libjpeg warns of some JPEG files ("%s"): their pixels are whole, and packed as they are', warning)


def _pillow_image(data: bytes, kind: str, options: ImageOptions) -> NDArray[Any]:
    with quiet(), _opened(io.BytesIO(data), kind, options) as (image, layout):
        if kind == "TIFF":
            _silence_libtiff()
        if isinstance(image, TiffImagePlugin.TiffImageFile) and image.tag_v2.get(_COMPRESSION) == _JPEG:
            tags = image.tag_v2
            of_each = 1 if tags.get(_PLANES) == _SEPARATE else tags.get(_SAMPLES, 1)
            if of_each in JPEG_CHANNELS:
                offsets = tags.get(_TILES, tags.get(_STRIPS, ()))
                places = zip(offsets, tags.get(_TILE_BYTES, tags.get(_STRIP_BYTES, ())), strict=True)
                tiff.check_jpegs(io.BytesIO(data), places, bytes(tags.get(_JPEG_TABLES, b"")), of_each)
        return _pixels(image, layout, options)


@functools.cache
def _silence_libtiff() -> None:
    """Keep libtiff from writing a line to stderr for each damaged file, in this process: its error says it."""
    with contextlib.suppress(OSError, AttributeError):  # Pillow without libtiff
        ctypes.CDLL(_imaging.__file__).TIFFSetErrorHandler(None)


@functools.cache
def _silence_pillow() -> None:
    """Keep Pillow from logging an error for each TIFF of more bands than it reads, in this process: others read it."""
    TiffImagePlugin.logger.addFilter(lambda record: False)


def _pixels(image: Image.Image, layout: _Layout, options: ImageOptions) -> NDArray[Any]:
    """Return the pixels of an opened image, (H, W, C), as `options` ask for them."""
    turn = _turn_of(image) if options.orient else 1  # decoding may drop it
    pixels = np.asarray(image if image.mode == layout.mode else image.convert(layout.mode))
    pixels = pixels.view(layout.dtype) if layout.dtype == "uint32" else pixels.astype(layout.dtype, copy=False)
    pixels = pixels[:, :, None] if pixels.ndim == 2 else pixels
    return _oriented(_convert(pixels, options.mode) if options.mode else pixels, turn)


@contextlib.contextmanager
def _opened(file: str | io.BytesIO, kind: str, options: ImageOptions) -> Iterator[tuple[Image.Image, _Layout]]:
    """Open an image; yield it with its layout.

    Raises:
        SourceError: it is damaged, too large, or cannot be read without loss.
    """
    try:
        with _READERS[kind](file) as image:
            options.check_size(image.width, image.height)
            layout = _layout(image, options)
            _check_mode(layout.dtype, options)
            yield image, layout
    except PackerError:
        raise
    except MemoryError as error:
        raise SourceError("has pixels that do not fit into memory") from error
    except Exception as error:  # Damaged files make Pillow raise anything from SyntaxError to struct.error.
        reason = (
            f"cannot be read as {kind} by Pillow ({error}); download it again if it is damaged, else save it as PNG"
        )
        raise SourceError(reason) from error


def _layout(image: Image.Image, options: ImageOptions) -> _Layout:
    """Return how an opened image is read; raises SourceError if it cannot be read without loss."""
    if getattr(image, "n_frames", 1) > 1:
        raise SourceError("holds several images (an animation or pages); save the wanted one as a file of its own")
    if image.mode == "P":
        if options.palette == "index":
            return _Layout("P", 1, "uint8")
        return _LAYOUTS["RGBA" if "transparency" in image.info else "RGB"]
    if image.mode in ("1", "L", "RGB") and options.mode == "rgba" and "transparency" in image.info:
        return _LAYOUTS["RGBA"]
    layout = _LAYOUTS.get(image.mode)
    if layout is None:
        if options.mode is None or image.mode not in _CONVERTIBLE:
            advice = "convert them with --mode rgb" if image.mode in _CONVERTIBLE else "save it as RGB"
            raise SourceError(f"has {image.mode} colours, which cannot be kept; {advice}")
        layout = _LAYOUTS["RGB"]
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        if not _is_as_meant(image):  # an image that a caller has opened
            raise SourceError("is a TIFF that Pillow does not read as it is meant; give its path or its bytes")
        if layout.dtype == "int32":  # Pillow has one wide mode for several types
            is_unsigned = image.tag_v2.get(_SAMPLE_FORMAT, (_UNSIGNED,))[0] == _UNSIGNED
            narrow = "int16" if max(image.tag_v2.get(_BITS, (1,))) == 16 else "int32"
            return layout._replace(dtype="uint32" if is_unsigned else narrow)
    return layout


def _lists_further(image: JpegImagePlugin.JpegImageFile) -> bool:
    """Return whether a JPEG is an MPO that lists further images behind it."""
    with contextlib.suppress(Exception):  # a damaged list makes Pillow raise anything, and harms no pixel of the first
        return ((image._getmp() or {}).get(_MPO_IMAGES) or 1) > 1
    return False


def _is_for_pillow(file: str | io.BytesIO) -> bool:
    """Return whether a TIFF is one that Pillow reads as it is meant."""
    _silence_pillow()
    with contextlib.suppress(Exception), TiffImagePlugin.TiffImageFile(file) as image:
        return _is_as_meant(image)
    return False


def _is_as_meant(image: TiffImagePlugin.TiffImageFile) -> bool:
    """Return whether Pillow gives all pixels of a TIFF, with all their bits and where the file has them.

    Of the others it leaves out pages and channels, cuts values to 8 or 32 bits, takes signed ones for unsigned, turns
    pixels as the orientation tag says, divides by alpha, or inverts nothing where white is 0 in more than 8 bits.
    """
    tags = image.tag_v2
    dtype = _LAYOUTS.get(image.mode, _LAYOUTS["RGB"]).dtype
    bits, form = max(tags.get(_BITS, (1,))), tags.get(_SAMPLE_FORMAT, (_UNSIGNED,))[0]
    return not (
        getattr(image, "n_frames", 1) > 1
        or _STACK.search(str(tags.get(_DESCRIPTION, "")))
        or tags.get(_SAMPLES, 1) > len(image.getbands())
        or bits > 8 * np.dtype(dtype).itemsize
        or (dtype == "uint8" and form == _SIGNED)
        or tags.get(_ORIENTATION, 1) in _TURNS
        or 0 in tags.get(_TILE_BYTES, tags.get(_STRIP_BYTES, ()))  # never written: it reads the head of the file
        or _MULTIPLIED_ALPHA in tags.get(_EXTRA, ())
        or (bits > 8 and tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO)
    )


def _tiff_header(layout: tiff.Layout, options: ImageOptions) -> ImageHeader:
    """Return the header of a TIFF that tifffile reads."""
    options.check_size(layout.width, layout.height)
    if options.mode and (layout.stack or layout.channels > 4):
        what = "a stack of images" if layout.stack else f"an image of {layout.channels} channels"
        raise SourceError(f"holds {what}, which --mode does not convert; leave it out")
    _check_mode(layout.dtype, options)
    if options.orient and layout.stack and layout.turn in _TURNS:
        raise SourceError("holds a stack of images with an orientation tag, which --orient does not turn; leave it out")
    notes = list(layout.notes)
    if layout.profile and not _is_srgb(layout.profile, "L" if layout.channels < 3 else "RGB"):
        notes.append(PROFILE)
    if layout.bits < 8 and layout.photometric != "PALETTE":
        notes.append(FEW_BITS)
    channels = CHANNELS[options.mode] if options.mode else layout.channels
    header = _oriented_header(layout.height, layout.width, channels, layout.dtype, notes, layout.turn, options)
    has_palette = layout.photometric == "PALETTE"
    return header._replace(has_palette=has_palette, axes=layout.axes, stack=layout.stack, unwritten=layout.unwritten)


def _tiff_image(data: bytes, options: ImageOptions) -> NDArray[Any]:
    """Return the pixels of a TIFF that tifffile reads, and that holds one image."""
    values, layout = tiff.read(io.BytesIO(data), options.palette == "index")
    if layout.stack:
        raise SourceError("holds a stack of images where one is expected; save the wanted one as a file of its own")
    _check_mode(layout.dtype, options)
    values = _convert(values, options.mode) if options.mode else values
    return _oriented(values, layout.turn if options.orient else 1)


def _check_mode(dtype: str, options: ImageOptions) -> None:
    """Raise SourceError if values of a dtype cannot become the colours that are asked for."""
    if options.mode not in (None, "gray") and dtype not in ("uint8", "uint16"):
        reason = f"holds {dtype} values, which cannot become colours; pack it without --mode {options.mode}"
        raise SourceError(reason)


def _changes(image: Image.Image, *, with_alpha: bool) -> Iterator[str]:
    """Yield remarks on what reading changes in an opened image, before decoding; `with_alpha`: it comes out as RGBA."""
    if isinstance(image, JpegImagePlugin.JpegImageFile):
        if _lists_further(image):
            yield SEVERAL
        if image.mode == "CMYK":
            yield CMYK
    profile = image.info.get("icc_profile")
    if profile and image.mode != "CMYK" and not _is_srgb(profile, "L" if image.mode in _GRAYS else "RGB"):
        yield PROFILE
    if not isinstance(image, TiffImagePlugin.TiffImageFile):
        if image.mode in ("L", "RGB") and "transparency" in image.info and not with_alpha:
            yield COLOUR_KEY
        return
    tags = image.tag_v2
    if tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO:
        yield tiff.INVERTED
    if image.mode in ("1", "L") and max(tags.get(_BITS, (1,))) < 8:
        yield FEW_BITS
    if _SUB_DIRECTORIES in tags:
        yield tiff.LEVELS
    if any(tag in tags for tag in tiff.GEO_TAGS):
        yield tiff.GEO
    if tiff.NO_DATA in tags:
        yield tiff.NO_VALUE


# ---------------------------------------------------------------- colour profiles


@functools.lru_cache
def _is_srgb(profile: bytes, mode: str) -> bool:
    """Return whether colours of a profile (ICC) look as those of sRGB do; unreadable profiles say nothing.

    Args:
        mode: `L` or `RGB`.
    """
    from PIL import ImageCms

    values = np.random.default_rng(0).integers(0, 256, (_PROBES, 3), dtype=np.uint8)
    values[:, 1:] = values[:, :1] if mode == "L" else values[:, 1:]
    probe = Image.fromarray(values[None, :, 0] if mode == "L" else values[None])
    try:
        seen: Any = ImageCms.profileToProfile(
            probe, io.BytesIO(profile), ImageCms.createProfile("sRGB"), outputMode="RGB"
        )
    except (ImageCms.PyCMSError, OSError):
        return True
    return bool(np.abs(np.asarray(seen)[0].astype(int) - values).mean() <= _LIKE_SRGB)


def _inflated(profile: bytes) -> bytes:
    """Return a profile as PNG stores it, without its name; empty if it is damaged or enormous."""
    with contextlib.suppress(zlib.error):
        return zlib.decompressobj().decompress(profile.partition(b"\0")[2][1:], _MOST_PROFILE_BYTES)
    return b""


# ---------------------------------------------------------------- orientation

#: What each value of the orientation tag asks for, of pixels (H, W, C).
_TURNS: dict[int, Callable[[NDArray[Any]], NDArray[Any]]] = {
    2: lambda pixels: pixels[:, ::-1],
    3: lambda pixels: pixels[::-1, ::-1],
    4: lambda pixels: pixels[::-1],
    5: lambda pixels: pixels.transpose(1, 0, 2),
    6: lambda pixels: pixels[::-1].transpose(1, 0, 2),
    7: lambda pixels: pixels[::-1, ::-1].transpose(1, 0, 2),
    8: lambda pixels: pixels[:, ::-1].transpose(1, 0, 2),
}
#: Those from this one on swap rows and columns.
_FIRST_ON_ITS_SIDE = 5


def _turn_of(image: Image.Image) -> int:
    """Return the orientation that an opened image asks for; 1 if none, as of every TIFF that Pillow reads."""
    if isinstance(image, TiffImagePlugin.TiffImageFile) or "exif" not in image.info:
        return 1
    with contextlib.suppress(Exception):  # damaged EXIF makes Pillow raise anything, and harms no pixel
        return int(image.getexif().get(_ORIENTATION, 1))
    return 1


def _turn_in(exif: bytes) -> int:
    """Return the orientation that the bytes of EXIF ask for; 1 if none."""
    with contextlib.suppress(Exception):
        tags = Image.Exif()
        tags.load(exif)
        return int(tags.get(_ORIENTATION, 1))
    return 1


def _oriented(pixels: NDArray[Any], turn: int) -> NDArray[Any]:
    """Return pixels (H, W, C) turned, mirrored or both; unchanged if the orientation is 1 or unknown."""
    return np.ascontiguousarray(_TURNS[turn](pixels)) if turn in _TURNS else pixels


def _oriented_header(
    height: int, width: int, channels: int, dtype: str, notes: list[str], turn: int, options: ImageOptions
) -> ImageHeader:
    """Return the header of an image with an orientation, which is applied or noted."""
    if turn in _TURNS:
        notes = [*notes, TURNED if options.orient else NOT_TURNED]
    if options.orient and turn in _TURNS and turn >= _FIRST_ON_ITS_SIDE:
        height, width = width, height
    return ImageHeader(height, width, channels, dtype, "; ".join(notes))


# ---------------------------------------------------------------- modes


def _convert(image: NDArray[Any], mode: str, transparent_colour: tuple[int, ...] | None = None) -> NDArray[Any]:
    """Convert (H, W, C) of uint8 or uint16 with C of 1 to 4 to (H, W, `CHANNELS[mode]`) of the same dtype.

    Alpha is dropped if the mode has none. If only the image has none, it becomes opaque, but 0 for pixels of the colour
    `transparent_colour` (C values).
    """
    channels = image.shape[2]
    if channels == CHANNELS[mode]:
        return image
    colours = image[:, :, : 1 if channels < 3 else 3]
    if mode == "gray":
        return np.ascontiguousarray(colours if channels < 3 else _luma(colours))
    rgb = np.broadcast_to(colours, (*image.shape[:2], 3))
    if mode == "rgb":
        return np.ascontiguousarray(rgb)
    if channels in (2, 4):
        return np.concatenate([rgb, image[:, :, -1:]], axis=2)
    alpha = np.full((*image.shape[:2], 1), np.iinfo(image.dtype).max, image.dtype)
    if transparent_colour is not None:
        alpha[(colours == np.array(transparent_colour, image.dtype)).all(axis=2)] = 0
    return np.concatenate([rgb, alpha], axis=2)


def _luma(rgb: NDArray[Any]) -> NDArray[Any]:
    """Return brightness by ITU-R 601-2 in fixed point: weights add up to 65536, so 16-bit values fit into uint32."""
    wide = rgb.astype(np.uint32)
    total = wide[:, :, 0] * np.uint32(19595) + wide[:, :, 1] * np.uint32(38470) + wide[:, :, 2] * np.uint32(7471)
    gray: NDArray[Any] = ((total + np.uint32(0x8000)) >> np.uint32(16)).astype(rgb.dtype)
    return gray[:, :, None]
