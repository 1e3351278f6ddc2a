"""Repairs a packed dataset: packs damaged shards again from the sources, makes names and manifest from the shards."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from packer.checking import check_same_schema, rebuild_manifest
from packer.errors import DamagedError, DatasetError, ManifestError, SourceError
from packer.format import (
    CONSTANTS_FILE,
    MANIFEST,
    REJECTED_FILE,
    SHARD_FOLDER,
    Manifest,
    ShardEntry,
    clear_errors,
    constants_entry,
    make_folder,
    sync_folder,
    write_constants,
)
from packer.format import manifest as manifests
from packer.packing import (
    Rejected,
    ShardTask,
    dataset_lock,
    field_sizes,
    given_by,
    look,
    next_to,
    plan_shards,
    rejected_of,
    report_of,
    run_tasks,
    totals,
    write_list,
    write_table,
)
from packer.sources import Progress, Source, no_progress
from packer.verify import verify
from packer.workers import Limits

_log = logging.getLogger(__name__)


def repair(
    dataset: str | os.PathLike[str],
    source: Source | None = None,
    progress: Progress | None = None,
    checked: Progress | None = None,
    damaged: Callable[[Sequence[ShardEntry]], None] | None = None,
    workers: int = 0,
) -> tuple[str, ...]:
    """Repair a packed dataset; files without damage are not touched.

    Args:
        source: opened with the options of the conversion; needed if a shard or the constants are damaged. For a dataset
            that was merged or appended to: the source of one part, or of all parts in their order.
        progress: called with the samples and raw bytes packed since the last call.
        checked: called before that, with 0 and the bytes checked since the last call.
        damaged: called once, with the shards to be packed again, if there are any.
        workers: processes that check shards, see `verify`. If there are any, shards are packed in a process too, so
            that a sample that crashes it is treated as in the conversion.

    Returns:
        the files that were made again; a warning says what is lost.

    Raises:
        DatasetError: a shard or the constants are damaged and no source was given; or too much is lost.
        SourceError: the source no longer gives the bytes that were packed.
        UsageError: the source does not fit the dataset, or something else is changing the dataset.
        WriteError: the folder cannot be written.
    """
    folder = Path(dataset)
    work = next_to(folder, "repairing")
    with dataset_lock(folder, _known) as known, contextlib.ExitStack() as after:
        after.callback(shutil.rmtree, work, ignore_errors=True)
        manifest = known or rebuild_manifest(folder)
        for half in (folder / SHARD_FOLDER).glob("*.partial"):
            with clear_errors(half):
                half.unlink()
        wrong = {damage.file for damage in verify(folder, checked, workers).damages}
        bad = [entry for entry in manifest.shards if entry.file in wrong]
        constants = manifest.constants is not None and manifest.constants.file in wrong
        if source is None and (bad or constants):
            file = bad[0].file if bad else CONSTANTS_FILE
            raise DatasetError(f"{folder}: {file} is damaged; name the sources it was made from")
        if source is not None and constants:
            if constants_entry(source.constants) != manifest.constants:
                raise SourceError(
                    f"the source has other constants than were packed in {CONSTANTS_FILE}; give it as it was"
                )
            write_constants(folder, source.constants)
        if source is not None and bad:
            check_same_schema(manifest, source)
            if damaged:
                damaged(bad)
            _pack_again(folder, work, manifest, source, bad, progress or no_progress, workers > 0)
        tables = [entry for entry in (manifest.names, manifest.constants, manifest.left_out) if entry]
        made = [MANIFEST] if known is None or MANIFEST in wrong else []
        made += [entry.file for entry in (*tables, *bad) if entry.file in wrong]
        if MANIFEST in made:
            _log.warning(
                "statistics and splits that %s may have kept are gone; `packer stats --save` and `packer split` make "
                "them again",
                MANIFEST,
            )
        changes: dict[str, Any] = {}
        if REJECTED_FILE in made:
            listed: list[Rejected] = []
            with contextlib.suppress(DamagedError):  # a file that is only too long is cut back to the lines that count
                listed = rejected_of(folder, manifest)
            kept = f"cut back to its {len(listed):,} lines" if listed else "lost"
            _log.warning("%s is %s; `packer info` says how many samples were left out", REJECTED_FILE, kept)
            changes["left_out"] = write_list(folder / REJECTED_FILE, listed)
        if manifest.names is not None and manifest.names.file in wrong:
            changes["names"] = write_table(folder, manifest.names.file, manifest.shards)
        if MANIFEST in wrong:
            held = [report_of(folder / entry.file, manifest.fields).columns for entry in manifest.shards]
            changes |= {"columns": totals(held), "stats": {}}
        if changes:
            manifests.write(folder, msgspec.structs.replace(manifest, **changes))
    return tuple(made)


def _known(folder: Path) -> Manifest | None:
    """Return the manifest; None if it is wrong or lost, but there is a folder of shards to make it from."""
    try:
        return manifests.read(folder)
    except ManifestError:
        if not (folder / SHARD_FOLDER).is_dir():
            raise
        return None


def _pack_again(
    folder: Path,
    work: Path,
    manifest: Manifest,
    source: Source,
    bad: Sequence[ShardEntry],
    progress: Progress,
    guarded: bool,
) -> None:
    """Pack shards next to the dataset, and put each in its place if it has the digest that the manifest says.

    Args:
        guarded: whether they are packed in another process.
    """
    limits = Limits() if guarded else None
    tasks = {}
    for conversion, samples in given_by(folder, manifest, source):
        # Planned again, since a shard holds its map size.
        sizes = field_sizes(samples, partial(look, samples, limits))
        plan = plan_shards(samples, manifest.fields, sizes, conversion.edges()[:-1], conversion.origin)
        for (entry, part, _), shard in zip(conversion.parts(samples), plan, strict=True):
            tasks[entry] = ShardTask(part, work, shard, manifest.fields, conversion.origin, skip=entry.rejected > 0)
    if lacking := [entry for entry in bad if entry not in tasks]:
        raise DatasetError(f"{folder}: {lacking[0].file} is damaged too; give the sources it was made from as well")
    make_folder(work / SHARD_FOLDER)
    for entry in bad:
        task = tasks[entry]
        (report,) = run_tasks([task], progress, int(guarded), limits)
        if report.entry.digest != entry.digest:
            raise SourceError(
                f"the sources do not give the bytes that were packed into {entry.file}: a source has changed, or the "
                "library of a codec; give the sources as they were, or convert them anew"
            )
        with clear_errors(folder / entry.file):
            task.path.replace(folder / entry.file)
    sync_folder(folder / SHARD_FOLDER)
