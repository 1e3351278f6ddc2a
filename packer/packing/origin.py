"""Says where the samples of a dataset came from, even if several datasets were joined, or the samples shuffled.

The origin of a dataset is a mapping of JSON values: that of its source, or one of

    {"kind": ..., "parts": [{"samples": n, "origin": {...}}, ...]}     joined, in this order
    {"kind": ..., "shuffled": seed, "origin": {...}}                   in the order that `shuffled_order` gives
    {"kind": ..., "origin": {...}}                                     joined, then packed again as one

A source whose fields were changed later has two members more: `joined`, the origin of each new field by its name, and
`dropped`, the names of those that are gone.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.format import Manifest, Names, ShardEntry
from packer.sources import Source, shuffled_order

Origin = dict[str, Any]
Kept = TypeVar("Kept", bound=msgspec.Struct)


class Leaf(NamedTuple):
    """One source of a dataset, and the numbers of its samples in the dataset, in the order of the source."""

    origin: Origin
    numbers: NDArray[np.int64]


def origin_of(source: Source) -> Origin:
    """Return the origin of samples packed from a source, as it is read back from a manifest."""
    origin: Origin = msgspec.json.decode(msgspec.json.encode({"kind": source.kind, **source.origin}))
    return origin


def parse_origin(kind: str, origin: Origin, form: type[Kept]) -> Kept | None:
    """Return an origin as the struct of its kind, `form`; None if it is of another kind or form."""
    if origin.get("kind") != kind:
        return None
    try:
        return msgspec.convert(origin, form)
    except msgspec.ValidationError:
        return None


def joined(parts: Sequence[tuple[int, Origin]]) -> Origin:
    """Return the origin of samples from several datasets, one after another; each with its number of samples."""
    flat: list[dict[str, Any]] = []
    for samples, origin in parts:
        flat += origin.get("parts") or [{"samples": samples, "origin": origin}]
    kinds = {part["origin"].get("kind", "packed") for part in flat}
    return {"kind": kinds.pop() if len(kinds) == 1 else "joined", "parts": flat}


def levels(origin: Origin, samples: int) -> Iterator[Origin]:
    """Yield an origin and all origins inside it, from the outermost on."""
    todo = [(samples, origin)]
    while todo:  # without recursion: the origins of a hostile manifest may nest deeply
        count, level = todo.pop()
        yield level
        todo += reversed(_below(level, count))


def with_fields(origin: Origin, samples: int, joined: Mapping[str, Origin], dropped: Sequence[str] = ()) -> Origin:
    """Return the origin of samples whose fields were changed after they were packed; each part says so.

    Args:
        joined: where the new fields came from, by name.
        dropped: fields that are gone.
    """
    new: Origin = msgspec.json.decode(msgspec.json.encode(origin))
    sources = [inner for _, inner in parts(new, samples)] or [new]
    for source in sources:
        before = source.get("joined")
        later = {**(before if isinstance(before, dict) else {}), **joined}
        source["joined"] = {name: value for name, value in later.items() if name not in dropped}
        if dropped:
            gone = source.get("dropped")
            source["dropped"] = [*(gone if isinstance(gone, list) else []), *dropped]
        for one in joined.values():
            if classes := classes_of(one, samples):
                source["classes"] = list(classes)
    if "label" in dropped:
        for level in levels(new, samples):
            level.pop("classes", None)
    return new


def classes_of(origin: Origin, samples: int) -> tuple[str, ...]:
    """Return the class names of the numbers in field `label`; empty if the origin does not say. Its parts agree."""
    for level in levels(origin, samples):
        match level:
            case {"classes": [str(), *_] as classes}:
                return tuple(classes)
    return ()


def is_shuffled(origin: Origin, samples: int) -> bool:
    """Return whether the samples are in another order than in their sources."""
    return any(isinstance(level.get("shuffled"), int) for level in levels(origin, samples))


def leaves(origin: Origin, samples: int) -> list[Leaf]:
    """Return the sources that `samples` samples came from; an origin of another form is taken for one source."""
    levels, todo = [], [Leaf(origin, np.arange(samples))]
    while todo:
        level = todo.pop()
        below = _below(level.origin, len(level.numbers))
        if not below:
            levels.append(level)
            continue
        numbers, seed = level.numbers, level.origin.get("shuffled")
        if isinstance(seed, int):
            numbers = np.empty_like(level.numbers)
            numbers[shuffled_order(len(numbers), seed)] = level.numbers
        spans = np.split(numbers, np.cumsum([count for count, _ in below])[:-1])
        todo += reversed([Leaf(part, span) for (_, part), span in zip(below, spans, strict=True)])
    return levels


def _below(origin: Origin, samples: int) -> list[tuple[int, Origin]]:
    """Return (samples, origin) of each origin just inside this one; an empty list if it is that of a source."""
    inner = origin.get("origin")
    return [(samples, inner)] if isinstance(inner, dict) else parts(origin, samples)


def parts(origin: Origin, samples: int) -> list[tuple[int, Origin]]:
    """Return (samples, origin) of each part, or an empty list if the parts do not add up to `samples`."""
    counted_parts = []
    for part in origin["parts"] if isinstance(origin.get("parts"), list) else []:
        match part:
            case {"samples": int(count), "origin": dict(inner)} if count >= 0:
                counted_parts.append((count, inner))
            case _:
                return []
    return counted_parts if sum(count for count, _ in counted_parts) == samples else []


class Conversion(NamedTuple):
    """Shards that were packed together.

    Attributes:
        shards: their entries in the manifest.
        origin: what they were packed from.
        first: number of their first sample in the dataset.
    """

    shards: tuple[ShardEntry, ...]
    origin: Origin
    first: int

    def edges(self) -> list[int]:
        """Return the number in the source of the first sample of each shard, and the number after the last."""
        return list(itertools.accumulate((entry.samples + entry.rejected for entry in self.shards), initial=0))

    def parts(self, source: Source) -> Iterator[tuple[ShardEntry, Source, int]]:
        """Yield each shard, the part of its source that it was made from, and the number of its first sample."""
        first = self.first
        for entry, (start, stop) in zip(self.shards, itertools.pairwise(self.edges()), strict=True):
            yield entry, source.part(start, stop), first
            first += entry.samples


def conversions(manifest: Manifest) -> list[Conversion]:
    """Return all conversions that made a dataset, in its order; a single one if its parts do not end with shards."""
    ends = list(itertools.accumulate((entry.samples for entry in manifest.shards), initial=0))
    known = parts(manifest.origin, manifest.samples)
    edges = list(itertools.accumulate(samples for samples, _ in known))
    if not known or not set(edges).issubset(ends):
        known, edges = [(manifest.samples, manifest.origin)], [manifest.samples]
    all_conversions, start = [], 0
    for (_, origin), edge in zip(known, edges, strict=True):
        # An empty shard between two parts could belong to either; it is taken for the end of this one.
        stop = bisect_right(ends, edge) - 1
        all_conversions.append(Conversion(manifest.shards[start:stop], origin, ends[start]))
        start = stop
    return all_conversions


def given_by(folder: Path, manifest: Manifest, source: Source) -> list[tuple[Conversion, Source]]:
    """Return the conversions whose samples `source` has, each with its part of the source: all of them, or one.

    Raises:
        UsageError: the source has another number of samples, or fits several conversions.
    """
    every = conversions(manifest)
    counts_of = [one.edges()[-1] for one in every]
    ends = list(itertools.accumulate(counts_of, initial=0))
    if len(source) == ends[-1]:
        return [(one, source.part(*span)) for one, span in zip(every, itertools.pairwise(ends), strict=True)]
    fitting = [one for one, samples in zip(every, counts_of, strict=True) if samples == len(source)]
    if len(fitting) > 1:
        fitting = [one for one in fitting if _is_of(folder, manifest, one, source)]
    if len(fitting) == 1:
        return [(fitting[0], source)]
    counts = ""
    if len(every) > 1:
        counts = f", in {len(every)} parts of {', '.join(f'{samples:,}' for samples in counts_of)}; "
        counts += "give the sources of all in their order" + ("" if fitting else ", or of one of them")
    raise UsageError(f"the source has {len(source):,} samples, the dataset was made from {ends[-1]:,}{counts}")


def _is_of(folder: Path, manifest: Manifest, conversion: Conversion, source: Source) -> bool:
    """Return whether a conversion packed this source, which has as many samples: by names, else by the origin."""
    if source.names is None or manifest.names is None:
        return origin_of(source) == conversion.origin
    with closing(Names(folder, manifest)) as table:
        first, samples = conversion.first, conversion.shards[0].samples
        return {table.name(number) for number in range(first, first + samples)} <= set(source.names)
