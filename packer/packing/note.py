"""The note of a run, which says all that decides the bytes of its files, and how these files are called."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Container
from typing import Any

import msgspec
import xxhash

from packer.errors import UsageError
from packer.format import SHARD_FOLDER, UNFINISHED, ShardEntry
from packer.packing.places import RUN, Place
from packer.packing.source_files import SourceFiles

#: What differs if another size, time or path is all that is known of the source files.
UNNAMED_CHANGE = "a source file has changed, or was renamed or replaced by an older one"

#: The file of a note.
NOTE_FILE = re.compile(rf"{UNFINISHED}/({RUN})\.json")
#: The run in the name of a file.
_RUN_IN_NAME = re.compile(rf"(?:names-|constants-|left-out-|{SHARD_FOLDER}/|{UNFINISHED}/)({RUN})[-.]")


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


def read_notes(place: Place) -> dict[str, Note | None]:
    """Return the notes of all runs under way or stopped at a place; None for one that is damaged."""
    return {match[1]: read_note(place, match[1]) for name in place.files() if (match := NOTE_FILE.fullmatch(name))}


def read_note(place: Place, run: str) -> Note | None:
    """Return the note of a run; None if it is gone or damaged."""
    with contextlib.suppress(msgspec.DecodeError):
        return msgspec.json.decode(place.read(note_file(run)) or b"", type=Note)
    return None


def difference_of(other: Note | None, note: Note) -> str | None:
    """Return what differs from another run, in words; None if the other can go on with this one."""
    return "its note cannot be read" if other is None else other.difference(note)


def differs_error(place: Place, difference: str) -> UsageError:
    """Return the error of an unfinished run that cannot go on, since something has changed."""
    return UsageError(
        f"{place} holds an unfinished conversion that differs: {difference}; undo the change to go on with it, or use "
        "--overwrite to begin again"
    )


def note_file(run: str) -> str:
    """Return the path of the note of a run."""
    return f"{UNFINISHED}/{run}.json"


def shard_file(run: str, number: int) -> str:
    """Return the path of a shard within the dataset."""
    return f"{SHARD_FOLDER}/{run}-{number:05d}.lmdb"


def report_file(run: str, number: int) -> str:
    """Return the path of the report of a finished shard."""
    return f"{UNFINISHED}/{run}-{number:05d}.json"


def reported_shard(name: str, run: str) -> int | None:
    """Return the number of the shard of a run whose report has this name; None for any other file."""
    match = re.fullmatch(rf"{UNFINISHED}/{run}-(\d+)\.json", name)
    return int(match[1]) if match else None


def run_of_file(name: str) -> str | None:
    """Return the run whose file has this name; None if the name does not say."""
    match = _RUN_IN_NAME.match(name)
    return match[1] if match else None


def run_of_shard(entry: ShardEntry) -> str:
    """Return the run that made a shard; empty for one of an earlier version."""
    return entry.file.removeprefix(f"{SHARD_FOLDER}/").partition("-")[0] if "-" in entry.file else ""


def _shorten(value: Any) -> str:
    text = str(value)
    return text if len(text) < 60 else text[:57] + "..."
