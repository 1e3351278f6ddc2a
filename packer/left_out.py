"""The list of the samples that were left out of a dataset: rejected.jsonl, which its manifest knows by its digest.

Appending lists more behind what is there, before the manifest knows of it. What a manifest speaks of is therefore the
beginning of the file, and a call that was killed in between leaves the dataset as it was.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
import xxhash

from packer.errors import DamagedError
from packer.format.manifest import REJECTED_FILE, FileEntry, Manifest
from packer.format.sync import write_synced
from packer.rejected import Rejected, decode_lines, encode_lines

#: What the manifest says of the list; UNSET where nothing was left out.
ListEntry = FileEntry | msgspec.UnsetType


def write_left_out(folder: Path, rejected: Sequence[Rejected], before: bytes = b"") -> ListEntry:
    """Lists samples that were left out of the dataset in `folder`, under a temporary name first.

    Args:
        before: lines that come first, as they are.
    """
    data = before + encode_lines(rejected)
    if not data:
        return msgspec.UNSET
    partial = folder / (REJECTED_FILE + ".partial")
    write_synced(partial, data)
    partial.replace(folder / REJECTED_FILE)
    return FileEntry(file=REJECTED_FILE, bytes=len(data), digest=xxhash.xxh3_128_hexdigest(data))


def left_out_lines(folder: Path, manifest: Manifest) -> bytes:
    """The list of a dataset as it is stored; empty where nothing was left out.

    Raises:
        DamagedError: it is missing, or is not what was written.
    """
    entry = manifest.left_out
    if isinstance(entry, msgspec.UnsetType):
        return b""
    path = folder / entry.file
    try:
        with path.open("rb") as file:
            data = file.read(entry.bytes)
            held = os.fstat(file.fileno()).st_size
    except OSError as error:
        what = "it is missing" if isinstance(error, FileNotFoundError) else f"it cannot be read: {error.strerror}"
        raise DamagedError(f"{path}: {what}; {_MEND}") from None
    if len(data) < entry.bytes:
        raise DamagedError(f"{path}: {held:,} bytes, {entry.bytes:,} expected; {_MEND}")
    if xxhash.xxh3_128_hexdigest(data) != entry.digest:
        raise DamagedError(f"{path}: its digest is wrong: it was changed after it was written; {_MEND}")
    return data


def read_left_out(folder: Path, manifest: Manifest) -> list[Rejected]:
    """The samples that were left out of a dataset.

    Raises:
        DamagedError: the list is missing, or is not what was written.
    """
    return decode_lines(left_out_lines(folder, manifest))


def salvage_left_out(folder: Path, shards: int) -> list[Rejected]:
    """Those lines of the list that can still be read and are of one of the first `shards` shards, or of none."""
    try:
        lines = (folder / REJECTED_FILE).read_bytes().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        try:
            bad = msgspec.json.decode(line, type=Rejected)
        except msgspec.DecodeError:
            continue
        if bad.shard is None or bad.shard < shards:
            found.append(bad)
    return found


_MEND = "run `packer repair`, which writes it anew, of what can still be read"
