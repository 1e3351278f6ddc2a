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
from packer.sources import Source, one_list_of_classes, shuffled_order

Origin = dict[str, Any]
#: Members of an origin that say something of fields, by their names.
_OF_FIELDS = "beside", "categories", "fields", "times"
Struct = TypeVar("Struct", bound=msgspec.Struct)


class Leaf(NamedTuple):
    """One source of a dataset, and the numbers of its samples in the dataset, in the order of the source.

    Those that follow one another are a range, which takes no memory.
    """

    origin: Origin
    numbers: range | NDArray[np.int64]


def origin_of(source: Source) -> Origin:
    """Return the origin of samples packed from a source, as it is read back from a manifest."""
    origin: Origin = msgspec.json.decode(msgspec.json.encode({"kind": source.kind, **source.origin}))
    return origin


def parse_origin(kind: str, origin: Origin, struct: type[Struct]) -> Struct | None:
    """Return an origin as the struct of its kind; None if it is of another kind or form."""
    if origin.get("kind") != kind:
        return None
    try:
        return msgspec.convert(origin, struct)
    except msgspec.ValidationError:
        return None


def join_origins(parts: Sequence[tuple[int, Origin]]) -> Origin:
    """Return the origin of samples from several datasets, one after another; each with its number of samples."""
    flat_parts: list[dict[str, Any]] = []
    for samples, origin in parts:
        flat_parts += origin.get("parts") or [{"samples": samples, "origin": origin}]
    kinds = {part["origin"].get("kind", "packed") for part in flat_parts}
    return {"kind": kinds.pop() if len(kinds) == 1 else "joined", "parts": flat_parts}


def levels(origin: Origin, samples: int) -> Iterator[Origin]:
    """Yield an origin and all origins inside it, from the outermost on."""
    todo = [(samples, origin)]
    while todo:  # without recursion: the origins of a hostile manifest may nest deeply
        count, level = todo.pop()
        yield level
        todo += reversed(_inner_origins(level, count))


def with_fields(
    origin: Origin, samples: int, joined: Mapping[str, Origin], dropped: Sequence[str] = (), left: Sequence[str] = ()
) -> Origin:
    """Return the origin of samples whose fields were changed after they were packed; each part says so.

    What the numbers of a dropped field stood for goes with it: another field may get its name. Names of classes stay
    while a field has them.

    Args:
        joined: where the new fields came from, by name.
        dropped: fields that are gone.
        left: the other fields, where some are dropped.

    Raises:
        UsageError: a new field has other names of classes than the samples.
    """
    new_origin: Origin = msgspec.json.decode(msgspec.json.encode(origin))
    sources = [inner for _, inner in parts(new_origin, samples)] or [new_origin]
    for source in sources:
        old_joined = source.get("joined")
        all_joined = {**(old_joined if isinstance(old_joined, dict) else {}), **joined}
        source["joined"] = {name: value for name, value in all_joined.items() if name not in dropped}
        if dropped:
            old_dropped = source.get("dropped")
            source["dropped"] = [*(old_dropped if isinstance(old_dropped, list) else []), *dropped]
        for origin_of_field in joined.values():
            if classes := one_list_of_classes([classes_of(origin, samples), classes_of(origin_of_field, samples)]):
                source["classes"] = classes
    for level in levels(new_origin, samples):
        if {"label", "labels"}.intersection(dropped) and {"label", "labels"}.isdisjoint(left):
            level.pop("classes", None)
        inner = [_mapping(level.get(key)).values() for key in ("joined", "beside")]
        for source in (level, *itertools.chain.from_iterable(inner)):
            _forget(_mapping(source), dropped)
    return new_origin


def _forget(source: Mapping[str, Any], fields: Sequence[str]) -> None:
    """Remove what the origin of one source says of some fields."""
    for by_field in [source.get(key) for key in _OF_FIELDS]:
        if isinstance(by_field, dict):
            for name in fields:
                by_field.pop(name, None)


def classes_of(origin: Origin, samples: int) -> tuple[str, ...]:
    """Return the names of the numbers in `label`, or in `labels` of boxes; empty if there are none. Its parts agree."""
    for level in levels(origin, samples):
        match level:
            case {"classes": [str(), *_] as classes}:
                return tuple(classes)
    return ()


def attributes_of(origin: Origin, samples: int) -> dict[str, Any]:
    """Return the attributes of arrays that are fields, such as `units of time`, of the first part that has any."""
    for level in levels(origin, samples):
        fields = {name: _mapping(attributes) for name, attributes in _mapping(level.get("fields")).items()}
        if any(fields.values()):
            return {
                f"{key} of {name}": value for name, attributes in fields.items() for key, value in attributes.items()
            }
    return {}


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def is_shuffled(origin: Origin, samples: int) -> bool:
    """Return whether the samples are in another order than in their sources."""
    return any(isinstance(level.get("shuffled"), int) for level in levels(origin, samples))


def leaves(origin: Origin, samples: int) -> list[Leaf]:
    """Return the sources that `samples` samples came from; an origin of another form is taken for one source."""
    sources, todo = [], [Leaf(origin, range(samples))]
    while todo:
        leaf = todo.pop()
        inner_origins = _inner_origins(leaf.origin, len(leaf.numbers))
        if not inner_origins:
            sources.append(leaf)
            continue
        numbers, seed = leaf.numbers, leaf.origin.get("shuffled")
        if isinstance(seed, int):
            numbers = np.empty(len(leaf.numbers), np.int64)
            numbers[shuffled_order(len(numbers), seed)] = leaf.numbers
        ends = itertools.accumulate((count for count, _ in inner_origins), initial=0)
        spans = itertools.pairwise(ends)
        todo += reversed(
            [Leaf(inner, numbers[start:end]) for (_, inner), (start, end) in zip(inner_origins, spans, strict=True)]
        )
    return sources


def _inner_origins(origin: Origin, samples: int) -> list[tuple[int, Origin]]:
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
            yield entry, source.slice(start, stop), first
            first += entry.samples


def conversions(manifest: Manifest) -> list[Conversion]:
    """Return all conversions that made a dataset, in its order; a single one if its parts do not end with shards."""
    ends = list(itertools.accumulate((entry.samples for entry in manifest.shards), initial=0))
    counted_parts = parts(manifest.origin, manifest.samples)
    edges = list(itertools.accumulate(samples for samples, _ in counted_parts))
    if not counted_parts or not set(edges).issubset(ends):
        counted_parts, edges = [(manifest.samples, manifest.origin)], [manifest.samples]
    all_conversions, start = [], 0
    for (_, origin), edge in zip(counted_parts, edges, strict=True):
        # An empty shard between two parts could belong to either; it is taken for the end of this one.
        stop = bisect_right(ends, edge) - 1
        all_conversions.append(Conversion(manifest.shards[start:stop], origin, ends[start]))
        start = stop
    return all_conversions


def matching_parts(folder: Path, manifest: Manifest, source: Source) -> list[tuple[Conversion, Source]]:
    """Return the conversions whose samples `source` has, each with its part of the source: all of them, or one.

    Raises:
        UsageError: the source has another number of samples, or fits several conversions.
    """
    all_conversions = conversions(manifest)
    counts = [conversion.edges()[-1] for conversion in all_conversions]
    ends = list(itertools.accumulate(counts, initial=0))
    if len(source) == ends[-1]:
        return [
            (conversion, source.slice(*span))
            for conversion, span in zip(all_conversions, itertools.pairwise(ends), strict=True)
        ]
    candidates = [conversion for conversion, count in zip(all_conversions, counts, strict=True) if count == len(source)]
    if len(candidates) > 1:
        candidates = [conversion for conversion in candidates if _has_packed(folder, manifest, conversion, source)]
    if len(candidates) == 1:
        return [(candidates[0], source)]
    advice = ""
    if len(all_conversions) > 1:
        advice = f", in {len(all_conversions)} parts of {', '.join(f'{count:,}' for count in counts)}; "
        advice += "give the sources of all in their order" + ("" if candidates else ", or of one of them")
    if manifest.left_out is not None:
        advice += f"; what was skipped then is listed in {manifest.left_out.file}: leave it out again"
    advice = advice or "; name the sources and options that it was made with"
    raise UsageError(f"the source has {len(source):,} samples, the dataset was made from {ends[-1]:,}{advice}")


def _has_packed(folder: Path, manifest: Manifest, conversion: Conversion, source: Source) -> bool:
    """Return whether a conversion packed this source, which has as many samples: by names, else by the origin."""
    if source.names is None or manifest.names is None:
        return origin_of(source) == conversion.origin
    with closing(Names(folder, manifest)) as table:
        first, samples = conversion.first, conversion.shards[0].samples
        return {table.name(number) for number in range(first, first + samples)} <= set(source.names)
