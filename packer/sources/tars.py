"""Tars of WebDataset: members with one key and several suffixes are one sample.

    shard-000.tar       0001.jpg 0001.txt 0001.json 0002.jpg 0002.txt ...      samples 0001, 0002: image, txt, json

A key is the path of a member up to the first dot of its name, and its members lie side by side. Members are fields,
by their suffix; the one picture of a sample is the field `image`. Nothing is unpacked: the index of a tar is read once,
and the plan keeps where each member lies.

    .jpg .png ...       pictures        .txt .text .json        text
    .cls .id .index     whole numbers   .npy .npz               arrays
    .flac               sound, (frames, channels), and its `rate`
"""

from __future__ import annotations

import io
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError, UsageError
from packer.format import DTYPES
from packer.sources.base import faults_of
from packer.sources.files import IMAGES, decode_text, unreadable
from packer.sources.images import header_in, image_in
from packer.sources.kinds import Kind, pair_in_order
from packer.sources.looking import AFTER, Header, agree_on_most
from packer.sources.options import SourceOptions
from packer.sources.table import LaidField, Row, SampleTable
from packer.watcher import Watcher

_IMAGE, _ADVICE = "image", "pack the tar again"
#: Decoded bytes that a block holds at most, as of loose pictures: they stay in the cache of the processor.
_BLOCK_BYTES = 2**19
#: Bytes of a picture that is read at once to find its header: to open the tar again for it takes longer.
_SMALL_BYTES = 2**16
#: The rate and shape of a FLAC file are in its first block (RFC 9639, section 8.2): behind these bytes.
_FLAC_START, _FLAC_INFO = b"fLaC", 18


class _Member(NamedTuple):
    """One file in a tar.

    Attributes:
        suffix: behind the first dot of its name, in small letters.
        at: where its bytes begin.
    """

    suffix: str
    at: int
    size: int

    @property
    def last(self) -> str:
        """Return what says how it is read."""
        return self.suffix.rpartition(".")[2]


# ---------------------------------------------------------------- which members there are


def look(row: Row, options: SourceOptions) -> list[Header | SourceError]:
    """Return what each sample of a tar holds, or the error of a bad one."""
    with _opened(row.path) as (file, tar):
        headers: list[Header | SourceError] = []
        samples = _samples(tar, row.path, options.skip)
        after = {AFTER.format(""): extra} if (extra := _bytes_after(file, tar)) else {}
        for key, members in samples.items():
            try:
                header = _header(key, _fields(members), file, options)
                headers.append(header._replace(numbers={**header.numbers, **after}))
                after = {}  # the file is named once
            except SourceError as error:
                headers.append(SourceError(error.reason, f"{row.path}/{key}.{error.path}"))
    return headers


def _samples(tar: tarfile.TarFile, path: str, skip: Sequence[str]) -> dict[str, list[_Member]]:
    """Return the members of each key, without those of suffixes that are skipped.

    Raises:
        SourceError: a member is no file, has no suffix that is understood, or does not lie beside those of its key.
    """
    samples, last = dict[str, list[_Member]](), ""
    for member in tar:
        if member.isdir():
            continue
        folder, slash, name = member.name.rpartition("/")
        if name.startswith("."):  # such as ._a.jpg, which macOS adds
            continue
        key, _, suffix = name.partition(".")
        key, found = folder + slash + key, _Member(suffix.lower(), member.offset_data, member.size)
        if found.suffix in skip or found.last in skip:
            continue
        if not member.isreg() or member.issparse():
            raise SourceError(f"holds {member.name}, which is no plain file; {_ADVICE} without it", path)
        if found.last not in _READERS:
            what = f"--skip {found.suffix} leaves out such members" if suffix else f"{_ADVICE} without it"
            raise SourceError(f"holds {member.name}, which is not a kind that is understood; {what}", path)
        if key in samples and key != last:
            raise SourceError(f"the members of {key} do not lie side by side; sort them, and {_ADVICE}", path)
        samples.setdefault(key, []).append(found)
        last = key
    tar.fileobj.seek(tar.offset)
    if tar.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise SourceError("has no end: it is cut; download it again", path)
    return samples


def _bytes_after(file: io.BufferedReader, tar: tarfile.TarFile) -> int:
    """Return how many bytes follow the end of a tar, such as another tar; none if all of them are 0, as of padding."""
    end = tar.offset + 2 * tarfile.BLOCKSIZE
    file.seek(end)
    while data := file.read(tarfile.RECORDSIZE):
        if data.count(0) < len(data):
            return file.seek(0, io.SEEK_END) - end
    return 0


def _fields(members: Sequence[_Member]) -> dict[str, _Member]:
    """Return the members by field: the only picture as `image`, the others by suffix."""
    pictures = [member for member in members if "." not in member.suffix and _READERS[member.last] is _PICTURE]
    named = {_IMAGE if pictures == [member] else member.suffix: member for member in members}
    if len(named) < len(members):
        (twice, _), *_ = Counter(member.suffix for member in members).most_common(1)
        raise SourceError(f"is there twice in one sample; {_ADVICE}", twice)
    return named


def _header(key: str, members: Mapping[str, _Member], file: io.BufferedReader, options: SourceOptions) -> Header:
    layout, numbers = list[LaidField](), dict[str, int]()
    for field, member in members.items():
        with faults_of(member.suffix):
            fields, lengths = _READERS[member.last].look(field, file, member, options)
        layout += [fields[0]._replace(detail=f"{field}:{member.last}"), *fields[1:]]
        numbers |= {f"{field}@at": member.at, f"{field}@size": member.size, **lengths}
    return Header(tuple(layout), numbers, root=key)


def agree(table: SampleTable, options: SourceOptions, remarks: list[str], watcher: Watcher) -> SampleTable:
    """Return the samples that have the fields of most; they are named by their keys, if no two tars have the same."""
    table = agree_on_most(table, watcher, "differs from most samples: {how}; --skip leaves out a field")
    roots = next(iter(table.inputs.values())).roots or []
    if len(set(roots)) == len(roots):
        return msgspec.structs.replace(table, names=list(roots))
    again = [key for key, times in Counter(roots).items() if times > 1]
    remarks.append(
        f"{len(again):,} keys are in several tars, such as {again[0]}: names of samples begin with those of tars"
    )
    return table


# ---------------------------------------------------------------- values


def read(row: Row, options: SourceOptions) -> dict[str, Any]:
    """Return the values of a sample."""
    sample = dict[str, Any]()
    with _raw(row.path, buffering=0) as file:
        for laid in row.layout:
            if laid.detail is None:  # a further field of a member
                continue
            field, _, last = laid.detail.rpartition(":")
            member = _Member(last, row.numbers[f"{field}@at"], row.numbers[f"{field}@size"])
            try:
                sample |= _READERS[last].read(field, _bytes(file, member), options)
            except SourceError as error:
                raise SourceError(error.reason, f"{row.path}/{row.root}.{last}") from None
    return sample


class _Reader(NamedTuple):
    """How members of some suffixes are read.

    Attributes:
        look: returns the fields of a member, and the lengths of their axes by name.
        read: returns their values.
    """

    look: Callable[[str, io.BufferedReader, _Member, SourceOptions], tuple[list[LaidField], dict[str, int]]]
    read: Callable[[str, bytes, SourceOptions], dict[str, Any]]


def _look_at_picture(
    field: str, file: io.BufferedReader, member: _Member, options: SourceOptions
) -> tuple[list[LaidField], dict[str, int]]:
    is_small = member.size <= _SMALL_BYTES
    header = header_in(_bytes(file, member) if is_small else (file.name, member.at, member.size), field, options)
    shape, notes = (f"{field}.height", f"{field}.width", header.channels), (header.note,) if header.note else ()
    laid = LaidField(field, header.dtype, shape, header.in_words, "image", notes=notes)
    return [laid], {f"{field}.height": header.height, f"{field}.width": header.width}


def _look_at_text(
    field: str, file: io.BufferedReader, member: _Member, options: SourceOptions
) -> tuple[list[LaidField], dict[str, int]]:
    return [LaidField(field, "uint8", (None,), "text", "text")], {}


def _look_at_number(
    field: str, file: io.BufferedReader, member: _Member, options: SourceOptions
) -> tuple[list[LaidField], dict[str, int]]:
    return [LaidField(field, "int64", (), "one whole number")], {}


def _look_at_arrays(
    field: str, file: io.BufferedReader, member: _Member, options: SourceOptions
) -> tuple[list[LaidField], dict[str, int]]:
    layout, lengths = list[LaidField](), dict[str, int]()
    for name, array in _arrays(field, _bytes(file, member)).items():
        axes = tuple(f"{name}[{axis}]" for axis in range(array.ndim))
        layout.append(LaidField(name, array.dtype.name, axes, f"{array.dtype.name} of {array.ndim} axes"))
        lengths |= dict(zip(axes, array.shape, strict=True))
    return layout, lengths


def _arrays(field: str, data: bytes) -> dict[str, NDArray[Any]]:
    """Return the array of a .npy under the name of the field, or those of a .npz, as FIELD.NAME."""
    try:
        loaded = np.load(io.BytesIO(data), allow_pickle=False)
        named = {f"{field}.{n}": loaded[n] for n in loaded.files} if hasattr(loaded, "files") else {field: loaded}
    except Exception as error:
        raise SourceError(f"cannot be read as an array ({error}); save it with np.save") from error
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
    field: str, file: io.BufferedReader, member: _Member, options: SourceOptions
) -> tuple[list[LaidField], dict[str, int]]:
    data = _bytes(file, member._replace(size=min(member.size, _FLAC_INFO + 8)))
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


_PICTURE = _Reader(_look_at_picture, lambda field, data, options: {field: image_in(data, field, options)})
_TEXT, _NUMBER = _Reader(_look_at_text, _text), _Reader(_look_at_number, _number)
_ARRAYS = _Reader(_look_at_arrays, lambda field, data, options: _arrays(field, data))
#: By the last suffix of a member.
_READERS = {
    **dict.fromkeys((suffix[1:] for suffix in IMAGES), _PICTURE),
    **dict.fromkeys(("txt", "text", "json"), _TEXT),
    **dict.fromkeys(("cls", "id", "index"), _NUMBER),
    **dict.fromkeys(("npy", "npz"), _ARRAYS),
    "flac": _Reader(_look_at_sound, _sound),
}


# ---------------------------------------------------------------- bytes


@contextmanager
def _raw(path: str, buffering: int = -1) -> Iterator[Any]:
    try:
        with open(path, "rb", buffering) as file:  # noqa: PTH123 - without a Path: once for each sample
            yield file
    except OSError as error:
        raise unreadable(error, path) from error


@contextmanager
def _opened(path: str) -> Iterator[tuple[io.BufferedReader, tarfile.TarFile]]:
    with _raw(path) as file:
        try:
            with tarfile.open(fileobj=file, mode="r:", errorlevel=2) as tar:
                yield file, tar
        except tarfile.TarError as error:
            raise SourceError(f"cannot be read as a tar ({error}); download it again, or gunzip it", path) from error


def _bytes(file: Any, member: _Member) -> bytes:
    file.seek(member.at)
    data: bytes = file.read(member.size)
    while len(data) < member.size and (more := file.read(member.size - len(data))):
        data += more  # a call gives 2 GiB at most
    if len(data) < member.size:
        raise SourceError("ends before its last byte: the tar is cut; download it again")
    return data


KIND = Kind(
    "tars",
    (".tar",),
    look,
    read,
    names_fields=True,
    options=("skip", "mode", "palette", "max_pixels", "orient"),
    pair=pair_in_order,
    agree=agree,
    exports="tar",
    block_bytes=_BLOCK_BYTES,
)
