"""Merges datasets of one schema into one: their shards as they are, linked or copied.

merge(["day1.packed", "day2.packed"], "days.packed")
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import packer
from packer.convert import check_apart
from packer.errors import UsageError, WriteError
from packer.format import manifest as manifests
from packer.format.constants import kept_constants, write_constants
from packer.format.manifest import NAMES_FILE, Manifest, ShardEntry
from packer.format.sync import sync_folder
from packer.packing.finish import (
    check_alike,
    check_classes,
    check_constants,
    check_names,
    joined_manifest,
    take_shard,
    write_table,
)
from packer.packing.output import OutputFolder, State
from packer.packing.rejected import Rejected, RejectedList, rejected_of
from packer.packing.tasks import shard_path
from packer.sources.base import Progress
from packer.sources.packed import read_names


def merge(
    datasets: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Manifest:
    """Makes `out` of all samples of `datasets`, in this order. Nothing is decoded, nothing is packed anew.

    Shards are hard links where the file system has them; `out` stays whole when the others are removed.

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
    if path.exists() and any(path.resolve() == folder.resolve() for folder in folders):
        raise UsageError(f"{path} is one of the datasets to merge; name another folder, or use `packer append`")
    check_apart([str(folder) for folder in folders], path)
    held = [manifests.read(folder) for folder in folders]
    for folder, manifest in zip(folders[1:], held[1:], strict=True):
        check_alike(held[0].fields, manifest.fields, f"{folder}, against {folders[0]}")
        check_classes(held[0].classes, manifest.classes, f"{folder}, against {folders[0]}")
        check_constants(held[0], manifest, f"{folder}, against {folders[0]}")
    names = check_names([(str(f), read_names(f, m)) for f, m in zip(folders, held, strict=True)])
    with OutputFolder(path, _state(held), overwrite) as output:
        if output.is_published:
            output.publish()
            return manifests.read(path)
        entries, rejected = _taken(folders, held, output.work, progress)
        if constants := kept_constants(folders[0], held[0]):
            write_constants(output.work, constants)
        return _published(output, held, entries, rejected, names)


def _published(
    output: OutputFolder,
    held: Sequence[Manifest],
    entries: Sequence[ShardEntry],
    rejected: Sequence[Rejected],
    names: Sequence[str] | None,
) -> Manifest:
    """Writes the table of names, the list of what was left out and the manifest, and publishes the dataset."""
    work = output.work
    try:
        sync_folder(output.shards)
        table = None if names is None else write_table(work, NAMES_FILE, [name.encode() for name in names])
        manifest = joined_manifest(held, entries, table, RejectedList(rejected).write(work))
        manifests.write(work, manifest)
        output.publish()
    except OSError as error:
        raise WriteError(f"{output.path}: {error}") from None
    return manifest


def _taken(
    folders: Sequence[Path], held: Sequence[Manifest], work: Path, progress: Progress | None
) -> tuple[list[ShardEntry], list[Rejected]]:
    """Takes all shards over into `work`; returns them, and what had been left out of them."""
    entries: list[ShardEntry] = []
    rejected: list[Rejected] = []
    for folder, manifest in zip(folders, held, strict=True):
        rejected += [bad.moved(len(entries)) for bad in rejected_of(folder, manifest)]
        for entry in manifest.shards:
            entries.append(take_shard(folder, entry, shard_path(work, len(entries))))
            if progress:
                progress(entry.samples, entry.bytes)
    return entries, rejected


def _state(held: Sequence[Manifest]) -> State:
    digests = [[shard.digest for shard in manifest.shards] for manifest in held]
    settings = {"the version of packer": packer.__version__, "the shards to merge": digests}
    return State(shards=sum(map(len, digests)), settings=settings, files=[])
