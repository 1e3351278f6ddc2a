"""A lost manifest, made again from the headers of the shards.

A dataset that was converted holds the shards 0, 1, 2, ... of one conversion. One that was merged or appended to holds
those of several, one after another. The files are numbered consecutively, but each header keeps the number and the
origin that the shard had in the dataset it was packed for. So a header that says 0 begins another part.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

from packer.errors import DatasetError, UnfinishedError
from packer.format import (
    CONSTANTS_FILE,
    NAMES_FILE,
    REJECTED_FILE,
    SHARD_FOLDER,
    UNFINISHED,
    Manifest,
    Shard,
    ShardEntry,
    ShardHeader,
    ShardNames,
    clear_errors,
    file_digest,
    found_constants,
    write_names,
)
from packer.format import manifest as manifests
from packer.packing import joined, make_manifest, next_to, read_list, report_of, shard_path

_log = logging.getLogger(__name__)


def rebuild_manifest(folder: Path) -> Manifest:
    """Make manifest.json again from the headers of the shards, and write it.

    Samples that were left out are counted by rejected.jsonl. Planned bytes, statistics of the values and splits are
    lost.

    Raises:
        DatasetError: a shard is missing or damaged, or the shards do not belong together; or the table of names, the
            list of what was left out, or the constants are damaged too.
        WriteError: the folder cannot be written.
    """
    if (folder / UNFINISHED).exists():
        raise UnfinishedError(f"{folder} is unfinished; run the same `packer convert` again to go on")
    appending = next_to(folder, "appending")
    if appending.exists():
        raise DatasetError(
            f"{folder}: its manifest is lost, which alone says how many shards a killed append had added; "
            f"remove {appending} to take every shard that is there, then repair again"
        )
    parts = _parts(folder)
    headers = [header for part in parts for header in part]
    first, origin = headers[0], headers[0].origin
    if len(parts) > 1:
        origin = joined([(sum(header.samples for header in part), part[0].origin) for part in parts])
    listed = read_list(folder / REJECTED_FILE) if (folder / REJECTED_FILE).exists() else []
    # An append that was killed may have listed more.
    left_out = [bad for bad in listed if bad.shard is None or bad.shard < len(headers)]
    rejected = Counter(bad.shard for bad in left_out)
    reports = [report_of(shard_path(folder, number), first.fields) for number in range(len(headers))]
    constants = found_constants(folder)
    options = [header.origin.get("options") for header in headers]
    if constants is None and any(isinstance(asked, dict) and asked.get("once") for asked in options):
        _log.warning("%s is lost as well, which held what --once kept; convert the sources anew", CONSTANTS_FILE)
    shards = [msgspec.structs.replace(one.entry, rejected=rejected[number]) for number, one in enumerate(reports)]
    made = make_manifest(
        folder,
        shards,
        [report.columns for report in reports],
        first.fields,
        origin,
        _table(folder, shards) if first.named else None,
        left_out,
        constants=constants,
    )
    manifests.write(folder, made)
    return made


def _parts(folder: Path) -> list[list[ShardHeader]]:
    """Return the headers of the shards in the order of their files, by the conversion that packed them.

    Raises:
        DatasetError: a shard is missing or damaged, or the shards do not belong together.
    """
    parts: list[list[ShardHeader]] = []
    for number, path in enumerate(sorted((folder / SHARD_FOLDER).glob("*.lmdb"))):
        with Shard(path) as shard:
            header = shard.header()
        if path != shard_path(folder, number):
            break
        before = parts[-1][-1] if parts else header
        is_alike = (header.fields, header.named) == (before.fields, before.named)
        if is_alike and header.shard == 0:
            parts.append([header])
        elif is_alike and parts and (before.shard + 1, before.origin) == (header.shard, header.origin):
            parts[-1].append(header)
        else:
            raise DatasetError(f"{folder}: the shards do not belong together, so the manifest cannot be made from them")
    else:
        if parts:
            return parts
    raise DatasetError(f"{folder}: the shards are not all there, so the manifest cannot be made from them")


def _table(folder: Path, shards: Sequence[ShardEntry]) -> str:
    """Return the table of names that is, or was, in use: appending writes each under a new name.

    Only the lost manifest had digests that cover names. So the table must equal the one made from the shards.

    Raises:
        DatasetError: it does not.
    """
    table = [folder / NAMES_FILE, *sorted(folder.glob("names-*.lmdb"))][-1]
    if not table.exists():
        _log.warning(
            "%s is lost together with the manifest: names are taken from the shards as they are; "
            "`packer verify --against` compares them with the sources",
            table,
        )
        return table.name
    partial = table.with_name(f"{table.name}.partial")
    write_names(partial, ShardNames(folder, shards))
    is_same = file_digest(partial) == file_digest(table)
    with clear_errors(partial):
        partial.unlink()
    if not is_same:
        raise DatasetError(
            f"{table}: it does not hold the names of the shards: one of the two is damaged, or the last shards are "
            "gone, and only the lost manifest could say which; put one of these files back from a copy, or remove the "
            "table to take the names of the shards as they are"
        )
    return table.name
