"""What the manifest keeps of files whose samples are groups, beside the samples, and what is said of the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from packer.sources.hdf5.groups import GroupSample
from packer.sources.hdf5.kept import MAX_KEPT, beyond


def group_origin(names: Sequence[str], samples: Sequence[GroupSample]) -> dict[str, Any]:
    """Attributes of samples by name; those `above` by file (what stands before the last slash of its samples' names)
    and path; unusual datatypes of the first sample as `datasets`, and of samples that differ as `others` by name; and
    sentences on what is `lost`.
    """
    described = {name: s.attributes for name, s in zip(names, samples, strict=True) if s.attributes}
    first = samples[0].datasets
    others = {name: s.datasets for name, s in zip(names, samples, strict=True) if s.datasets != first}
    of_files: dict[str, tuple[str, GroupSample]] = {}
    for name, sample in zip(names, samples, strict=True):
        of_files.setdefault(sample.path, (name.rpartition("/")[0], sample))
    above = {home: s.above for home, s in of_files.values() if s.above}
    parts = {
        "attributes": _some(described),
        "above": _some(above),
        "datasets": first,
        "others": _some(others),
        "lost": [
            *beyond(len(described), "attributes of {} samples"),
            *beyond(len(above), "attributes of groups above the samples of {} files"),
            *beyond(len(others), "datatypes of {} samples"),
            *_within(samples),
        ],
    }
    return {name: part for name, part in parts.items() if part}


def _some(parts: dict[str, Any]) -> dict[str, Any]:
    return dict(list(parts.items())[:MAX_KEPT])


def _within(samples: Sequence[GroupSample]) -> list[str]:
    counts = Counter(what for s in samples for what in s.lost)
    return [f"{what} within samples are not kept: {count:,} samples have some" for what, count in counts.items()]
