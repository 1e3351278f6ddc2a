"""Which files a folder, a file name or a glob pattern stands for."""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from packer.errors import SourceError, UsageError
from packer.sources.base import FINDING, Looking, OnBad, not_looking, watched
from packer.sources.folders import pattern_folder
from packer.sources.suffixes import IMAGES

#: Files that lie beside images and are clearly none; any other suffix is an error, not a guess.
BESIDE = {
    *(".txt", ".md", ".rst", ".csv", ".tsv", ".json", ".jsonl", ".yaml", ".yml", ".toml", ".xml", ".html", ".htm"),
    *(".ini", ".cfg", ".db", ".log", ".pdf", ".py", ".sh", ".url", ".md5", ".sha256", ".zip", ".tar", ".gz", ".bak"),
}

SUFFIX_LIST = ", ".join(IMAGES)


class Found(NamedTuple):
    """Files below `folder`, as sorted relative paths with slashes; `left_out` counts suffixes passed over."""

    folder: str
    files: list[str]
    left_out: Counter[str]

    def path(self, file: str) -> str:
        return join(self.folder, file)


def join(folder: str, file: str) -> str:
    """The path of a relative path below a folder; the empty folder is the current one."""
    return f"{folder}/{file}" if folder and folder != "/" else folder + file


def find(field: str, text: str, on_bad: OnBad, looking: Looking = not_looking) -> Found:
    """The image files that `text` stands for: all below a folder, one file, or what matches a glob pattern.

    Hidden files, files without a suffix and the suffixes in `BESIDE` are left out and counted. `on_bad`
    is told of every other file that is no image, `looking` how many are found.

    Raises:
        UsageError: nothing is there, or nothing there is an image.
    """
    place = Path(text)
    if place.is_dir():
        found = _sort_out(_folder_of(place), watched(_walk(place.as_posix(), "", ()), FINDING, looking), on_bad)
    elif place.exists():
        found = _sort_out(_folder_of(place.parent), iter([(place.name, place.is_file())]), on_bad)
    elif glob.has_magic(text):
        folder = _folder_of(pattern_folder(text))
        found = _sort_out(folder, watched(_matches(text, folder), FINDING, looking), on_bad)
    else:
        raise UsageError(f"{text}: there is no such file or folder, named for field {field!r}; check the path")
    if not found.files:
        there = f"; {describe(found.left_out)} there" if found.left_out else ""
        raise UsageError(f"{text}: no image for field {field!r} ({SUFFIX_LIST} are images){there}; check the path")
    return found


def describe(left_out: Counter[str]) -> str:
    """For example `3 .txt, 1 hidden`."""
    return ", ".join(f"{count} {what}" for what, count in sorted(left_out.items()))


def _folder_of(place: Path) -> str:
    text = place.as_posix()
    return "" if text == "." else text


def _matches(pattern: str, folder: str) -> Iterator[tuple[str, bool]]:
    for match in glob.glob(pattern, recursive=True):
        place = Path(match)
        if not place.is_dir():
            yield place.relative_to(folder).as_posix(), place.is_file()


def _walk(folder: str, relative: str, above: tuple[str, ...]) -> Iterator[tuple[str, bool]]:
    """Relative path of every file below, and whether it is a regular one. Follows links, but not in a circle."""
    try:
        real = os.path.realpath(folder)
        entries = list(os.scandir(folder))
    except OSError as error:
        raise SourceError(f"the folder cannot be read: {error.strerror}; change its permissions", folder) from error
    if real in above:
        return
    for entry in entries:
        name = f"{relative}{entry.name}"
        if not entry.is_dir():
            yield name, entry.is_file()
        elif entry.name[0] != ".":
            yield from _walk(entry.path, f"{name}/", (*above, real))


def _sort_out(folder: str, entries: Iterator[tuple[str, bool]], on_bad: OnBad) -> Found:
    found = Found(folder, [], Counter())
    for file, regular in sorted(entries):
        name = file.rpartition("/")[2]
        suffix = name[name.rindex(".") :].lower() if "." in name else ""
        if name[0] == ".":
            found.left_out["hidden"] += 1
        elif not suffix or suffix in BESIDE:
            found.left_out[suffix or "without suffix"] += 1
        elif reason := _unfit(file, suffix, regular):
            on_bad(SourceError(reason, found.path(file)))
            found.left_out[suffix] += 1
        else:
            found.files.append(file)
    return found


def _unfit(file: str, suffix: str, regular: bool) -> str:
    """Why this file cannot be an image, or the empty string."""
    if suffix not in IMAGES:
        return (
            f"is not an image ({SUFFIX_LIST} are), but lies among images; move it away, or name a pattern like '*.png'"
        )
    if not regular:
        return "is a broken link or no regular file; remove it or mend the link"
    try:
        file.encode()
    except UnicodeEncodeError:
        return "has a name that is not valid text (UTF-8), so the sample would have none; rename it"
    return ""
