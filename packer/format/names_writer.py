"""Writes names.lmdb."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from packer.errors import SourceError
from packer.format import pages
from packer.format.lmdb_appender import LmdbAppender
from packer.format.name_keys import BY_NAME, BY_NUMBER, KEY, MAX_NAME, VALUE
from packer.format.page_replay import PageReplay
from packer.format.write_errors import clear_errors


def write_names(path: Path, names: Sequence[bytes]) -> None:
    """Writes names.lmdb for samples named `names`, in the order of their numbers.

    Raises:
        SourceError: two samples have one name, or a name is too long.
        WriteError: the file cannot be written.
    """
    ordered = sorted(range(len(names)), key=names.__getitem__)
    _check(names, ordered)
    with clear_errors(path):
        # The appender commits now and then, which costs a few pages more than the one commit replayed for this.
        appender = LmdbAppender(path, pages.map_size(names_bytes(names)) + 64 * 4096)
        try:
            for number, name in enumerate(names):
                appender.put(KEY.pack(BY_NUMBER, number), name)
            for number in ordered:
                appender.put(BY_NAME + names[number], VALUE.pack(number))
            appender.finish()
        except BaseException:
            appender.abort()
            raise


def names_bytes(names: Sequence[bytes]) -> int:
    """Bytes of names.lmdb for these names: exact up to about a million of them, then a few pages less than it takes."""
    replay = PageReplay()
    for name in names:
        replay.put(9, len(name))
    for name in sorted(names):
        replay.put(1 + len(name), 8)
    replay.commit()
    return replay.file_bytes


def _check(names: Sequence[bytes], ordered: Sequence[int]) -> None:
    for number in ordered:
        if not 0 < len(names[number]) <= MAX_NAME:
            shown = names[number][:40].decode(errors="replace")
            raise SourceError(f"the name {shown!r}... has {len(names[number])} bytes, 1 to {MAX_NAME} fit")
    for a, b in itertools.pairwise(ordered):
        if names[a] == names[b]:
            raise SourceError(f"samples {a} and {b} have one name, {names[a].decode()!r}; names must differ")
