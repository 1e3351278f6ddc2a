"""Parts of a dataset, `3/400`: every 400th shard from the third on. Commands that read a dataset share it out by them.

    unfinished/verify-0123456789abcdef-3-of-400.msgpack     the report of a part: verb, digest of the manifest, part

Each part writes a report to where the dataset is. A later call of the same verb takes the results of its shards from
the reports, does the missing ones itself, and removes the reports. It believes a report for a day, and of shards that
are what they were when the part began. A report is work that was saved, and no part of the dataset: commands that
change the dataset, `repair` too, remove reports, and the later call then does their shards.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Annotated, Any

import msgspec
import xxhash

from packer.errors import DamagedError, PackerError, UsageError, WriteError
from packer.format import UNFINISHED, Manifest
from packer.format import manifest as manifests
from packer.packing.places import PART_REPORT, Place

_log = logging.getLogger(__name__)

#: How long a report is believed.
_DAY = timedelta(days=1)


def parse_part(text: str) -> tuple[int, int]:
    """Return the number of a part, from 0 to n, and how many there are, n; raises UsageError if it is no part."""
    match = re.fullmatch(r"(\d+)/(\d+)", str(text))
    if match is None or not int(match[2]) or int(match[1]) > int(match[2]):
        raise UsageError(f"part {text!r}: I/N is expected, with I from 1 to N, such as 17/400; 0/N is N/N")
    return int(match[1]), int(match[2])


def part_shards(part: str, shards: int) -> range:
    """Return the numbers of the shards of a part; of n parts, part 0 is part n.

    Args:
        part: as `parse_part` takes it.
        shards: how many the dataset has.
    """
    number, count = parse_part(part)
    return range((number - 1) % count, shards, count)


def shards_left(manifest: Manifest, part: str | None, reports: PartReports | None) -> Sequence[int]:
    """Return the numbers of the shards to read: those of a part, or all that no report tells of."""
    if part is not None:
        return part_shards(part, len(manifest.shards))
    done = {} if reports is None else reports.join(manifest).results
    return [number for number in range(len(manifest.shards)) if number not in done]


class SavedResults(msgspec.Struct, frozen=True):
    """The results that a part has saved.

    Attributes:
        began, ended: when its shards were read.
        shards: the result of each of its shards, by number; of the type that the verb has.
        stamps: of the files of these shards when the part began, as the place gives them.
    """

    began: Annotated[datetime, msgspec.Meta(tz=True)]
    ended: Annotated[datetime, msgspec.Meta(tz=True)]
    shards: dict[int, msgspec.Raw]
    stamps: dict[int, str]


@dataclass(frozen=True)
class JoinedParts:
    """The results of shards that reports of parts give.

    Attributes:
        results: by number of the shard.
        parts: how many reports they come from.
        began, ended: when the first of these parts began and the last one ended; None if there is no report.
    """

    results: Mapping[int, Any]
    parts: int = 0
    began: datetime | None = None
    ended: datetime | None = None


class PartReports:
    """The reports of the parts of one verb.

    Args:
        place: of the dataset.
        verb: `verify` or `stats`.
        result_type: type of the result of a shard.
    """

    def __init__(self, place: Place, verb: str, result_type: type[Any]) -> None:
        self._place, self._verb, self._result_type = place, verb, result_type
        self._report_names: list[str] = []
        self._stamps: dict[str, str] = {}
        self._joined: tuple[Manifest, JoinedParts] | None = None

    def begin(self) -> None:
        """Note what the shards are before a part reads them.

        Raises:
            UsageError: no report can be written there.
            WriteError: the place cannot be listed.
        """
        self._place.check_writable()
        self._stamps = self._place.stamps()

    def write(self, manifest: Manifest, part: str, began: datetime, results: Mapping[int, Any]) -> None:
        """Write the report of a part that ends now, after `begin`; one that was written before is replaced.

        Raises:
            WriteError: the place cannot be written.
        """
        number, count = parse_part(part)
        shards = {shard: msgspec.Raw(msgspec.msgpack.encode(result)) for shard, result in results.items()}
        stamps = {shard: self._stamps.get(manifest.shards[shard].file, "") for shard in shards}
        self._place.prepare()
        self._place.write(
            f"{self._prefix(manifest)}{number or count}-of-{count}.msgpack",
            msgspec.msgpack.encode(SavedResults(began, utc_now(), shards, stamps)),
        )

    def join(self, manifest: Manifest) -> JoinedParts:
        """Return the results that the reports of this very manifest give; of several for one shard, the latest.

        What is left to the caller: shards that are not what they were when their part began, and those of reports that
        are damaged or older than a day.

        Raises:
            DamagedError: a report speaks of shards that the dataset does not have.
        """
        if self._joined is None or self._joined[0] != manifest:
            self._joined = manifest, self._join(manifest)
        return self._joined[1]

    def _join(self, manifest: Manifest) -> JoinedParts:
        stamps = self._list_stamps()
        self._report_names = [name for name in stamps if name.startswith(f"{UNFINISHED}/{self._verb}-")]
        reports, results, report_of_shard = [], {}, {}
        for name in self._report_names:
            if name.startswith(self._prefix(manifest)) and re.fullmatch(PART_REPORT, name):
                with contextlib.suppress(msgspec.DecodeError):  # the power failed, or another version wrote it
                    report = msgspec.msgpack.decode(self._place.read(name) or b"", type=SavedResults)
                    shard_results = {
                        n: msgspec.msgpack.decode(raw, type=self._result_type) for n, raw in report.shards.items()
                    }
                    if strange := shard_results.keys() - set(range(len(manifest.shards))):
                        raise DamagedError(
                            f"{self._place}/{name}: it speaks of shard {max(strange)}, and the dataset has "
                            f"{len(manifest.shards)}, from 0 on; the report is damaged: remove it, run its part again"
                        )
                    if abs(utc_now() - report.ended) < _DAY:
                        reports.append((report, shard_results))
        for report, shard_results in sorted(reports, key=lambda pair: pair[0].began):
            for number, result in shard_results.items():
                stamp = report.stamps.get(number)
                if stamp and stamps.get(manifest.shards[number].file) == stamp:
                    results[number], report_of_shard[number] = result, report
        used_reports = {id(report): report for report in report_of_shard.values()}.values()
        if not used_reports:
            return JoinedParts({})
        return JoinedParts(
            results,
            len(used_reports),
            min(report.began for report in used_reports),
            max(report.ended for report in used_reports),
        )

    def remove(self) -> None:
        """Remove the reports that `join` has listed, also those of other manifests; a failure is a warning."""
        try:
            if self._report_names:
                self._place.remove(self._report_names)
        except WriteError as error:
            _log.warning("the reports of parts stay: %s", error)

    def _prefix(self, manifest: Manifest) -> str:
        return f"{UNFINISHED}/{self._verb}-{xxhash.xxh3_64_hexdigest(manifests.encode(manifest))}-"

    def _list_stamps(self) -> dict[str, str]:
        """Return the files of the place with their stamps; none where nobody can have written reports."""
        try:
            self._place.check_writable()
            return self._place.stamps()
        except PackerError as error:
            _log.debug("no reports of parts are looked for: %s", error)
            return {}


def utc_now() -> datetime:
    """Return the time, of which a report says when its shards were read."""
    return datetime.now(timezone.utc)
