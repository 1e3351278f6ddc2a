"""What one sample is made from, as `--samples UNIT[:PATTERN]` says it, and folders as samples.

This module works with strings only; it opens no file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from packer.errors import SourceError
from packer.sources.files import join

#: How a unit is written, if it is not its name alone.
FORMS = {"groups": "groups[:PATTERN]", "episodes": "episodes[:PATH]"}
_NUMBER = re.compile(r"(\d+)")


class UnitChoice(NamedTuple):
    """What `--samples` says that one sample is made from.

    Attributes:
        name: `rows`, `files`, `folders`, `datasets`, `groups` or `episodes`.
        pattern: paths of the units, such as `/data/*`, empty for those that the source finds itself; or of the arrays
            that say where episodes end.
    """

    name: str
    pattern: str = ""

    @property
    def unit(self) -> str:
        """What one unit is called; steps of episodes are rows."""
        return "row" if self.name == "episodes" else self.name[:-1]

    @classmethod
    def parse(cls, text: str) -> UnitChoice:
        """Return the choice that `UNIT[:PATTERN]` is."""
        name, _, pattern = text.partition(":")
        return cls(name, pattern)

    @property
    def is_of_rows(self) -> bool:
        """Return whether rows are the samples, or the steps of samples."""
        return self.name in ("rows", "episodes")

    def __str__(self) -> str:
        return f"{self.name}:{self.pattern}" if self.pattern else self.name


# ---------------------------------------------------------------- folders


def folder_of(path: str) -> str:
    """Return the folder of a relative path, or of the path of a file; empty if it has none."""
    return path.rpartition("/")[0]


def upwards(path: str) -> Iterator[str]:
    """Yield a relative path, or that of a group or dataset, and those of all folders or groups that hold it."""
    while path:
        yield path
        path = folder_of(path)


def by_folder(paths: Iterable[str]) -> dict[str, list[int]]:
    """Return the places of the paths in each folder, the folders in the order of their first paths."""
    groups: dict[str, list[int]] = {}
    for place, path in enumerate(paths):
        groups.setdefault(folder_of(path), []).append(place)
    return groups


def refuse_strays(root: str, files: Sequence[str]) -> None:
    """Raise SourceError if files lie next to the folders that are the samples, and so belong to none.

    Args:
        root: the folder that `files` count from. If all lie in it, it is the one sample.
    """
    strays = [file for file in files if "/" not in file]
    if 0 < len(strays) < len(files):
        more = f" (and {len(strays) - 1:,} more)" if len(strays) > 1 else ""
        raise SourceError(
            f"lies next to the folders that are the samples, and belongs to none of them{more}; move it away, or name "
            f"the folders with a quoted pattern such as '{join(root, '*/*')}'",
            join(root, strays[0]),
        )


def unit_name(root: str, folder: str) -> str:
    """Return the name of the sample that a folder is: its path below the source, or the name of the source itself."""
    return folder or Path(root).resolve().name


def pattern_of(path: str) -> str:
    """Return the last part of a path with `0` for every number, the same for files that are numbered alike."""
    return _NUMBER.sub("0", path.rpartition("/")[2])


def numbers_of(stems: Sequence[str]) -> list[int] | None:
    """Return the number that distinguishes each path of a folder; None if they differ in anything but one number.

    A single path has the last number in it.
    """
    parts = [_NUMBER.split(stem.rpartition("/")[2]) for stem in stems]
    if len({len(part) for part in parts}) > 1 or len(parts[0]) < 2:
        return None
    differing = [place for place, part in enumerate(zip(*parts, strict=True)) if len(set(part)) > 1]
    place = differing[0] if differing else len(parts[0]) - 2
    return [int(part[place]) for part in parts] if len(differing) < 2 and place % 2 else None
