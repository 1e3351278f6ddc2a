"""Repairs a packed dataset: packs damaged shards again from the sources, makes names and manifest from the shards."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from packer.checking.against import check_same_schema, differing_samples
from packer.checking.rebuild import rebuild_manifest
from packer.errors import DamagedError, DatasetError, ManifestError, SourceError
from packer.format import manifest as manifests
from packer.format.column import Column
from packer.format.constants import constants_entry, write_constants
from packer.format.manifest import (
    CONSTANTS_FILE,
    MANIFEST,
    SHARD_FOLDER,
    FileEntry,
    Manifest,
    ShardEntry,
)
from packer.format.shard import Shard
from packer.packing.finish import make_manifest
from packer.packing.origin import given_by, origin_of, packed_names
from packer.packing.output import dataset_lock, known_lines, next_to, write_list
from packer.packing.plan import field_sizes, look, plan_shards
from packer.packing.tasks import ShardTask, report_of, run_processes, write_shard
from packer.sources.base import Progress, Source, no_progress
from packer.verify import verify
from packer.workers import Limits


@dataclass(frozen=True)
class RepairReport:
    """What was made again.

    Attributes:
        manifest: whether the manifest was rebuilt from the shards, or what it says of their bytes.
        names: whether the table of names was made again.
        shards: files of the shards that were packed again.
        changed: of those, the ones whose bytes differ from before, though every sample that could still be read is
            the same: another version of a codec's library.
        left_out: lines of the list of what was left out, if it was cut back or dropped; the shards in the manifest
            tell how many there were.
        constants: whether what is kept once for all samples was read from the sources again.
    """

    manifest: bool
    names: bool
    shards: tuple[str, ...]
    changed: tuple[str, ...]
    left_out: int | None = None
    constants: bool = False


def repair(
    dataset: str | os.PathLike[str],
    source: Source | None = None,
    progress: Progress | None = None,
    checked: Progress | None = None,
    damaged: Callable[[Sequence[ShardEntry]], None] | None = None,
    workers: int = 0,
) -> RepairReport:
    """Repair a packed dataset; nothing that is right is touched.

    Args:
        source: opened with the options of the conversion; needed if a shard is damaged. Of a dataset that was
            merged or appended to, the source of one of its parts, or of all in their order.
        progress: called with the samples and raw bytes packed since the last call.
        checked: called with 0 and the bytes checked since the last call, before that.
        damaged: called once, with the shards to be packed again, if there are any.
        workers: processes that check shards, see `verify`; if there are any, shards are packed in one too, so that
            a sample that crashes it is treated as the conversion did.

    Raises:
        DatasetError: a shard is damaged and no source was given; or too much is lost.
        SourceError: the source no longer gives what was packed, or nothing is left to tell.
        UsageError: the source does not fit the dataset, or something else is changing that.
        WriteError: the folder cannot be written.
    """
    folder = Path(dataset)
    with dataset_lock(folder, _known) as known, _work_folder(folder) as work:
        manifest = known or rebuild_manifest(folder)
        for half in (folder / SHARD_FOLDER).glob("*.partial"):
            half.unlink()
        report = verify(folder, checked, workers)
        wrong = {damage.file for damage in report.damages}
        bad = [entry for entry in manifest.shards if entry.file in wrong]
        from_sources = [entry.file for entry in (*bad, manifest.constants) if entry and entry.file in wrong]
        if source is None and from_sources:
            raise DatasetError(f"{folder}: {from_sources[0]} is damaged; name the sources it was made from")
        constants = None if source is None else _constants_anew(folder, manifest, source, wrong)
        again: dict[ShardEntry, ShardEntry] = {}
        if source is not None and bad:
            check_same_schema(manifest, source)
            if damaged:
                damaged(bad)
            again = _pack_again(folder, work, manifest, source, bad, progress or no_progress, workers > 0)
        left_out = None
        if manifest.left_out is not None and manifest.left_out.file in wrong:
            listed, left_out = _list_anew(folder, manifest)
            manifest = msgspec.structs.replace(manifest, left_out=listed)
        if constants:
            manifest = msgspec.structs.replace(manifest, constants=constants)
        changed = tuple(entry.file for entry, new in again.items() if new.digest != entry.digest)
        names = manifest.names is not None and manifest.names.file in wrong
        totals = MANIFEST in wrong
        if changed or names or totals or constants or left_out is not None:
            entries = [again.get(entry, entry) for entry in manifest.shards]
            _publish(folder, manifest, entries, keeps_stats=not totals)
    shards = tuple(entry.file for entry in bad)
    return RepairReport(known is None or totals, names, shards, changed, left_out, constants is not None)


def _known(folder: Path) -> Manifest | None:
    """Return the manifest of a dataset; None if it is wrong or lost, and there may be shards to make it from."""
    try:
        return manifests.read(folder)
    except ManifestError:
        if not (folder / SHARD_FOLDER).is_dir():
            raise
        return None


@contextlib.contextmanager
def _work_folder(folder: Path) -> Iterator[Path]:
    """Return an empty folder next to the dataset, for what is made again; it goes afterwards."""
    work = next_to(folder, "repairing")
    shutil.rmtree(work, ignore_errors=True)  # of a repair that was killed
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _list_anew(folder: Path, manifest: Manifest) -> tuple[FileEntry | None, int]:
    """Cut the list of what was left out back to what the manifest speaks of; one that is damaged goes.

    Returns:
        what the manifest is to say of it, and its number of lines.
    """
    try:
        kept = known_lines(folder, manifest)
    except DamagedError:
        kept = b""
    return write_list(folder, kept), kept.count(b"\n")


def _constants_anew(folder: Path, manifest: Manifest, source: Source, wrong: Collection[str]) -> FileEntry | None:
    """Write what is kept once for all samples again, if it was lost; return what the manifest is to say of it.

    Args:
        wrong: the files that are damaged.

    Raises:
        SourceError: the source has other constants.
    """
    if manifest.constants is None:
        # They may have been lost together with the manifest, which was made again without them.
        is_lost = bool(source.constants) and origin_of(source) == manifest.origin
    else:
        is_lost = manifest.constants.file in wrong
        if is_lost and constants_entry(source.constants) != manifest.constants:
            raise SourceError(
                f"the source has other constants than were packed in {CONSTANTS_FILE}; give the sources as they were"
            )
    return write_constants(folder, source.constants) if is_lost else None


def _tasks(
    folder: Path, work: Path, manifest: Manifest, source: Source, limits: Limits | None
) -> dict[ShardEntry, tuple[ShardTask, int]]:
    """Return how the shards that a source is of are packed, and the number in the dataset of each one's first sample.

    They are planned as they were, for the size of the map stands in a shard's file.
    """
    found = {}
    for conversion, samples in given_by(folder, manifest, source):
        starts = conversion.edges()[:-1]
        sizes = field_sizes(samples, partial(look, samples, limits))
        plan = plan_shards(samples, manifest.fields, sizes, starts, conversion.origin)
        for (entry, part, first), shard in zip(conversion.parts(samples), plan, strict=True):
            task = ShardTask(
                source=part,
                folder=work,
                shard=shard,
                fields=manifest.fields,
                origin=conversion.origin,
                skip=entry.rejected > 0,
            )
            found[entry] = task, first
    return found


def _pack_again(
    folder: Path,
    work: Path,
    manifest: Manifest,
    source: Source,
    bad: Sequence[ShardEntry],
    progress: Progress,
    guarded: bool,
) -> dict[ShardEntry, ShardEntry]:
    """Pack shards next to the dataset, check each against what is left of the old one, and put it in its place.

    Args:
        guarded: whether they are packed in another process.

    Returns:
        the entry of each as it is now, by the one it had.
    """
    tasks = _tasks(folder, work, manifest, source, Limits() if guarded else None)
    if lacking := [entry for entry in bad if entry not in tasks]:
        raise DatasetError(f"{folder}: {lacking[0].file} is damaged too; give the sources it was made from as well")
    (work / SHARD_FOLDER).mkdir(parents=True)
    again = {}
    for entry in bad:
        task, first = tasks[entry]
        (report,) = run_processes([task], 1, progress) if guarded else [write_shard(task, progress)]
        new = msgspec.structs.replace(report.entry, file=entry.file)
        if new.samples != entry.samples:
            raise SourceError(f"the source has {new.samples} samples for {entry.file}, {entry.samples} were packed")
        if new.digest != entry.digest:
            _check_same(folder, task.path, manifest, entry, first)
        task.path.replace(folder / entry.file)
        again[entry] = new
    return again


def _check_same(folder: Path, new: Path, manifest: Manifest, entry: ShardEntry, first: int) -> None:
    """Compare what can still be read of a shard with the one packed again, whose file is another.

    Args:
        first: number in the dataset of its first sample.

    Raises:
        SourceError: a name or a sample differs, or nothing is left to compare.
    """
    with Shard(new) as after:
        if manifest.names is not None:
            names = packed_names(folder, manifest, entry, first)
            if names is None:
                raise _unsure(entry, "the names of its samples")
            for ours, name in zip(names, after.names(entry.samples), strict=True):
                if ours != name.decode():
                    raise SourceError(
                        f"the source has changed: {name.decode()!r} is where {ours!r} of {entry.file} was packed"
                    )
        try:
            before = Shard(folder / entry.file)
        except DamagedError:
            raise _unsure(entry, "it") from None
        with before:
            for position, field in enumerate(manifest.fields):
                try:
                    column = before.column(position, field, entry.samples)
                except DamagedError:
                    raise _unsure(entry, f"field {field.name!r}") from None
                _check_column(column, after.column(position, field, entry.samples), entry)


def _check_column(before: Column, after: Column, entry: ShardEntry) -> None:
    """Compare the samples of a field whose frames are as they were written; raise SourceError if there is none left."""
    field, compared = before.field, 0
    together = field.frame.samples or 1
    for start in range(0, entry.samples, together):
        stop = min(start + together, entry.samples)
        try:
            if before.is_wrong(before.frames(np.array([start]))).any():
                continue
        except DamagedError:
            continue
        if len(differing_samples(before, start, after.read(start, stop))):
            raise SourceError(
                f"the source has changed: samples {start} to {stop - 1} of {entry.file} "
                f"differ in field {field.name!r} from what was packed"
            )
        compared += stop - start
    if not compared:
        raise _unsure(entry, f"field {field.name!r}")


def _unsure(entry: ShardEntry, what: str) -> SourceError:
    return SourceError(
        f"what the sources give for {entry.file} has other bytes than were packed, and nothing is left of {what} to "
        "compare it with: a source, or the library of a codec, has changed; give the sources as they were, or "
        "convert them anew"
    )


def _publish(folder: Path, manifest: Manifest, entries: Sequence[ShardEntry], keeps_stats: bool) -> None:
    """Write names and manifest anew for shards that have changed.

    Args:
        keeps_stats: whether the statistics are those of the samples, which are the same.
    """
    made = make_manifest(
        folder,
        entries,
        [report_of(folder / entry.file, manifest.fields).columns for entry in entries],
        manifest.fields,
        manifest.origin,
        manifest.names.file if manifest.names else None,
        planned_bytes=manifest.planned_bytes,
        left_out=manifest.left_out,
        splits=manifest.splits,
        constants=manifest.constants,
        stats=manifest.stats if keeps_stats else {},
    )
    manifests.write(folder, made)
