"""Compares a packed dataset with the sources it was made from, value by value.

A dataset that was merged or appended to is compared with the sources of one of its parts, or of all.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.codecs import codec_name, loss_of
from packer.errors import DamagedError, DatasetError, UsageError
from packer.format import MANIFEST, Column, Field, Manifest, Shard, ShardEntry, encode_constants, same_constants
from packer.format import manifest as manifests
from packer.packing import (
    Rejected,
    Step,
    find_culprit,
    is_shuffled,
    matching_parts,
    number_classes,
    origin_of,
    other_meanings,
    read_blocks,
    read_rejected,
    skipped_samples,
)
from packer.sources import LargeArray, Source, count
from packer.watcher import COMPARING, NOBODY, Watcher
from packer.workers import Limits, Lost, Reporter, run_in_processes

#: The advice at the end of an error's message; a list of damages gives it once.
_ADVICE = re.compile(r"; (copy it again or )?run `packer (verify|repair)`.*$")
#: Names shown of one damage.
SHOWN_NAMES = 5

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Damage:
    """One thing that is wrong.

    Attributes:
        file: path within the dataset.
        what: a sentence.
        field: the field concerned, if it is one.
        samples: numbers of the first sample concerned and the one after the last; None for the file as a whole.
        names: names of the first few of them.
        repairable: whether `packer repair` can fix it, given the sources.
    """

    file: str
    what: str
    field: str | None = None
    samples: tuple[int, int] | None = None
    names: tuple[str, ...] = ()
    repairable: bool = True

    @classmethod
    def of(cls, error: DatasetError, folder: Path, file: str) -> Damage:
        """Make a damage from an error about a file, without the dataset's path and the advice at its end."""
        reason = str(error).removeprefix(f"{folder / file}: ").replace(f"{folder}{os.sep}", "")
        return cls(file, _ADVICE.sub("", reason))

    def __str__(self) -> str:
        location = self.file
        if self.field is not None:
            location += f", field {self.field!r}"
        if self.samples is not None:
            first, stop = self.samples
            location += f", sample {first}" if stop == first + 1 else f", samples {first} to {stop - 1}"
        if self.names:
            more = self.samples is not None and len(self.names) < self.samples[1] - self.samples[0]
            location += f" ({', '.join([*self.names, *(['...'] if more else [])])})"
        return f"{location}: {self.what}"


class Comparison(NamedTuple):
    """What was compared with the sources, and what differs.

    Attributes:
        damages: what differs; empty if every value and name is the same.
        fields: names of the fields that were compared.
        samples: how many samples were compared.
        besides: sentences on what the sources hold besides, and on what packing changes: both sides lack it alike.
    """

    damages: list[Damage]
    fields: tuple[str, ...]
    samples: int
    besides: tuple[str, ...]


def compare(
    dataset: str | os.PathLike[str], source: Source, watcher: Watcher = NOBODY, limits: Limits | None = None
) -> Comparison:
    """Compare a dataset with its source, bit for bit, by the code that packs. What it has skipped is not read.

    Args:
        source: opened with the options of the conversion.
        watcher: its step is `comparing`, in samples.
        limits: of reading in another process; None to read in this one. A sample that crashes it, hangs or takes too
            much memory raises SourceError.

    Raises:
        UsageError: the source has other fields, another number of samples, or another order.
        SourceError: the source cannot be read.
    """
    folder = Path(dataset)
    manifest = manifests.read(folder)
    check_same_schema(manifest, source)
    conversions = matching_parts(folder, manifest, source)
    rejected = read_rejected(folder, manifest)
    skipped, numbers = skipped_samples(rejected, manifest.shards), {e: n for n, e in enumerate(manifest.shards)}
    shards = [
        SourceShard(entry, part, first, skipped.get(numbers[entry]))
        for conversion, samples in conversions
        for entry, part, first in conversion.parts(samples)
    ]
    damages: list[Damage] = []
    watcher.step(COMPARING, 0, sum(shard.entry.samples for shard in shards))
    compare_one = partial(compare_shard, folder, manifest.fields)
    results = map(compare_one, shards) if limits is None else _compare_guarded(compare_one, shards, limits)
    for shard, result in zip(shards, results, strict=True):
        damages += result
        watcher.done(shard.entry.samples, 0)
    if not same_constants(manifest.constants, encode_constants(source.constants)):
        file = manifest.constants.file if manifest.constants else "constants"
        damages.append(Damage(file, "differs from the source", repairable=False))
    if difference := other_meanings(manifest, origin_of(source), len(source)):
        damages.append(Damage(MANIFEST, f"the source {difference}", repairable=False))
    samples = sum(shard.entry.samples for shard in shards)
    if samples < manifest.samples:
        start = shards[0].first
        _log.warning("only samples %d to %d were compared: the sources hold no others", start, start + samples - 1)
    fields = tuple(field.name for field in manifest.fields)
    return Comparison(damages, fields, samples, (*_besides(manifest, len(rejected)), *source.remarks))


def _besides(manifest: Manifest, skipped: int) -> Iterator[str]:
    """Yield sentences on samples that are not compared, and on fields that are compared as they are stored."""
    if manifest.left_out is not None:
        yield f"{skipped:,} skipped when they were packed, listed in {manifest.left_out.file}"
    for field in manifest.fields:
        if loss_of(field.codec) is not None:
            yield f"{field.name} is compared as {codec_name(field.codec)} stores it, which changes values"


def check_same_schema(manifest: Manifest, source: Source) -> None:
    """Raise UsageError if a dataset cannot have been made from a source, whose classes get the dataset's numbers."""
    number_classes(source, manifest)
    packed_specs = {field.name: field.spec for field in manifest.fields}
    source_specs = {spec.name: spec for spec in source.fields}
    for name in {**packed_specs, **source_specs}:
        if packed_specs.get(name) != source_specs.get(name):
            absence = "is not in the source" if name in packed_specs else "is not in the dataset"
            problem = "differs between dataset and source" if name in packed_specs and name in source_specs else absence
            raise UsageError(f"field {name!r} {problem}; name the sources and options that the dataset was made with")
    seed = source.origin.get("shuffled")
    if (seed is None or seed != manifest.origin.get("shuffled")) and is_shuffled(manifest.origin, manifest.samples):
        raise UsageError(
            "the samples of the dataset were shuffled: their order is not that of the source files; "
            "compare and repair the dataset that it was packed from, then pack it again"
        )
    if (manifest.names is None) != (source.names is None):
        named, unnamed = ("source", "dataset") if manifest.names is None else ("dataset", "source")
        raise UsageError(
            f"the samples of the {named} have names, and those of the {unnamed} have none; name the sources and "
            "options that the dataset was made with"
        )


class SourceShard(NamedTuple):
    """A shard of a dataset, and what it was made from.

    Attributes:
        samples: the part of the source.
        first: number of its first sample in the dataset.
        skipped: the samples that are not read, by number; None if the dataset does not say which these are.
    """

    entry: ShardEntry
    samples: Source
    first: int
    skipped: Mapping[int, Rejected] | None = None


def compare_shard(
    folder: Path, fields: Sequence[Field], shard: SourceShard, reporter: Reporter | None = None
) -> list[Damage]:
    """Return what differs between a shard of the dataset in `folder` and the samples it was made from.

    Args:
        reporter: the process, if it is one of `run_in_processes`.

    Raises:
        SourceError: the samples cannot be read.
    """
    try:
        return _find_differences(folder, fields, shard, contextlib.nullcontext if reporter is None else reporter.step)
    except DamagedError as error:
        return [Damage.of(error, folder, shard.entry.file)]


def _compare_guarded(
    compare_one: Callable[[SourceShard, Reporter], list[Damage]], shards: Sequence[SourceShard], limits: Limits
) -> Iterator[list[Damage]]:
    """Yield what differs in each shard; another process reads the samples.

    Raises:
        SourceError: the samples cannot be read, or reading them crashes, hangs or takes too much memory.
    """
    for number, result in run_in_processes(compare_one, shards, 1, limits):
        if isinstance(result, Lost):
            raise find_culprit(shards[number].samples, shards[number].first, result, limits)
        yield result


def _find_differences(folder: Path, fields: Sequence[Field], source_shard: SourceShard, step: Step) -> list[Damage]:
    """Return what differs, as `compare_shard` does.

    Args:
        step: is entered while a sample is read.
    """
    entry, part, first, skipped = source_shard
    damages: list[Damage] = []
    make_damage = partial(Damage, entry.file, repairable=False)  # the shard is undamaged: nothing to repair
    rejected: dict[int, Rejected] | None = {} if skipped is None else None
    with Shard(folder / entry.file, entry.bytes, entry.index) as shard:
        columns = [shard.column(number, field, entry.samples) for number, field in enumerate(fields)]
        has_names = shard.header().named
        names = [name.decode() for name in shard.names(entry.samples)] if has_names else None
        position = 0
        for block, source_names in read_blocks(part, rejected, skipped, step):
            size = count(block)
            if position + size > entry.samples:
                return [*damages, make_damage(f"{entry.samples} samples are packed, the source has more")]
            for column in columns:
                for start, stop in _find_differing_runs(column, position, block[column.field.name]):
                    shown = tuple((source_names or ())[start - position : stop - position][:SHOWN_NAMES])
                    samples = first + start, first + stop
                    damages.append(make_damage("differs from the source", column.field.name, samples, shown))
            stop = position + size
            if names and source_names and list(source_names) != names[position:stop]:
                damages.append(make_damage("names differ from the source", samples=(first + position, first + stop)))
            position = stop
    if position != entry.samples:
        damages.append(make_damage(f"{entry.samples} samples are packed, the source has {position}"))
    return damages


def _find_differing_runs(column: Column, first: int, values: Sequence[Any] | NDArray[Any]) -> Iterator[tuple[int, int]]:
    """Yield the runs of samples, start and stop, that differ from `values`, which begin with sample `first`."""
    differing = first + differing_samples(column, first, values)
    for run in np.split(differing, np.flatnonzero(np.diff(differing) > 1) + 1):
        if len(run):
            yield int(run[0]), int(run[-1]) + 1


def differing_samples(column: Column, first: int, values: Sequence[Any] | NDArray[Any]) -> NDArray[np.int64]:
    """Return the indices in `values`, (differing,), that differ in any bit from the column's samples from `first` on.

    NaN equals itself, 0.0 differs from -0.0. The samples are decoded into memory; for a `LargeArray`, band by band.
    Where JPEG files were made of images, both sides are what these files hold: `values` are encoded as they were.

    Raises:
        DamagedError: the column cannot be read.
    """
    if len(values) == 1 and isinstance(values[0], LargeArray) and column.field.frame.rows is not None:
        return np.flatnonzero([_large_array_differs(column, first, values[0], column.field.frame.rows)])
    packed = column.read(first, first + len(values))
    if isinstance(packed, np.ndarray):
        ours = packed
        theirs = np.ascontiguousarray(values, ours.dtype).reshape(ours.shape)
        shape = (len(ours), column.field.fixed_bytes)
        byte_rows = [array.reshape(-1).view(np.uint8).reshape(shape) for array in (ours, theirs)]
        return np.flatnonzero((byte_rows[0] != byte_rows[1]).any(axis=1))
    pairs = zip(packed, values, strict=True)
    return np.flatnonzero([not same_bits(ours, column.codec.as_stored(theirs)) for ours, theirs in pairs])


def _large_array_differs(column: Column, number: int, sample: LargeArray, rows: int) -> bool:
    """Return whether a large array differs from a sample of a column, whose bands hold this many rows."""
    if tuple(column.locate(np.array([number], np.int64)).shape[0].tolist()) != sample.shape:
        return True
    packed = column.bands(number)
    bands = (piece[start : start + rows] for piece in sample.pieces(rows) for start in range(0, len(piece), rows))
    return not all(same_bits(ours, column.codec.as_stored(theirs)) for ours, theirs in zip(packed, bands, strict=True))


def same_bits(ours: NDArray[Any], theirs: NDArray[Any] | str) -> bool:
    """Return whether two values are the same bit for bit; NaN equals itself, 0.0 differs from -0.0."""
    if isinstance(theirs, str):
        return ours.tobytes() == theirs.encode()
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return False
    flat = np.ascontiguousarray(theirs).reshape(-1)
    return bool((ours.reshape(-1).view(np.uint8) == flat.view(np.uint8)).all())
