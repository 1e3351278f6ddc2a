"""The list of the files and samples that were skipped when a dataset was made: lines of JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import xxhash

from packer.errors import DamagedError, SourceError, as_text, with_urls
from packer.format import FileEntry, Manifest, ShardEntry, open_file, read_errors


class Rejected(msgspec.Struct, frozen=True, omit_defaults=True):
    """A sample that was skipped: the file at fault, the reason, and where it would lie.

    Files that were found bad before anything was planned belong to no shard.

    Attributes:
        shard: its number in the dataset.
        sample: the number of the sample among those that the shard was planned with, skipped ones included; None in
            lists of an earlier version.
    """

    file: str
    reason: str
    shard: int | None = None
    sample: int | None = None

    @classmethod
    def of(cls, error: SourceError, kind: str = "") -> Rejected:
        """Return the entry for an error; a name that is not UTF-8 is escaped, since JSON cannot hold it.

        A file that was fetched has its URL: where it lies is another place on each machine.
        """
        return cls(with_urls(as_text(error.path or kind)), with_urls(as_text(error.reason)))

    def moved(self, shards: int) -> Rejected:
        """Return the same for a dataset in which this many other shards come before its own."""
        return self if self.shard is None else msgspec.structs.replace(self, shard=self.shard + shards)


def encode_list(rejected: Sequence[Rejected]) -> bytes:
    """Return the bytes of a list."""
    return msgspec.json.Encoder().encode_lines(rejected)


def skipped_samples(rejected: Sequence[Rejected], shards: Sequence[ShardEntry]) -> dict[int, dict[int, Rejected]]:
    """Return what was skipped in each shard, by the number of the sample, for shards whose list is complete."""
    skipped: dict[int, dict[int, Rejected]] = {number: {} for number in range(len(shards))}
    for entry in rejected:
        if entry.shard in skipped and entry.sample is not None:
            skipped[entry.shard][entry.sample] = entry
    return {number: samples for number, samples in skipped.items() if len(samples) == shards[number].rejected}


def read_rejected(folder: Path, manifest: Manifest) -> list[Rejected]:
    """Return the samples that were skipped when the dataset in `folder` was made.

    Raises:
        DamagedError: the list is missing, or has changed since it was written.
        DatasetError: there is no permission to read it.
    """
    return [] if manifest.left_out is None else _read_list(folder / manifest.left_out.file, manifest.left_out)


def _read_list(path: Path, entry: FileEntry) -> list[Rejected]:
    with read_errors(path), open_file(path) as file:
        lines = file.read(entry.bytes)  # an append of an earlier version may have left more behind them
    problem = "its digest is wrong: it was cut short, or changed after it was written"
    if xxhash.xxh3_128_hexdigest(lines) == entry.digest:
        try:
            return msgspec.json.Decoder(Rejected).decode_lines(lines)
        except msgspec.DecodeError as error:
            problem = f"it lists no samples: {error}"
    raise DamagedError(f"{path}: {problem}; run `packer repair`, which drops the list")
