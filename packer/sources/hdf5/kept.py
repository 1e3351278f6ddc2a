"""What the manifest keeps of a file of rows beside its samples, and what is said of the rest."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import h5py

from packer.sources.hdf5.attributes import attributes, single, summary
from packer.sources.hdf5.choice import is_skipped
from packer.sources.hdf5.listing import SINGLE, Inventory, Listed, has_attributes
from packer.sources.hdf5.stored_types import stored_types
from packer.sources.hdf5.types import Column

#: Objects of one kind that are kept: the manifest is read by people.
MAX_KEPT = 500


def origin(
    file: h5py.File, held: Inventory, columns: Sequence[Column], is_kept: Callable[[str], bool]
) -> dict[str, Any]:
    """Attributes by path, which of these are groups, single values by path, what further names stand for, unusual
    datatypes by path, and sentences on what is `lost`.

    Args:
        is_kept: tells whether an object is kept, by its path: what is not packed is not read.
    """
    described = [path for path in (["/"] if has_attributes(file) else []) + held.described if is_kept(path)]
    singles = [e.dataset for e in held.entries if e.aside == SINGLE and is_kept(e.dataset)]
    links = [(e.path, e.same) for e in held.entries if e.same is not None]
    types, more_types = stored_types(file, columns, of_rows=True)
    parts = {
        "attributes": {path: attributes(file[path]) for path in described[:MAX_KEPT]},
        "values": {path: single(file[path]) for path in singles[:MAX_KEPT]},
        "links": dict(links[:MAX_KEPT]),
        "datasets": types,
        "lost": [
            *beyond(len(described), "attributes of {} datasets and groups"),
            *beyond(len(singles), "{} single values"),
            *beyond(len(links), "{} further names of datasets and groups"),
            *beyond(MAX_KEPT + more_types, "datatypes of {} datasets"),
        ],
    }
    # The groups stand beside attributes even where there are none: early versions did not say which they are.
    groups = {"groups": [p for p in described[:MAX_KEPT] if isinstance(file[p], h5py.Group)]} if described else {}
    return {name: part for name, part in parts.items() if part} | groups


def beyond(count: int, what: str) -> list[str]:
    """A sentence on what is not kept of `count` things, if anything is not."""
    lost = count - MAX_KEPT
    return [f"{what.format(f'{lost:,}')} are not kept: there are more than {MAX_KEPT}"] if lost > 0 else []


def asides(entries: list[Listed], skip: Collection[str], values: Mapping[str, Any]) -> list[str]:
    """What is left out, and what becomes of it; first what is not kept at all."""
    lost, linked, kept = [], [], []
    for entry in entries:
        if not entry.aside or is_skipped(entry, skip):
            continue
        if entry.same is not None:
            linked.append(f"{entry.path} {entry.aside}: packed once")
        elif entry.aside != SINGLE:
            lost.append(f"{entry.path} {entry.aside}")
        elif entry.path not in values:
            continue  # `origin` says how many these are
        elif (why := summary(values[entry.path])) is None:
            kept.append(f"{entry.path} is a single value: kept with the attributes")
        else:
            lost.append(f"{entry.path} is a single value, too large or of a kind that is not kept ({why})")
    return [*_some(lost), *_some(linked), *_some(kept)]


def _some(notes: list[str]) -> list[str]:
    return notes if len(notes) <= 10 else [*notes[:10], f"{len(notes) - 10} more datasets left out like these"]
