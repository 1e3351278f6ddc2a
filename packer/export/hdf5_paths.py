"""Where each field lies in an HDF5 file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any


def field_paths(
    names: Sequence[str], kept: Mapping[str, str] | None, picked: Mapping[str, str], attributes: Mapping[str, Any]
) -> dict[str, str]:
    """Path of every field within its file: as it was in its source, else the name with slashes for dots.

    Fields that would lie within one another, as those picked out of one dataset, are below the root by their names.

    Args:
        kept: paths of fields that are not so; None where the dataset was packed by an early version, which kept none.
        picked: paths that fields were asked for by.
        attributes: of the source, by path.
    """
    paths = _guessed(names, picked, attributes) if kept is None else {n: kept.get(n, _by_name(n)) for n in names}
    paths |= {name: f"/{name}" for name in _within_others(paths)}
    return {name: f"/{name}" for name in names} if _within_others(paths) else paths


def _within_others(paths: Mapping[str, str]) -> set[str]:
    """Names of the fields whose datasets would have to be one, or groups too."""
    at: dict[str, list[str]] = {}
    for name, path in paths.items():
        at.setdefault(path.strip("/"), []).append(name)
    found: set[str] = set()
    for path, names in at.items():
        above = [str(parent) for parent in PurePosixPath(path).parents if str(parent) in at]
        if above or len(names) > 1:
            found.update(names, *(at[parent] for parent in above))
    return found


def _by_name(name: str) -> str:
    return "/" + name.replace(".", "/")


def _guessed(names: Sequence[str], picked: Mapping[str, str], attributes: Mapping[str, Any]) -> dict[str, str]:
    """What early versions went by: a name may hold dots of its own, and paths with attributes tell."""
    seen = {path.strip("/").replace("/", "."): path for path in attributes}
    return {name: _guess(name, picked, seen) for name in names}


def _guess(name: str, picked: Mapping[str, str], seen: Mapping[str, str]) -> str:
    if name in picked:
        return "/" + picked[name].strip("/")
    if name in seen:
        return seen[name]
    before, dot, member = name.rpartition(".")
    while dot:
        if before in picked:
            return f"/{picked[before].strip('/')}/{member.replace('.', '/')}"
        before, dot, more = before.rpartition(".")
        member = f"{more}.{member}"
    return _by_name(name)
