"""Adds samples to a packed dataset, as new shards.

append("div2k.packed", ["lr=more/LR", "hr=more/HR"])
append("rows.packed", "other.packed")

The new samples are packed next to the dataset first, into `.NAME.appending`; after a kill the same call goes on there.
Then their shards are linked into the dataset, a table of all names is written under a new name, and samples that were
left out are added to the list. One rename puts the new manifest in place: before it the dataset is the old one, after
it the new one. The old table of names stays until the next call, for readers that are open.

Before that rename, a note in `.NAME.appending` says which shards the dataset will have. If the dataset has them, the
append is done, so a run after a kill adds nothing twice. At last one rename takes the folder and its note away.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from packer.convert import ConvertOptions, check_apart, open_source, packing
from packer.errors import UsageError
from packer.format import (
    MANIFEST,
    SHARD_FOLDER,
    Manifest,
    ShardEntry,
    clear_errors,
    constants_entry,
    read_errors,
    sync_folder,
    write_synced,
)
from packer.format import manifest as manifests
from packer.merge import check_classes, check_constants, check_names, take_shards, write_joined
from packer.packing import (
    APPENDED,
    Rejected,
    classes_of,
    dataset_lock,
    next_to,
    origin_of,
    rejected_of,
)
from packer.sources import FittedSource, SampleSource, Source, no_progress, open_packed, read_names


@dataclass(frozen=True)
class AppendReport:
    """The result of appending.

    Attributes:
        manifest: the new manifest of the dataset.
        added: number of new samples.
        rejected: samples that were left out.
    """

    path: Path
    manifest: Manifest
    added: int
    rejected: tuple[Rejected, ...]
    seconds: float


def append(
    dataset: str | os.PathLike[str], sources: Any, options: ConvertOptions | None = None, **changes: Any
) -> AppendReport:
    """Pack `sources` like the samples of the dataset, and add them at its end. Open readers keep what they opened.

    Args:
        sources: as for `convert`, or another packed dataset.
        options: as for `convert`; codecs are those of the dataset.
        changes: single options by name, over those in `options`.

    Raises:
        DatasetError: there is no packed dataset, or its list of what was left out is damaged.
        UsageError: the sources do not fit it (the message names the difference) or share a name with it, or something
            else is changing it.
        SourceError, WriteError, ResourceError: as `convert`.
    """
    began = time.perf_counter()
    options = replace(options or ConvertOptions(), **changes)
    if options.codec != "auto" or options.overwrite or options.fields is not None:
        raise UsageError("append takes no codec, fields or overwrite: new samples are packed like those that are there")
    folder, work = Path(dataset), next_to(Path(dataset), "appending")
    rejected: list[Rejected] = []
    with dataset_lock(folder, manifests.read) as held:
        check_apart(sources, folder)
        if (done := next_to(folder, "appended")).exists():  # a call was killed at its very end
            shutil.rmtree(done, ignore_errors=True)
        source = _open(sources, options, rejected, held)
        left_out = rejected_of(folder, held)
        if not _is_taken_in(held, work):
            _check_names(folder, held, source.names)  # before anything is packed
        # Overwrite: what a killed call with other sources left is begun anew.
        with packing(source, work, replace(options, overwrite=True)) as (_, report):
            joined = held
            if not _is_taken_in(held, work, report.manifest):
                rejected += [bad.moved(_next_number(held)) for bad in report.rejected]
                joined = _take_in(folder, held, work, report.manifest, [*left_out, *rejected])
            _tidy(folder, work)
    return AppendReport(folder, joined, report.samples, tuple(rejected), time.perf_counter() - began)


def _open(sources: Any, options: ConvertOptions, rejected: list[Rejected], held: Manifest) -> Source:
    """Return the samples to add, with the fields of the dataset."""
    inputs = [sources] if isinstance(sources, (str, os.PathLike)) else sources
    source: Source
    place = inputs[0] if isinstance(inputs, (list, tuple)) and len(inputs) == 1 else None
    if isinstance(place, (str, os.PathLike)) and (Path(place) / MANIFEST).exists():
        source = open_packed(place)
    else:
        # Samples in memory are looked at with the dataset's schema, not with one of their own.
        source = open_source(sources, replace(options, fields=held.fields), rejected)
    if isinstance(source, SampleSource):
        return source  # which has no classes and constants of its own
    fitted = FittedSource(source, held.fields)
    check_classes(held.classes, classes_of(origin_of(source), len(source)), "the source")
    check_constants(held.constants, constants_entry(source.constants), "the source")
    return fitted


def _is_taken_in(held: Manifest, work: Path, more: Manifest | None = None) -> bool:
    """Return whether a killed call has put its shards into the dataset, by its note in `work`.

    Args:
        more: the samples packed in `work` now; they must be those of the killed call. Packing other files has removed
            the note; samples in memory are compared by the digests of their shards.
    """
    path = work / APPENDED
    if not path.exists():
        return False
    with read_errors(path):
        is_done = path.read_bytes() == _digest(held.shards)
    digests = [entry.digest for entry in more.shards] if more else []
    return is_done and digests == [entry.digest for entry in held.shards[len(held.shards) - len(digests) :]]


def _digest(shards: Sequence[ShardEntry]) -> bytes:
    """Return the digest of all shards of a dataset, for the note."""
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode(shards)).encode()


def _check_names(folder: Path, held: Manifest, names: Sequence[str] | None) -> None:
    check_names([(str(folder), read_names(folder, held)), ("the source", names)])


def _take_in(folder: Path, held: Manifest, work: Path, more: Manifest, left_out: Sequence[Rejected]) -> Manifest:
    """Link the shards in `work` into the dataset, and swap its manifest; return the new one.

    Raises:
        UsageError: the dataset was replaced in the meantime.
        WriteError: the folder cannot be written.
    """
    _check_names(folder, held, read_names(work, more))
    if manifests.read(folder) != held:  # some network file systems know no locks
        raise UsageError(f"{folder} was changed while samples were packed for it; append again")
    number = _next_number(held)
    _remove(path for path in (folder / SHARD_FOLDER).glob("*.lmdb") if _number(path) >= number)
    entries = [*held.shards, *take_shards(work, more.shards, folder, number, no_progress)]
    write_synced(work / APPENDED, _digest(entries))
    sync_folder(work)
    joined = write_joined(folder, [held, more], entries, f"names-{number:05d}.lmdb", left_out)
    manifests.write(folder, joined)
    in_use = {entry.file for entry in (held.names, joined.names) if entry}
    _remove(path for path in folder.glob("names*.lmdb") if path.name not in in_use)
    return joined


def _number(path: Path) -> int:
    """Return the number in the name of a shard; -1 if there is none."""
    return int(path.stem) if re.fullmatch(r"\d+", path.stem) else -1


def _next_number(held: Manifest) -> int:
    """Return a number that neither a shard nor a table of names has: readers may have the old table open."""
    return max([len(held.shards), *(_number(Path(entry.file)) + 1 for entry in held.shards)])


def _remove(paths: Iterable[Path]) -> None:
    """Remove files that were never published, or are no longer needed.

    Raises:
        WriteError: a file cannot be removed.
    """
    for path in paths:
        with clear_errors(path):
            path.unlink()


def _tidy(folder: Path, work: Path) -> None:
    """Remove the folder of an append: first its shards, which are large, then the rest, moved away by one rename."""
    done = next_to(folder, "appended")
    with contextlib.suppress(OSError):
        shutil.rmtree(work / SHARD_FOLDER, ignore_errors=True)  # a call that was killed may have removed it
        work.rename(done)
        sync_folder(work.parent)  # or a later append of the same samples would find the note, and add nothing
        shutil.rmtree(done)
