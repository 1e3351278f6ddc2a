"""Where a file ends, as its format says: what follows is not looked at, and is said of the file (`AFTER` of `looking`).

These are formats whose libraries read on without a word. Those of others say it themselves, or refuse such a file:
HDF5, JPEG, PNG, NumPy, NIfTI, PLY, PCD, LAS, tar, .flo, .pfm, Parquet, Arrow, JSON lines; boxes in COCO's json, VOC's
XML and YOLO's text. Nothing can follow the end of text, of captions or of CSV: all bytes of the file are its text.
Points in .bin files have no end of their own: what follows is more points, or refused as a part of one.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import IO

import numpy as np

#: Boxes of MP4 and QuickTime that lie one after another in a file.
_BOXES = frozenset(
    b"ftyp moov mdat free skip wide moof mfra sidx ssix styp uuid meta pdin prft emsg udta junk pnot PICT".split()
)
#: Elements of Matroska that do (RFC 9559): the header, the segment, and what fills room.
_ELEMENTS = {b"\x1a\x45\xdf\xa3", b"\x18\x53\x80\x67"}
#: How a zip file ends: its last record, without its comment.
_ZIP_END, _ZIP_BYTES = b"PK\5\6", 22
#: Bytes of a value of each type of TIFF.
_TIFF_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8, 17: 8, 18: 8}
#: Tags of TIFF for offsets and sizes of pieces (strips, tiles, a thumbnail), and for further directories.
_TIFF_PIECES, _TIFF_FURTHER = ((273, 279), (324, 325), (513, 514)), (330, 34665, 34853, 40965)
#: Bytes at the end of a TIFF that may belong to nothing: tifffile leaves values that the last two pages share. So many
#: that something else has added cannot be told from these.
_LEFT_BY_WRITERS = 64


def bytes_after(file: IO[bytes], at_least: int = 0) -> int:
    """Return how many bytes follow the end of a file; 0 if there are none, or its format does not say.

    Args:
        at_least: where the end is at least, for what a TIFF says of its pixels otherwise than in its directories.
    """
    nbytes = file.seek(0, os.SEEK_END)
    end = _end(file, nbytes, at_least)
    return max(0, nbytes - end) if end else 0


def bytes_missing(file: IO[bytes]) -> int:
    """Return how many bytes a file, such as a video, lacks at its end; 0 if none, or its format does not say."""
    nbytes = file.seek(0, os.SEEK_END)
    return max(0, _end(file, nbytes) - nbytes)


def _end(file: IO[bytes], nbytes: int, at_least: int = 0) -> int:
    """Return where a file of so many bytes ends, as its format says; 0 if it does not."""
    head = _at(file, 0, 54)
    if head.startswith((b"II", b"MM")):
        end = max(at_least, 0, *_tiff_ends(file, nbytes))
        return end if 0 < end < nbytes - _LEFT_BY_WRITERS else 0
    if head.startswith(b"RIFF"):  # WebP, AVI
        return _riff_end(file)
    if head.startswith(b"BM"):
        return _bmp_end(head)
    if head.startswith(b"GIF8"):
        file.seek(0)
        return file.read().rfind(b";") + 1
    if head.startswith(b"PK"):
        file.seek(-min(nbytes, 2**16 + _ZIP_BYTES), os.SEEK_END)
        tail = file.read()
        at = tail.rfind(_ZIP_END)
        return nbytes - len(tail) + at + _ZIP_BYTES + int.from_bytes(tail[at + 20 : at + 22], "little")
    if head[:4] in _ELEMENTS:
        return _matroska_end(file)
    return _boxes_end(file, nbytes) if head[4:8] in _BOXES else 0


def _at(file: IO[bytes], at: int, count: int) -> bytes:
    file.seek(at)
    return file.read(count)


def _riff_end(file: IO[bytes]) -> int:
    """Return the end of RIFF chunks, one after another: a large AVI has several; 0 if one does not say its length."""
    end = 0
    while (head := _at(file, end, 8)).startswith(b"RIFF") and len(head) == 8:
        size = int.from_bytes(head[4:], "little")
        if size in (0, 2**32 - 1):
            return 0
        end += 8 + size + size % 2
    return end


def _bmp_end(head: bytes) -> int:
    """Return the end that the header says, or that of its pixels, if it says less."""
    end, pixels, size, width, height, _, bits, packed = struct.unpack_from("<I4xIIiiHHI", head, 2)
    return int(max(end, pixels + (width * bits + 31) // 32 * 4 * abs(height)) if size >= 40 and not packed else end)


def _boxes_end(file: IO[bytes], nbytes: int) -> int:
    """Return the end of boxes, one after another, of which one says the type of the file: a second begins another."""
    end, has_type = 0, False
    while len(head := _at(file, end, 16)) >= 8:
        size = int.from_bytes(head[8:16] if head[:4] == b"\0\0\0\1" else head[:4], "big")
        is_box, is_type = head[4:8] in _BOXES, head[4:8] == b"ftyp"
        if is_box and size == 0:
            return nbytes
        if size < 8 or (end + size > nbytes and not is_box) or (is_type and has_type):
            break
        end, has_type = end + size, has_type or is_type
    return end


def _matroska_end(file: IO[bytes]) -> int:
    """Return the end of the elements of a file; 0 if one does not say its length, as of a stream."""
    end = 0
    while (head := _at(file, end, 12))[:4] in _ELEMENTS and len(head) == 12:
        count = 9 - head[4].bit_length()
        size = int.from_bytes(head[4 : 4 + count], "big") & (1 << 7 * count) - 1
        if size == (1 << 7 * count) - 1:
            return 0
        end += 4 + count + size
    return end


def _tiff_ends(file: IO[bytes], nbytes: int) -> Iterator[int]:
    """Yield where each directory, value and piece of a TIFF ends, also those of further directories."""
    head = _at(file, 0, 16)
    order = "<" if head.startswith(b"II") else ">"
    is_big = struct.unpack_from(f"{order}H", head, 2)[0] == 43
    one, room = ("Q", 8) if is_big else ("I", 4)
    entry = struct.Struct(f"{order}HH{one}{room}s")
    left, seen = [struct.unpack_from(order + one, head, room)[0]], set[int]()
    while left:
        if (at := left.pop()) in seen or not 0 < at < nbytes:
            continue
        seen.add(at)
        count_bytes = 8 if is_big else 2
        count = int.from_bytes(_at(file, at, count_bytes), "little" if order == "<" else "big")
        start = at + count_bytes
        if (end := start + count * entry.size + room) > nbytes:
            return
        data, values = _at(file, start, end - start), dict[int, np.ndarray]()
        for tag, kind, number, inline in entry.iter_unpack(data[:-room]):
            size = number * _TIFF_SIZES.get(kind, 0)
            offset = struct.unpack(order + one, inline)[0] if size > room else 0
            yield offset + size
            if size and tag in (*_TIFF_FURTHER, *sum(_TIFF_PIECES, ())):
                raw = _at(file, offset, size) if size > room else inline[:size]
                values[tag] = np.frombuffer(raw, f"{order}u{_TIFF_SIZES[kind]}").astype(np.int64)
        for offsets, sizes in _TIFF_PIECES:
            if offsets in values and sizes in values:
                yield max(
                    (o + s for o, s in zip(values[offsets].tolist(), values[sizes].tolist(), strict=False)), default=0
                )
        yield end
        left += [offset for tag in _TIFF_FURTHER if tag in values for offset in values[tag].tolist()]
        left.append(struct.unpack(order + one, data[-room:])[0])
