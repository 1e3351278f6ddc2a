"""Adds samples to a packed dataset, as new shards.

append("div2k.packed", ["lr=more/LR", "hr=more/HR"])
append("rows.packed", "other.packed")

The new samples are packed next to the dataset first, into `.NAME.appending`; killed there, the same call goes on.
Then their shards are linked into the dataset, a table of all names is written under a new name, what was left out is
listed after what is listed already, and one rename puts the new manifest in place: before it the dataset is the old
one, after it the new one. The table of names that the old manifest leads to stays until the next call, for readers
that are open. `.NAME.appended` tells the same call, killed while it tidied up, that all is done.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from packer.convert import ConvertOptions, check_apart, convert, open_source
from packer.errors import UsageError, WriteError
from packer.format import manifest as manifests
from packer.format.manifest import MANIFEST, REJECTED_FILE, SHARD_FOLDER, FileEntry, Manifest
from packer.format.sync import sync_folder, write_synced
from packer.packing.finish import check_classes, check_constants, check_names, joined_manifest, take_shard, write_table
from packer.packing.origin import classes_of, origin_of
from packer.packing.output import beside, dataset_lock, listed
from packer.packing.rejected import ListEntry, Rejected, RejectedList, rejected_of
from packer.packing.tasks import shard_path
from packer.sources.base import Source
from packer.sources.derived import FittedSource
from packer.sources.packed import open_packed, read_names
from packer.sources.samples import SampleSource


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
    """Packs `sources` as the dataset's own samples are, after them. Readers that are open go on with what they had.

    Args:
        sources: as for `convert`, or another packed dataset.
        options: as for `convert`; codecs are those of the dataset.
        changes: single options by name, over those in `options`.

    Raises:
        DatasetError: there is no packed dataset, or its list of what was left out is damaged.
        UsageError: the sources do not fit it (the message names the difference), or share a name with it.
        SourceError, WriteError: as `convert`.
    """
    began = time.perf_counter()
    options = replace(options or ConvertOptions(), **changes)
    if options.codec != "auto" or options.overwrite or options.fields is not None:
        raise UsageError("append takes no codec, fields or overwrite: new samples are packed like those that are there")
    folder = Path(dataset)
    manifests.read(folder)  # where there is no dataset, no lock is made
    check_apart(sources, folder)
    rejected: list[Rejected] = []
    with dataset_lock(folder):
        held = manifests.read(folder)
        appending = _Appending(folder, held, _open(sources, options, rejected, held), rejected)
        joined, added = appending.run(options)
    return AppendReport(folder, joined, added, tuple(rejected), time.perf_counter() - began)


class _Given(msgspec.Struct, frozen=True):
    """What tells a source from any other: its origin, its files, and the names of its samples, as a digest."""

    origin: dict[str, Any]
    samples: int
    files: list[tuple[str, int, int]]
    names: str


class _Note(msgspec.Struct, frozen=True):
    """What was appended: a digest of the dataset's manifest after it, the source, and the number of samples.

    Attributes:
        given: None of samples in memory, which no list of files tells apart.
    """

    manifest: str
    given: _Given | None
    added: int


def _open(sources: Any, options: ConvertOptions, rejected: list[Rejected], held: Manifest) -> Source:
    """Return the samples to add, with the fields of the dataset."""
    inputs = [sources] if isinstance(sources, (str, os.PathLike)) else sources
    source: Source
    if isinstance(inputs, (list, tuple)) and len(inputs) == 1 and _is_packed(inputs[0]):
        source = open_packed(inputs[0])
    else:
        # Samples in memory are looked at with the dataset's schema, not with one of their own.
        source = open_source(sources, replace(options, fields=held.fields), rejected)
    if isinstance(source, SampleSource):
        return source
    fitted = FittedSource(source, held.fields)
    check_classes(held.classes, classes_of(origin_of(source), len(source)), "the source")
    return fitted


def _is_packed(place: Any) -> bool:
    return isinstance(place, (str, os.PathLike)) and (Path(place) / MANIFEST).exists()


class _Appending:
    """One call, which holds the lock of the dataset.

    Args:
        held: the manifest as it is.
        rejected: files that were found bad already; samples that are left out are added.
    """

    def __init__(self, folder: Path, held: Manifest, source: Source, rejected: list[Rejected]) -> None:
        self._folder = folder
        self._held = held
        self._source = source
        self._given = _given(source)
        self._rejected = rejected
        self._left_out = RejectedList.of_dataset(folder, held)
        self._listed = set(rejected_of(folder, held))
        # What a call has listed that was killed is taken back, so that the file holds what the manifest speaks of.
        if self._left_out.lines or (folder / REJECTED_FILE).exists():
            self._left_out.write(folder)
        self._work, self._noted = beside(folder, "appending"), beside(folder, "appended")

    def run(self, options: ConvertOptions) -> tuple[Manifest, int]:
        """Packs the samples and takes them in; returns the manifest with them, and their number."""
        note = self._note()
        if note is not None and self._given is not None and note.given == self._given:
            joined, added = self._held, note.added
        else:
            if note is None or self._given is not None:
                self._check_names(self._source.names)
            more = self._pack(options)
            joined = self._held if note and _ends_with(self._held, more) else self._take_in(more)
            added = more.samples
        shutil.rmtree(self._work, ignore_errors=True)
        self._noted.unlink(missing_ok=True)
        return joined, added

    def _note(self) -> _Note | None:
        """Return what a call that was killed while it tidied up has put into the dataset; None where there was none."""
        try:
            found = msgspec.json.decode(self._noted.read_bytes(), type=_Note)
        except (OSError, msgspec.DecodeError):
            return None
        return found if found.manifest == _digest(self._held) else None

    def _check_names(self, names: Sequence[str] | None) -> list[str] | None:
        held = read_names(self._folder, self._held)
        return check_names([(str(self._folder), held), ("the source", names)])

    def _pack(self, options: ConvertOptions) -> Manifest:
        """Packs the samples next to the dataset."""
        if (self._work / MANIFEST).exists():
            shutil.rmtree(self._work)  # packed by an earlier call that was killed; its source may have changed since
        # What another call left that was killed is begun anew: overwrite.
        report = convert(self._source, self._work, options, overwrite=True)
        self._rejected += [bad.moved(_next_number(self._held)) for bad in report.rejected]
        return report.manifest

    def _take_in(self, more: Manifest) -> Manifest:
        """Links the shards that were packed into the dataset, and swaps its manifest.

        Raises:
            UsageError: the dataset was replaced in the meantime.
            WriteError: the folder cannot be written.
        """
        folder, held = self._folder, self._held
        if self._given is not None:  # samples in memory have no constants of their own
            check_constants(held, more, "the source")
        names = self._check_names(read_names(self._work, more))
        if manifests.read(folder) != held:  # some network file systems know no locks
            raise UsageError(f"{folder} was changed while samples were packed for it; append again")
        self._noted.unlink(missing_ok=True)  # of an earlier call
        number = _next_number(held)
        _remove_shards(folder, number)
        entries = list(held.shards)
        for entry in more.shards:
            path = shard_path(folder, number + len(entries) - len(held.shards))
            entries.append(take_shard(self._work, entry, path))
        try:
            sync_folder(folder / SHARD_FOLDER)
            table = None
            if names is not None:
                table = write_table(folder, f"names-{number:05d}.lmdb", [name.encode() for name in names])
            joined = joined_manifest([held, more], entries, table, self._list_left_out())
            note = _Note(_digest(joined), self._given, more.samples)
            write_synced(self._noted, msgspec.json.encode(note))
            manifests.write(folder, joined)
            _remove_tables(folder, held.names, joined.names)
        except OSError as error:
            raise WriteError(f"{folder}: {error}") from None
        return joined

    def _list_left_out(self) -> ListEntry:
        """Lists what was left out, after what the manifest knows already."""
        new = [bad for bad in self._rejected if bad.shard is not None or bad not in self._listed]
        return RejectedList(new, self._left_out.lines).write(self._folder)


def _given(source: Source) -> _Given | None:
    """Return what tells a source of files from any other; None of samples in memory."""
    files = listed(source)
    if not files:
        return None
    names = xxhash.xxh3_128()
    for name in source.names or ():
        names.update(f"{len(name)} {name}".encode())
    return _Given(origin_of(source), len(source), files, names.hexdigest())


def _digest(manifest: Manifest) -> str:
    return xxhash.xxh3_128_hexdigest(manifests.encode(manifest))


def _ends_with(held: Manifest, more: Manifest) -> bool:
    """Return whether the last shards of a dataset are those of another, byte for byte."""
    last = held.shards[-len(more.shards) :]
    return [entry.digest for entry in last] == [entry.digest for entry in more.shards]


def _next_number(held: Manifest) -> int:
    """Return a number that no shard of the dataset has, and no table of names that a reader may have open."""
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
