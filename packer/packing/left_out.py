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

from packer.errors import DamagedError, DatasetError
from packer.format.manifest import REJECTED_FILE, FileEntry, Manifest
from packer.format.sync import write_synced
from packer.packing.rejected import Rejected, decode_lines, encode_lines

#: What the manifest says of the list; UNSET where nothing was left out.
ListEntry = FileEntry | msgspec.UnsetType

_MEND = "run `packer repair`, which writes it anew, of what can still be read"


def write_left_out(folder: Path, rejected: Sequence[Rejected], before: bytes = b"") -> ListEntry:
    """Lists samples that were left out of the dataset in `folder`, under a temporary name first.

    Where there are none, no list stays; it may be one that an append has left that was killed.

    Args:
        before: lines that come first, as they are.
    """
    data = before + encode_lines(rejected)
    path = folder / REJECTED_FILE
    if not data:
        path.unlink(missing_ok=True)
        return msgspec.UNSET
    partial = folder / (REJECTED_FILE + ".partial")
    write_synced(partial, data)
    partial.replace(path)
    return FileEntry(file=REJECTED_FILE, bytes=len(data), digest=xxhash.xxh3_128_hexdigest(data))


def left_out_lines(folder: Path, manifest: Manifest) -> bytes:
    """The list of a dataset as it is stored; empty where nothing was left out.

    Of a dataset whose manifest counts what was left out and knows no list, as manifests once did, it is what can be
    read of the file.

    Raises:
        DamagedError: it is missing, or is not what was written.
        DatasetError: it may not be read.
    """
    entry = manifest.left_out
    if isinstance(entry, msgspec.UnsetType):
        counted = any(shard.rejected for shard in manifest.shards)
        return encode_lines(salvage_left_out(folder, len(manifest.shards))) if counted else b""
    path = folder / entry.file
    try:
        with path.open("rb") as file:
            held = os.fstat(file.fileno()).st_size
            data = file.read(entry.bytes) if held >= entry.bytes else b""
    except PermissionError as error:
        raise _unreadable(path, error) from None
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
        DamagedError: the list is missing, or is not what was written, or is no such list.
        DatasetError: it may not be read.
    """
    lines = left_out_lines(folder, manifest)
    try:
        return decode_lines(lines)
    except msgspec.DecodeError as error:
        raise DamagedError(f"{folder / REJECTED_FILE}: it lists no samples: {error}; {_MEND}") from None


def salvage_left_out(folder: Path, shards: int) -> list[Rejected]:
    """Those lines of the list that can still be read and are of one of the first `shards` shards, or of none.

    Raises:
        DatasetError: the file is there and cannot be read.
    """
    path = folder / REJECTED_FILE
    try:
        lines = path.read_bytes().splitlines() if path.is_file() else []
    except OSError as error:
        raise _unreadable(path, error) from None
    found = []
    for line in lines:
        try:
            bad = msgspec.json.decode(line, type=Rejected)
        except msgspec.DecodeError:
            continue
        if bad.shard is None or bad.shard < shards:
            found.append(bad)
    return found


def _unreadable(path: Path, error: OSError) -> DatasetError:
    return DatasetError(f"{path}: cannot be read: {error.strerror}")
