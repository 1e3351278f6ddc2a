"""Which files a folder, a file name or a glob pattern stands for."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from packer.errors import SourceError, UsageError
from packer.sources import files
from packer.sources.base import Looking, OnBad, not_looking
from packer.sources.files import IMAGES

#: Files that lie beside images and are clearly none; any other suffix is an error, not a guess.
BESIDE = {
    *(".txt", ".md", ".rst", ".csv", ".tsv", ".json", ".jsonl", ".yaml", ".yml", ".toml", ".xml", ".html", ".htm"),
    *(".ini", ".cfg", ".db", ".log", ".pdf", ".py", ".sh", ".url", ".md5", ".sha256", ".zip", ".tar", ".gz", ".bak"),
}

SUFFIX_LIST = ", ".join(IMAGES)


class Found(NamedTuple):
    """Image files below `folder`, as sorted relative paths; `left_out` counts suffixes passed over."""

    folder: str
    files: list[str]
    left_out: Counter[str]

    def path(self, file: str) -> str:
        return files.join(self.folder, file)


def find(field: str, text: str, on_bad: OnBad, looking: Looking = not_looking) -> Found:
    """The image files that `text` stands for: all below a folder, one file, or what matches a glob pattern.

    Hidden files, files without a suffix and the suffixes in `BESIDE` are left out and counted. `on_bad`
    is told of every other file that is no image, `looking` how many are found.

    Raises:
        UsageError: nothing is there, or nothing there is an image.
    """
    found = _sort_out(files.find(text, looking), on_bad)
    if not found.files:
        there = f"; {describe(found.left_out)} there" if found.left_out else ""
        raise UsageError(f"{text}: no image for field {field!r} ({SUFFIX_LIST} are images){there}; check the path")
    return found


def describe(left_out: Counter[str]) -> str:
    """For example `3 .txt, 1 hidden`."""
    return ", ".join(f"{count} {what}" for what, count in sorted(left_out.items()))


def _sort_out(found: files.Found, on_bad: OnBad) -> Found:
    kept = Found(found.folder, [], Counter({"hidden": found.hidden} if found.hidden else {}))
    for file in found.files:
        suffix = files.suffix_of(file)
        if not suffix or suffix in BESIDE:
            kept.left_out[suffix or "without suffix"] += 1
        elif reason := _unfit(file, suffix, file not in found.odd):
            on_bad(SourceError(reason, found.path(file)))
            kept.left_out[suffix] += 1
        else:
            kept.files.append(file)
    return kept


def _unfit(file: str, suffix: str, regular: bool) -> str:
    """Why this file cannot be an image, or the empty string."""
    if suffix not in IMAGES:
        return (
            f"is not an image ({SUFFIX_LIST} are), but lies among images; move it away, or name a pattern like '*.png'"
        )
    if not regular:
        return files.NOT_REGULAR
    try:
        file.encode()
    except UnicodeEncodeError:
        return "has a name that is not valid text (UTF-8), so the sample would have none; rename it"
    return ""
