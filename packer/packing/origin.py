"""Where the samples of a dataset came from, when it was joined from several or put into another order.

The origin of a dataset is a mapping of JSON values: what its source said, or one of

    {"kind": ..., "parts": [{"samples": n, "origin": {...}}, ...]}     joined, in this order
    {"kind": ..., "shuffled": seed, "origin": {...}}                   in the order that `shuffled_order` gives
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from packer.sources.base import Source
from packer.sources.packed.source import shuffled_order

Origin = dict[str, Any]
#: Where reading stops: the origins of a hostile manifest could nest without end.
_DEEPEST = 100


class Leaf(NamedTuple):
    """One source that samples came from, and the numbers that its samples have in the dataset, in its own order."""

    origin: Origin
    numbers: NDArray[np.int64]


def origin_of(source: Source) -> Origin:
    """The origin of what is packed from a source, as a manifest gives it back."""
    origin: Origin = msgspec.json.decode(msgspec.json.encode({"kind": source.kind, **source.provenance()}))
    return origin


def joined(parts: Sequence[tuple[int, Origin]]) -> Origin:
    """The origin of samples from several datasets, one after another; each with its number of samples."""
    flat: list[dict[str, Any]] = []
    for samples, origin in parts:
        flat += origin.get("parts") or [{"samples": samples, "origin": origin}]
    kinds = {part["origin"].get("kind", "packed") for part in flat}
    return {"kind": kinds.pop() if len(kinds) == 1 else "joined", "parts": flat}


def leaves(origin: Origin, samples: int) -> list[Leaf]:
    """The sources that `samples` samples came from; what is not as this module writes it is taken for one source."""
    return list(_leaves(origin, np.arange(samples), 0))


def is_in_order(origin: Origin, samples: int) -> bool:
    """Whether the samples are in the order of their sources, one source after another."""
    if not _has_shuffled(origin, samples):
        return True  # without an array of the numbers of all samples: there may be a billion
    return all(bool((np.diff(leaf.numbers) == 1).all()) for leaf in leaves(origin, samples))


def _has_shuffled(origin: Origin, samples: int, depth: int = 0) -> bool:
    """Whether samples were put into another order, in the origin itself or in that of one of its parts."""
    if isinstance(origin.get("shuffled"), int):
        return True
    return depth < _DEEPEST and any(_has_shuffled(part, count, depth + 1) for count, part in parts(origin, samples))


def _leaves(origin: Origin, numbers: NDArray[np.int64], depth: int) -> Iterator[Leaf]:
    inner = origin.get("origin")
    if depth < _DEEPEST and isinstance(inner, dict) and isinstance(origin.get("shuffled"), int):
        before = np.empty_like(numbers)
        before[shuffled_order(len(numbers), origin["shuffled"])] = numbers
        yield from _leaves(inner, before, depth + 1)
        return
    found = parts(origin, len(numbers))
    if depth >= _DEEPEST or not found:
        yield Leaf(origin, numbers)
        return
    at = 0
    for count, part in found:
        yield from _leaves(part, numbers[at : at + count], depth + 1)
        at += count


def parts(origin: Origin, samples: int) -> list[tuple[int, Origin]]:
    """Samples and origin of each part; none where the parts are not those of `samples` samples."""
    found = []
    for part in origin["parts"] if isinstance(origin.get("parts"), list) else []:
        match part:
            case {"samples": int(count), "origin": dict(inner)} if count >= 0:
                found.append((count, inner))
            case _:
                return []
    return found if sum(count for count, _ in found) == samples else []
