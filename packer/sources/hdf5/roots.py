"""Finds the units of a file: the file itself, its datasets, or groups that a pattern names or that hold datasets.

A unit is known by its root: the path of its group or dataset with a leading slash, empty for the file itself.
"""

from __future__ import annotations

import glob
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Sequence
from fnmatch import fnmatchcase

import h5py
from natsort import natsorted

from packer.errors import SourceError, first_few
from packer.sources.hdf5.listing import walk
from packer.sources.units import Asked, folder_of, upwards

#: The group in which robomimic lists the demonstrations of each split.
_MASK = "/mask"
_MAX_LIST_BYTES = 2**26
_DIGITS = re.compile(r"\d+")


def find_roots(
    file: h5py.File, asked: Asked, is_out: Callable[[str], bool]
) -> tuple[list[str], dict[str, set[str]], list[str]]:
    """Return the units of an open file.

    Args:
        is_out: whether a path from the root of the file is left out, with all below it. Such a path is no unit, and
            nothing in it has to belong to one.

    Returns:
        the roots of the units, in natural order; by name, the roots of each split that the file itself lists; sentences
        for the plan: which groups were taken by default, and names in lists that the file does not hold.

    Raises:
        SourceError: there are no units, something belongs to none, or a group cannot be listed.
    """
    if asked.name in ("rows", "files"):
        return [""], {}, []
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
        holders = {folder_of(path) for path in datasets} - {"", _MASK}
        roots = [group for group in holders if not _lies_in(folder_of(group), holders)]
        # Groups at the top of the file need no sentence: anybody would take them.
        if any(root.count("/") > 1 for root in roots):
            notes.append(f"a sample is a group such as {natsorted(roots)[0]}; --samples groups:PATTERN takes others")
    if not roots:
        what = f"groups that fit {asked.pattern}" if asked.pattern else f"{asked.name} that could be samples"
        holds = f"it holds {first_few(groups or datasets)}" if groups or datasets else "it is empty"
        raise SourceError(f"holds no {what}: {holds}; name another unit with --samples", file.filename)
    inside = set(roots)
    strays = [path for path, kind in kinds.items() if kind is not h5py.Group and not _lies_in(path, inside)]
    splits, missing = _splits(file, lists, roots)
    if lists and not splits:
        strays.append(_MASK)
    if others := _topmost(strays, roots):
        skips = " ".join(f"--skip {shlex.quote(other)}" for other in others)
        raise SourceError(
            f"{first_few(others)} {'belongs' if len(others) == 1 else 'belong'} to no sample: --samples {asked} packs "
            f"what lies in these {asked.name}. Leave it out with {skips}, or try another unit: --samples files takes "
            "all that is in a file",
            file.filename,
        )
    return natsorted(roots), splits, notes + missing


def are_numbered(datasets: Iterable[str]) -> bool:
    """Return whether datasets lie in groups whose paths differ only in numbers, and so may be samples."""
    groups = set(map(folder_of, datasets))
    return len(groups) > 1 and len({_DIGITS.sub("", group) for group in groups}) == 1


def _pattern(asked: Asked) -> list[str]:
    """Return the parts of a pattern; without a wildcard it names a group, and means the groups in it."""
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
