"""LMDB folders of pictures, as BasicSR and Real-ESRGAN make them: one field a folder, one sample a key.

A folder holds `data.mdb` with one encoded picture a key, and `meta_info.txt` with its size. Keys are found, paired and
decoded as files are, each with the suffix `.png`, and of the format that its bytes say. The values are found by
`packer.format.btree`, so that a damaged file is an error and never a crash, and nothing needs a lock.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from packer.errors import DamagedError, SourceError
from packer.format import HEAD_BYTES, Tree
from packer.sources.base import OnBad
from packer.sources.files import LMDB_DATA, LMDB_LIST, Found, decode_text, join, unreadable
from packer.sources.images.formats import Place

_SUFFIX = ".png"

#: `baboon.png (480,492,3) 1`: name, height, width and channels, level of compression.
_LINE = re.compile(r"(?P<key>.+)\.\w+ \((?P<height>\d+),(?P<width>\d+),\d+\) \d+")


@dataclass(frozen=True)
class Folder:
    """An LMDB folder; `opened` makes it.

    Attributes:
        found: its keys, as files.
        places: where the value of each lies.
        listed: height and width of each, as `meta_info.txt` says.
    """

    found: Found
    places: Mapping[str, Place]
    listed: Mapping[str, tuple[int, int]]

    def notes(self, files: Sequence[str], sizes: NDArray[np.int32]) -> list[str]:
        """Return sentences on how list and pictures differ; `sizes`: height and width of some files, (n, 2)."""
        folder, sentences = self.found.folder, []
        if unlisted := self.places.keys() - self.listed.keys():
            sentences.append(f"{folder}: {len(unlisted):,} keys are not in {LMDB_LIST}; they are packed too")
        pairs = zip(files, map(tuple, sizes.tolist()), strict=True)
        odd = [file.removesuffix(_SUFFIX) for file, size in pairs if self.listed.get(file, size) != size]
        if odd:
            much = f"{len(odd):,} {'picture differs' if len(odd) == 1 else 'pictures differ'} in size from {LMDB_LIST}"
            sentences.append(f"{folder}: {much} (such as {odd[0]}); the size of the picture counts")
        return sentences


def opened(folder: str, on_bad: OnBad) -> Folder:
    """Return the keys of a folder with `data.mdb` and `meta_info.txt`.

    Raises:
        SourceError: the LMDB file is damaged, a key is no text, or the list cannot be read or has a line that BasicSR
            does not write; or what `on_bad` raises, which is called for each picture that is listed and not there.
    """
    places, listed = _places(join(folder, LMDB_DATA)), _listed(join(folder, LMDB_LIST))
    for file in [file for file in listed if file not in places]:
        reason = f"is listed in {LMDB_LIST}, but the LMDB file has no such key"
        on_bad(SourceError(reason, join(folder, file.removesuffix(_SUFFIX))))
    return Folder(Found(folder, list(places)), places, listed)


def _places(path: str) -> dict[str, Place]:
    try:
        with Path(path).open("rb") as file:
            Tree(memoryview(file.read(HEAD_BYTES)), path, Path(path).stat().st_size)
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as buffer:
                values = list(Tree(buffer, path).values())
    except DamagedError as error:
        raise SourceError(str(error).removeprefix(f"{path}: "), path) from error
    except OSError as error:
        raise unreadable(error, path) from error
    places = {}
    for value in values:
        try:
            places[value.key.decode() + _SUFFIX] = Place(path, value.offset, value.size)
        except UnicodeDecodeError as error:
            reason = f"has a key {value.key!r} that is not text (UTF-8), so its sample would have no name"
            raise SourceError(reason, path) from error
    return places


def _listed(path: str) -> dict[str, tuple[int, int]]:
    try:
        text = decode_text(Path(path).read_bytes())
    except UnicodeDecodeError as error:
        raise SourceError("is not text (UTF-8); get it again, or make the folder again with BasicSR", path) from error
    except OSError as error:
        raise unreadable(error, path) from error
    sizes = {}
    for number, line in enumerate(text.splitlines(), 1):
        if found := _LINE.fullmatch(line.strip()):
            sizes[found["key"] + _SUFFIX] = int(found["height"]), int(found["width"])
        elif line.strip():
            reason = f"line {number} is {line.strip()[:80]!r}; a line such as 'name.png (480,492,3) 1' is expected"
            raise SourceError(f"{reason}; mend the line", path)
    return sizes
