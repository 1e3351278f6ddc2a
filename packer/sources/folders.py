"""Folders as units: which files lie together in one, what it is called, and whether its files are numbered.

This module knows strings alone: it opens no file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from packer.errors import SourceError
from packer.sources.files import join

_NUMBER = re.compile(r"(\d+)")


def folder_of(path: str) -> str:
    """Return the folder of a relative path, or of the path of a file; empty if it has none."""
    return path.rpartition("/")[0]


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
        reason = f"lies next to the folders that are the samples, and belongs to none of them{more}"
        advice = f"move it away, or name the folders with a quoted pattern such as '{join(root, '*/*')}'"
        raise SourceError(f"{reason}; {advice}", join(root, strays[0]))


def unit_name(root: str, folder: str) -> str:
    """Return the name of the sample that a folder is: its path below the source, or the name of the source itself."""
    return folder or Path(root).resolve().name


def pattern_of(path: str) -> str:
    """Return the last part of a path with `0` for every number; files that are numbered alike have one in common."""
    return _NUMBER.sub("0", path.rpartition("/")[2])


def numbers_of(stems: Sequence[str]) -> list[int] | None:
    """Return the number that tells each path from the others of its folder; None if they differ in anything else.

    A path alone has the last number in it.
    """
    parts = [_NUMBER.split(stem.rpartition("/")[2]) for stem in stems]
    if len({len(some) for some in parts}) > 1 or len(parts[0]) < 2:
        return None
    differing = [place for place, some in enumerate(zip(*parts, strict=True)) if len(set(some)) > 1]
    place = differing[0] if differing else len(parts[0]) - 2
    return [int(some[place]) for some in parts] if len(differing) < 2 and place % 2 else None
