"""Repairs a packed dataset: packs damaged shards again from the sources, and takes a damaged manifest from its copy.

A file that is made again gets a new name, and one rename of the manifest puts all of them in place. Open readers keep
the files that they opened.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from packer.checking import check_same_schema
from packer.errors import DamagedError, DatasetError, ManifestError, SourceError, UnfinishedError
from packer.format import (
    MANIFEST,
    MANIFEST_COPY,
    Manifest,
    ShardEntry,
    ShardNames,
    encode_constants,
    same_constants,
)
from packer.format import manifest as manifests
from packer.packing import (
    Change,
    LocalPlace,
    Note,
    Rejected,
    ShardReport,
    ShardTask,
    SourceFiles,
    changing,
    field_sizes,
    make_report,
    matching_parts,
    plan_shards,
    read_examples,
    read_rejected,
    run_tasks,
    totals,
)
from packer.sources import Source
from packer.verify import verify
from packer.watcher import NOBODY, PACKING, Watcher
from packer.workers import Limits

_log = logging.getLogger(__name__)


def repair(
    dataset: str | os.PathLike[str],
    source: Source | None = None,
    watcher: Watcher = NOBODY,
    workers: int = 0,
) -> tuple[str, ...]:
    """Repair a packed dataset; files without damage are not touched.

    Args:
        source: opened with the options of the conversion; needed if a shard or the constants are damaged. For a dataset
            that was merged or appended to: the source of one part, or of all parts in their order.
        watcher: its steps are `checking`, in bytes, and `packing`, in samples.
        workers: processes that check shards, see `verify`. If there are any, shards are packed in a process too, so
            that a sample that crashes it is treated as in the conversion.

    Returns:
        the files that were made again. A warning says what is lost.

    Raises:
        DatasetError: a shard or the constants are damaged and no source was given; or too much is lost.
        SourceError: the source no longer has the values that were packed.
        UsageError: the source does not fit the dataset, or something else is changing the dataset.
        WriteError: the folder cannot be written.
    """
    folder = Path(dataset)
    place = LocalPlace(folder)
    _read_manifest(folder)
    with changing(place) as change:
        manifest, files_made = _read_manifest(folder)
        if files_made:
            change.publish(manifest)
        damaged_files = {damage.file for damage in verify(folder, watcher, workers).damages}
        bad_shards = [entry for entry in manifest.shards if entry.file in damaged_files]
        is_constants_bad = manifest.constants is not None and manifest.constants.file in damaged_files
        if source is None and (bad_shards or is_constants_bad):
            file = bad_shards[0].file if bad_shards else manifest.constants and manifest.constants.file
            raise DatasetError(f"{folder}: {file} is damaged; name the sources it was made from")
        files = [entry.file for entry in (*manifest.tables, manifest.left_out, *bad_shards) if entry]
        files = [file for file in (MANIFEST, *files) if file in damaged_files]
        if not files:
            change.tidy()
            return files_made
        data = b"" if source is None else encode_constants(source.constants)
        if source is not None and is_constants_bad and not same_constants(manifest.constants, data):
            raise SourceError("the source has other constants than were packed; give it as it was")
        if source is not None and bad_shards:
            check_same_schema(manifest, source)
        settings = {"the command": "repair", "the damaged files": files}
        change.begin(Note(shards=len(bad_shards), settings=settings, files=SourceFiles(len(files), "damaged")))
        changes: dict[str, Any] = {}
        if is_constants_bad:
            changes["constants"] = change.write_constants(data)
        if source is not None and bad_shards:
            _log.info("%s damaged; packing again", "1 shard" if len(bad_shards) == 1 else f"{len(bad_shards):,} shards")
            watcher.step(PACKING, 0, sum(entry.samples for entry in bad_shards))
            repaired = _pack_again(change, manifest, source, bad_shards, watcher, workers > 0)
            changes["shards"] = tuple(repaired.get(entry, entry) for entry in manifest.shards)
        shards = changes.get("shards", manifest.shards)
        if manifest.left_out is not None and manifest.left_out.file in damaged_files:
            rejected: list[Rejected] = []
            with contextlib.suppress(DamagedError):  # a file that is only too long is cut back to the lines that count
                rejected = read_rejected(folder, manifest)
            outcome = f"cut back to its {len(rejected):,} lines" if rejected else "lost"
            _log.warning("%s is %s; `packer info` says how many samples were skipped", manifest.left_out.file, outcome)
            changes["left_out"] = change.write_list(rejected)
        if any(table.file in damaged_files for table in manifest.name_tables):
            changes["more_names"] = ()
            changes["names"] = change.write_names(ShardNames(folder, shards))
        if MANIFEST in damaged_files:
            reports = [make_report(folder / entry.file, manifest.fields, entry.file) for entry in shards]
            changes |= {"columns": totals([report.columns for report in reports]), "stats": {}}
            _log.warning("statistics that %s may have kept are gone; `packer stats --save` makes them again", MANIFEST)
        change.publish(msgspec.structs.replace(manifest, **changes))
        change.tidy()
    return (*files_made, *files)


def _read_manifest(folder: Path) -> tuple[Manifest, tuple[str, ...]]:
    """Return the manifest, or its copy, and which of the two are damaged.

    Raises:
        DatasetError: there is no dataset, or neither can be read.
    """
    copy = folder / MANIFEST_COPY
    try:
        manifest = manifests.read(folder)
    except UnfinishedError:
        raise
    except ManifestError as error:
        if not copy.exists():
            raise ManifestError(f"{error}, but there is none; convert the sources again") from None
        try:
            return manifests.read(folder, MANIFEST_COPY), (MANIFEST,)
        except ManifestError:
            raise ManifestError(
                f"{folder}: {MANIFEST} and its copy are both damaged; convert the sources again"
            ) from None
    if copy.exists():
        try:
            manifests.read(folder, MANIFEST_COPY)
        except ManifestError:
            return manifest, (MANIFEST_COPY,)
    return manifest, ()


def _pack_again(
    change: Change,
    manifest: Manifest,
    source: Source,
    bad_shards: Sequence[ShardEntry],
    watcher: Watcher,
    guarded: bool,
) -> dict[ShardEntry, ShardEntry]:
    """Pack shards again; return the new entry of each. They must have the digests that the manifest says.

    Args:
        guarded: whether they are packed in another process.
    """
    limits = Limits() if guarded else None
    numbers = {entry: number for number, entry in enumerate(manifest.shards)}
    tasks = {}
    for conversion, samples in matching_parts(change.place.local([]), manifest, source):
        if {"joined", "dropped"} & conversion.origin.keys():
            raise DatasetError(
                f"{change.place}: {bad_shards[0].file} cannot be made again, since fields were joined or dropped after "
                "its samples were packed; convert the sources of all fields again"
            )
        # Planned again, since a shard holds its map size.
        sizes = field_sizes(samples, partial(read_examples, samples, limits))
        plan = plan_shards(samples, manifest.fields, sizes, conversion.edges()[:-1], conversion.origin)
        for (entry, part, _), shard in zip(conversion.parts(samples), plan, strict=True):
            settings = manifest.fields, conversion.origin, entry.rejected > 0
            tasks[entry] = ShardTask(part, change.place, change.run, shard, *settings, number=numbers[entry])
    if missing := [entry for entry in bad_shards if entry not in tasks]:
        words = ("is damaged too", "those as well") if tasks else ("is damaged", "those")
        raise DatasetError(
            f"{change.place}: {missing[0].file} {words[0]}, and was made from other sources; give {words[1]}"
        )
    finished = change.reports(ShardReport)
    repaired = {}
    for entry in bad_shards:
        report = finished.get(numbers[entry])
        if report is None or report.entry.digest != entry.digest:
            (report,) = run_tasks([tasks[entry]], watcher, int(guarded), limits)
        if report.entry.digest != entry.digest:
            raise SourceError(
                f"the sources do not give the bytes that were packed into {entry.file}: a source has changed, or the "
                "library of a codec; give the sources as they were, or convert them again"
            )
        repaired[entry] = msgspec.structs.replace(entry, file=report.entry.file)
    return repaired
