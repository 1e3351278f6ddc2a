"""The one way in which datasets are made and changed: files of a run, then one rename of the manifest.

    manifest.json manifest.copy.json    the dataset: what they name, and nothing else; the same bytes twice
    shards/RUN-00000.lmdb ...           RUN: eight hex digits, a digest of all that decides the bytes of a run
    names-RUN.lmdb constants-RUN.npz left-out-RUN.jsonl
    unfinished/RUN.json                 the note of a run under way
    unfinished/RUN-00000.json           the report of a finished shard
    unfinished/verify-...-3-of-400.msgpack    the report of a part of `verify` or `stats`, see parts.py
    unfinished/*.plan *.claim           what parts of an array of jobs share; see `shared_plan`
    .lock                               a courtesy: a second process is refused at once

Every file is written once, under a name that no other run uses. Nothing that a manifest names is changed or moved. So a
process may be killed at any instant, and the power may fail:

    before the rename   the dataset is the old one; the same command uses the shards that have a report
    after it            the dataset is the new one; what it does not name is removed, the note last. A note whose shards
                        the manifest names was published: the same command tidies up, and adds nothing twice

A manifest is put in place only if the one there is still the one that the run started from. With a lock this is
exact. Without one (a bucket, some network disks) the conditional put of the manifest decides.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import re
import secrets
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import xxhash

import packer
from packer.errors import (
    ChangedMeanwhileError,
    DatasetError,
    ManifestError,
    NoDatasetError,
    PackerError,
    SourceError,
    UsageError,
    WriteError,
)
from packer.format import (
    MANIFEST,
    MANIFEST_COPY,
    MAX_MANIFEST_BYTES,
    SHARD_FOLDER,
    UNFINISHED,
    ColumnTotals,
    Field,
    FileEntry,
    Manifest,
    ShardEntry,
    data_entry,
    file_digest,
    total_of,
    write_names,
)
from packer.format import manifest as manifests
from packer.packing.origin import Origin, classes_of
from packer.packing.places import DATASET_FILE, LOCK, PART_REPORT, PARTIAL, RUN, LocalPlace, Place, Tag
from packer.packing.rejected import Rejected, encode_list
from packer.packing.source_files import SourceFiles

_log = logging.getLogger(__name__)

#: What differs if another size, time or path is all that is known of the source files.
UNNAMED_CHANGE = "a source file has changed, or was renamed or replaced by an older one"

#: Seconds after which a run that goes on says so again, and after which one that did not is given up where there are no
#: locks.
DAY, WEEK = 86_400, 7 * 86_400

_NOTE = re.compile(rf"{UNFINISHED}/({RUN})\.json")

#: The run in the name of a file.
_RUN_IN_NAME = re.compile(rf"(?:names-|constants-|left-out-|{SHARD_FOLDER}/|{UNFINISHED}/)({RUN})[-.]")
#: Files that another command may be writing, whose names do not say which.
_NAMELESS = re.compile(rf"^[^/]*\.json\.{RUN}\.partial$")


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """What a run makes (unfinished/RUN.json): everything that decides the bytes of its files.

    Attributes:
        shards: how many there will be; None if samples still arrive, or the shards of the dataset decide it.
        settings: JSON values by name, as a message may call them.
        files: the source files; none for samples in memory.
        base: digest of the manifest that the run started from; None if there was no dataset yet.
        takes: digest of the shards that the new ones are made from; empty if they are made from source files alone.
        token: random, where no lock keeps two writers of samples in memory apart.
        began: when the run began or went on, in seconds since 1970.
    """

    shards: int | None
    settings: dict[str, Any]
    files: SourceFiles = SourceFiles()
    base: str | None = None
    takes: str = ""
    token: str = ""
    began: int = 0

    def is_like(self, other: Note) -> bool:
        """Return whether the two are of the same command, whatever they start from."""
        place = {"base": other.base, "takes": other.takes, "token": other.token, "began": other.began}
        return msgspec.structs.replace(self, **place) == other

    def goes_on(self, other: Note) -> bool:
        """Return whether a run of this note would make the shards of the other."""
        return self.is_like(other) and (self.takes, self.token) == (other.takes, other.token)

    def difference(self, other: Note) -> str | None:
        """Return what differs from another run, in words; None if the other can go on with this one.

        Files come first: if one has changed, settings such as the number of samples may follow from that. If none is
        known to have changed, the settings may say why they differ, such as fields in another order.
        """
        if difference := self.files.difference(other.files):
            return difference
        for name in {**self.settings, **other.settings}:
            old, new = self.settings.get(name), other.settings.get(name)
            if old != new:
                return f"{name} was {_shorten(old)} and is now {_shorten(new)}"
        return None if self.files == other.files else UNNAMED_CHANGE

    def run(self, used_runs: Container[str]) -> str:
        """Return the name of a new run: a digest of the note, other than the names that are used."""
        data = msgspec.json.encode(msgspec.structs.replace(self, began=0), order="sorted")
        digests = (xxhash.xxh3_64_hexdigest(data, seed)[:8] for seed in itertools.count())
        return next(digest for digest in digests if digest not in used_runs)


@contextlib.contextmanager
def changing(place: Place) -> Iterator[Change]:
    """Make or change the dataset at a place; whoever else wants to is refused, where there are locks.

    Raises:
        ChangedMeanwhileError: another command has changed it meanwhile.
        UsageError: another command is changing it.
        WriteError: the place cannot be written.
    """
    with place.lock() as has_lock:
        change = Change(place, has_lock)
        try:
            try:
                yield change
            except ChangedMeanwhileError:
                raise
            except (PackerError, OSError):
                if not has_lock:
                    # Another command may have removed what this one has written or reads.
                    with contextlib.suppress(WriteError, DatasetError):
                        change.check_unchanged()
                raise
        except ChangedMeanwhileError as error:
            is_read = error.place != place  # what was made of it is of no use
            raise ChangedMeanwhileError.at(error.place, change.leave(is_read)) from None
        finally:
            if has_lock or not isinstance(place, LocalPlace):
                place.remove_drafts(change.run)


@contextlib.contextmanager
def changes_told(datasets: Iterable[tuple[Place, Manifest]]) -> Iterator[None]:
    """Raise ChangedMeanwhileError in place of errors that come from a change of a dataset that is read.

    Args:
        datasets: where each is, and its manifest when it was opened.
    """
    try:
        yield
    except (DatasetError, SourceError):
        for place, manifest in datasets:
            with contextlib.suppress(DatasetError, WriteError):
                if read_manifest(place) != manifest:
                    raise ChangedMeanwhileError.at(place) from None
        raise


@contextlib.contextmanager
def changing_dataset(place: Place) -> Iterator[tuple[Change, Manifest]]:
    """Change the dataset at a place, as `changing`; yield its manifest as well.

    Raises:
        DatasetError: there is no dataset; no lock is made then.
        UsageError, WriteError: as `changing`.
    """
    read_manifest(place)
    with changing(place) as change:
        yield change, change.dataset


def read_manifest(place: Place) -> Manifest:
    """Return the manifest of the dataset at a place; raise DatasetError if there is none."""
    if isinstance(place, LocalPlace):
        return manifests.read(place.path)
    data = place.read(MANIFEST)
    if data is None:
        raise NoDatasetError(f"{place} is not a packed dataset: it has no {MANIFEST}")
    return manifests.decode(data, f"{place}/{MANIFEST}")


class Change:
    """A dataset that is being made or changed; made by `changing`.

    Attributes:
        place: where it is.
        run: name of the run; empty until `begin`.
        manifest: of the dataset that is there; None if there is none, or if it is damaged.
    """

    def __init__(self, place: Place, has_lock: bool) -> None:
        self.place = place
        self.run = ""
        self._has_lock = has_lock
        self._data: bytes | None = None
        self._tag: Tag | None = None
        if file := place.read_tagged(MANIFEST):
            self._data, self._tag = file
        self._note: Note | None = None
        #: Whether what the run has made is of no use once another command was first.
        self._is_lost_if_late = False
        #: Unfinished runs that were there when this one began, and are to be replaced.
        self._replaced_runs: set[str] = set()
        self.manifest: Manifest | None = None
        with contextlib.suppress(ManifestError):
            self.manifest = None if self._data is None else self.dataset
        #: Runs that had made the dataset, and make no more shards.
        self._done_runs = self._used_runs()

    @property
    def is_unfinished(self) -> bool:
        """Return whether there is no dataset, but an unfinished run."""
        return self._data is None and bool(self._notes())

    @property
    def dataset(self) -> Manifest:
        """Return the dataset that is there.

        Raises:
            ManifestError: there is none, or its manifest is damaged.
        """
        return self.manifest or manifests.decode(self._data or b"", f"{self.place}/{MANIFEST}")

    @property
    def new_shards(self) -> set[int]:
        """Return the numbers of the shards of the dataset that the last run made."""
        return {number for number, entry in enumerate(self.dataset.shards) if _run_of(entry) == self.run}

    def find_published(self, note: Note, get_digest: Callable[[], str] = lambda: "") -> bool:
        """Return whether an earlier run of the same command was killed after it had published its dataset.

        The manifest names the runs that made it. A note that is still there says that the user was not told.

        Args:
            note: says all but where the run starts from.
            get_digest: returns the digest of samples in memory; called if a run has such a note.
        """
        runs = {} if self.manifest is None else self.manifest.runs
        for run, other in self._notes().items():
            if run in runs and other is not None and note.is_like(other) and runs[run] == get_digest():
                self.run = run
                return True
        return False

    def begin(self, note: Note, overwrite: bool | None = None, resume: bool = True) -> None:
        """Begin a run, or go on with one that was stopped.

        Args:
            note: says all but where the run starts from.
            overwrite: whether a dataset that is there, or an unfinished run of another command, may be replaced; None
                if the dataset is changed, and not replaced.
            resume: whether an earlier run of the same command is used, or removed.

        Raises:
            UsageError: a dataset or an unfinished run is there that may not be replaced.
            WriteError: the note cannot be written.
        """
        manifest, notes = self.manifest, self._notes()
        if overwrite is False and self._data is not None:
            raise exists_error(self.place)
        if not note.files.count and not self._has_lock:
            note = msgspec.structs.replace(note, token=secrets.token_hex(8))
        self.run = self.run_of(note, notes)
        files = self.place.files()
        for run, other in notes.items():
            if run in {*self._done_runs, self.run}:
                continue
            difference = _difference(other, note)
            if difference and overwrite is False:
                raise differs_error(self.place, difference)
            if overwrite or not difference:  # without one, the same command from another dataset
                self._replaced_runs.add(run)
            if (
                difference
                and (self._has_lock or overwrite)
                and any(re.fullmatch(rf"{UNFINISHED}/{run}-\d+\.json", name) for name in files)
            ):
                _log.warning(
                    "%s: shards that another command has finished there are not used: %s", self.place, difference
                )
        self._is_lost_if_late = bool(note.token) or overwrite is False
        self._note = note = msgspec.structs.replace(note, base=self._base, began=int(time.time()))
        self.place.prepare()
        other = notes.get(self.run)
        if other is None or not note.goes_on(other) or note.began - other.began > DAY:
            self.place.write(self._note_file, msgspec.json.encode(note))
        if self._has_lock and (manifest is not None or self._data is None):
            self._remove_others(manifest, resume=resume)

    def run_of(self, note: Note, notes: Mapping[str, Note | None] | None = None) -> str:
        """Return the name of the run that `begin` would begin, or go on with."""
        used_runs = self._used_runs()
        for run, other in (self._notes() if notes is None else notes).items():
            if other is not None and run not in used_runs and note.goes_on(other):
                return run
        return msgspec.structs.replace(note, base=self._base).run(used_runs)

    @property
    def _base(self) -> str | None:
        return None if self._data is None else xxhash.xxh3_128_hexdigest(self._data)

    def _used_runs(self) -> set[str]:
        """Return the runs that made the dataset."""
        return set() if self.manifest is None else {*self.manifest.runs, *map(_run_of, self.manifest.shards)}

    @property
    def _note_file(self) -> str:
        return f"{UNFINISHED}/{self.run}.json"

    def reports(self, report_type: type[Any], shards: Container[int] | None = None) -> dict[int, Any]:
        """Return the reports of shards that are finished, by number. Shards are not read.

        Args:
            shards: numbers of those that are looked at; None for all.
        """
        files = self.place.files()
        reports = {}
        for name in files:
            number = self._reported_shard(name)
            if number is not None and (shards is None or number in shards):
                with contextlib.suppress(msgspec.DecodeError):  # the power failed while it was written
                    report = msgspec.json.decode(self.place.read(name) or b"", type=report_type)
                    if files.get(report.entry.file) == report.entry.bytes:
                        reports[number] = report
        return reports

    def count_reports(self) -> int:
        """Return how many shards have a report; none is read."""
        return sum(self._reported_shard(name) is not None for name in self.place.files())

    def _reported_shard(self, name: str) -> int | None:
        """Return the number of the shard whose report has this name; None for any other file."""
        match = re.fullmatch(rf"{UNFINISHED}/{self.run}-(\d+)\.json", name)
        return int(match[1]) if match else None

    def forget_late(self, shards: Iterable[int]) -> None:
        """Remove what a part of this run has made, by its numbers of shards, if the run was ended meanwhile.

        Raises:
            UsageError: the dataset was published or changed, or another command has begun there.
        """
        if not self._is_cleared():
            return
        is_published = self.place.read(MANIFEST) is not None
        named = named_files(read_manifest(self.place)) if is_published else set()
        names = [name for number in shards for name in (report_file(self.run, number), shard_file(self.run, number))]
        self.place.remove(name for name in names if name not in named)
        if not is_published:
            raise UsageError(
                f"{self.place}: another command began here again, or emptied it, while this part was packed, so its "
                "shards are removed; run one command at a time, and this part again"
            )
        raise UsageError(f"{self.place} was published or changed while this part was packed; its shards are not needed")

    def name(self, kind: str, ending: str) -> str:
        """Return the name of a file of this run beside the shards, such as names-RUN.lmdb."""
        return f"{kind}-{self.run}.{ending}"

    def write_list(self, rejected: Sequence[Rejected]) -> FileEntry | None:
        """Write the list of what was skipped; return its entry, None if nothing was."""
        return self._write_file("left-out", "jsonl", encode_list(rejected))

    def write_constants(self, data: bytes) -> FileEntry | None:
        """Write the constants, as they were encoded; return their entry, None if there are none."""
        return self._write_file("constants", "npz", data)

    def write_names(self, names: Iterable[str | bytes]) -> FileEntry:
        """Write the table of names; they are iterated over twice.

        Raises:
            SourceError: two samples have one name.
        """
        name = self.name("names", "lmdb")
        draft = self.place.draft(name)
        write_names(draft, names)
        entry = FileEntry(file=name, bytes=draft.stat().st_size, digest=file_digest(draft))
        self.place.put_draft(draft, name)
        return entry

    def publish(self, manifest: Manifest, digest: str | None = None, continues: bool = True) -> Manifest:
        """Make a manifest that of the dataset, in one step; `tidy` comes next.

        Args:
            digest: of the samples that the run has packed, if they were in memory, and empty for those of files; None
                if the manifest need not name the run.
            continues: whether the samples of the dataset that is there are in the new one, too.

        Returns:
            the manifest, with the runs that made it.

        Raises:
            ChangedMeanwhileError: the dataset was changed meanwhile.
            UsageError: the manifest would be larger than readers take.
            WriteError: that cannot be done.
        """
        untold = self._notes()  # files that cannot be listed are found before the manifest is put
        if self.run:
            old_runs = manifest.runs | (self.manifest.runs if self.manifest and continues else {})
            runs = {run: samples for run, samples in old_runs.items() if run in untold}
            manifest = msgspec.structs.replace(manifest, runs=runs if digest is None else runs | {self.run: digest})
        data = manifests.encode(manifest)
        if len(data) > MAX_MANIFEST_BYTES:
            raise UsageError(
                f"{self.place} would have a manifest of {len(data):,} bytes, and readers take {MAX_MANIFEST_BYTES:,}: "
                "take a larger --shard-size, or pack several datasets"
            )
        copy = self.place.read_tagged(MANIFEST_COPY)
        copy_tag = copy and copy[1]
        self.place.sync()  # a manifest must not last longer than what it names
        self.check_unchanged()
        with contextlib.suppress(ChangedMeanwhileError):  # another command is about to publish: one of the two will
            copy_tag = self.place.put(MANIFEST_COPY, data, copy_tag)
        try:
            self._tag = self.place.put(MANIFEST, data, self._tag)
        except ChangedMeanwhileError:
            file = self.place.read_tagged(MANIFEST)
            if file is None or file[0] != data:
                if file is not None:
                    with contextlib.suppress(ChangedMeanwhileError):
                        self.place.put(MANIFEST_COPY, file[0], copy_tag)
                raise
            # The answer of a server was lost, or the same command in another process has made the same dataset.
            self._tag = file[1]
        self._data, self.manifest = data, manifest
        return manifest

    def tidy(
        self, kept_files: Iterable[FileEntry | None] = (), before_last_note: Callable[[], object] = lambda: None
    ) -> None:
        """Remove all that the dataset does not name. Once the last note is gone, nothing is left that may fail.

        Notes of other commands that have changed the dataset stay: their users were not told.

        Args:
            kept_files: files of the old dataset that stay until the next run, for readers that are open.
            before_last_note: called before the last note is removed: until then, the same command adds nothing twice.
        """
        self._remove_others(self.manifest, {entry.file for entry in kept_files if entry}, before_last_note, resume=None)

    def check_unchanged(self) -> None:
        """Raise ChangedMeanwhileError if the dataset is another than the run started from, or its note is gone."""
        if not self._is_current() or (self.run and self._note and self._is_cleared()):
            raise ChangedMeanwhileError.at(self.place)

    def leave(self, is_lost: bool = False) -> int:
        """Remove what nobody can use of a run that came too late; return how many finished shards stay.

        Errors are ignored.

        Args:
            is_lost: whether nobody can use anything of it.
        """
        kept_shards = 0
        if not self.run or self._note is None:
            return kept_shards
        with contextlib.suppress(DatasetError, WriteError):
            files = [name for name in self.place.files() if re.match(rf".*\b{self.run}[-.]", name)]
            is_lost |= self._is_lost_if_late or self._is_cleared()
            data = self.place.read(MANIFEST)
            manifest = None if data is None else manifests.decode(data, f"{self.place}/{MANIFEST}")
            if self._note.takes:
                is_lost |= manifest is None or self._note.takes != shards_digest(manifest.shards)
            # Another process with the same command may have published this very run.
            is_used = manifest is not None and (
                self.run in manifest.runs or any(_run_of(entry) == self.run for entry in manifest.shards)
            )
            reports = sum(self._reported_shard(name) is not None for name in files)
            is_lost |= not reports
            if not is_used:
                self.place.remove(sorted(name for name in files if is_lost or name.endswith((PARTIAL, ".plan"))))
            if is_used or not is_lost:
                kept_shards = reports
        return kept_shards

    def _is_current(self) -> bool:
        """Return whether the manifest that is there is the one that this command knows."""
        file = self.place.read_tagged(MANIFEST)
        return (None if file is None else file[1]) == self._tag

    def _is_cleared(self) -> bool:
        """Return whether the note of the run is gone, or that of another."""
        note: Note | None = None
        with contextlib.suppress(msgspec.DecodeError):
            note = msgspec.json.decode(self.place.read(self._note_file) or b"", type=Note)
        return self._note is None or note is None or not self._note.goes_on(note)

    def _notes(self) -> dict[str, Note | None]:
        """Return the notes of all runs under way or stopped; None for one that is damaged."""
        notes: dict[str, Note | None] = {}
        for name in self.place.files():
            if match := _NOTE.fullmatch(name):
                notes[match[1]] = None
                with contextlib.suppress(msgspec.DecodeError):
                    notes[match[1]] = msgspec.json.decode(self.place.read(name) or b"", type=Note)
        return notes

    def _remove_others(
        self,
        manifest: Manifest | None,
        kept_files: Iterable[str] = (),
        before_last_note: Callable[[], object] = lambda: None,
        resume: bool | None = True,
    ) -> None:
        """Remove all files of datasets that neither the manifest nor a run uses.

        Notes come last: as long as one is there, the next command knows that there is more to remove. If another
        command was first, nothing is removed.

        Args:
            resume: whether files of this run stay, or its note alone; None if nothing of it stays.
        """
        named = {LOCK, *kept_files} | (named_files(manifest) if manifest else set())
        if resume is None:
            # Before the files are listed: a run that ends later finds its note gone, and removes its own.
            self.place.remove(f"{UNFINISHED}/{run}.json" for run in sorted(self._replaced_runs))
        # Listed before the look at the manifest: what another command has published by then is not removed.
        files, notes = self.place.files(), self._notes()
        if not self._put_copy():
            before_last_note()
            if resume is None and self.run:  # what no manifest names, of this run alone
                own = [name for name in files if name.startswith(f"{UNFINISHED}/{self.run}-")]
                self.place.remove([*own, self._note_file])
            return
        untold = set(manifest.runs if manifest else ()) - {self.run}
        kept_runs = set() if resume is None or not self.run else {self.run}
        if not self._has_lock:  # others may be at work
            now = time.time()
            kept_runs |= {
                run
                for run, note in notes.items()
                if run not in {self.run, *untold, *self._replaced_runs, *self._done_runs}
                and note
                and now - note.began < WEEK
            }
        others = [
            name
            for name in files
            if name not in named and DATASET_FILE.fullmatch(name) and (self._has_lock or not _NAMELESS.search(name))
        ]
        run_of_file = {name: match[1] for name in others if (match := _RUN_IN_NAME.search(name))}
        notes_kept = {f"{UNFINISHED}/{run}.json" for run in {*kept_runs, *untold}}

        def is_left(name: str) -> bool:
            run = run_of_file.get(name)
            if name in notes_kept:
                return False
            if run == self.run and name.endswith(PARTIAL):
                return True
            return run not in kept_runs or (run == self.run and resume is False)

        left = [name for name in others if is_left(name)]
        self.place.remove(name for name in left if not name.startswith(UNFINISHED))
        self.place.remove(name for name in left if name.startswith(UNFINISHED) and not _NOTE.fullmatch(name))
        before_last_note()
        self.place.remove(name for name in left if _NOTE.fullmatch(name))

    def _put_copy(self) -> bool:
        """Let the copy be that of the manifest, if there is one; return whether the manifest is still our own.

        It may name what is removed now. The loop ends: each turn, another command has written the copy.
        """
        while True:
            copy = self.place.read_tagged(MANIFEST_COPY)
            if not self._is_current():
                return False
            if self._data is None or (copy and copy[0] == self._data):
                return True
            with contextlib.suppress(ChangedMeanwhileError):
                self.place.put(MANIFEST_COPY, self._data, copy and copy[1])

    def _write_file(self, kind: str, ending: str, data: bytes) -> FileEntry | None:
        if not data:
            return None
        name = self.name(kind, ending)
        self.place.write(name, data)
        return data_entry(name, data)


def named_files(manifest: Manifest) -> set[str]:
    """Return the paths of all files of a dataset."""
    return {MANIFEST, MANIFEST_COPY, *(entry.file for entry in manifest.files)}


def make_manifest(
    shards: Sequence[ShardEntry],
    columns: Sequence[Mapping[str, ColumnTotals]],
    fields: Sequence[Field],
    origin: Origin,
    rejected: Sequence[Rejected] = (),
    **members: Any,
) -> Manifest:
    """Return the manifest of finished shards.

    Args:
        columns: bytes of every column, by field: of each shard, or of several together.
        rejected: what was skipped, for the error.
        members: other members of the manifest, such as its splits.

    Raises:
        SourceError: no sample was good.
    """
    samples = sum(shard.samples for shard in shards)
    if not samples:
        reason = f"none could be packed; {rejected[0].file}: {rejected[0].reason}" if rejected else "none was given"
        raise SourceError(f"the dataset would hold no sample: {reason}")
    return Manifest(
        tool=f"packer {packer.__version__}",
        samples=samples,
        fields=tuple(fields),
        shards=tuple(shards),
        columns=totals(columns),
        origin=origin,
        classes=classes_of(origin, samples),
        **members,
    )


def totals(columns: Sequence[Mapping[str, ColumnTotals]]) -> dict[str, ColumnTotals]:
    """Return the totals of every column, by field, of several shards or datasets together."""
    # A shard without samples says nothing of their shapes.
    filled = [shard_columns for shard_columns in columns if any(total.raw for total in shard_columns.values())]
    return {name: total_of(shard_columns[name] for shard_columns in filled or columns) for name in columns[0]}


def shards_digest(shards: Iterable[ShardEntry]) -> str:
    """Return a digest of shards that others are made from; empty if there are none."""
    digests = " ".join(entry.digest for entry in shards)
    return xxhash.xxh3_128_hexdigest(digests.encode()) if digests else ""


def shard_file(run: str, number: int) -> str:
    """Return the path of a shard within the dataset."""
    return f"{SHARD_FOLDER}/{run}-{number:05d}.lmdb"


def report_file(run: str, number: int) -> str:
    """Return the path of the report of a finished shard."""
    return f"{UNFINISHED}/{run}-{number:05d}.json"


def check_output(place: Place, overwrite: bool) -> None:
    """Raise UsageError if no dataset can be made at a place; called before the sources are opened. Writes nothing.

    Raises:
        UsageError: it holds something else, or a dataset that may not be replaced; or `overwrite` is no bool.
    """
    if not isinstance(overwrite, bool):
        raise UsageError(f"overwrite {overwrite!r}: True or False is expected")
    place.check_writable()
    if isinstance(place, LocalPlace) and place.path.exists() and not place.path.is_dir():
        raise UsageError(f"{place} is a file; name a folder that does not exist yet")
    files = place.files()
    if foreign := sorted(name for name in files if not DATASET_FILE.fullmatch(name)):
        raise UsageError(f"{place} is not empty: it holds {foreign[0] or 'a file'}; name another place")
    is_unfinished = any(name.startswith(UNFINISHED) and not re.match(PART_REPORT, name) for name in files)
    if MANIFEST in files:
        if not overwrite and not is_unfinished:
            raise exists_error(place)
    elif not is_unfinished and files.keys() - {LOCK}:
        raise UsageError(
            f"{place} is not empty, has no manifest and is not an unfinished conversion; `packer repair` takes a lost "
            "manifest from its copy, or name a folder that does not exist yet"
        )


def exists_error(place: Place) -> UsageError:
    """Return the error of a place where a dataset is that may not be replaced."""
    return UsageError(f"{place} is a packed dataset already; use --overwrite to replace it")


def differs_error(place: Place, difference: str) -> UsageError:
    """Return the error of an unfinished run that cannot go on, since something has changed."""
    return UsageError(
        f"{place} holds an unfinished conversion that differs: {difference}; undo the change to go on with it, or use "
        "--overwrite to begin again"
    )


def _run_of(entry: ShardEntry) -> str:
    """Return the run that made a shard; empty for one of an earlier version."""
    return entry.file.removeprefix(f"{SHARD_FOLDER}/").partition("-")[0] if "-" in entry.file else ""


def _difference(other: Note | None, note: Note) -> str | None:
    return "its note cannot be read" if other is None else other.difference(note)


def _shorten(value: Any) -> str:
    text = str(value)
    return text if len(text) < 60 else text[:57] + "..."
