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
import logging
import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping

import msgspec
import xxhash

from packer.errors import ChangedMeanwhileError, DatasetError, ManifestError, UsageError, WriteError
from packer.format import (
    LOCK,
    MANIFEST,
    MANIFEST_COPY,
    MAX_MANIFEST_BYTES,
    PARTIAL,
    UNFINISHED,
    FileEntry,
    Manifest,
)
from packer.format import manifest as manifests
from packer.packing.manifest import exists_error, named_files, read_manifest, shards_digest
from packer.packing.note import (
    Note,
    difference_of,
    differs_error,
    note_file,
    read_note,
    read_notes,
    report_file,
    reported_shard,
    run_of_shard,
    shard_file,
)
from packer.packing.places import Place, Tag
from packer.packing.run_files import RunFiles
from packer.packing.tidying import Kept, published_errors, remove_unneeded, runs_at_work

_log = logging.getLogger(__name__)

#: Seconds after which a run that goes on says so again.
DAY = 86_400


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
        return self._data is None and bool(read_notes(self.place))

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
        return {number for number, entry in enumerate(self.dataset.shards) if run_of_shard(entry) == self.run}

    @property
    def files(self) -> RunFiles:
        """Return the files of the run."""
        return RunFiles(self.place, self.run)

    def find_published(self, note: Note, get_digest: Callable[[], str] = lambda: "") -> bool:
        """Return whether an earlier run of the same command was killed after it had published its dataset.

        The manifest names the runs that made it. A note that is still there says that its user has no report yet.

        Args:
            note: says all but where the run starts from.
            get_digest: returns the digest of samples in memory; called if a run has such a note.
        """
        runs = {} if self.manifest is None else self.manifest.runs
        for run, other in read_notes(self.place).items():
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
        manifest, notes = self.manifest, read_notes(self.place)
        if overwrite is False and self._data is not None:
            raise exists_error(self.place)
        if not note.files.are_there and not self._has_lock:
            note = msgspec.structs.replace(note, token=secrets.token_hex(8))
        self.run = self.run_of(note, notes)
        files = self.place.files()
        for run, other in notes.items():
            if run in {*self._done_runs, self.run}:
                continue
            difference = difference_of(other, note)
            if difference and overwrite is False:
                raise differs_error(self.place, difference)
            if overwrite or not difference:  # without one, the same command from another dataset
                self._replaced_runs.add(run)
            if (
                difference
                and (self._has_lock or overwrite)
                and any(reported_shard(name, run) is not None for name in files)
            ):
                _log.warning(
                    "%s: shards that another command has finished there are not used: %s", self.place, difference
                )
        self._is_lost_if_late = bool(note.token) or overwrite is False
        note = msgspec.structs.replace(note, base=self._base, began=int(time.time()))
        self.place.prepare()
        other = notes.get(self.run)
        if other is None or not note.goes_on(other) or note.began - other.began > DAY:
            self.place.write(note_file(self.run), msgspec.json.encode(note))
        self._note = note  # from here on, a note that is gone was removed by another command
        if self._has_lock and (manifest is not None or self._data is None):
            files = self.place.files()
            kept_runs = {self.run} if resume else set[str]()
            if self._put_copy():
                kept = Kept(self._named_files(), kept_runs, notes={self.run, *self._published_runs})
                remove_unneeded(self.place, files, kept)

    def run_of(self, note: Note, notes: Mapping[str, Note | None] | None = None) -> str:
        """Return the name of the run that `begin` would begin, or go on with."""
        used_runs = self._used_runs()
        for run, other in (read_notes(self.place) if notes is None else notes).items():
            if other is not None and run not in used_runs and note.goes_on(other):
                return run
        return msgspec.structs.replace(note, base=self._base).run(used_runs)

    @property
    def _base(self) -> str | None:
        return None if self._data is None else xxhash.xxh3_128_hexdigest(self._data)

    def _used_runs(self) -> set[str]:
        """Return the runs that made the dataset."""
        return set() if self.manifest is None else {*self.manifest.runs, *map(run_of_shard, self.manifest.shards)}

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
        notes = read_notes(self.place)  # files that cannot be listed are found before the manifest is put
        if self.run:
            old_runs = manifest.runs | (self.manifest.runs if self.manifest and continues else {})
            runs = {run: samples for run, samples in old_runs.items() if run in notes}
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

    def tidy(self, kept_files: Iterable[FileEntry | None] = (), when_done: Callable[[], object] = lambda: None) -> None:
        """Remove all that the dataset does not name. Once the last note is gone, nothing is left that may fail.

        Notes of other commands that have changed the dataset stay: these have not reported to their users yet. If
        another command was first, only what this run has in `unfinished` goes.

        Args:
            kept_files: files of the old dataset that stay until the next run, for readers that are open.
            when_done: called before the last note is removed: until then, the same command adds nothing twice.
        """
        with published_errors(self.place):
            # Before the files are listed: a run that ends later finds its note gone, and removes its own.
            self.place.remove(map(note_file, sorted(self._replaced_runs)))
            # Listed before the look at the manifest: what another command has published by then is not removed.
            files, notes = self.place.files(), read_notes(self.place)
            if not self._put_copy():
                when_done()
                if self.run:
                    own_files = [name for name in files if name.startswith(f"{UNFINISHED}/{self.run}-")]
                    self.place.remove([*own_files, note_file(self.run)])
                return
            unreported = self._published_runs - {self.run}
            ended = {self.run, *self._replaced_runs, *self._done_runs, *unreported}
            at_work = set[str]() if self._has_lock else runs_at_work(notes, ended)
            named = self._named_files() | {entry.file for entry in kept_files if entry}
            kept = Kept(named, at_work, at_work | unreported, drafts=not self._has_lock)
            remove_unneeded(self.place, files, kept, when_done)

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
                self.run in manifest.runs or any(run_of_shard(entry) == self.run for entry in manifest.shards)
            )
            reports = sum(reported_shard(name, self.run) is not None for name in files)
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
        note = read_note(self.place, self.run)
        return self._note is None or note is None or not self._note.goes_on(note)

    def _named_files(self) -> set[str]:
        """Return the files of the dataset, and the lock."""
        return {LOCK} | (named_files(self.manifest) if self.manifest else set())

    @property
    def _published_runs(self) -> set[str]:
        """Return the runs that have published the dataset, as far as the manifest still names them."""
        return set(self.manifest.runs if self.manifest else ())

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
