"""Shares the samples of a packed dataset out into splits, which its manifest keeps. Nothing is packed again.

split("div2k.packed", {"train": 0.9, "valid": 0.1})
split("clips.packed", {"test": "@test.txt", "train": 0.8, "valid": 0.2}, by="folder")
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from packer.errors import UsageError
from packer.format import Manifest
from packer.packing import LocalPlace, Rule, Samples, changing_dataset, parsed, share_out
from packer.remote import refuse_url
from packer.sources import read_names


def split(
    dataset: str | os.PathLike[str], rules: Mapping[str, Rule | None], *, by: str = "name", seed: int = 0
) -> Manifest:
    """Keep splits in the manifest of a dataset, in one rename. Splits that no rule names stay.

    Args:
        rules: split name to a fraction of the samples that are in no other split, to `@FILE` with one name on each
            line, to a pattern over names, or to names (numbers, if samples have no names); None drops the split.
        by: what fractions keep together: `name`, the squares of one picture; `folder`, all samples of one folder.
        seed: of the random choice for fractions.

    Returns:
        the new manifest.

    Raises:
        DatasetError: there is no packed dataset, or it is damaged.
        UsageError: a rule cannot be followed (the message says why), a split to drop does not exist, or something else
            is changing the dataset.
        WriteError: the folder cannot be written.
    """
    folder = Path(dataset)
    refuse_url(folder)
    asked = parsed({name: rule for name, rule in rules.items() if rule is not None})
    with changing_dataset(LocalPlace(folder)) as (change, manifest):
        samples = Samples(manifest.samples, read_names(folder, manifest), manifest.origin)
        there = manifest.splits
        if missing := [name for name, rule in rules.items() if rule is None and name not in there]:
            raise UsageError(f"there is no split {missing[0]!r} to drop; splits are {', '.join(there) or 'none'}")
        held = {name: ranges for name, ranges in there.items() if name not in rules}
        made = share_out(asked, samples, by=by, seed=seed, held=held)
        new = msgspec.structs.replace(manifest, splits=made)
        change.publish(new)
        change.tidy()
    return new
