"""Adds samples to a packed dataset, as new shards.

append("div2k.packed", ["lr=more/LR", "hr=more/HR"])
append("rows.packed", "other.packed")

The new samples are packed beside the dataset first, into `.NAME.appending`; killed there, the same call goes on.
Then their shards are linked into the dataset, a table of all names is written under a new name, and one rename
puts the new manifest in place: before it the dataset is the old one, behind it the new one. The table of names
that the old manifest leads to stays until the next call, for readers that are open. `.NAME.appended` tells the same
call, killed while it tidied up, that all is done.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import filelock
import msgspec
import xxhash

from packer.convert import ConvertOptions, check_apart, convert, open_source
from packer.errors import UsageError, WriteError
from packer.finish import write_rejected, write_table
from packer.format import manifest as manifests
from packer.format.manifest import MANIFEST, SHARD_FOLDER, FileEntry, Manifest
from packer.format.shard_writer import sync_folder
from packer.joining import check_names, joined_manifest, moved, take_shard
from packer.output import LOCK, beside
from packer.sources.base import Source
from packer.sources.fitted import FittedSource
from packer.sources.packed.source import open_packed, read_names
from packer.sources.samples import SampleSource
from packer.tasks import Rejected, shard_path


@dataclass(frozen=True)
class AppendReport:
    """What appending made.

    Attributes:
        manifest: the dataset's new one.
        added: samples that are new.
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
    """Packs `sources` as the dataset's own samples are, behind them. Readers that are open go on with what they had.

    Args:
        sources: as for `convert`, or another packed dataset.
        options: as for `convert`; codecs are those of the dataset.
        changes: single options by name, over those in `options`.

    Raises:
        DatasetError: there is no packed dataset.
        UsageError: the sources do not fit it (the message names the difference), or share a name with it.
        SourceError, WriteError: as `convert`.
    """
    began = time.perf_counter()
    options = replace(options or ConvertOptions(), **changes)
    if options.codec != "auto" or options.overwrite or options.fields is not None:
        raise UsageError("codec, fields and overwrite have no meaning for append: samples are packed as the others are")
    folder = Path(dataset)
    held = manifests.read(folder)
    check_apart(sources, folder)
    rejected: list[Rejected] = []
    with _locked(folder):
        source = _open(sources, options, rejected, held)
        work, note = beside(folder, "appending"), beside(folder, "appended")
        joined, added = held, len(source)
        if not _is_done(note, held, source):
            note.unlink(missing_ok=True)
            check_names([(str(folder), read_names(folder, held)), ("the source", source.names)])
            if (work / MANIFEST).exists():
                shutil.rmtree(work)  # packed by an earlier call that was killed; its source may have changed since
            # Of another call that was killed nothing is kept: overwrite.
            rejected += moved(convert(source, work, options, overwrite=True).rejected, _next_number(held))
            joined = _take_in(folder, held, work, source, rejected)
            added = joined.samples - held.samples
        shutil.rmtree(work, ignore_errors=True)
        note.unlink(missing_ok=True)
    return AppendReport(folder, joined, added, tuple(rejected), time.perf_counter() - began)


class _Note(msgspec.Struct, frozen=True):
    """What was appended: the dataset's manifest behind it, and origin and number of the samples."""

    manifest: str
    origin: dict[str, Any]
    samples: int


def _open(sources: Any, options: ConvertOptions, rejected: list[Rejected], held: Manifest) -> Source:
    """The samples to add, with the fields of the dataset."""
    inputs = [sources] if isinstance(sources, (str, os.PathLike)) else sources
    source: Source
    if isinstance(inputs, (list, tuple)) and len(inputs) == 1 and _is_packed(inputs[0]):
        source = open_packed(inputs[0])
    else:
        # Samples in memory are looked at with the dataset's schema, not with one of their own.
        source = open_source(sources, replace(options, fields=held.fields), rejected)
    return source if isinstance(source, SampleSource) else FittedSource(source, held.fields)


def _is_packed(place: Any) -> bool:
    return isinstance(place, (str, os.PathLike)) and (Path(place) / MANIFEST).exists()


def _is_done(note: Path, held: Manifest, source: Source) -> bool:
    """Whether a call that was killed while it tidied up has put these samples into the dataset."""
    try:
        found = msgspec.json.decode(note.read_bytes(), type=_Note)
    except (OSError, msgspec.DecodeError):
        return False
    return found.manifest == _digest(held) and (found.origin, found.samples) == (_origin(source), len(source))


def _digest(manifest: Manifest) -> str:
    return xxhash.xxh3_128_hexdigest(manifests.encode(manifest))


def _origin(source: Source) -> dict[str, Any]:
    """What the manifest will say of a source, as it is read back."""
    origin: dict[str, Any] = msgspec.json.decode(msgspec.json.encode({"kind": source.kind, **source.provenance()}))
    return origin


def _take_in(folder: Path, held: Manifest, work: Path, source: Source, rejected: list[Rejected]) -> Manifest:
    """Links the shards of the dataset in `work` into the one in `folder`, and swaps the manifest.

    Raises:
        UsageError: the dataset was replaced in the meantime.
        WriteError: the folder cannot be written.
    """
    more = manifests.read(work)
    names = check_names([(str(folder), read_names(folder, held)), ("the source", read_names(work, more))])
    number = _next_number(held)
    _remove_shards(folder, number)
    entries = list(held.shards)
    for entry in more.shards:
        entries.append(take_shard(work, entry, shard_path(folder, number + len(entries) - len(held.shards))))
    try:
        sync_folder(folder / SHARD_FOLDER)
        table = None
        if names is not None:
            table = write_table(folder, f"names-{number:05d}.lmdb", [name.encode() for name in names])
        joined = joined_manifest([held, more], entries, table)
        if manifests.read(folder) != held:
            raise UsageError(f"{folder} was changed while samples were packed for it; append again")
        if rejected:
            write_rejected(folder, rejected, "ab")
        note = _Note(_digest(joined), _origin(source), len(source))
        beside(folder, "appended").write_bytes(msgspec.json.encode(note))
        manifests.write(folder, joined)
        sync_folder(folder)
        _remove_tables(folder, held.names, joined.names)
    except OSError as error:
        raise WriteError(f"{folder}: {error}") from None
    return joined


def _next_number(held: Manifest) -> int:
    """A number that no shard of the dataset has, and no table of names that a reader may have open."""
    found = [re.fullmatch(r"(\d+)\.lmdb", Path(entry.file).name) for entry in held.shards]
    return max([len(held.shards), *(int(match[1]) + 1 for match in found if match)])


def _remove_shards(folder: Path, number: int) -> None:
    """Removes the shards from `number` on, which a call that was killed has linked and nobody published.

    Raises:
        WriteError: they cannot be removed.
    """
    for path in (folder / SHARD_FOLDER).glob("*.lmdb"):
        if path.stem.isdecimal() and int(path.stem) >= number:
            try:
                path.unlink()
            except OSError as error:
                raise WriteError(f"{path}: cannot be removed: {error.strerror}") from None


def _remove_tables(folder: Path, *kept: FileEntry | None) -> None:
    """Removes tables of names that earlier calls left for their readers."""
    names = {entry.file for entry in kept if entry}
    for path in folder.glob("names*.lmdb"):
        if path.name not in names:
            path.unlink()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keeps a second call for the same dataset out.

    Raises:
        UsageError: there is one already.
        WriteError: the folder cannot be written.
    """
    lock = filelock.FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        raise UsageError(f"something is being appended to {folder} already; wait for it") from None
    except OSError as error:
        raise WriteError(f"{folder}: cannot be written: {error.strerror}") from None
    try:
        yield
    finally:
        (folder / LOCK).unlink(missing_ok=True)  # while it is held: later it could be another call's
        lock.release()
