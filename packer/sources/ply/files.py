"""Finding the PLY files of a set, and their sample names."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from natsort import natsorted

from packer.errors import SourceError, UsageError
from packer.sources.folders import walk

SUFFIX = ".ply"


class Found(NamedTuple):
    """Files in their natural order, their sample names, and how many hidden ones were left out."""

    paths: list[str]
    names: list[str]
    hidden: int


def find_files(path: str) -> Found:
    """The PLY files that `path` stands for: a folder (with all below it), one file, or a glob.

    A name is the path relative to the folder, or to the part of the glob before its first wildcard, without
    suffix. Hidden files and folders (`._a.ply`, as some systems leave behind) are left out.

    Raises:
        UsageError: there is nothing at `path`.
        SourceError: there is no PLY file in it.
    """
    if Path(path).is_file():
        return Found([path], [Path(path).stem], 0)
    if Path(path).is_dir():
        relative = dict(_walk(path))
    elif glob.has_magic(path):
        root = _glob_root(path)
        relative = {p: Path(os.path.relpath(p, root)).as_posix() for p in _matches(path) if Path(p).is_file()}
    else:
        raise UsageError(f"{path}: there is no such file or folder")
    files = [p for p in relative if p.lower().endswith(SUFFIX)]
    shown = [p for p in files if not any(part[0] == "." and part != ".." for part in relative[p].split("/"))]
    if not shown:
        raise SourceError(f"no {SUFFIX} file is there", path)
    # natsort leaves ties (01 and 1) in the order given, which the file system chooses: sort plainly first.
    paths = natsorted(sorted(shown), key=relative.__getitem__)
    return Found(paths, [relative[p][: -len(SUFFIX)] for p in paths], len(files) - len(shown))


def _walk(root: str) -> Iterator[tuple[str, str]]:
    """All files below a folder, with the user's spelling of it, and relative to it, with `/` between the parts."""
    # Those in hidden folders are counted as left out.
    for folder, names in walk(root, hidden=True):
        inner = Path(os.path.relpath(folder, root)).as_posix()
        above = "" if inner == "." else f"{inner}/"
        yield from ((os.path.join(folder, name), above + name) for name in names)  # noqa: PTH118


def _matches(pattern: str) -> list[str]:
    return glob.glob(pattern, recursive=True)  # Path.glob takes no absolute pattern


def _glob_root(pattern: str) -> str:
    parts = Path(pattern).parts
    magic = next(i for i, part in enumerate(parts) if glob.has_magic(part))
    return str(Path(*parts[:magic])) if magic else "."
