"""Which groups and arrays of a tree are the units that samples are made from, and the splits that the tree lists.

A unit is known by its root: the path of its group or array with a leading slash, empty for the tree itself.
"""

from __future__ import annotations

import glob
import math
import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from natsort import natsorted

from packer.errors import SourceError, first_few
from packer.sources.arrays.choosing import Skipping
from packer.sources.arrays.tree import Remark, Tree, is_text
from packer.sources.options import MOST_SKIPS
from packer.sources.units import UnitChoice, folder_of, upwards

#: The group in which robomimic lists the demonstrations of each split.
_MASK = "/mask"
_MAX_LIST_BYTES = 2**26
_MAX_LINES = 10
_DIGITS = re.compile(r"\d+")


def roots_of(tree: Tree, choice: UnitChoice, is_out: Skipping) -> tuple[list[str], dict[str, set[str]], list[Remark]]:
    """Return the units of an open tree.

    Args:
        is_out: whether a path from the root of the tree is skipped, with all below it. Such a path is no unit, and
            nothing in it has to belong to one.

    Returns:
        the roots of the units, in natural order; by name, the roots of each split that the tree itself lists; remarks:
        which groups were taken by default, and names in lists that the tree does not hold.

    Raises:
        SourceError: there are no units, something belongs to none, or a group cannot be listed.
    """
    if choice.name not in ("datasets", "groups"):
        return [""], {}, []
    pattern = _pattern(choice)
    lists = _lists(tree, is_out) if choice.name == "groups" else {}
    entries = {
        entry.path: entry
        for entry in tree.entries(
            "", lambda path: (bool(lists) and path == _MASK) or is_out(path), lambda path: _fits(path, pattern)
        )
    }
    groups = [path for path, entry in entries.items() if entry.is_group]
    arrays = [path for path, entry in entries.items() if entry.is_array]
    remarks = []
    if choice.name == "datasets":
        roots = arrays
    elif pattern:
        roots = [group for group in groups if _fits(group, pattern)]
    else:
        holders = {folder_of(path) for path in arrays} - {"", _MASK}
        roots = [group for group in holders if not _lies_in(folder_of(group), holders)]
        # Groups at the top need no sentence: anybody would take them.
        if any(root.count("/") > 1 for root in roots):
            remarks.append(
                ("", f"a sample is a group such as {natsorted(roots)[0]}; --samples groups:PATTERN takes others")
            )
    if not roots:
        roots_in_words = (
            f"groups that fit {choice.pattern}" if choice.pattern else f"{choice.name} that could be samples"
        )
        holds = f"it holds {first_few(groups or arrays)}" if groups or arrays else "it is empty"
        raise SourceError(f"holds no {roots_in_words}: {holds}; name another unit with --samples", tree.path)
    inside = set(roots)
    strays = [path for path, entry in entries.items() if not entry.is_group and not _lies_in(path, inside)]
    splits, missing = _splits(tree, lists, roots)
    if lists and not splits:
        strays.append(_MASK)
    if others := _topmost(strays, roots):
        skips = first_few([f"--skip {shlex.quote(other)}" for other in others], MOST_SKIPS, " ")
        raise SourceError(
            f"{first_few(others)} {'belongs' if len(others) == 1 else 'belong'} to no sample: --samples {choice} packs "
            f"what lies in these {choice.name}. Leave it out with {skips}, or try another unit: --samples files takes "
            "all that is in a file",
            tree.path,
        )
    return natsorted(roots), splits, remarks + missing


def are_numbered(arrays: Iterable[str]) -> bool:
    """Return whether arrays lie in groups whose paths differ only in numbers, and so may be samples."""
    groups = set(map(folder_of, arrays))
    return len(groups) > 1 and len({_DIGITS.sub("", group) for group in groups}) == 1


def _pattern(choice: UnitChoice) -> list[str]:
    """Return the parts of a pattern; without a wildcard it names a group, and means the groups in it."""
    text = choice.pattern.strip("/")
    if choice.pattern and not glob.has_magic(choice.pattern):
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


def _lists(tree: Tree, is_out: Skipping) -> dict[str, list[str]]:
    """Return the names of samples that `mask` lists for each split; none if it holds anything else."""
    lists: dict[str, list[str]] = {}
    mask = tree.find(_MASK)
    for entry in tree.entries(_MASK, lambda path: is_out(f"{_MASK}{path}")) if mask and mask.is_group else ():
        shape, dtype = entry.shape, entry.dtype
        is_list = entry.is_array and dtype is not None and is_text(dtype) and shape is not None and len(shape) == 1
        if not is_list or dtype is None or math.prod(shape or ()) * dtype.itemsize > _MAX_LIST_BYTES:
            return {}
        texts = tree.open(f"{_MASK}{entry.path}")[...].tolist()
        lists[entry.path[1:]] = [text if isinstance(text, str) else text.decode("utf-8", "replace") for text in texts]
    return lists


def _splits(
    tree: Tree, lists: Mapping[str, Sequence[str]], roots: Sequence[str]
) -> tuple[dict[str, set[str]], list[Remark]]:
    """Return the units of each split, by their last names, and remarks on names that the tree does not hold."""
    by_name = {root.rpartition("/")[2]: root for root in roots}
    folders = {folder_of(root) for root in roots}
    splits: dict[str, set[str]] = {}
    remarks = []
    for split, names in lists.items():
        if units := {by_name[name] for name in names if name in by_name}:
            splits[split] = units
        # Others were skipped, if they are in the tree.
        if missing := [name for name in names if not any(tree.find(f"{folder}/{name}") for folder in folders)]:
            lost = f"{len(missing):,} {'sample' if len(missing) == 1 else 'samples'} ({first_few(missing)})"
            sentence = f"{tree.path}: {_MASK}/{split} names {lost} that the file does not hold; check the list"
            remarks.append(("", sentence))
    return splits, remarks
