"""Shares the samples of a packed dataset out into splits, which its manifest keeps. Nothing is packed again.

split("div2k.packed", {"train": 0.9, "valid": 0.1})
split("clips.packed", {"test": "@test.txt", "train": 0.8, "valid": 0.2}, by="folder")
split("images.packed", {"small": "width < 512", "rare": "label in 3,7"})
"""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from packer.errors import UsageError
from packer.format import Manifest
from packer.packing import (
    Contents,
    LocalPlace,
    Place,
    Rule,
    Samples,
    changing_dataset,
    conclude,
    parse_rules,
    place_of,
    share_out,
)
from packer.sources import open_packed, read_names

_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
#: A condition: field, comparison, number; or field, `in`, values with commas between.
_CONDITION = re.compile(r"\s*(.+?)\s*(<=|>=|==|!=|<|>|\s(?:not\s+)?in\s)\s*(.*?)\s*", re.DOTALL)
_NUMBER = re.compile(r"[-+]?(\d+|(\d+\.\d*|\.\d+|\d+(?=e))(e[-+]?\d+)?)", re.ASCII)
#: Axes of an image, and of an array.
_AXES = {"height": 0, "width": 1, "channels": 2, "length": 0}


def split(
    dataset: str | os.PathLike[str], rules: Mapping[str, Rule | None], *, by: str = "name", seed: int = 0
) -> Manifest:
    """Keep splits in the manifest of a dataset, in one rename. Splits that no rule names stay.

    Args:
        dataset: its folder or URL.
        rules: split name to a fraction of the samples that are in no other split, to `@FILE` with one name on each
            line, to a pattern over names, to names (numbers, if samples have no names), or to one condition on
            values: `FIELD < NUMBER` (or <= > >= == !=) or `FIELD in A,B`. FIELD has one value a sample, or is `width`,
            `height` or `channels` of images, or `length`, the first axis of arrays; of several such fields it is
            `FIELD.width`. None drops the split.
        by: what fractions keep together: `name`, the patches of one image; `folder`, all samples of one folder.
        seed: of the random choice for fractions.

    Returns:
        the new manifest.

    Raises:
        DatasetError: there is no packed dataset, or it is damaged.
        UsageError: a rule cannot be followed (the message says why), a split to drop does not exist, or something else
            is changing the dataset.
        WriteError: the folder cannot be written.
    """
    place = place_of(dataset)
    with changing_dataset(place) as (change, manifest):
        folder = place.local(manifest.name_tables)
        samples = Samples(manifest.samples, read_names(folder, manifest), manifest.origin)
        new_rules = {name: rule for name, rule in rules.items() if rule is not None}
        parsed_rules = parse_rules({name: _find_fulfilling(place, manifest, rule) for name, rule in new_rules.items()})
        old_splits = manifest.splits
        if missing := [name for name, rule in rules.items() if rule is None and name not in old_splits]:
            raise UsageError(f"there is no split {missing[0]!r} to drop; splits are {', '.join(old_splits) or 'none'}")
        other_splits = {name: ranges for name, ranges in old_splits.items() if name not in rules}
        splits = share_out(parsed_rules, samples, by=by, seed=seed, others=other_splits)
        conclude(change, Contents(manifest=msgspec.structs.replace(manifest, splits=splits)), [manifest])
    return change.dataset


def _find_fulfilling(place: Place, manifest: Manifest, rule: Rule) -> Rule:
    """Return the numbers of the samples that fulfil a condition, ascending, (n,); any other rule as it is.

    Raises:
        UsageError: there is no such field, it cannot be compared with what stands there, or the dataset is at a URL.
    """
    condition = _CONDITION.fullmatch(rule) if isinstance(rule, str) and not rule.startswith("@") else None
    if condition is None:
        return rule
    name, comparison, text = condition[1], " ".join(condition[2].split()), condition[3]
    is_field = name.rpartition(".")[2] in _AXES or name in {field.name for field in manifest.fields}
    if comparison.endswith("in") and not is_field:
        return rule  # a name or a pattern with this word in it
    if not isinstance(place, LocalPlace):
        raise UsageError(
            f"{place}: split by {rule!r}: values are read of a dataset in a folder only; copy it to one, split that, "
            f"and copy its manifest.json back; or give a list of samples, a pattern or a fraction"
        )
    blocks = _read_values(place.path, manifest, name)
    is_text = name in {field.name for field in manifest.fields if field.kind == "text"}
    is_list = comparison == "in"
    entries = [entry.strip() for entry in text.split(",")] if is_list else [text]
    if is_text and is_list:
        return np.flatnonzero([value in entries for values in blocks for value in values])
    classes = (manifest.classes or ()) if name == "label" and is_list else ()
    wanted = [classes.index(entry) if entry in classes else _parse_number(entry) for entry in entries]
    no_numbers = [entry for entry, number in zip(entries, wanted, strict=True) if number is None]
    if is_text or no_numbers or comparison == "not in":
        wrong = f"{name} is text" if is_text else f"{no_numbers[0]!r} is no number" if no_numbers else "it has `not in`"
        raise UsageError(
            f"split by {rule!r}: {wrong}; a condition is FIELD < NUMBER (or <= > >= == !=) or FIELD in A,B; "
            f"for others, give numbers of samples in Python: packer.split.split({str(place)!r}, {{'small': numbers}})"
        )
    compare = operator.eq if is_list else _COMPARISONS[comparison]
    fulfilled = [np.any([compare(values, number) for number in wanted], axis=0) for values in blocks]
    return np.flatnonzero(np.concatenate([np.zeros(0, bool), *fulfilled]))


def _parse_number(text: str) -> int | float | None:
    """Return the number that a text is, or None."""
    if not _NUMBER.fullmatch(text):
        return None
    return int(text) if text.lstrip("+-").isdecimal() else float(text)


def _read_values(folder: Path, manifest: Manifest, name: str) -> Iterator[Any]:
    """Yield one value of each sample, in blocks: of a field of single values, or the length of an axis of a field."""
    fields = {field.name: field for field in manifest.fields}
    field_name, _, axis = ("", "", name) if name in _AXES else name.rpartition(".")
    if name not in fields and axis in _AXES:
        kind = "array" if axis == "length" else "image"
        candidates = [n for n, field in fields.items() if field.kind == kind and field.shape and field_name in ("", n)]
        if len(candidates) != 1:
            forms = ", ".join(f"{n}.{axis}" for n, field in fields.items() if field.kind == kind and field.shape)
            raise UsageError(f"split by {name}: {f'give one of {forms}' if forms else 'no field has that'}")
        return iter([open_packed(folder, candidates).shapes(candidates[0])[:, _AXES[axis]]])
    field = manifest.field(name)
    if field.kind != "text" and (field.shape or field.np_dtype.kind == "c"):
        raise UsageError(f"split by {name}: a sample has {field.in_words}; only single numbers and texts are compared")
    return (block[name] for block in open_packed(folder, [name]).read())
