"""The manifest of a dataset at a place: made of finished shards, read, and whether one may come to be there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import xxhash

import packer
from packer.errors import NoDatasetError, SourceError, UsageError
from packer.format import LOCK, MANIFEST, MANIFEST_COPY, UNFINISHED, ColumnTotals, Field, Manifest, ShardEntry, total_of
from packer.format import manifest as manifests
from packer.packing.origin import Origin, classes_of
from packer.packing.places import DATASET_FILE, PART_REPORT, LocalPlace, Place
from packer.packing.rejected import Rejected


def read_manifest(place: Place) -> Manifest:
    """Return the manifest of the dataset at a place; raise DatasetError if there is none."""
    if isinstance(place, LocalPlace):
        return manifests.read(place.path)
    data = place.read(MANIFEST)
    if data is None:
        raise NoDatasetError(f"{place} is not a packed dataset: it has no {MANIFEST}; check the address")
    return manifests.decode(data, f"{place}/{MANIFEST}")


def named_files(manifest: Manifest) -> set[str]:
    """Return the paths of all files of a dataset."""
    return {MANIFEST, MANIFEST_COPY, *(entry.file for entry in manifest.files)}


def make_manifest(
    shards: Sequence[ShardEntry],
    columns: Sequence[Mapping[str, ColumnTotals]],
    fields: Sequence[Field],
    origin: Origin,
    rejected: Sequence[Rejected] = (),
    **members: Any,
) -> Manifest:
    """Return the manifest of finished shards.

    Args:
        columns: bytes of every column, by field: of each shard, or of several together.
        rejected: what was skipped, for the error.
        members: other members of the manifest, such as its splits.

    Raises:
        SourceError: no sample was good.
    """
    samples = sum(shard.samples for shard in shards)
    if not samples:
        reason = f"none could be packed; {rejected[0].file}: {rejected[0].reason}" if rejected else "none was given"
        raise SourceError(f"the dataset would hold no sample: {reason}")
    return Manifest(
        tool=f"packer {packer.__version__}",
        samples=samples,
        fields=tuple(fields),
        shards=tuple(shards),
        columns=totals(columns),
        origin=origin,
        classes=classes_of(origin, samples),
        **members,
    )


def totals(columns: Sequence[Mapping[str, ColumnTotals]]) -> dict[str, ColumnTotals]:
    """Return the totals of every column, by field, of several shards or datasets together."""
    # A shard without samples says nothing of their shapes.
    filled = [shard_columns for shard_columns in columns if any(total.raw for total in shard_columns.values())]
    return {name: total_of(shard_columns[name] for shard_columns in filled or columns) for name in columns[0]}


def shards_digest(shards: Iterable[ShardEntry]) -> str:
    """Return a digest of shards that others are made from; empty if there are none."""
    digests = " ".join(entry.digest for entry in shards)
    return xxhash.xxh3_128_hexdigest(digests.encode()) if digests else ""


def check_output(place: Place, overwrite: bool) -> None:
    """Raise UsageError if no dataset can be made at a place; called before the sources are opened. Writes nothing.

    Raises:
        UsageError: it holds something else, or a dataset that may not be replaced; or `overwrite` is no bool.
    """
    if not isinstance(overwrite, bool):
        raise UsageError(f"overwrite {overwrite!r}: True or False is expected")
    place.check_writable()
    if isinstance(place, LocalPlace) and place.path.exists() and not place.path.is_dir():
        raise UsageError(f"{place} is a file; name a folder that does not exist yet")
    files = place.files()
    if foreign := sorted(name for name in files if not DATASET_FILE.fullmatch(name)):
        raise UsageError(f"{place} is not empty: it holds {foreign[0] or 'a file'}; name another place")
    is_unfinished = any(name.startswith(UNFINISHED) and not re.match(PART_REPORT, name) for name in files)
    if MANIFEST in files:
        if not overwrite and not is_unfinished:
            raise exists_error(place)
    elif not is_unfinished and files.keys() - {LOCK}:
        raise UsageError(
            f"{place} is not empty, has no manifest and is not an unfinished conversion; `packer repair` takes a lost "
            "manifest from its copy, or name a folder that does not exist yet"
        )


def exists_error(place: Place) -> UsageError:
    """Return the error of a place where a dataset is that may not be replaced."""
    return UsageError(f"{place} is a packed dataset already; use --overwrite to replace it")
