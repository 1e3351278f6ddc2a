"""LMDB folders of PNG pictures, as BasicSR and Real-ESRGAN make them: one field a folder, one sample a key.

    source = open_basicsr({"lr": "DIV2K/lq.lmdb", "hr": "DIV2K/gt.lmdb"})

A folder holds `data.mdb` with one encoded picture a key, and `meta_info.txt` with its size. Partners are found by
their keys, as those of files are by their names; the pixels are read and checked as those of PNG files are. The values
are found by `packer.format.btree`, so that a damaged file is an error and never a crash, and nothing needs a lock.
"""

from __future__ import annotations

import io
import mmap
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from packer.errors import DamagedError, SourceError
from packer.format.btree import HEAD_BYTES, Tree
from packer.sources.base import HEADERS, Looking, OnBad, not_looking, stop, watched
from packer.sources.files import LMDB_DATA, LMDB_LIST, Found
from packer.sources.images import png
from packer.sources.images.clips import ClipSource, Faults, clips
from packer.sources.images.copies import mark_of
from packer.sources.images.formats import ImageHeader, check_content, decode, png_image, unreadable
from packer.sources.images.opening import Samples, field_spec
from packer.sources.images.pillow import MAX_PIXELS, ImageOptions
from packer.sources.images.source import ImageSource
from packer.sources.pairing import Pairing, chosen, marker_values, markers, pair, report_partners, share_out

#: Keys are paired as files are, with the suffix that `meta_info.txt` gives them.
SUFFIX = ".png"

#: `baboon.png (480,492,3) 1`: name, height, width and channels, level of compression.
_LINE = re.compile(r"(?P<key>.+)\.\w+ \((?P<height>\d+),(?P<width>\d+),\d+\) \d+")


class Place(NamedTuple):
    """Where the bytes of a picture lie in the file."""

    offset: int
    size: int


def open_basicsr(
    inputs: Mapping[str, str],
    *,
    on_bad: OnBad = stop,
    mode: str | None = None,
    palette: str = "colour",
    max_pixels: int = MAX_PIXELS,
    samples: str = "files",
    listed: str | None = None,
    looking: Looking = not_looking,
) -> LmdbImageSource | ClipSource:
    """Open the pictures of one or more LMDB folders, partners paired by key.

    Args:
        inputs: by field name a folder with `data.mdb` and `meta_info.txt`.
        on_bad: told of every picture that cannot be packed; where it returns, the sample is left out.
        mode, palette, max_pixels, samples, listed, looking: as for `open_images`; keys such as `000/00000000` have
            folders too.

    Raises:
        UsageError: an option or a field name that cannot be, or one folder for two fields.
        SourceError: a damaged LMDB file or list, no sample left, what `on_bad` raises.
    """
    options = ImageOptions(mode, palette, max_pixels)
    faults = Faults(on_bad)
    held = {name: places(folder) for name, folder in inputs.items()}
    found = {name: Found(inputs[name], [key + SUFFIX for key in keys]) for name, keys in held.items()}
    share_out(found)
    paired = pair({name: some.files for name, some in found.items()})
    paired, left_out = (paired, []) if listed is None else chosen(paired, listed)
    report_partners(paired, found, faults)
    headers = {name: _Headers(folder, held[name], options, faults) for name, folder in inputs.items()}
    read = _samples(paired, headers, faults, looking)
    source = LmdbImageSource(
        fields=tuple(field_spec(name, read, inputs[name]) for name in inputs),
        names=read.names,
        folders=dict(inputs),
        paths=read.paths,
        sizes=read.sizes(),
        options=options,
        origin={"mode": options.mode, "palette": options.palette, "markers": marker_values(paired)},
        remarks=[
            *left_out,
            *(note for some in headers.values() for note in some.notes()),
            *markers(paired),
            *read.changes(),
        ],
        marks=read.marks(),
        places={name: _array([held[name][_key(path)] for path in some]) for name, some in read.paths.items()},
    )
    return clips(source, faults, on_bad) if samples == "folders" else source


def _key(path: str) -> str:
    return path.removesuffix(SUFFIX)


def _array(places: list[Place]) -> NDArray[np.int64]:
    return np.array(places, np.int64).reshape(-1, 2)


class _Headers:
    """Reads the headers of one folder, and compares them with what its list says.

    Raises:
        SourceError: what `on_bad` raises of pictures that are listed and not there.
    """

    def __init__(self, folder: str, places: Mapping[str, Place], options: ImageOptions, on_bad: OnBad) -> None:
        self.folder, self._places, self._options = folder, places, options
        self._listed = listed_sizes(folder)
        for key in self._listed.keys() - places.keys():
            on_bad(SourceError("is listed in meta_info.txt, but the LMDB file has no such key", f"{folder}/{key}"))
        self._unlisted = len(places.keys() - self._listed.keys())
        self._misjudged: list[str] = []

    def notes(self) -> list[str]:
        """Return what the list and the pictures do not agree in; known when all headers were read."""
        sentences = []
        if self._unlisted:
            sentences.append(f"{self.folder}: {self._unlisted} keys are not in meta_info.txt, and are packed too")
        if self._misjudged:
            count = len(self._misjudged)
            much = f"{count} {'picture has' if count == 1 else 'pictures have'} another size"
            sentences.append(
                f"{self.folder}: {much} (such as {self._misjudged[0]}) than in meta_info.txt; their own is taken"
            )
        return sentences

    def header(self, file: BinaryIO, path: str) -> ImageHeader:
        """Return the header of the picture at a relative path; raises SourceError if it cannot be packed."""
        key, shown = _key(path), f"{self.folder}/{path}"
        place = self._places[key]
        head = value(file, place, shown, png.HEAD_BYTES)
        check_content(head, "PNG", shown)
        header = png.read_header(head, place.size, lambda size, at: value(file, place, shown, size, at), shown)
        size = header.height, header.width
        if self._listed.get(key, size) != size:
            self._misjudged.append(key)
        return png_image(header, shown, self._options, mark_of(place.size, head))


def _samples(paired: Pairing, headers: Mapping[str, _Headers], on_bad: OnBad, looking: Looking) -> Samples:
    """Read headers field by field, in one pass over each file; a sample with a bad one is left out of every field."""
    read = {}
    for name, paths in paired.files.items():
        with opened(headers[name].folder) as file:
            some = watched(paths, f"{HEADERS} of {name}", looking, len(paths))
            read[name] = [_header(headers[name], file, path, on_bad) for path in some]
    good = [i for i in range(len(paired.names)) if all(some[i] for some in read.values())]
    if not good:
        raise SourceError("no sample is left: every one has a bad picture or a partner missing; mend the files first")
    return Samples(
        [paired.names[i] for i in good],
        {name: [paths[i] for i in good] for name, paths in paired.files.items()},
        {name: [header for i in good if (header := some[i])] for name, some in read.items()},
    )


def _header(headers: _Headers, file: BinaryIO, path: str, on_bad: OnBad) -> ImageHeader | None:
    try:
        return headers.header(file, path)
    except SourceError as error:
        on_bad(error)
    return None


@dataclass(eq=False)
class LmdbImageSource(ImageSource):
    """Samples made of one LMDB value a field. Pickles as keys, sizes and places.

    Attributes:
        places: by field, (n, 2) int64: offset and size of every value in its file.
    """

    places: dict[str, NDArray[np.int64]] = field(default_factory=dict)

    kind = "basicsr"

    def take(self, numbers: Sequence[int]) -> LmdbImageSource:
        part = cast(LmdbImageSource, super().take(numbers))
        part.places = {name: some[numbers] for name, some in self.places.items()}
        return part

    def files(self) -> list[str]:
        return [f"{self.folders[spec.name]}/{LMDB_DATA}" for spec in self.fields]

    @contextmanager
    def _opened(self, name: str, number: int) -> Iterator[BinaryIO]:
        yield io.BytesIO(self._value(name, number))

    def _pixels(self, name: str, number: int) -> NDArray[Any]:
        return decode(self._value(name, number), "PNG", self._path(name, number), self.options)

    def _value(self, name: str, number: int) -> bytes:
        with opened(self.folders[name]) as file:
            return value(file, Place(*map(int, self.places[name][number])), self._path(name, number))


def listed_sizes(folder: str) -> dict[str, tuple[int, int]]:
    """Return height and width of every picture that `meta_info.txt` lists, by key.

    Raises:
        SourceError: the list cannot be read, or a line is not of the form that BasicSR writes.
    """
    path = f"{folder}/{LMDB_LIST}"
    sizes = {}
    for number, line in enumerate(_text(path).splitlines(), 1):
        found = _LINE.fullmatch(line.strip())
        if found:
            sizes[found["key"]] = int(found["height"]), int(found["width"])
        elif line.strip():
            reason = f"line {number} is {line.strip()[:80]!r}; a line such as 'name.png (480,492,3) 1' is expected"
            raise SourceError(f"{reason}; mend the line", path)
    return sizes


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SourceError("is no text (UTF-8); get it again, or make the folder again with BasicSR", path) from error
    except OSError as error:
        raise unreadable(error, path) from error


def places(folder: str) -> dict[str, Place]:
    """Return the place of every value, by key.

    Raises:
        SourceError: not a sound LMDB file, or a key that is no text.
    """
    path = f"{folder}/{LMDB_DATA}"
    with opened(folder) as file:
        try:
            Tree(memoryview(file.read(HEAD_BYTES)), path, Path(path).stat().st_size)
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as buffer:
                values = list(Tree(buffer, path).values())
        except DamagedError as error:
            raise SourceError(str(error).removeprefix(f"{path}: "), path) from error
    return {_text_key(value.key, path): Place(value.offset, value.size) for value in values}


def _text_key(key: bytes, path: str) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError as error:
        raise SourceError(
            f"has a key {key!r} that is no text (UTF-8), so its sample would have no name", path
        ) from error


@contextmanager
def opened(folder: str) -> Iterator[BinaryIO]:
    """Open the data file; what goes wrong within the block with the operating system is a SourceError."""
    path = f"{folder}/{LMDB_DATA}"
    try:
        with Path(path).open("rb") as file:
            yield file
    except OSError as error:
        raise unreadable(error, path) from error


def value(file: BinaryIO, place: Place, path: str, most: int | None = None, at: int = 0) -> bytes:
    """Return the bytes of a value from `at` on, or the first `most` of them.

    Raises:
        SourceError: the file has become shorter.
    """
    left = max(place.size - at, 0)
    wanted = left if most is None else min(most, left)
    file.seek(place.offset + at)
    data = file.read(wanted)
    if len(data) < wanted:
        raise SourceError("was cut short while it was read; start again when nothing writes to it", path)
    return data
