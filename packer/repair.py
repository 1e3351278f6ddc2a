"""Makes the damaged parts of a packed dataset again: shards from the sources, names and manifest from the shards."""

from __future__ import annotations

import itertools
import os
import shutil
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from packer.against import check_same_schema, same_bits
from packer.errors import DamagedError, DatasetError, ManifestError, SourceError, UnfinishedError
from packer.finish import Made, write_manifest
from packer.format import manifest as manifests
from packer.format.manifest import NAMES_FILE, SHARD_FOLDER, Manifest, ShardEntry
from packer.format.shard import Shard
from packer.origin import Origin, parts
from packer.plan import ShardPlan, field_sizes, plan_shards
from packer.rebuild import rebuild_manifest
from packer.sources.base import Source
from packer.tasks import Progress, ShardTask, report_of, write_shard
from packer.verify import verify


@dataclass(frozen=True)
class RepairReport:
    """What was made again.

    Attributes:
        manifest: whether the manifest was rebuilt from the shards.
        names: whether the table of names was made again.
        shards: files of the shards that were packed again.
        changed: of those, the ones whose bytes differ from before, though every sample that could still be read is
            the same: another version of a codec's library.
    """

    manifest: bool
    names: bool
    shards: tuple[str, ...]
    changed: tuple[str, ...]


def repair(
    dataset: str | os.PathLike[str],
    source: Source | None = None,
    progress: Progress | None = None,
    checked: Progress | None = None,
    damaged: Callable[[Sequence[ShardEntry]], None] | None = None,
) -> RepairReport:
    """Repairs a packed dataset; nothing that is right is touched.

    Args:
        source: opened with the options of the conversion; needed where a shard is damaged.
        progress: called with the samples and raw bytes packed since the last call.
        checked: called with 0 and the bytes checked since the last call, before that.
        damaged: called once, with the shards to be packed again, where there are any.

    Raises:
        DatasetError: a shard is damaged and no source was given; or too much is lost.
        SourceError: the source no longer gives what was packed.
        UsageError: the source does not fit the dataset.
    """
    folder = Path(dataset)
    rebuilt = False
    try:
        manifest = manifests.read(folder)
    except (ManifestError, DatasetError) as error:
        if isinstance(error, UnfinishedError) or not (folder / SHARD_FOLDER).is_dir():
            raise
        manifest = rebuild_manifest(folder)
        rebuilt = True
    for partial in (folder / SHARD_FOLDER).glob("*.partial"):
        partial.unlink()
    report = verify(folder, checked)
    bad = [entry for entry in manifest.shards if entry.file in report.damaged_shards]
    if bad and source is None:
        raise DatasetError(f"{folder}: {bad[0].file} is damaged; name the sources it was made from")
    entries = {entry.file: entry for entry in manifest.shards}
    changed = []
    if source is not None and bad:
        check_same_schema(manifest, source)
        if damaged:
            damaged(bad)
        for entry, packed in _planned(manifest, source):
            if entry in bad:
                new = _pack_again(folder, manifest, entry, packed, progress)
                if new.digest != entry.digest:
                    changed.append(entry.file)
                entries[entry.file] = new
    names = manifest.names is not None and any(d.file == manifest.names.file for d in report.damages)
    if changed or names:
        _publish(folder, manifest, list(entries.values()))
    return RepairReport(rebuilt, names, tuple(entry.file for entry in bad), tuple(changed))


class _Packed(NamedTuple):
    """How a shard was packed: its plan, the samples and the origin, in the dataset it was packed for."""

    shard: ShardPlan
    source: Source
    origin: Origin


def _planned(manifest: Manifest, source: Source) -> Iterator[tuple[ShardEntry, _Packed]]:
    """Every shard with the plan of its conversion; the size of the map stands in its file, so it has to be the same.

    What was merged or appended was planned by itself, with numbers and an origin of its own.
    """
    shards = list(manifest.shards)
    start = 0
    found = parts(manifest.origin, manifest.samples) or [(manifest.samples, manifest.origin)]
    for number, (samples, origin) in enumerate(found, 1):
        ends = list(itertools.accumulate((entry.samples for entry in shards), initial=0))
        count = bisect_left(ends, samples) if number < len(found) else len(shards)
        entries, shards = shards[:count], shards[count:]
        edges = list(itertools.accumulate((entry.samples + entry.rejected for entry in entries), initial=0))
        part = source.part(start, start + edges[-1])
        for entry, shard in zip(
            entries, plan_shards(part, manifest.fields, field_sizes(part), edges[:-1], origin), strict=True
        ):
            yield entry, _Packed(shard, part.part(shard.start, shard.stop), origin)
        start += edges[-1]


def _pack_again(
    folder: Path, manifest: Manifest, entry: ShardEntry, packed: _Packed, progress: Progress | None
) -> ShardEntry:
    """Packs one shard beside the dataset, checks it against what is left of the old one, and puts it in its place."""
    work = folder / ".repair"
    (work / SHARD_FOLDER).mkdir(parents=True, exist_ok=True)
    try:
        task = ShardTask(
            source=packed.source,
            folder=work,
            number=packed.shard.number,
            fields=manifest.fields,
            map_size=packed.shard.map_size,
            origin=packed.origin,
            skip=entry.rejected > 0,
        )
        new = msgspec.structs.replace(write_shard(task, progress).entry, file=entry.file)
        if new.samples != entry.samples:
            raise SourceError(f"the source has {new.samples} samples for {entry.file}, {entry.samples} were packed")
        if new.digest != entry.digest:
            _check_samples(folder / entry.file, task.path, manifest, entry)
        task.path.replace(folder / entry.file)
        return new
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _check_samples(old: Path, new: Path, manifest: Manifest, entry: ShardEntry) -> None:
    """Raises SourceError where a sample that can still be read differs from the one packed again."""
    try:
        before = Shard(old)
    except DamagedError:
        return  # nothing is left to compare with
    with before, Shard(new) as after:
        for position, field in enumerate(manifest.fields):
            try:
                ours = before.column(position, field, entry.samples)
            except DamagedError:
                continue
            theirs = after.column(position, field, entry.samples)
            for frame in range(ours.index.frames):
                start, stop = ours.index.sample_range(frame)
                if field.frame.rows is None and ours.check_frame(frame):
                    pairs = zip(ours.read(start, stop), theirs.read(start, stop), strict=True)
                    if not all(same_bits(a, b) for a, b in pairs):
                        raise SourceError(
                            f"the source has changed: samples {start} to {stop - 1} of {entry.file} "
                            f"differ in field {field.name!r} from what was packed"
                        )


def _publish(folder: Path, manifest: Manifest, entries: Sequence[ShardEntry]) -> None:
    """Writes names and manifest anew for shards that have changed."""
    table = manifest.names.file if manifest.names else NAMES_FILE
    made = Made(manifest.fields, manifest.origin, manifest.names is not None, manifest.planned_bytes, table)
    reports = [report_of(folder / entry.file, manifest.fields) for entry in entries]
    kept = [msgspec.structs.replace(report, entry=entry) for report, entry in zip(reports, entries, strict=True)]
    new = write_manifest(folder, made, kept)
    if not isinstance(manifest.stats, msgspec.UnsetType):  # the samples are the same
        manifests.write(folder, msgspec.structs.replace(new, stats=manifest.stats))
