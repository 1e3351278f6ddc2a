"""Finds the units of a file: the file itself, its datasets, or groups that a pattern names or that hold datasets.

A unit is known by its root: the path of its group or dataset with a leading slash, empty for the file itself.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Collection, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

import h5py
from natsort import natsorted

from packer.errors import SourceError, first_few
from packer.sources.hdf5.listing import walk
from packer.sources.units import Asked, folder_of, upwards

#: The group in which robomimic lists the demonstrations of each split.
_MASK = "/mask"
_MAX_LIST_BYTES = 2**26
_DIGITS = re.compile(r"\d+")


class Roots(NamedTuple):
    """What the units of a file are.

    Attributes:
        roots: the roots of the units, in natural order.
        others: topmost paths of what belongs to none.
        splits: by name, the roots of the samples of each split that the file itself lists.
        notes: sentences for the plan: which groups were taken if nobody named them, and names that lead nowhere.
    """

    roots: list[str]
    others: list[str]
    splits: dict[str, set[str]]
    notes: list[str]


def find_roots(file: h5py.File, asked: Asked, is_out: Callable[[str], bool]) -> Roots:
    """Return the units of an open file.

    Args:
        is_out: whether a path from the root of the file is left out, with all below it. Such a path is no unit, and
            nothing in it has to belong to one.

    Raises:
        SourceError: there are no units, or a group cannot be listed.
    """
    if asked.name in ("rows", "files"):
        return Roots([""], [], {}, [])
    pattern = _pattern(asked)
    lists = _lists(file, is_out) if asked.name == "groups" else {}
    met = walk(file, lambda path: (bool(lists) and path == _MASK) or is_out(path), lambda path: _fits(path, pattern))
    kinds = {path: type(found) for path, found in met}
    groups = [path for path, kind in kinds.items() if kind is h5py.Group]
    datasets = [path for path, kind in kinds.items() if kind is h5py.Dataset]
    notes = []
    if asked.name == "datasets":
        roots = datasets
    elif pattern:
        roots = [group for group in groups if _fits(group, pattern)]
    else:
        roots = holders([path for path in datasets if folder_of(path) != _MASK])
        # Groups that lie in the file itself are what anybody would take.
        if any(root.count("/") > 1 for root in roots):
            notes.append(f"a sample is a group such as {roots[0]}; --samples groups:PATTERN takes others")
    if not roots:
        what = f"groups that fit {asked.pattern}" if asked.pattern else f"{asked.name} that could be samples"
        holds = f"it holds {first_few(groups or datasets)}" if groups or datasets else "it is empty"
        raise SourceError(f"holds no {what}: {holds}; name another unit with --samples", file.filename)
    inside = set(roots)
    others = _topmost(
        [path for path, kind in kinds.items() if kind is not h5py.Group and not _lies_in(path, inside)], roots
    )
    splits, missing = _splits(file, lists, roots)
    return Roots(natsorted(roots), others, splits, notes + missing)


def holders(datasets: Sequence[str]) -> list[str]:
    """Return the highest groups that hold datasets themselves, in natural order, the root of the file apart."""
    groups = {folder_of(path) for path in datasets} - {""}
    return natsorted(group for group in groups if not _lies_in(folder_of(group), groups))


def are_numbered(datasets: Sequence[str]) -> bool:
    """Return whether all these datasets lie in groups that differ in nothing but numbers, and so may be samples."""
    roots = holders(datasets)
    is_all = all(map(folder_of, datasets))
    return is_all and len(roots) > 1 and len({_DIGITS.sub("", root) for root in roots}) == 1


def _pattern(asked: Asked) -> list[str]:
    """Return the parts of a pattern; without a wildcard it names the group whose groups are meant."""
    text = asked.pattern.strip("/")
    if asked.pattern and not glob.has_magic(asked.pattern):
        text = f"{text}/*".strip("/")
    return text.split("/") if text else []


def _fits(path: str, pattern: Sequence[str]) -> bool:
    parts = path[1:].split("/")
    return len(parts) == len(pattern) and all(map(fnmatchcase, parts, pattern))


def _lies_in(path: str, roots: Collection[str]) -> str:
    """Return the root that is a path or holds it; empty if none does."""
    return next((place for place in upwards(path) if place in roots), "")


def _topmost(paths: Sequence[str], roots: Sequence[str]) -> list[str]:
    """Return the highest groups that hold these paths and no unit, or the paths themselves."""
    busy = {place for root in roots for place in upwards(root)}
    tops = {[place for place in upwards(path) if place not in busy][-1] for path in paths}
    return sorted(natsorted(tops), key=lambda path: path.count("/"))


def _lists(file: h5py.File, is_out: Callable[[str], bool]) -> dict[str, list[str]]:
    """Return the names of samples that `mask` lists for each split; none if it holds anything else."""
    found: dict[str, list[str]] = {}
    mask = file.get(_MASK)
    for split, listed in mask.items() if isinstance(mask, h5py.Group) else ():
        if is_out(f"{_MASK}/{split}"):
            continue
        is_list = isinstance(listed, h5py.Dataset) and listed.ndim == 1 and listed.nbytes <= _MAX_LIST_BYTES
        if not is_list or h5py.check_string_dtype(listed.dtype) is None:
            return {}
        found[split] = [name.decode("utf-8", "replace") for name in listed[()].tolist()]
    return found


def _splits(
    file: h5py.File, lists: dict[str, list[str]], roots: Sequence[str]
) -> tuple[dict[str, set[str]], list[str]]:
    """Return the units of each split, by their last names, and sentences on names that the file does not hold."""
    by_name = {root.rpartition("/")[2]: root for root in roots}
    folders = {folder_of(root) for root in roots}
    found: dict[str, set[str]] = {}
    notes = []
    for split, names in lists.items():
        if some := {by_name[name] for name in names if name in by_name}:
            found[split] = some
        # Others were skipped, if they are in the file.
        if missing := [name for name in names if not any(f"{folder}/{name}" in file for folder in folders)]:
            lost = f"{len(missing):,} {'sample' if len(missing) == 1 else 'samples'} ({first_few(missing)})"
            notes.append(f"{file.filename}: {_MASK}/{split} names {lost} that the file does not hold; check the list")
    return found, notes
