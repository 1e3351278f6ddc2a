"""Images that Pillow reads: JPEG, TIFF, WebP, BMP and GIF.

Pillow's reader of the expected format is called directly, not `Image.open`: no other format is tried on the bytes, and
`max_pixels` replaces Pillow's process-wide limit of pixels (first a warning, then an error). Pixels are those of
`np.asarray(Image.open(path))`, except that signed 16 bits are int16 where Pillow widens them.
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
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import BmpImagePlugin, GifImagePlugin, Image, JpegImagePlugin, TiffImagePlugin, WebPImagePlugin, _imaging

from packer.codecs import JPEG_CHANNELS, EncodedImage, check_jpeg, checked_jpeg
from packer.errors import PackerError, SourceError
from packer.sources.images import tiff
from packer.sources.images.options import ImageOptions
from packer.sources.images.pixels import (
    CHANNELS,
    CMYK,
    COLOUR_KEY,
    FEW_BITS,
    ORIENTATION,
    PROFILE,
    SEVERAL,
    TURNS,
    ImageHeader,
    check_mode,
    convert,
    is_srgb,
    oriented,
    oriented_header,
)

#: Components of a JPEG and channels wanted of the images that libjpeg decodes as they are.
_JPEG_CHANNELS = ((1, 1), (1, 3), (3, 3))

_log = logging.getLogger(__name__)
#: Which remarks were made, a byte each, in memory that processes share which are forked.
_said = mmap.mmap(-1, 3)
#: Remarks on images that are made once: what libjpeg warns of, what follows an image, and a tag that is not applied.
SAYS = (
    'libjpeg warns of some JPEG files ("%s"): their pixels are whole, and packed as they are',
    "images go on after their end, such as with a second one, which is not looked at; the first of them: %s",
    "%s has an orientation tag (EXIF), and others may: it is not applied, as --orient does to files; in Python, "
    "PIL.ImageOps.exif_transpose(image) gives the turned one",
)
WARNED, GOES_ON, IS_TURNED = range(len(SAYS))

READERS: dict[str, Any] = {
    "JPEG": JpegImagePlugin.JpegImageFile,
    "TIFF": TiffImagePlugin.TiffImageFile,
    "WebP": WebPImagePlugin.WebPImageFile,
    "BMP": BmpImagePlugin.BmpImageFile,
    "GIF": GifImagePlugin.GifImageFile,
}

# Tags of TIFF, and values of them.
_BITS, _PHOTOMETRIC, _DESCRIPTION, _SAMPLES, _EXTRA, _SAMPLE_FORMAT = 258, 262, 270, 277, 338, 339
_STRIP_BYTES, _TILE_BYTES, _STRIPS, _TILES = 279, 325, 273, 324
_COMPRESSION, _JPEG, _JPEG_TABLES, _PLANES, _SEPARATE = 259, 7, 347, 284, 2
#: Tag of the images that one directory has, one behind another (ImageDepth of SGI).
_DEPTH = 32997
#: Tag of directories below that of an image: smaller copies of it.
_SUB_DIRECTORIES = 330
#: Descriptions of a TIFF whose one directory stands for a stack, by ImageJ and by tifffile.
_STACK = re.compile(r"^ImageJ=.*^images=(?!1\b)|\"truncated\": *true", re.DOTALL | re.MULTILINE)
#: Modes of Pillow without colours.
_GRAYS = ("1", "L", "LA", "La", "I", "I;16", "I;16B", "F")
#: Tag of the index of an MPO: how many images it holds.
_MPO_IMAGES = 0xB001
_WHITE_IS_ZERO = 0
_MULTIPLIED_ALPHA = 1
_UNSIGNED, _SIGNED = 1, 2


class _Decoding(NamedTuple):
    """How an image is read: the Pillow mode it is converted to first, channels and dtype."""

    mode: str
    channels: int
    dtype: str


_DECODINGS = {
    "1": _Decoding("L", 1, "uint8"),
    "L": _Decoding("L", 1, "uint8"),
    "LA": _Decoding("LA", 2, "uint8"),
    "La": _Decoding("LA", 2, "uint8"),
    "RGB": _Decoding("RGB", 3, "uint8"),
    "RGBA": _Decoding("RGBA", 4, "uint8"),
    "PA": _Decoding("RGBA", 4, "uint8"),
    "I;16": _Decoding("I;16", 1, "uint16"),
    "I;16B": _Decoding("I;16B", 1, "uint16"),
    "I": _Decoding("I", 1, "int32"),
    "F": _Decoding("F", 1, "float32"),
}
#: Further modes of Pillow that it can make RGB of.
_CONVERTIBLE = ("CMYK", "YCbCr", "HSV")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence warnings about metadata that Pillow cannot read and nobody uses; to be called in one thread only."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def header_of(file: str | io.BytesIO, kind: str, options: ImageOptions) -> ImageHeader | None:
    """Return the header of an image; None of a TIFF that Pillow does not read as it is meant."""
    with _opened(file, kind, options) as opened:
        if opened is None:
            return None
        image, decoding = opened
        notes = [*_changes(image, with_alpha=decoding.mode == "RGBA")]
        channels = CHANNELS[options.mode] if options.mode else decoding.channels
        header = oriented_header(image.height, image.width, channels, decoding.dtype, notes, turn_of(image), options)
        return header._replace(has_palette=image.mode == "P", is_whole=_ends_with_pixels(image))


def _ends_with_pixels(image: Image.Image) -> bool:
    """Return whether the last bytes of a file are pixels, as of most TIFF."""
    if not isinstance(image, TiffImagePlugin.TiffImageFile):
        return False
    tags, file = image.tag_v2, image.fp
    offsets, sizes = (_STRIPS, _STRIP_BYTES) if _STRIPS in tags else (_TILES, _TILE_BYTES)
    return bool(file and offsets in tags and tags[offsets][-1] + tags[sizes][-1] == file.seek(0, os.SEEK_END))


def jpeg_image(data: bytes, options: ImageOptions) -> NDArray[Any]:
    """Return the pixels of a JPEG, with its file unless they are other ones: of CMYK, or gray made from colours."""
    try:
        head = check_jpeg(data)
        options.check_size(head.width, head.height)
        channels = CHANNELS[options.mode] if options.mode else head.components
        if (head.components, channels) in _JPEG_CHANNELS:
            pixels, warning = checked_jpeg(data, channels)
            if warning:
                say_once(WARNED, warning)
            return oriented(EncodedImage.of(pixels, data), _turn_in_jpeg(data, options) if options.orient else 1)
    except ValueError as error:
        raise SourceError(f"damaged JPEG: {error}; download it again, or skip it with --on-error skip") from None
    with quiet(), _opened(io.BytesIO(data), "JPEG", options) as opened:
        assert opened is not None, "only of TIFF there is none"
        return pixels_of(*opened, options)


def _turn_in_jpeg(data: bytes, options: ImageOptions) -> int:
    with quiet(), _opened(io.BytesIO(data), "JPEG", options) as opened:
        return turn_of(opened[0]) if opened else 1


def say_once(remark: int, detail: str) -> None:
    """Log one of `SAYS`, of the first image of this process, and of those it starts, that it is true of."""
    if not _said[remark]:
        _said[remark] = 1
        _log.info(SAYS[remark], detail)


def image_of(data: bytes, kind: str, options: ImageOptions) -> NDArray[Any] | None:
    """Return the pixels of an image; None of a TIFF that Pillow does not read as it is meant."""
    with quiet(), _opened(io.BytesIO(data), kind, options) as opened:
        if opened is None:
            return None
        image, decoding = opened
        if kind == "TIFF":
            _silence_libtiff()
        if isinstance(image, TiffImagePlugin.TiffImageFile) and image.tag_v2.get(_COMPRESSION) == _JPEG:
            tags = image.tag_v2
            of_each = 1 if tags.get(_PLANES) == _SEPARATE else tags.get(_SAMPLES, 1)
            if of_each in JPEG_CHANNELS:
                offsets = tags.get(_TILES, tags.get(_STRIPS, ()))
                places = zip(offsets, tags.get(_TILE_BYTES, tags.get(_STRIP_BYTES, ())), strict=True)
                tiff.check_jpegs(io.BytesIO(data), places, bytes(tags.get(_JPEG_TABLES, b"")), of_each)
        return pixels_of(image, decoding, options)


@functools.cache
def _silence_libtiff() -> None:
    """Keep libtiff from writing a line to stderr for each damaged file, in this process: its error says it."""
    with contextlib.suppress(OSError, AttributeError):  # Pillow without libtiff
        ctypes.CDLL(_imaging.__file__).TIFFSetErrorHandler(None)


@functools.cache
def _silence_pillow() -> None:
    """Keep Pillow from logging an error for each TIFF of more bands than it reads, in this process: others read it."""
    TiffImagePlugin.logger.addFilter(lambda record: False)


def pixels_of(image: Image.Image, decoding: _Decoding, options: ImageOptions) -> NDArray[Any]:
    """Return the pixels of an opened image, (H, W, C), as `options` ask for them."""
    turn = turn_of(image) if options.orient else 1  # converting may drop it
    pixels = np.asarray(image if image.mode == decoding.mode else image.convert(decoding.mode))
    pixels = pixels.view(decoding.dtype) if decoding.dtype == "uint32" else pixels.astype(decoding.dtype, copy=False)
    pixels = pixels[:, :, None] if pixels.ndim == 2 else pixels
    return oriented(convert(pixels, options.mode) if options.mode else pixels, turn)


@contextlib.contextmanager
def _opened(file: str | io.BytesIO, kind: str, options: ImageOptions) -> Iterator[tuple[Image.Image, _Decoding] | None]:
    """Open an image; yield it with its decoding, or None if it is a TIFF that Pillow does not read as it is meant.

    Raises:
        SourceError: it is damaged, too large, or cannot be read without loss.
    """
    try:
        image = _open_tiff(file) if kind == "TIFF" else READERS[kind](file)
        if image is None:
            yield None
            return
        with image:
            options.check_size(image.width, image.height)
            decoding = decoding_of(image, options)
            check_mode(decoding.dtype, options)
            yield image, decoding
    except PackerError:
        raise
    except MemoryError as error:
        raise SourceError("has pixels that do not fit into memory") from error
    except Exception as error:  # Damaged files make Pillow raise anything from SyntaxError to struct.error.
        reason = (
            f"cannot be read as {kind} by Pillow ({error}); download it again if it is damaged, else save it as PNG"
        )
        raise SourceError(reason) from error


def decoding_of(image: Image.Image, options: ImageOptions) -> _Decoding:
    """Return how an opened image is read; raises SourceError if it cannot be read without loss."""
    if getattr(image, "n_frames", 1) > 1:
        raise SourceError("holds several images (an animation or pages); save the wanted one as a file of its own")
    if image.mode == "P":
        if options.palette == "index":
            return _Decoding("P", 1, "uint8")
        return _DECODINGS["RGBA" if "transparency" in image.info else "RGB"]
    if image.mode in ("1", "L", "RGB") and options.mode == "rgba" and "transparency" in image.info:
        return _DECODINGS["RGBA"]
    decoding = _DECODINGS.get(image.mode)
    if decoding is None:
        if options.mode is None or image.mode not in _CONVERTIBLE:
            advice = "convert them with --mode rgb" if image.mode in _CONVERTIBLE else "save it as RGB"
            raise SourceError(f"has {image.mode} colours, which cannot be kept; {advice}")
        decoding = _DECODINGS["RGB"]
    if (
        isinstance(image, TiffImagePlugin.TiffImageFile) and decoding.dtype == "int32"
    ):  # one wide mode for several types
        is_unsigned = image.tag_v2.get(_SAMPLE_FORMAT, (_UNSIGNED,))[0] == _UNSIGNED
        narrow = "int16" if max(image.tag_v2.get(_BITS, (1,))) == 16 else "int32"
        return decoding._replace(dtype="uint32" if is_unsigned else narrow)
    return decoding


def check_as_meant(image: Image.Image) -> None:
    """Raise SourceError if an image that a caller has opened is a TIFF that Pillow does not read as it is meant."""
    if isinstance(image, TiffImagePlugin.TiffImageFile) and not _is_as_meant(image):
        raise SourceError("is a TIFF that Pillow does not read as it is meant; give its path or its bytes")


def _lists_further(image: JpegImagePlugin.JpegImageFile) -> bool:
    """Return whether a JPEG is an MPO that lists further images behind it."""
    with contextlib.suppress(Exception):  # a damaged list makes Pillow raise anything, and harms no pixel of the first
        return ((image._getmp() or {}).get(_MPO_IMAGES) or 1) > 1
    return False


def _open_tiff(file: str | io.BytesIO) -> Image.Image | None:
    """Open a TIFF; None of one that Pillow does not read, or not as it is meant."""
    _silence_pillow()
    with contextlib.suppress(Exception):
        image = TiffImagePlugin.TiffImageFile(file)
        with contextlib.suppress(Exception):
            if _is_as_meant(image):
                return image
        image.close()
    return None


def _is_as_meant(image: TiffImagePlugin.TiffImageFile) -> bool:
    """Return whether Pillow gives all pixels of a TIFF, with all their bits and where the file has them.

    Of the others it leaves out pages, slices and channels, cuts values to 8 or 32 bits, takes signed ones for unsigned,
    turns pixels as the orientation tag says, divides by alpha, or inverts nothing where white is 0 in more than 8 bits.
    """
    tags = image.tag_v2
    dtype = _DECODINGS.get(image.mode, _DECODINGS["RGB"]).dtype
    bits, form = max(_tag(tags, _BITS, (1,))), _tag(tags, _SAMPLE_FORMAT, (_UNSIGNED,))[0]
    pieces = _TILE_BYTES if _TILE_BYTES in tags else _STRIP_BYTES
    return not (
        getattr(image, "n_frames", 1) > 1
        or (_DESCRIPTION in tags and _STACK.search(str(tags[_DESCRIPTION])))
        or _tag(tags, _DEPTH, 1) > 1
        or _tag(tags, _SAMPLES, 1) > len(image.getbands())
        or bits > 8 * np.dtype(dtype).itemsize
        or (dtype == "uint8" and form == _SIGNED)
        or _tag(tags, ORIENTATION, 1) in TURNS
        or 0 in _tag(tags, pieces, ())  # never written: it reads the head of the file
        or _MULTIPLIED_ALPHA in _tag(tags, _EXTRA, ())
        or (bits > 8 and _tag(tags, _PHOTOMETRIC) == _WHITE_IS_ZERO)
    )


def _tag(tags: Any, number: int, default: Any = None) -> Any:
    """Return the value of a tag. `get` takes several times as long where there is none."""
    return tags[number] if number in tags else default  # noqa: SIM401


def _changes(image: Image.Image, *, with_alpha: bool) -> Iterator[str]:
    """Yield remarks on what reading changes in an opened image, before decoding; `with_alpha`: it comes out as RGBA."""
    if isinstance(image, JpegImagePlugin.JpegImageFile):
        if _lists_further(image):
            yield SEVERAL
        if image.mode == "CMYK":
            yield CMYK
    profile = image.info.get("icc_profile")
    if profile and image.mode != "CMYK" and not is_srgb(profile, "L" if image.mode in _GRAYS else "RGB"):
        yield PROFILE
    if not isinstance(image, TiffImagePlugin.TiffImageFile):
        if image.mode in ("L", "RGB") and "transparency" in image.info and not with_alpha:
            yield COLOUR_KEY
        return
    tags = image.tag_v2
    if _tag(tags, _PHOTOMETRIC) == _WHITE_IS_ZERO:
        yield tiff.INVERTED
    if image.mode in ("1", "L") and max(_tag(tags, _BITS, (1,))) < 8:
        yield FEW_BITS
    if _SUB_DIRECTORIES in tags:
        yield tiff.LEVELS
    if any(tag in tags for tag in tiff.GEO_TAGS):
        yield tiff.GEO
    if tiff.NO_DATA in tags:
        yield tiff.NO_VALUE
    if tiff.GDAL in tags and tiff.is_scaled(tags[tiff.GDAL]):
        yield tiff.SCALED


def turn_of(image: Image.Image) -> int:
    """Return the orientation that an opened image asks for; 1 if none, as of every TIFF that Pillow reads."""
    if isinstance(image, TiffImagePlugin.TiffImageFile) or "exif" not in image.info:
        return 1
    with contextlib.suppress(Exception):  # damaged EXIF makes Pillow raise anything, and harms no pixel
        return int(image.getexif().get(ORIENTATION, 1))
    return 1
