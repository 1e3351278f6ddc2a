"""Tars of WebDataset: members with one key and several suffixes are one sample.

    shard-000.tar       0001.jpg 0001.txt 0001.json 0002.jpg 0002.txt ...      samples 0001, 0002: image, txt, json

A key is the path of a member up to the first dot of its name, and its members lie side by side. Members are fields,
by their suffix; the one picture of a sample is the field `image`. Nothing is unpacked: the index of a tar is read once,
and the plan keeps where each member lies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from packer.errors import SourceError
from packer.sources.agreeing import agree_on_most
from packer.sources.base import faults_of
from packer.sources.kinds import Kind, pair_in_order
from packer.sources.looking import AFTER, Header
from packer.sources.options import SourceOptions
from packer.sources.table import LaidField, Row, SampleTable
from packer.sources.tars.index import ADVICE, Entry, Member, OpenTar, bytes_after, index_of
from packer.sources.tars.members import PICTURE, READERS
from packer.watcher import Watcher

_IMAGE = "image"
#: Column of the members of a tar that are hidden, and so no samples.
_HIDDEN = "hidden members"
#: Decoded bytes that a block holds at most, as of loose pictures: they stay in the cache of the processor.
_BLOCK_BYTES = 2**19


def look(row: Row, options: SourceOptions) -> list[Header | SourceError]:
    """Return what each sample of a tar holds, or the error of a bad one."""
    with OpenTar(row.path) as tar:
        headers: list[Header | SourceError] = []
        entries, end = index_of(tar)
        samples = _samples(entries, row.path, options.skip)
        if not samples:
            raise SourceError("holds no file that is packed; download it again, or move it away", row.path)
        said = {AFTER.format(""): bytes_after(tar, end), _HIDDEN: sum(_is_hidden(entry.name) for entry in entries)}
        said = {text: count for text, count in said.items() if count}
        for key, members in samples.items():
            try:
                header = _header(key, _fields(members), tar, options)
                headers.append(header._replace(numbers={**header.numbers, **said}))
                said = {}  # the file is named once
            except SourceError as error:
                headers.append(SourceError(error.reason, f"{row.path}/{key}.{error.path}"))
    return headers


def _samples(entries: Sequence[Entry], path: str, skip: Sequence[str]) -> dict[str, list[Member]]:
    """Return the members of each key, without those of suffixes that are skipped.

    Raises:
        SourceError: a member is no file, has no suffix that is understood, or does not lie beside those of its key.
    """
    samples, last = dict[str, list[Member]](), ""
    for entry in entries:
        folder, slash, name = entry.name.rpartition("/")
        if _is_hidden(name):
            continue
        key, _, suffix = name.partition(".")
        key, member = folder + slash + key, Member(suffix.lower(), entry.at, entry.size)
        if member.suffix in skip or member.last in skip:
            continue
        if not entry.is_plain:
            raise SourceError(f"holds {entry.name}, which is no plain file; {ADVICE} without it", path)
        if member.last not in READERS:
            what = f"--skip {member.suffix} leaves out such members" if suffix else f"{ADVICE} without it"
            raise SourceError(f"holds {entry.name}, which is not a kind that is understood; {what}", path)
        if key in samples and key != last:
            raise SourceError(f"the members of {key} do not lie side by side; sort them, and {ADVICE}", path)
        samples.setdefault(key, []).append(member)
        last = key
    return samples


def _is_hidden(name: str) -> bool:
    """Return whether a member is hidden, such as ._a.jpg, which macOS adds."""
    return name.rpartition("/")[2].startswith(".")


def _fields(members: Sequence[Member]) -> dict[str, Member]:
    """Return the members by field: the only picture as `image`, the others by suffix."""
    pictures = [member for member in members if "." not in member.suffix and READERS[member.last] is PICTURE]
    named = {_IMAGE if pictures == [member] else member.suffix: member for member in members}
    if len(named) < len(members):
        (twice, _), *_ = Counter(member.suffix for member in members).most_common(1)
        raise SourceError(f"is there twice in one sample; {ADVICE}", twice)
    return named


def _header(key: str, members: Mapping[str, Member], tar: OpenTar, options: SourceOptions) -> Header:
    layout, numbers = list[LaidField](), dict[str, int]()
    for field, member in members.items():
        with faults_of(member.suffix):
            fields, lengths = READERS[member.last].look(field, tar, member, options)
        layout += [fields[0]._replace(detail=f"{field}:{member.last}"), *fields[1:]]
        numbers |= {f"{field}@at": member.at, f"{field}@size": member.size, **lengths}
    return Header(tuple(layout), numbers, root=key)


def agree(table: SampleTable, options: SourceOptions, remarks: list[str], watcher: Watcher) -> SampleTable:
    """Return the samples that have the fields of most; they are named by their keys, if no two tars have the same."""
    if (hidden := table.numbers.get(_HIDDEN)) is not None:
        remarks.append(f"skipped {int(hidden.sum()):,} hidden members of tars")
    table = agree_on_most(table, watcher, "differs from most samples: {how}; --skip leaves out a field")
    roots = next(iter(table.inputs.values())).roots or []
    if len(set(roots)) == len(roots):
        return msgspec.structs.replace(table, names=list(roots))
    again = [key for key, times in Counter(roots).items() if times > 1]
    remarks.append(
        f"{len(again):,} keys are in several tars, such as {again[0]}: names of samples begin with those of tars"
    )
    return table


def read(row: Row, options: SourceOptions) -> dict[str, Any]:
    """Return the values of a sample."""
    sample = dict[str, Any]()
    with OpenTar(row.path) as tar:
        for laid in row.layout:
            if laid.detail is None:  # a further field of a member
                continue
            field, _, last = laid.detail.rpartition(":")
            try:
                data = tar.read(row.numbers[f"{field}@at"], row.numbers[f"{field}@size"])
                sample |= READERS[last].read(field, data, options)
            except SourceError as error:
                raise SourceError(error.reason, f"{row.path}/{row.root}.{last}") from None
    return sample


KIND = Kind(
    "tars",
    (".tar",),
    look,
    read,
    names_fields=True,
    options=("skip", "mode", "palette", "max_pixels", "orient"),
    pair=pair_in_order,
    agree=agree,
    exports="tar",
    block_bytes=_BLOCK_BYTES,
)
