"""Finds the units of a file: the file itself, its datasets, or groups that a pattern names or that look alike.

A unit is known by its root: the path of its group or dataset with a leading slash, empty for the file itself.
"""

from __future__ import annotations

import glob
import re
from collections import Counter, defaultdict
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
        notes: sentences for the plan: what was taken for a unit if nobody said it, and names that lead nowhere.
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
    if asked.name == "files":
        return Roots([""], [], {}, [])
    pattern = _pattern(asked)
    kinds = {met.path: type(met.thing) for met in walk(file, is_out, lambda path: _fits(path, pattern))}
    groups = [path for path, kind in kinds.items() if kind is h5py.Group]
    datasets = [path for path, kind in kinds.items() if kind is h5py.Dataset]
    notes = []
    if asked.name == "datasets":
        roots = datasets
    elif pattern:
        roots = [group for group in groups if _fits(group, pattern)]
    else:
        roots = alike(datasets)
        # Groups that lie in the file itself are what anybody would take.
        if any(root.count("/") > 1 for root in roots):
            notes.append(f"a sample is a group that fits {_pattern_of(roots)}; --samples groups:PATTERN takes others")
    if not roots:
        what = f"groups that fit {asked.pattern}" if asked.pattern else f"{asked.name} that could be samples"
        holds = f"it holds {first_few(groups or datasets)}" if groups or datasets else "it is empty"
        raise SourceError(f"holds no {what}: {holds}; name another unit with --samples", file.filename)
    inside = set(roots)
    others = _topmost(
        [path for path, kind in kinds.items() if kind is not h5py.Group and not _lies_in(path, inside)], roots
    )
    splits, missing = _mask(file, roots) if _MASK in others else ({}, [])
    others = [path for path in others if not (splits and path == _MASK)]
    return Roots(natsorted(roots), others, splits, notes + missing)


def alike(datasets: Sequence[str]) -> list[str]:
    """Return the lowest groups that look alike and hold more than half of what there is; none if no groups do.

    These are the groups that hold datasets themselves, unless a group above does; if these share no dataset, the
    lowest are replaced by those above them, until they do. Groups look alike if each holds a dataset, by its path from
    the group, that most hold.
    """
    tops = {folder_of(path) for path in datasets} - {""}
    while tops:
        tops = {top for top in tops if not _lies_in(folder_of(top), tops)}
        held: dict[str, set[str]] = defaultdict(set)
        for path in datasets:
            if root := _lies_in(path, tops):
                held[root].add(path[len(root) :])
        usual = set(Counter(map(frozenset, held.values())).most_common(1)[0][0])
        like = [root for root, inside in held.items() if inside & usual]
        if 2 * len(like) > len(held):
            return like
        lowest = max(top.count("/") for top in tops)
        tops = {folder_of(top) if top.count("/") == lowest else top for top in tops} - {""}
    return []


def numbered(datasets: Sequence[str]) -> str | None:
    """Return the pattern of groups that hold all these datasets if they look alike and only numbers differ."""
    roots = alike(datasets)
    inside = set(roots)
    if len(roots) < 2 or len({_DIGITS.sub("", root) for root in roots}) > 1:
        return None
    return _pattern_of(roots) if all(_lies_in(path, inside) for path in datasets) else None


def _pattern(asked: Asked) -> list[str]:
    """Return the parts of a pattern; without a wildcard it names the group whose groups are meant."""
    text = asked.pattern.strip("/")
    if asked.pattern and not glob.has_magic(asked.pattern):
        text = f"{text}/*".strip("/")
    return text.split("/") if text else []


def _fits(path: str, pattern: Sequence[str]) -> bool:
    parts = path[1:].split("/")
    return len(parts) == len(pattern) and all(map(fnmatchcase, parts, pattern))


def _pattern_of(roots: Sequence[str]) -> str:
    """Return a pattern that these paths fit, or most if they lie at several depths."""
    depth = Counter(root.count("/") for root in roots).most_common(1)[0][0]
    parts = zip(*(root.split("/") for root in roots if root.count("/") == depth), strict=True)
    return "/".join(some[0] if len(set(some)) == 1 else "*" for some in parts)


def _lies_in(path: str, roots: Collection[str]) -> str:
    """Return the root that is a path or holds it; empty if none does."""
    return next((place for place in upwards(path) if place in roots), "")


def _topmost(paths: Sequence[str], roots: Sequence[str]) -> list[str]:
    """Return the highest groups that hold these paths and no unit, or the paths themselves."""
    busy = {place for root in roots for place in upwards(root)}
    tops = {[place for place in upwards(path) if place not in busy][-1] for path in paths}
    return sorted(natsorted(tops), key=lambda path: path.count("/"))


def _mask(file: h5py.File, roots: Sequence[str]) -> tuple[dict[str, set[str]], list[str]]:
    """Return the splits that `mask` lists: for each of its datasets the units that it names, by their last names.

    No splits if `mask` is anything else. Also return sentences on names that the file does not hold.
    """
    by_name = {root.rpartition("/")[2]: root for root in roots}
    folders = {folder_of(root) for root in roots}
    found: dict[str, set[str]] = {}
    notes = []
    for split, listed in file[_MASK].items() if isinstance(file[_MASK], h5py.Group) else ():
        is_list = isinstance(listed, h5py.Dataset) and listed.ndim == 1 and listed.nbytes <= _MAX_LIST_BYTES
        if not is_list or h5py.check_string_dtype(listed.dtype) is None:
            return {}, []
        names = [name.decode("utf-8", "replace") for name in listed[()].tolist()]
        found[split] = {by_name[name] for name in names if name in by_name}
        # Others were skipped, if they are in the file.
        missing = [name for name in names if not any(f"{folder}/{name}" in file for folder in folders)]
        if missing:
            lost = f"{len(missing):,} {'sample' if len(missing) == 1 else 'samples'} ({first_few(missing)})"
            notes.append(f"{file.filename}: {_MASK}/{split} names {lost} that the file does not hold; check the list")
    return {split: some for split, some in found.items() if some}, notes
