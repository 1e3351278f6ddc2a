"""Merges datasets of one schema into one: their shards as they are, linked or copied.

merge(["day1.packed", "day2.packed"], "days.packed")
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec

from packer.errors import UsageError
from packer.format import Field, Manifest, ShardEntry, check_file, read_errors
from packer.packing import (
    Command,
    Contents,
    ConvertOptions,
    Link,
    LocalPlace,
    Place,
    Shards,
    changing,
    check_apart,
    check_meanings,
    check_output,
    constants_error,
    explain_changes,
    fetch_rejected,
    join_origins,
    join_splits,
    make_manifest,
    place_of,
    read_manifest,
    rewrite,
    taken_commands,
)
from packer.sources import read_names
from packer.watcher import NOBODY, Watcher


def merge(
    datasets: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    watcher: Watcher = NOBODY,
) -> Manifest:
    """Merge all samples of `datasets`, in this order, into `out`. Nothing is decoded or packed again.

    Shards are hard links if the file system has them; `out` stays whole when the others are removed.

    Args:
        out: its folder or URL; at a URL shards are uploaded.
        overwrite: whether a dataset at `out` may be replaced.
        watcher: its step is `merging`, in samples.

    Returns:
        the manifest of `out`.

    Raises:
        UsageError: the datasets differ in their schema or share a name, or `out` cannot be written to.
        DatasetError: one of them is no packed dataset, a shard is missing, or its list of what was skipped is damaged.
        WriteError: the output cannot be written.
    """
    place, folders = place_of(out), [LocalPlace(Path(dataset)) for dataset in datasets]
    if len(folders) < 2:
        given = f"only {folders[0]}" if folders else "none"
        raise UsageError(f"two datasets or more are expected to merge, but {given} is given")
    check_apart([str(folder) for folder in folders], place)
    check_output(place, overwrite)
    parts = [read_manifest(folder) for folder in folders]
    names = _check_mergeable(folders, parts)
    digests = [[shard.digest for shard in manifest.shards] for manifest in parts]
    command = Command(
        verb="merge",
        settings={"the shards to merge": digests},
        shards=sum(map(len, digests)),
        options=ConvertOptions(watcher=watcher),
        overwrite=overwrite,
        bases=parts,
    )
    links = [Link(folder, entry) for folder, manifest in zip(folders, parts, strict=True) for entry in manifest.shards]
    with changing(place) as change, explain_changes(zip(folders, parts, strict=True)):
        rewrite(change, command, links, partial(_merged, folders, parts, names))
    return change.dataset


def _check_mergeable(folders: Sequence[LocalPlace], parts: Sequence[Manifest]) -> Sequence[Sequence[str] | None]:
    """Return the names of the samples of each dataset.

    Raises:
        UsageError: schema, classes or constants differ from those of the first, or two samples have one name.
        DatasetError: a table of names cannot be read.
    """
    first = parts[0]
    for folder, manifest in zip(folders[1:], parts[1:], strict=True):
        where = f"{folder}, against {folders[0]}"
        check_alike(first.fields, manifest.fields, folders[0], folder)
        check_meanings(first, manifest.origin, manifest.samples, where)
        if _digest(first) != _digest(manifest):
            raise constants_error(where)
    names = [
        read_names(folder.local(manifest.name_tables), manifest)
        for folder, manifest in zip(folders, parts, strict=True)
    ]
    check_names([(str(folder), dataset_names) for folder, dataset_names in zip(folders, names, strict=True)])
    return names


def _merged(
    folders: Sequence[LocalPlace], parts: Sequence[Manifest], names: Sequence[Sequence[str] | None], shards: Shards
) -> Contents:
    """Return the dataset of all shards, with names, constants and what was skipped."""
    first = parts[0]
    taken_parts = [
        msgspec.structs.replace(manifest, commands=taken_commands(manifest, folder.path))
        for folder, manifest in zip(folders, parts, strict=True)
    ]
    starts = itertools.accumulate((len(manifest.shards) for manifest in parts), initial=0)
    rejected = [
        bad.moved(start)
        for start, folder, manifest in zip(starts, folders, parts, strict=False)
        for bad in fetch_rejected(folder, manifest)
    ]
    constants = b""
    if first.constants:
        constants_path = folders[0].local([first.constants]) / first.constants.file
        check_file(constants_path, first.constants, whole=True)
        with read_errors(constants_path):
            constants = constants_path.read_bytes()
    return Contents(
        manifest=joined_manifest(taken_parts, shards.entries),
        names=None if first.names is None else [name for some in names for name in some or ()],
        rejected=rejected,
        constants=constants,
    )


def joined_manifest(parts: Sequence[Manifest], shards: Sequence[ShardEntry]) -> Manifest:
    """Return the manifest of datasets one after another, without tables.

    Args:
        parts: their manifests.
        shards: all their shards, as the new dataset has them.
    """
    planned = [manifest.planned_bytes for manifest in parts]
    return make_manifest(
        shards,
        [manifest.columns for manifest in parts],
        parts[0].fields,
        join_origins([(manifest.samples, manifest.origin) for manifest in parts]),
        planned_bytes=None if None in planned else sum(filter(None, planned)),
        splits=join_splits(parts),
        constants=parts[0].constants,
        commands=tuple(command for manifest in parts for command in manifest.commands),
    )


def check_alike(first: Sequence[Field], other: Sequence[Field], like: Place, folder: Place) -> None:
    """Raise UsageError if shards of `folder`, of the schema `other`, cannot be joined with those of `like`."""
    where = f"{folder}, against {like}"
    names, others = [field.name for field in first], [field.name for field in other]
    if names != others:
        raise UsageError(f"{where} has the fields {', '.join(others)}; {', '.join(names)} are expected, in this order")
    for expected, field in zip(first, other, strict=True):
        if expected.spec != field.spec:
            advice = ""
            if (expected.dtype, expected.kind, len(expected.shape)) == (field.dtype, field.kind, len(field.shape)):
                advice = "; for samples of several shapes, convert the sources of both as one"
            raise UsageError(
                f"{where}: field {expected.name!r} is {field.in_words}, {expected.in_words} is expected{advice}"
            )
        if expected != field:
            raise UsageError(
                f"{where}: field {expected.name!r} is stored with another codec, or in frames of another size; convert "
                f"its sources again with --like {like}, or add its samples by `packer append {like} {folder}`"
            )


def _digest(manifest: Manifest) -> str | None:
    return manifest.constants.digest if manifest.constants else None


def check_names(sets: Sequence[tuple[str, Sequence[str] | None]]) -> None:
    """Raise UsageError if some datasets have names and others none, or two samples have one name.

    Args:
        sets: where each dataset is, and the names of its samples.
    """
    first, first_names = sets[0]
    all_names = set(first_names or ())
    for where, names in sets[1:]:
        if (names is None) != (first_names is None):
            named, unnamed = (first, where) if names is None else (where, first)
            raise UsageError(f"samples of {named} have names, but those of {unnamed} have none; they cannot be joined")
        duplicates = all_names.intersection(names or ())
        if duplicates:
            raise UsageError(
                f"{where} has a sample named {min(duplicates)!r}, which is there already; names must differ"
            )
        all_names.update(names or ())
