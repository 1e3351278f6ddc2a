"""A lost manifest, made again from the headers of the shards.

A dataset that was converted holds the shards 0, 1, 2, ... of one conversion. One that was merged or appended to holds
those of several, one after another: the files are numbered through, and each header keeps the number and the
origin that the shard had in the dataset it was packed for. So a header that says 0 begins another part.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import msgspec

from packer.errors import DamagedError, DatasetError, UnfinishedError
from packer.format import (
    CONSTANTS_FILE,
    NAMES_FILE,
    REJECTED_FILE,
    SHARD_FOLDER,
    UNFINISHED,
    FileEntry,
    Manifest,
    Names,
    Shard,
    ShardHeader,
    found_constants,
)
from packer.format import manifest as manifests
from packer.packing import joined, make_manifest, next_to, read_list, report_of, write_list

_log = logging.getLogger(__name__)


class _Held(NamedTuple):
    """A shard that is there."""

    path: Path
    header: ShardHeader


def rebuild_manifest(folder: Path) -> Manifest:
    """Make manifest.json again from the headers of the shards, and write it.

    Samples that were left out are counted by rejected.jsonl. Planned bytes, statistics of the values and splits are
    lost.

    Raises:
        DatasetError: a shard is missing or damaged, or they do not belong together; or the table of names, the list of
            what was left out, or the constants are damaged too.
    """
    if (folder / UNFINISHED).exists():
        raise UnfinishedError(f"{folder} is unfinished; run the same `packer convert` again to go on")
    appending = next_to(folder, "appending")
    if appending.exists():
        raise DatasetError(
            f"{folder}: its manifest is lost, and so is what tells which shards an append that was killed had added; "
            f"remove {appending} to take every shard that is there, then repair again"
        )
    parts = _parts(folder)
    held = [shard for part in parts for shard in part]
    first, origin = held[0].header, held[0].header.origin
    if len(parts) > 1:
        origin = joined([(sum(shard.header.samples for shard in part), part[0].header.origin) for part in parts])
    listed = read_list(folder / REJECTED_FILE) if (folder / REJECTED_FILE).exists() else []
    # An append that was killed may have listed more.
    left_out = [bad for bad in listed if bad.shard is None or bad.shard < len(held)]
    rejected = Counter(bad.shard for bad in left_out)
    reports = [report_of(path, first.fields) for path, _ in held]
    constants = found_constants(folder)
    options = [header.origin.get("options") for _, header in held]
    if constants is None and any(isinstance(asked, dict) and asked.get("once") for asked in options):
        _log.warning("%s is lost as well, which held what --once kept; convert the sources anew", CONSTANTS_FILE)
    made = make_manifest(
        folder,
        [msgspec.structs.replace(one.entry, rejected=rejected[number]) for number, one in enumerate(reports)],
        [report.columns for report in reports],
        first.fields,
        origin,
        _table(folder, held) if first.named else None,
        left_out=write_list(folder / REJECTED_FILE, left_out),
        constants=constants,
    )
    manifests.write(folder, made)
    return made


def _parts(folder: Path) -> list[list[_Held]]:
    """Return the shards in the order of their files, by the conversion that packed them.

    Raises:
        DatasetError: one is missing or damaged, or they do not belong together.
    """
    parts: list[list[_Held]] = []
    for number, path in enumerate(sorted((folder / SHARD_FOLDER).glob("*.lmdb"))):
        with Shard(path) as shard:
            held = _Held(path, shard.header())
        if path.stem != f"{number:05d}":
            break
        header, before = held.header, parts[-1][-1].header if parts else held.header
        is_alike = (header.fields, header.named) == (before.fields, before.named)
        if is_alike and header.shard == 0:
            parts.append([held])
        elif is_alike and parts and (before.shard + 1, before.origin) == (header.shard, header.origin):
            parts[-1].append(held)
        else:
            raise DatasetError(f"{folder}: the shards do not belong together, so the manifest cannot be made from them")
    else:
        if parts:
            return parts
    raise DatasetError(f"{folder}: the shards are not all there, so the manifest cannot be made from them")


def _table(folder: Path, held: Sequence[_Held]) -> str:
    """Return the table of names that is, or was, in use: appending writes each under a new name.

    Only the lost manifest had digests that cover names. So the table must have those of the shards.

    Raises:
        DatasetError: it has other names than the shards, or is damaged.
    """
    table = [folder / NAMES_FILE, *sorted(folder.glob("names-*.lmdb"))][-1]
    if not table.exists():
        _log.warning(
            "%s is lost together with the manifest: names are taken from the shards as they are; "
            "`packer verify --against` compares them with the sources",
            table,
        )
        return table.name
    try:
        with closing(Names(table, FileEntry(file=table.name, bytes=table.stat().st_size, digest=""))) as names:
            wrong = names_differ(names, _names_in(held))
    except DamagedError as error:
        wrong = f"it cannot be compared with the names in the shards: {error}"
    if wrong:
        raise DatasetError(
            f"{table}: {wrong}; one of the two is damaged, and the manifest is lost, which could tell which; "
            "put one of these files back from a copy, or remove the table to take the names of the shards as they are"
        )
    return table.name


def _names_in(held: Sequence[_Held]) -> Iterator[tuple[int, Iterable[bytes]]]:
    for path, header in held:
        with Shard(path) as shard:
            yield header.samples, shard.names(header.samples)


def names_differ(table: Names, shards: Iterable[tuple[int, Iterable[bytes]]]) -> str | None:
    """Return in words how a table of names differs from the names in the shards; None if it does not.

    Args:
        shards: how many samples each has, and the names of all of them, or of the first few.

    Raises:
        DamagedError: the table, or a shard, is damaged.
    """
    first = 0
    for samples, names in shards:
        if wrong := table.difference(first, names):
            return wrong
        first += samples
    if table.entries != 2 * first:
        return f"it has {table.entries:,} entries, {2 * first:,} expected: two for each sample of the shards"
    return None
