"""Members of tars: which fields one is, by its suffix, and its values.

.jpg .png ...       pictures        .txt .text .json        text
.cls .id .index     whole numbers   .npy .npz               arrays
.flac               sound, (frames, channels), and its `rate`
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError, UsageError
from packer.format import DTYPES
from packer.sources.ends import bytes_after
from packer.sources.files import IMAGES, decode_text
from packer.sources.images import header_in, image_in
from packer.sources.options import SourceOptions
from packer.sources.table import LaidField
from packer.sources.tars.index import Member, OpenTar

#: Bytes of a picture that is read at once to find its header: to open the tar again for it takes longer.
_SMALL_BYTES = 2**16
#: The rate and shape of a FLAC file are in its first block (RFC 9639, section 8.2): behind these bytes.
_FLAC_START, _FLAC_INFO = b"fLaC", 18


class Reader(NamedTuple):
    """How members of some suffixes are read.

    Attributes:
        look: returns the fields of a member, and the lengths of their axes by name.
        read: returns their values.
    """

    look: Callable[[str, OpenTar, Member, SourceOptions], tuple[list[LaidField], dict[str, int]]]
    read: Callable[[str, bytes, SourceOptions], dict[str, Any]]


def _look_at_picture(
    field: str, tar: OpenTar, member: Member, options: SourceOptions
) -> tuple[list[LaidField], dict[str, int]]:
    is_small = member.size <= _SMALL_BYTES
    header = header_in(
        tar.read(member.at, member.size) if is_small else (tar.path, member.at, member.size), field, options
    )
    shape, notes = (f"{field}.height", f"{field}.width", header.channels), (header.note,) if header.note else ()
    laid = LaidField(field, header.dtype, shape, header.in_words, "image", notes=notes)
    return [laid], {f"{field}.height": header.height, f"{field}.width": header.width}


def _look_at_text(
    field: str, tar: OpenTar, member: Member, options: SourceOptions
) -> tuple[list[LaidField], dict[str, int]]:
    return [LaidField(field, "uint8", (None,), "text", "text")], {}


def _look_at_number(
    field: str, tar: OpenTar, member: Member, options: SourceOptions
) -> tuple[list[LaidField], dict[str, int]]:
    return [LaidField(field, "int64", (), "one whole number")], {}


def _look_at_arrays(
    field: str, tar: OpenTar, member: Member, options: SourceOptions
) -> tuple[list[LaidField], dict[str, int]]:
    layout, lengths = list[LaidField](), dict[str, int]()
    for name, array in _arrays(field, tar.read(member.at, member.size)).items():
        axes = tuple(f"{name}[{axis}]" for axis in range(array.ndim))
        layout.append(LaidField(name, array.dtype.name, axes, f"{array.dtype.name} of {array.ndim} axes"))
        lengths |= dict(zip(axes, array.shape, strict=True))
    return layout, lengths


def _arrays(field: str, data: bytes) -> dict[str, NDArray[Any]]:
    """Return the array of a .npy under the name of the field, or those of a .npz, as FIELD.NAME."""
    stream = io.BytesIO(data)
    try:
        loaded = np.load(stream, allow_pickle=False)
        is_archive = hasattr(loaded, "files")
        named = {f"{field}.{n}": np.asarray(loaded[n]) for n in loaded.files} if is_archive else {field: loaded}
        after = bytes_after(stream) if is_archive else len(data) - stream.tell()
    except Exception as error:
        raise SourceError(f"cannot be read as an array ({error}); save it with np.save") from error
    if is_archive and len(named) < len(loaded.files):
        raise SourceError("has two members with the same name; save it again with np.savez")
    if after:
        raise SourceError(f"has {after:,} bytes after its end, where something else follows; save it again")
    for name, array in named.items():
        if array.dtype.newbyteorder("=").name not in DTYPES:
            raise SourceError(f"{name} is of {array.dtype}, which cannot be packed; save numbers")
    return {name: np.asarray(a, a.dtype.newbyteorder("="), order="C") for name, a in named.items()}


def _number(field: str, data: bytes, options: SourceOptions) -> dict[str, Any]:
    try:
        return {field: np.int64(int(data))}
    except (ValueError, OverflowError):
        raise SourceError(f"is {data[:20]!r}, and no whole number of 64 bits; --skip leaves it out") from None


def _look_at_sound(
    field: str, tar: OpenTar, member: Member, options: SourceOptions
) -> tuple[list[LaidField], dict[str, int]]:
    data = tar.read(member.at, min(member.size, _FLAC_INFO + 8))
    if not data.startswith(_FLAC_START) or len(data) < _FLAC_INFO + 8:
        raise SourceError("does not begin as FLAC does; download it again")
    info = int.from_bytes(data[_FLAC_INFO : _FLAC_INFO + 8], "big")  # 20 bits rate, 3 channels, 5 bits, 36 frames
    channels, bits, frames = (info >> 41 & 7) + 1, (info >> 36 & 31) + 1, info & (1 << 36) - 1
    dtype, steps = "int16" if bits <= 16 else "int32", f"{field}.frames"
    sound = LaidField(field, dtype, (steps, channels), f"{dtype} of {channels} channels")
    return [sound, LaidField(f"{field}.rate", "int64", (), "one whole number")], {steps: frames}


def _sound(field: str, data: bytes, options: SourceOptions) -> dict[str, Any]:
    """Return the values of FLAC, (frames, channels): those of more than 16 bits in the upper bits of int32."""
    try:
        import av
    except ImportError:
        raise UsageError("FLAC is read by av: pip install '.[video]' in a clone of packer; or --skip flac") from None
    try:
        with av.open(io.BytesIO(data), "r") as container:
            stream = container.streams.audio[0]
            parts = [frame.to_ndarray().reshape(-1, frame.layout.nb_channels) for frame in container.decode(stream)]
            return {field: np.concatenate(parts), f"{field}.rate": np.int64(stream.rate)}
    except (av.FFmpegError, ValueError, LookupError) as error:
        raise SourceError(f"cannot be decoded ({error}); download it again") from error


def _text(field: str, data: bytes, options: SourceOptions) -> dict[str, Any]:
    try:
        return {field: decode_text(data)}
    except UnicodeDecodeError:
        raise SourceError("is not text in UTF-8; save it as such") from None


PICTURE = Reader(_look_at_picture, lambda field, data, options: {field: image_in(data, field, options)})
_TEXT, _NUMBER = Reader(_look_at_text, _text), Reader(_look_at_number, _number)
_ARRAYS = Reader(_look_at_arrays, lambda field, data, options: _arrays(field, data))
#: By the last suffix of a member.
READERS = {
    **dict.fromkeys((suffix[1:] for suffix in IMAGES), PICTURE),
    **dict.fromkeys(("txt", "text", "json"), _TEXT),
    **dict.fromkeys(("cls", "id", "index"), _NUMBER),
    **dict.fromkeys(("npy", "npz"), _ARRAYS),
    "flac": Reader(_look_at_sound, _sound),
}
