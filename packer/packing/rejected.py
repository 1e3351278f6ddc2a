"""Samples that were left out of a dataset, and the lists of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from packer.errors import SourceError
from packer.format.sync import write_synced


class Rejected(msgspec.Struct, frozen=True, omit_defaults=True):
    """A sample that was left out: the file at fault, the reason, and the shard in which it would stand.

    Files that were found bad before anything was planned belong to no shard.
    """

    file: str
    reason: str
    shard: int | None = None

    @classmethod
    def of(cls, error: SourceError, kind: str = "") -> Rejected:
        """What is noted of an error; names that are not text (UTF-8) show as escapes, since JSON cannot hold them."""
        return cls(_text(error.path or kind), _text(error.reason))


def write_rejected_lines(path: Path, rejected: Sequence[Rejected]) -> None:
    """Writes a list, a line of JSON for each, down to the disk."""
    write_synced(path, encode_lines(rejected))


def read_rejected_lines(path: Path) -> list[Rejected]:
    """Reads a list.

    Raises:
        OSError, msgspec.DecodeError: there is none, or it is damaged.
    """
    return decode_lines(path.read_bytes())


def encode_lines(rejected: Sequence[Rejected]) -> bytes:
    """The lines of a list."""
    return msgspec.json.Encoder().encode_lines(rejected)


def decode_lines(lines: bytes) -> list[Rejected]:
    """The samples that lines of a list tell of; msgspec.DecodeError where they are damaged."""
    return msgspec.json.Decoder(Rejected).decode_lines(lines)


def _text(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()
