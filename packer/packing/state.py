"""unfinished.json: what a folder is being made of, so that only the same conversion goes on with it."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from packer.errors import SourceError
from packer.format.manifest import UNFINISHED
from packer.sources.base import Source

#: Settings that may be changed halfway by those who ask for it, see `State.harmless`.
ON_ERROR, MAP_SIZE, READ_TIMEOUT, READ_MEMORY = "--on-error", "--map-size", "--read-timeout", "--read-memory"
_LIMITS = (READ_TIMEOUT, READ_MEMORY)


class State(msgspec.Struct, frozen=True, kw_only=True):
    """What is being made.

    Attributes:
        shards: how many there will be; None where samples still arrive.
        settings: what was asked for, by name.
        files: path, size and time of change (ns) of every source file.
        shown: for settings whose values say little to people, what was asked for.
        tells_all: whether two runs of the same settings and files make the same; not so of samples in memory.
    """

    shards: int | None
    settings: dict[str, Any]
    files: list[tuple[str, int, int]]
    shown: dict[str, str] = {}
    tells_all: bool = True

    def difference(self, other: State, passing: Collection[str] = ()) -> str | None:
        """What differs from another conversion, in words; None where the other can go on with this one.

        Args:
            passing: settings that may differ.
        """
        for name in {**self.settings, **other.settings}:
            was, now = self.settings.get(name), other.settings.get(name)
            if was != now and name not in passing:
                shown = (self.shown.get(name, was), other.shown.get(name, now))
                return f"{name} was {_short(shown[0])} and is now {_short(shown[1])}"
        held = {path: rest for path, *rest in self.files}
        for path, *rest in other.files:
            if path not in held:
                return f"{path} is new"
            if held.pop(path) != rest:
                return f"{path} has changed"
        return f"{next(iter(held))} is gone" if held else None

    def harmless(self, other: State, finished: bool) -> tuple[str, ...]:
        """Settings in which another conversion may differ and would have made the same of what is finished here.

        Where bad samples stop a conversion, no finished shard has left any out, and none would where limits of reading
        are looser. The size of a map stands in the shards.

        Args:
            finished: whether there are finished shards.
        """
        if not finished:
            return (ON_ERROR, MAP_SIZE, *_LIMITS)
        if self.settings.get(ON_ERROR) != "stop":
            return ()
        looser = [name for name in _LIMITS if _no_less(other.settings.get(name), self.settings.get(name))]
        return (ON_ERROR, *looser)


def claim_of(work: Path) -> str:
    """What is being made in a folder, as a digest of its note; empty where that is nothing any more."""
    try:
        return xxhash.xxh3_128_hexdigest((work / UNFINISHED).read_bytes())
    except FileNotFoundError:
        return ""


def source_files(paths: list[str]) -> list[tuple[str, int, int]]:
    """Path, size and time of change of each file, for `State`."""
    out = []
    for path in paths:
        # Without a Path, 6 instead of 13 us a file: there may be millions.
        found, shown = os.stat(path), os.path.abspath(path)  # noqa: PTH100, PTH116
        shown = shown.encode(errors="backslashreplace").decode()  # JSON holds nothing but text
        out.append((shown, found.st_size, found.st_mtime_ns))
    return out


def listed(source: Source) -> list[tuple[str, int, int]]:
    """Path, size and time of change of every file of a source; none of samples in memory.

    Raises:
        SourceError: a file is gone, or cannot be looked at.
    """
    try:
        return source_files(source.files())
    except OSError as error:
        raise SourceError(f"cannot be read: {error.strerror}", error.filename) from None


def _no_less(limit: float | None, than: float | None) -> bool:
    """Whether one limit lets through all that another does; None is none."""
    return limit is None or (than is not None and limit >= than)


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) < 60 else text[:57] + "..."
