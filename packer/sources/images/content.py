"""What a file holds, by its first bytes, whatever its name says."""

from __future__ import annotations

from packer.errors import SourceError
from packer.sources.files import refuse_pointer
from packer.sources.images.png import SIGNATURE

#: First bytes and the format they stand for; image formats carry the names of `packer.sources.suffixes.IMAGES`.
_STARTS = (
    (SIGNATURE, "PNG"),
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


def content(head: bytes) -> str:
    """The format of a file that begins with `head` (at least 16 bytes, or the whole file); empty if unknown."""
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "WebP"
    if head[4:8] == b"ftyp":
        return "AVIF or HEIC"
    return next((name for start, name in _STARTS if head.startswith(start)), "")


def check_content(head: bytes, expected: str, path: str) -> None:
    """Raises SourceError where a file that begins with `head` does not hold the `expected` format."""
    if head.startswith(SIGNATURE) and expected == "PNG":
        return
    if not head:
        raise SourceError("is empty (0 bytes); get the file again", path)
    refuse_pointer(head, path)
    found = content(head)
    if not found and expected == "PNG" and head[1:4] == b"PNG":
        raise SourceError("damaged PNG: the signature it begins with was changed; get the file again", path)
    if not found:
        what = "zeros" if not any(head) else "no format that is known here"
        raise SourceError(f"is no {expected}: it begins with {what}; get the file again", path)
    if found != expected:
        raise SourceError(
            f"holds {found} data under the name of a {expected}; rename it or save it as {expected}", path
        )
