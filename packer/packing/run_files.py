"""The files of one run: shards with their reports, and the tables beside them, each under a name of this run."""

from __future__ import annotations

import contextlib
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from packer.format import FileEntry, data_entry, file_entry, write_names
from packer.packing.note import reported_shard
from packer.packing.places import Place
from packer.packing.rejected import Rejected, encode_list


@dataclass(frozen=True)
class RunFiles:
    """The files that a run has at a place. Each is written once; no other run uses its name."""

    place: Place
    run: str

    def reports(self, report_type: type[Any], shards: Container[int] | None = None) -> dict[int, Any]:
        """Return the reports of shards that are finished, by number. Shards are not read.

        Args:
            shards: numbers of those that are looked at; None for all.
        """
        files = self.place.files()
        reports = {}
        for name in files:
            number = reported_shard(name, self.run)
            if number is not None and (shards is None or number in shards):
                with contextlib.suppress(msgspec.DecodeError):  # the power failed while it was written
                    report = msgspec.json.decode(self.place.read(name) or b"", type=report_type)
                    if files.get(report.entry.file) == report.entry.bytes:
                        reports[number] = report
        return reports

    def count_reports(self) -> int:
        """Return how many shards have a report; none is read."""
        return sum(reported_shard(name, self.run) is not None for name in self.place.files())

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
        with self.place.drafted(name) as draft:
            write_names(draft, names)
            return file_entry(name, draft)

    def _write_file(self, kind: str, ending: str, data: bytes) -> FileEntry | None:
        if not data:
            return None
        name = self.name(kind, ending)
        self.place.write(name, data)
        return data_entry(name, data)
