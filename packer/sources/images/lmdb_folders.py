"""LMDB folders of images: one field a folder, one sample a key.

    data.mdb and meta_info.txt                      BasicSR, Real-ESRGAN: an image a key, the list has their sizes
    data.mdb with num-samples, image-000000001,     text recognition: deep-text-recognition-benchmark, MMOCR, PaddleOCR;
    label-000000001, ...                            a field `label` has the texts

Keys of images are found, paired and decoded as files are, each with the suffix `.png`, and of the format that its bytes
say. The values are found by `packer.format.btree`, so that a damaged file is an error and never a crash, and nothing
needs a lock.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from packer.errors import DamagedError, SourceError
from packer.format import HEAD_BYTES, BTree
from packer.sources.files import LMDB_DATA, LMDB_LIST, FileSet, decode_text, join, unreadable
from packer.sources.table import Files, SampleTable
from packer.watcher import Watcher

_SUFFIX = ".png"
#: Name of the field of texts.
TEXT = "label"
#: Offset and size of a value in its file.
Span = tuple[int, int]
#: The key of text recognition that says how many images there are.
_TOTAL = "num-samples"
#: How pickles begin: the opcode of the protocol, and its number.
_PICKLE, _PROTOCOLS = b"\x80", (b"\2", b"\3", b"\4", b"\5")

#: `baboon.png (480,492,3) 1`: name, height, width and channels, level of compression.
_LINE = re.compile(r"(?P<key>.+)\.\w+ \((?P<height>\d+),(?P<width>\d+),\d+\) \d+")


@dataclass(frozen=True)
class Folder:
    """An LMDB folder; `opened` makes it.

    Attributes:
        file_set: its keys, as files.
        places: where the value of each lies.
        listed: height and width of each, as `meta_info.txt` says; None if there is no list.
        texts: where the text of each lies; empty if images have none.
    """

    file_set: FileSet
    places: Mapping[str, Span]
    listed: Mapping[str, tuple[int, int]] | None
    texts: Mapping[str, Span] = field(default_factory=dict)

    def located(self, files: Sequence[str]) -> Files:
        """Return where the values of some keys lie."""
        return _located(self.file_set.folder, files, self.places)

    def texts_of(self, files: Sequence[str]) -> Files:
        """Return where the texts of some keys lie."""
        return _located(self.file_set.folder, [file.replace("image-", "label-", 1) for file in files], self.texts)

    def sizes(self, files: Sequence[str]) -> dict[str, NDArray[np.int64]]:
        """Return height and width of some keys as the list has them, by name; 0 for those that it does not list."""
        if self.listed is None:
            return {}
        sizes = np.array([self.listed.get(file, (0, 0)) for file in files], np.int64).reshape(-1, 2)
        return dict(zip(("height", "width"), sizes.T, strict=True))

    def notes(self) -> list[str]:
        """Return a sentence on keys that the list lacks."""
        unlisted = self.places.keys() - (self.places if self.listed is None else self.listed).keys()
        folder = self.file_set.folder
        return [f"{folder}: {len(unlisted):,} keys are not in {LMDB_LIST}; they are packed too"] if unlisted else []


def _located(folder: str, files: Sequence[str], places: Mapping[str, Span]) -> Files:
    spans = np.array([places[file] for file in files], np.int64).reshape(-1, 2)
    return Files(folder, [LMDB_DATA] * len(files), roots=list(files), spans=spans)


def listed_otherwise(table: SampleTable) -> list[str]:
    """Return sentences on images whose size is not that of the list."""
    sentences = []
    for name, files in table.inputs.items():
        is_odd = np.zeros(table.count, bool)
        for side in ("height", "width"):
            listed = table.numbers.get(f"{name}.listed.{side}", np.zeros(table.count))
            is_odd |= (listed != 0) & (listed != table.numbers.get(f"{name}.{side}", 0))
        if numbers := np.flatnonzero(is_odd).tolist():
            images = "image differs" if len(numbers) == 1 else "images differ"
            such_as = (files.roots or [])[numbers[0]].removesuffix(_SUFFIX)
            reason = f"{len(numbers):,} {images} in size from {LMDB_LIST} (such as {such_as})"
            sentences.append(f"{files.folder}: {reason}; the size of the image counts")
    return sentences


def _read(path: str, span: Span) -> bytes:
    with Path(path).open("rb") as file:
        file.seek(span[0])
        return file.read(span[1])


def opened(folder: str, watcher: Watcher) -> Folder:
    """Return the keys of a folder with `data.mdb`.

    Raises:
        SourceError: the LMDB file is damaged, a key is no text, or the list cannot be read or has a line that BasicSR
            does not write; it holds other things than images; or what `watcher.bad` raises, which is called for each
            image that is listed and not there.
    """
    path = join(folder, LMDB_DATA)
    places = _places(path)
    if not Path(join(folder, LMDB_LIST)).exists():
        return _with_texts(folder, places, watcher)
    listed = _listed(join(folder, LMDB_LIST))
    for file in [file for file in listed if file not in places]:
        reason = f"is listed in {LMDB_LIST}, but the LMDB file has no such key"
        watcher.bad(SourceError(reason, join(folder, file.removesuffix(_SUFFIX))))
    return Folder(FileSet(folder, list(places)), places, listed)


def _with_texts(folder: str, places: Mapping[str, Span], watcher: Watcher) -> Folder:
    """Return the images of a folder that has a text for each, as text recognition is trained on."""
    path, total = join(folder, LMDB_DATA), 0
    if _TOTAL + _SUFFIX in places:
        data = _read(path, places[_TOTAL + _SUFFIX])
        total = int(data) if data.isdigit() else 0
    if not total:
        raise SourceError(_unknown_layout(path, places), path)
    images, texts = {}, {}
    for number in range(1, total + 1):
        image, text = (f"{kind}-{number:09d}{_SUFFIX}" for kind in ("image", "label"))
        if image in places and text in places:
            images[image], texts[text] = places[image], places[text]
        else:
            missing = (text if image in places else image).removesuffix(_SUFFIX)
            watcher.bad(SourceError(f"has no key {missing}, though {_TOTAL} is {total:,}; make the LMDB again", path))
    return Folder(FileSet(folder, list(images)), images, None, texts)


def _unknown_layout(path: str, places: Mapping[str, Span]) -> str:
    """Return why an LMDB file of neither layout cannot be packed."""
    first = _read(path, next(iter(places.values())))[:2] if places else b""
    if first[:1] == _PICKLE and first[1:] in _PROTOCOLS:
        return (
            "holds pickled objects of Python, and unpickling runs what code they name; if you trust them, read them in "
            "Python, and give the samples to packer.convert.convert"
        )
    return (
        f"is neither an LMDB of BasicSR, which has {LMDB_LIST} beside it, nor one of text recognition, which has a key "
        f"{_TOTAL}; read it in Python, and give the samples to packer.convert.convert"
    )


def _places(path: str) -> dict[str, Span]:
    try:
        with Path(path).open("rb") as file:
            BTree(memoryview(file.read(HEAD_BYTES)), path, Path(path).stat().st_size)
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as buffer:
                values = list(BTree(buffer, path).values())
    except DamagedError as error:
        raise SourceError(str(error).removeprefix(f"{path}: "), path) from error
    except OSError as error:
        raise unreadable(error, path) from error
    places = {}
    for value in values:
        try:
            places[value.key.decode() + _SUFFIX] = value.offset, value.size
        except UnicodeDecodeError as error:
            reason = f"has a key {value.key!r} that is not text (UTF-8), so its sample would have no name"
            raise SourceError(reason, path) from error
    return places


def _listed(path: str) -> dict[str, tuple[int, int]]:
    try:
        text = decode_text(Path(path).read_bytes())
    except UnicodeDecodeError as error:
        raise SourceError(
            "is not text (UTF-8); download it again, or make the folder again with BasicSR", path
        ) from error
    except OSError as error:
        raise unreadable(error, path) from error
    sizes = {}
    for number, line in enumerate(text.splitlines(), 1):
        if match := _LINE.fullmatch(line.strip()):
            sizes[match["key"] + _SUFFIX] = int(match["height"]), int(match["width"])
        elif line.strip():
            reason = f"line {number} is {line.strip()[:80]!r}; a line such as 'name.png (480,492,3) 1' is expected"
            raise SourceError(f"{reason}; fix the line", path)
    return sizes
