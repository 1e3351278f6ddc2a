"""Which shards of a dataset were packed together, and which of them a source gives again.

What was converted in one go has one conversion; what was merged or appended to has several, each with numbers and an
origin of its own.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from packer.errors import DamagedError, UsageError
from packer.format.manifest import Manifest, ShardEntry
from packer.format.names import Names
from packer.format.shard import Shard
from packer.packing.origin import Origin, origin_of, parts
from packer.sources.base import Source


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

    @property
    def given(self) -> int:
        """Samples that the source gave, those that were left out too."""
        return sum(entry.samples + entry.rejected for entry in self.shards)

    def edges(self) -> list[int]:
        """Number in the source of the first sample of each shard, and the one behind the last."""
        return list(itertools.accumulate((entry.samples + entry.rejected for entry in self.shards), initial=0))


def conversions(manifest: Manifest) -> list[Conversion]:
    """All conversions that a dataset was made by, in its order."""
    found = []
    shards, first = manifest.shards, 0
    known = parts(manifest.origin, manifest.samples) or [(manifest.samples, manifest.origin)]
    for number, (samples, origin) in enumerate(known, 1):
        ends = list(itertools.accumulate((entry.samples for entry in shards), initial=0))
        count = bisect_left(ends, samples) if number < len(known) else len(shards)
        found.append(Conversion(shards[:count], origin, first))
        first += ends[count]
        shards = shards[count:]
    return found


def given_by(folder: Path, manifest: Manifest, source: Source) -> list[tuple[Conversion, Source]]:
    """The conversions that `source` has the samples of, each with its part of it: all of them, or a single one.

    Raises:
        UsageError: it has another number of samples, or may be that of several.
    """
    every = conversions(manifest)
    ends = list(itertools.accumulate((one.given for one in every), initial=0))
    if len(source) == ends[-1]:
        return [(one, source.part(start, start + one.given)) for one, start in zip(every, ends, strict=False)]
    fitting = [one for one in every if one.given == len(source)]
    if len(fitting) > 1:
        fitting = [one for one in fitting if _is_of(folder, manifest, one, source)]
    if len(fitting) != 1:
        counts = ""
        if len(every) > 1:
            each = ", ".join(f"{one.given:,}" for one in every)
            counts = f", in {len(every)} parts of {each}; give the sources of one of them, or of all in their order"
        raise UsageError(f"the source has {len(source)} samples, the dataset was made from {ends[-1]}{counts}")
    return [(fitting[0], source)]


def shard_sources(conversion: Conversion, source: Source) -> Iterator[tuple[ShardEntry, Source]]:
    """Each shard with the part of the source that it was made from."""
    pairs = itertools.pairwise(conversion.edges())
    return zip(conversion.shards, (source.part(*pair) for pair in pairs), strict=True)


def packed_names(folder: Path, manifest: Manifest, entry: ShardEntry, first: int) -> list[str] | None:
    """Names of the samples of a shard, whose first has the number `first`: by the shard, else by the table of names.

    None where neither can be read.
    """
    try:
        with Shard(folder / entry.file, entry.bytes) as shard:
            return [name.decode() for name in shard.names(entry.samples)]
    except (DamagedError, UnicodeDecodeError):
        pass
    try:
        if manifest.names is None:
            return None
        table = Names(folder / manifest.names.file, manifest.names)
        return [table.name(number) for number in range(first, first + entry.samples)]
    except DamagedError:
        return None


def _is_of(folder: Path, manifest: Manifest, conversion: Conversion, source: Source) -> bool:
    """Whether a source of as many samples is what a conversion packed: by its names, or else by its origin."""
    if source.names is None:
        return origin_of(source) == conversion.origin
    names = packed_names(folder, manifest, conversion.shards[0], conversion.first)
    return names is not None and set(names) <= set(source.names)
