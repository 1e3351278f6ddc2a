"""Merges datasets of one schema into one: their shards as they are, linked or copied.

merge(["day1.packed", "day2.packed"], "days.packed")

Appending takes shards over in the same way, after it has packed them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec

import packer
from packer.convert import check_apart
from packer.errors import UsageError
from packer.format import (
    CONSTANTS_FILE,
    NAMES_FILE,
    SHARD_FOLDER,
    Field,
    FileEntry,
    Manifest,
    ShardEntry,
    check_file,
    clear_errors,
    read_errors,
    sync_folder,
    write_synced,
)
from packer.format import manifest as manifests
from packer.packing import (
    Note,
    OutputFolder,
    Rejected,
    joined,
    joined_splits,
    make_manifest,
    rejected_of,
    shard_path,
)
from packer.sources import Progress, no_progress, read_names


def merge(
    datasets: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Manifest:
    """Merge all samples of `datasets`, in this order, into `out`. Nothing is decoded or packed again.

    Shards are hard links if the file system has them; `out` stays whole when the others are removed.

    Args:
        overwrite: whether a dataset at `out` may be replaced.
        progress: called with the samples and bytes taken over since the last call.

    Returns:
        the manifest of `out`.

    Raises:
        UsageError: the datasets differ in their schema or share a name, or `out` cannot be written to.
        DatasetError: one of them is no packed dataset, a shard is missing, or its list of what was left out is damaged.
        WriteError: the output cannot be written.
    """
    folders = [Path(dataset) for dataset in datasets]
    path = Path(out)
    if len(folders) < 2:
        raise UsageError("two datasets or more are expected to merge")
    check_apart([str(folder) for folder in folders], path)
    held = [manifests.read(folder) for folder in folders]
    first = held[0]
    for folder, manifest in zip(folders[1:], held[1:], strict=True):
        where = f"{folder}, against {folders[0]}"
        check_alike(first.fields, manifest.fields, where)
        check_classes(first.classes, manifest.classes, where)
        check_constants(first.constants, manifest.constants, where)
    check_names([(str(f), read_names(f, m)) for f, m in zip(folders, held, strict=True)])
    digests = [[shard.digest for shard in manifest.shards] for manifest in held]
    settings = {"the version of packer": packer.__version__, "the shards to merge": digests}
    note = Note(shards=sum(map(len, digests)), settings=settings, files=[])
    with OutputFolder(path, note, overwrite) as output:
        entries: list[ShardEntry] = []
        rejected: list[Rejected] = []
        for folder, manifest in zip(folders, held, strict=True):
            rejected += [bad.moved(len(entries)) for bad in rejected_of(folder, manifest)]
            entries += take_shards(folder, manifest.shards, output.work, len(entries), progress or no_progress)
        if first.constants:
            constants = folders[0] / first.constants.file
            check_file(constants, first.constants, whole=True)
            with read_errors(constants):
                write_synced(output.work / constants.name, constants.read_bytes())
        made = write_joined(output.work, held, entries, NAMES_FILE, rejected)
        output.publish(made)
    return made


def take_shards(
    folder: Path, entries: Sequence[ShardEntry], into: Path, number: int, progress: Progress
) -> list[ShardEntry]:
    """Put shards of the dataset in `folder` into another one: hard links if possible, else copies.

    Args:
        into: folder of the other dataset.
        number: number of the first of them in the other dataset.

    Returns:
        their entries in the manifest of the other dataset.

    Raises:
        DamagedError: a shard is missing or has another size than its manifest says.
        WriteError: a shard cannot be copied.
    """
    taken: list[ShardEntry] = []
    for entry in entries:
        source, target = folder / entry.file, shard_path(into, number + len(taken))
        check_file(source, entry)
        partial = target.with_suffix(".lmdb.partial")
        with clear_errors(target):
            partial.unlink(missing_ok=True)
            _link_or_copy(source, partial)
            partial.replace(target)
            partial.unlink(missing_ok=True)  # a rename onto a link to the same file removes neither
        taken.append(msgspec.structs.replace(entry, file=f"{SHARD_FOLDER}/{target.name}"))
        progress(entry.samples, entry.bytes)
    sync_folder(into / SHARD_FOLDER)
    return taken


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source.resolve())  # not of a symbolic link, which could dangle
    except OSError:  # another file system, or one without hard links
        shutil.copyfile(source, target)
        with target.open("rb+") as copy:
            os.fsync(copy.fileno())


def write_joined(
    folder: Path, held: Sequence[Manifest], shards: Sequence[ShardEntry], table: str, left_out: Sequence[Rejected]
) -> Manifest:
    """Write the table of names, and the list of what was left out, of joined datasets; return the new manifest.

    Args:
        held: their manifests, in the order of their samples.
        shards: all their shards, which are in place already.
        table: file of the table of names, if samples have names.
        left_out: the samples that were left out of any of them.

    Raises:
        WriteError: the folder cannot be written.
    """
    first, planned = held[0], [manifest.planned_bytes for manifest in held]
    return make_manifest(
        folder,
        shards,
        [manifest.columns for manifest in held],
        first.fields,
        joined([(manifest.samples, manifest.origin) for manifest in held]),
        table if first.names else None,
        left_out,
        planned_bytes=None if None in planned else sum(filter(None, planned)),
        splits=joined_splits(held),
        constants=first.constants,
    )


def check_alike(first: Sequence[Field], other: Sequence[Field], where: str) -> None:
    """Raise UsageError if shards of the schema `other` cannot be joined with those of `first`; say what differs."""
    if tuple(first) == tuple(other):
        return
    names, others = [field.name for field in first], [field.name for field in other]
    if names != others:
        raise UsageError(f"{where} has the fields {', '.join(others)}; {', '.join(names)} are expected, in this order")
    for a, b in zip(first, other, strict=True):
        if a.spec != b.spec:
            raise UsageError(f"{where}: field {a.name!r} is {b.in_words}, {a.in_words} is expected")
        if a != b:
            raise UsageError(
                f"{where}: field {a.name!r} is stored with another codec, or in frames of another size; "
                "`packer append` packs its samples again, so that they are stored alike"
            )


def check_classes(first: Sequence[str], other: Sequence[str], where: str) -> None:
    """Raise UsageError if a number of the field `label` means different classes in the two."""
    if first != other:
        texts = [", ".join(names) if names else "none" for names in (other, first)]
        raise UsageError(
            f"{where} has the classes {texts[0]}, but {texts[1]} are expected: a label would mean several classes; "
            "convert all sources as one, or with a folder for each class, even if it is empty"
        )


def check_constants(first: FileEntry | None, other: FileEntry | None, where: str) -> None:
    """Raise UsageError if two datasets have different constants, by their manifests."""
    if first != other:
        raise UsageError(
            f"{where}: what is kept once for all samples ({CONSTANTS_FILE}) differs; `packer export` gives the samples "
            "back, to be packed without --once"
        )


def check_names(sets: Sequence[tuple[str, Sequence[str] | None]]) -> None:
    """Raise UsageError if some datasets have names and others none, or two samples have one name.

    Args:
        sets: where each dataset is, and the names of its samples.
    """
    first, held = sets[0]
    seen = set(held or ())
    for where, names in sets[1:]:
        if (names is None) != (held is None):
            named, bare = (first, where) if names is None else (where, first)
            raise UsageError(f"samples of {named} have names, but those of {bare} have none; they cannot be joined")
        twice = seen.intersection(names or ())
        if twice:
            raise UsageError(f"{where} has a sample named {min(twice)!r}, which is there already; names must differ")
        seen.update(names or ())
