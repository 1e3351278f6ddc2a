"""TIFF that Pillow does not read as it is meant, by tifffile and imagecodecs (the extra `tiff`).

    16 bits, RGB or many bands      (H, W, C), an image
    pages of one size               (pages, H, W) or (pages, H, W, C), a stack: the axes that tifffile gives
    OME-TIFF, ImageJ                (T, Z, C, H, W), those of them that are longer than one
    GeoTIFF with overviews          its first level

Values are those of `tifffile.imread`, with three exceptions: where white is 0 integers are inverted, gray of fewer than
8 bits becomes 0 to 255, and the samples of a pixel are the last axis, however the file has them.
"""

from __future__ import annotations

import io
import logging
import math
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.codecs import JPEG_CHANNELS, checked_jpeg
from packer.errors import PackerError, SourceError, first_few
from packer.format import DTYPES

#: Photometric interpretations that are packed.
_GRAY_OR_RGB = ("MINISBLACK", "MINISWHITE", "RGB")
#: Bits of `subfiletype` that say: a smaller copy, or a mask of transparent pixels.
_REDUCED_OR_MASK = 1 | 4
_ORIENTATION, _MULTIPLIED_ALPHA = 274, 1
#: Tags of GeoTIFF: places of pixels on the earth; and of GDAL: the value that stands for missing ones, and XML.
GEO_TAGS, NO_DATA, GDAL = (33550, 33922, 34264, 34735), 42113, 42112
#: How the XML of GDAL says that numbers are to be scaled.
_SCALE = re.compile(r"role=\"(scale|offset)\"")

# Remarks of the plan, as in `formats`.
GEO = "where it lies on the earth (GeoTIFF) is not kept"
LEVELS = "smaller copies of the image (overviews, thumbnails) and masks in the file are not packed"
MULTIPLIED = "colours are stored multiplied by alpha, and stay so"
INVERTED = "white is 0 in the file: values are inverted, so that black is 0"
SCALED = "a scale or an offset (GDAL) says what its numbers stand for: they are packed as they are"
NO_VALUE = "one value stands for missing ones (nodata of GDAL): it is packed as it is"


class TiffHeader(NamedTuple):
    """What one TIFF holds, as it is packed.

    Attributes:
        axes: letters of the axes before Y and X, as tifffile names them; none of an image.
        stack: their lengths.
        bits: of a value.
        turn: the orientation tag.
        profile: the colour profile (ICC); empty if there is none.
        unwritten: tiles, strips and pages that the file lacks.
        end: the byte after its values, if these lie in one piece; else 0.
    """

    axes: str
    stack: tuple[int, ...]
    height: int
    width: int
    channels: int
    dtype: str
    bits: int
    photometric: str
    turn: int
    profile: bytes
    unwritten: int
    notes: tuple[str, ...]
    end: int


def look(file: str | io.BytesIO, as_index: bool) -> TiffHeader:
    """Return what a file holds, from its directories alone.

    Args:
        as_index: whether numbers of the colours of a palette are packed.

    Raises:
        SourceError: it is damaged, or holds what cannot be packed.
    """
    with _opened(file) as tiff:
        return _header(tiff, as_index)


def read(
    file: str | io.BytesIO, as_index: bool, start: int = 0, stop: int | None = None
) -> tuple[NDArray[Any], TiffHeader]:
    """Return (H, W, C) of an image, or the rows start..stop of the first axis of a stack, as stored but for `INVERTED`.

    Arguments and errors as for `look`.
    """
    with _opened(file) as tiff:
        header, series = _header(tiff, as_index), tiff.series[0]
        if header.stack and len(series.pages) == math.prod(header.stack):
            each = math.prod(header.stack[1:])
            stop = header.stack[0] if stop is None else stop
            empty = np.zeros(series.keyframe.shape, series.dtype)
            _check_pages(tiff, series.pages[start * each : stop * each])
            pages = [
                empty if page is None else page.asarray(maxworkers=1)
                for page in series.pages[start * each : stop * each]
            ]
            values, axes = np.stack(pages), "I" + series.keyframe.axes
        else:
            _check_pages(tiff, series.pages)
            values, axes = series.asarray(maxworkers=1), series.axes
            values = values[start:stop] if header.stack else values
        values = np.moveaxis(values, axes.index("S"), -1) if "S" in axes else values
    shape = (-1, *header.stack[1:]) if header.stack else ()
    has_channels = not header.stack or header.channels > 1 or "S" in axes
    values = values.reshape(*shape, header.height, header.width, *((header.channels,) if has_channels else ()))
    if header.bits < 8 and header.photometric != "PALETTE":
        values = values.astype(np.uint8) * np.uint8(255 // (2**header.bits - 1))
    if header.photometric == "MINISWHITE" and header.dtype.startswith("uint"):
        values = np.iinfo(header.dtype).max - values
    return np.ascontiguousarray(values.astype(header.dtype, copy=False)), header


def _header(tiff: Any, as_index: bool) -> TiffHeader:
    first, *others = tiff.series
    page = first.keyframe
    if others := [one for one in others if not one.keyframe.subfiletype & _REDUCED_OR_MASK]:
        each = [f"{' x '.join(map(str, one.shape))} {one.dtype}" for one in (first, *others)]
        reason = f"holds {len(each)} images of different sizes or types ({first_few(each)})"
        raise SourceError(f"{reason}; save the wanted one as a file of its own")
    if first.is_multifile:
        raise SourceError("is one of several files of an OME-TIFF; save it as one file, or as .npy")
    photometric = page.photometric.name if page.photometric is not None else "MINISBLACK"
    is_decoded = photometric == "YCBCR" and page.compression.name == "JPEG"
    if photometric not in _GRAY_OR_RGB and not is_decoded and not (photometric == "PALETTE" and as_index):
        advice = "pack its numbers with --palette index" if photometric == "PALETTE" else "save it as RGB"
        raise SourceError(f"has {photometric} colours, which cannot be kept; {advice}")
    axes = first.axes.replace("S", "")
    dtype = "uint8" if first.dtype == bool else first.dtype.newbyteorder("=").name
    if not axes.endswith("YX") or dtype not in DTYPES:
        raise SourceError(f"holds {dtype} of axes {', '.join(first.axes)}, which cannot be packed; save it as .npy")
    lengths = dict(zip(first.axes, first.shape, strict=True))
    turn = page.tags.get(_ORIENTATION)
    has_levels = len(first.levels) > 1 or len(tiff.series) > 1
    notes = {
        LEVELS: has_levels,
        MULTIPLIED: _MULTIPLIED_ALPHA in page.extrasamples,
        INVERTED: photometric == "MINISWHITE" and dtype.startswith("uint"),
        GEO: any(tag in page.tags for tag in GEO_TAGS),
        NO_VALUE: NO_DATA in page.tags,
        SCALED: GDAL in page.tags and is_scaled(page.tags[GDAL].value),
    }
    return TiffHeader(
        axes[:-2],
        tuple(length for axis, length in zip(first.axes, first.shape, strict=True) if axis not in "SYX"),
        lengths["Y"],
        lengths["X"],
        lengths.get("S", 1),
        dtype,
        page.bitspersample,
        photometric,
        turn.value if turn else 1,
        page.iccprofile or b"",
        _count_unwritten(first.pages, tiff.filehandle.size),
        tuple(note for note, holds in notes.items() if holds),
        0 if first.dataoffset is None else int(first.dataoffset + first.nbytes),
    )


def is_scaled(description: Any) -> bool:
    """Return whether the XML that GDAL keeps in a tag says that numbers are to be scaled."""
    return _SCALE.search(str(description)) is not None


def _check_pages(tiff: Any, pages: Any) -> None:
    """Look through the JPEG files of pages, see `check_jpegs`."""
    for page in pages:
        if page is None or page.keyframe.compression.name != "JPEG" or page.keyframe.dtype != np.uint8:
            continue
        of_each = 1 if page.keyframe.planarconfig.name == "SEPARATE" else page.keyframe.samplesperpixel
        if of_each in JPEG_CHANNELS:
            written = [place for place in zip(page.dataoffsets, page.databytecounts, strict=True) if place[1]]
            tables = page.jpegtables if page.jpegtables is not None else page.keyframe.jpegtables
            check_jpegs(tiff.filehandle, written, tables or b"", of_each)


def _count_unwritten(pages: Any, nbytes: int) -> int:
    """Return how many tiles, strips and pages were never written; raises SourceError if some lie behind the end."""
    count = 0
    for page in pages:
        sizes = np.asarray(() if page is None else page.databytecounts, np.int64)
        offsets = np.asarray(() if page is None else page.dataoffsets, np.int64)[: len(sizes)]
        count += 1 if page is None else int((sizes == 0).sum())
        if len(offsets) and int((offsets + sizes[: len(offsets)]).max()) > nbytes:
            raise SourceError(f"is cut short: it has {nbytes:,} bytes, and says that there are more; download it again")
    return count


def check_jpegs(file: Any, places: Iterable[tuple[int, int]], tables: bytes, channels: int) -> None:
    """Raise SourceError if a strip or tile that is a JPEG file has lost pixels; libtiff and imagecodecs do not say so.

    Args:
        file: open at any place.
        places: offset and size of each.
        tables: what all of them share; empty if each has its own.
    """
    for offset, size in places:
        file.seek(offset)
        strip = file.read(size)
        try:
            checked_jpeg(tables[:-2] + strip[2:] if tables else strip, channels)
        except ValueError as error:
            raise SourceError(f"holds a damaged JPEG strip or tile ({error}); download it again") from error


def _drop(record: logging.LogRecord) -> bool:
    return False


@contextmanager
def _opened(file: str | io.BytesIO) -> Iterator[Any]:
    """Open a file by tifffile, whose errors become SourceErrors."""
    if find_spec("tifffile") is None or find_spec("imagecodecs") is None:
        reason = "is a TIFF that Pillow does not read, or not as it is meant"
        raise SourceError(f"{reason}; tifffile does: pip install '.[tiff]' in a clone of packer")
    import tifffile

    logging.getLogger("tifffile").addFilter(_drop)  # it logs what it finds odd beside pixels; added once
    try:
        with tifffile.TiffFile(file) as tiff:
            if not len(tiff.pages):
                raise SourceError("is a TIFF without an image; download it again")
            yield tiff
    except PackerError:
        raise
    except MemoryError as error:
        raise SourceError("has pixels that do not fit into memory") from error
    except Exception as error:  # damaged files make it raise anything
        reason = f"cannot be read as TIFF by tifffile ({error or type(error).__name__})"
        raise SourceError(f"{reason}; download it again if it is damaged, else save its values as .npy") from error
