"""Samples that were left out of a dataset, and their list: rejected.jsonl, which the manifest knows by its digest.

Appending adds lines to the file before there is a manifest that knows them. So a manifest knows the beginning of the
file, and a call that was killed in between leaves the dataset as it was.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
import xxhash

from packer.errors import DamagedError, DatasetError, SourceError, as_text
from packer.format.lmdb_appender import clear_errors
from packer.format.manifest import REJECTED_FILE, FileEntry, Manifest
from packer.format.sync import write_synced

_MEND = "run `packer repair`, after which the manifest knows no list"


class Rejected(msgspec.Struct, frozen=True, omit_defaults=True):
    """A sample that was left out: the file at fault, the reason, and the shard in which it would be.

    Files that were found bad before anything was planned belong to no shard.
    """

    file: str
    reason: str
    shard: int | None = None

    @classmethod
    def of(cls, error: SourceError, kind: str = "") -> Rejected:
        """Return what is noted of an error; a name that is not UTF-8 shows as escapes, since JSON cannot hold it."""
        return cls(as_text(error.path or kind), as_text(error.reason))

    def moved(self, shards: int) -> Rejected:
        """Return the same for a dataset in which this many other shards come before its own."""
        return self if self.shard is None else msgspec.structs.replace(self, shard=self.shard + shards)


class RejectedList:
    """The list of the samples that were left out of a dataset, or of one shard: a line of JSON for each.

    Attributes:
        lines: as they are stored.

    Args:
        rejected: samples to list.
        before: lines that come first, as they are.
    """

    def __init__(self, rejected: Sequence[Rejected] = (), before: bytes = b"") -> None:
        self.lines = before + msgspec.json.Encoder().encode_lines(rejected)

    @classmethod
    def of_dataset(cls, folder: Path, manifest: Manifest) -> RejectedList:
        """Return the list that the manifest of the dataset in `folder` speaks of; empty if nothing was left out.

        Raises:
            DamagedError: it is missing, or is not what was written.
            DatasetError: it may not be read.
        """
        entry = manifest.left_out
        if entry is None:
            return cls()
        found = cls.read(folder / entry.file, entry.bytes)
        if xxhash.xxh3_128_hexdigest(found.lines) != entry.digest:
            raise _damaged(folder / entry.file, "its digest is wrong: it was changed after it was written")
        return found

    @classmethod
    def read(cls, path: Path, nbytes: int | None = None) -> RejectedList:
        """Return the list in a file, or in the first `nbytes` bytes of it.

        Raises:
            DamagedError: the file is missing, shorter, or cannot be read.
            DatasetError: it may not be read.
        """
        try:
            with path.open("rb") as file:
                held = os.fstat(file.fileno()).st_size
                if nbytes is not None and held < nbytes:
                    raise _damaged(path, f"{held:,} bytes, {nbytes:,} expected")
                return cls(before=file.read(nbytes))
        except PermissionError as error:
            raise DatasetError(f"{path}: cannot be read: {error.strerror}") from None
        except FileNotFoundError:
            raise _damaged(path, "it is missing") from None
        except OSError as error:
            raise _damaged(path, f"it cannot be read: {error.strerror}") from None

    def samples(self, path: Path) -> list[Rejected]:
        """Return the samples that are listed; `path` is named in the error.

        Raises:
            DamagedError: the lines list no samples.
        """
        try:
            return msgspec.json.Decoder(Rejected).decode_lines(self.lines)
        except msgspec.DecodeError as error:
            raise _damaged(path, f"it lists no samples: {error}") from None

    def write(self, folder: Path) -> FileEntry | None:
        """Make this the list of the dataset in `folder`, by a temporary name; if it is empty, the file is removed.

        Returns:
            what the manifest is to say of it; None if nothing was left out.

        Raises:
            WriteError: it cannot be written.
        """
        path = folder / REJECTED_FILE
        with clear_errors(path):
            if not self.lines:
                path.unlink(missing_ok=True)  # of an append that was killed
                return None
            write_synced(path, self.lines)
        return FileEntry(file=REJECTED_FILE, bytes=len(self.lines), digest=xxhash.xxh3_128_hexdigest(self.lines))


def rejected_of(folder: Path, manifest: Manifest) -> list[Rejected]:
    """Return the samples that were left out of the dataset in `folder`.

    Raises:
        DamagedError, DatasetError: as `RejectedList.of_dataset`, or the list holds something else.
    """
    return RejectedList.of_dataset(folder, manifest).samples(folder / REJECTED_FILE)


def _damaged(path: Path, what: str) -> DamagedError:
    return DamagedError(f"{path}: {what}; {_MEND}")
