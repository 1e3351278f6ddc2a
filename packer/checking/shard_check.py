"""Checks one shard against the manifest: a pure function of a file, run in whichever process."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import xxhash

from packer.errors import DamagedError
from packer.format.column import Column
from packer.format.manifest import ColumnTotals, ShardEntry
from packer.format.schema import Field
from packer.format.shard import Shard, column_totals
from packer.sources.apart import Here, Limits, Lost, run
from packer.sources.base import Progress, no_progress

#: What to do ends the message of an error; a list of damages says it once, for all of them.
_ADVICE = re.compile(r"; (copy it again or )?run `packer (verify|repair)`.*$")


#: Names of each shard that are compared with the table of names: its digest finds what was changed, and who writes one
#: wrong writes many wrong.
_COMPARED = 10
#: Names told of one damage.
SHOWN_NAMES = 5


@dataclass(frozen=True)
class Damage:
    """One thing that is wrong.

    Attributes:
        file: path within the dataset.
        what: a sentence.
        field: the field concerned, if it is one.
        samples: numbers of the first sample concerned and the one after the last; None for the file as a whole.
        names: names of the first few of them.
        repairable: whether `packer repair` makes it right, given the sources.
    """

    file: str
    what: str
    field: str | None = None
    samples: tuple[int, int] | None = None
    names: tuple[str, ...] = ()
    repairable: bool = True

    def __str__(self) -> str:
        where = self.file
        if self.field is not None:
            where += f", field {self.field!r}"
        if self.samples is not None:
            first, stop = self.samples
            where += f", sample {first}" if stop == first + 1 else f", samples {first} to {stop - 1}"
        if self.names:
            more = self.samples is not None and len(self.names) < self.samples[1] - self.samples[0]
            where += f" ({', '.join([*self.names, *(['...'] if more else [])])})"
        return f"{where}: {self.what}"


class ShardCheck(NamedTuple):
    """What is to be checked; pickles small."""

    folder: Path
    entry: ShardEntry
    fields: tuple[Field, ...]


@dataclass
class Checked:
    """What was checked of a shard, and what is wrong with it; its samples are counted from the shard's first one."""

    damages: list[Damage] = field(default_factory=list)
    nbytes: int = 0
    frames: int = 0
    #: Of the first samples; none if it could not be read, or its samples have no names.
    names: list[bytes] = field(default_factory=list)
    #: Bytes of each column, by field; absent where the shard could not be read so far.
    totals: dict[str, ColumnTotals] = field(default_factory=dict)


def check_shard(check: ShardCheck, progress: Progress | None = None) -> Checked:
    """Checks every byte of a shard: header, index, frames, names, and the digest of the file.

    It reads through a map of the file. Where the disk cannot read a page of it, or the file is cut short meanwhile,
    the system ends the process (SIGBUS): `check_shards` has others for that.

    Args:
        progress: called with 0 and the bytes done since the last call.

    Raises:
        DatasetError: it cannot be opened, for want of permission or of room for open files, which says nothing of it.
    """
    checked = Checked()
    try:
        with Shard(check.folder / check.entry.file, check.entry.bytes) as shard:
            _check_open(shard, check, checked, progress or no_progress)
    except DamagedError as error:
        file = check.entry.file
        checked.damages.append(Damage(file, of_file(str(error), check.folder / file, check.folder)))
    return checked


def check_shards(checks: Sequence[ShardCheck], workers: int) -> Iterator[tuple[int, Checked]]:
    """Yield number and result of every check, in the order in which they are done.

    A disk that cannot read a page of a map ends the process that asked for it: by that the shard is found damaged, and
    the others are checked all the same.

    Args:
        workers: processes.
    """
    for number, result in run(_check_apart, checks, workers, Limits(None, None)):
        if isinstance(result, Lost):
            what = f"reading it crashed the process ({result.ending}): check the disk"
            yield number, Checked([Damage(checks[number].entry.file, what)])
        else:
            yield number, result


def _check_apart(check: ShardCheck, here: Here) -> Checked:
    return check_shard(check)


def of_file(text: str, path: Path, folder: Path) -> str:
    """Return what a message says of a file: without the file itself, the path of the dataset, and what to do."""
    return _ADVICE.sub("", text.removeprefix(f"{path}: ").replace(f"{folder}{os.sep}", ""))


def _check_open(shard: Shard, check: ShardCheck, checked: Checked, progress: Progress) -> None:
    samples = check.entry.samples
    header = shard.check_header(check.fields, samples)
    columns = []
    for position, each in enumerate(check.fields):
        column = shard.column(position, each, samples)
        column.index.check_samples(shard.path)
        columns.append(column)
        checked.totals[each.name] = column_totals(column.index)
    _check_bytes(shard, check.entry, columns, checked, progress)
    if not checked.damages:
        for column in columns:
            checked.damages += [
                Damage(check.entry.file, what, column.field.name, at) for what, at in column.check_values()
            ]
        if header.named:
            checked.names = list(itertools.islice(shard.names(samples), _COMPARED))


def _check_bytes(shard: Shard, entry: ShardEntry, columns: list[Column], checked: Checked, progress: Progress) -> None:
    """Hashes the file, and its frames one by one."""
    wrong, done = [], 0
    with ThreadPoolExecutor(1) as pool:
        # By another thread: hashing does not hold the interpreter's lock.
        digest = pool.submit(xxhash.xxh3_128_hexdigest, shard.bytes)
        for column in columns:
            checked.frames += column.index.frames
            for nbytes, found in column.check_frames():
                wrong += [(begin, frame, column) for begin, frame in found]
                done += nbytes
                progress(0, nbytes)
        good = digest.result() == entry.digest
    progress(0, entry.bytes - done)
    checked.nbytes += entry.bytes
    for _, frame, column in sorted(wrong, key=lambda one: one[:2]):
        what = f"the checksum of frame {frame} is wrong"
        checked.damages.append(Damage(entry.file, what, column.field.name, column.index.sample_range(frame)))
    if not good and not wrong:
        what = "its digest is wrong, though all frames are right: an index, a page or the padding changed"
        checked.damages.append(Damage(entry.file, what))
