"""Finds every dataset of a file or group: nested, linked, in other files, each once."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py

from packer.errors import SourceError
from packer.sources.hdf5.file import FAULTS, plain

#: More links than any dataset in use has; hostile files can name billions in a few bytes.
MAX_LINKS = 200_000
_KNOWN_LINKS = (h5py.h5l.TYPE_HARD, h5py.h5l.TYPE_SOFT, h5py.h5l.TYPE_EXTERNAL)


@dataclass(frozen=True)
class Found:
    """One thing that a walk met: a dataset or a group, another name of one, or a link that leads nowhere, and why.

    Attributes:
        path: path from the root of the walk, with a leading slash.
        thing: the open object; None where it cannot be opened, or was met already.
        problem: why it cannot, as a phrase that follows the path.
        same: path under which it was met already.
    """

    path: str
    thing: h5py.Dataset | h5py.Group | None
    problem: str | None = None
    same: str | None = None


def walk(root: h5py.Group) -> Iterator[Found]:
    """Groups and datasets below `root` in the file's order; soft and external links behind the rest.

    Of what was met already only the path comes, so that every dataset comes once.

    Raises:
        SourceError: there are more than `MAX_LINKS` links.
    """
    identities = _Identities()
    seen = {identities.of(root): "/"}
    groups: deque[tuple[str, h5py.Group]] = deque([("", root)])
    links: deque[tuple[str, h5py.Group, str | bytes]] = deque()
    count = 0
    while groups or links:
        if groups:
            prefix, group = groups.popleft()
            hard, soft, problem = _links(group)
            if problem:
                yield Found(prefix or "/", None, problem)
            links.extend((prefix, group, name) for name in soft)
            todo = [(prefix, group, name) for name in hard]
        else:
            todo = [links.popleft()]
        count += len(todo)
        if count + len(links) > MAX_LINKS:
            raise SourceError(f"holds more than {MAX_LINKS:,} links", root.file.filename)
        deeper = []
        for prefix, group, name in todo:
            found = _follow(group, name, f"{prefix}/{text(name)}")
            if found.thing is not None:
                if isinstance(found.thing, h5py.Datatype):
                    continue
                first = seen.setdefault(identities.of(found.thing), found.path)
                if first != found.path:
                    found = Found(found.path, None, same=first)
                elif isinstance(found.thing, h5py.Group):
                    deeper.append((found.path, found.thing))
            yield found
        groups.extendleft(reversed(deeper))


def _links(group: h5py.Group) -> tuple[list[str | bytes], list[str | bytes], str | None]:
    """Return the names of a group's hard links, those of its other links, and why there may be more."""
    hard: list[str | bytes] = []
    other: list[str | bytes] = []
    try:
        for name in group:
            (hard if link_class(group, name) == h5py.h5l.TYPE_HARD else other).append(name)
            if len(hard) + len(other) > MAX_LINKS:
                break
    except FAULTS as error:
        return hard, other, f"cannot be listed: {plain(error)}"
    return hard, other, None


def link_class(group: h5py.Group, name: str | bytes) -> int:
    """Return the number of a link's class as the library has it; 64 and more are defined by users."""
    return int(group.id.links.get_info(name if isinstance(name, bytes) else name.encode()).type)


def _follow(group: h5py.Group, name: str | bytes, path: str) -> Found:
    if isinstance(name, bytes):
        return Found(path, None, "has a name that is not UTF-8")
    try:
        return Found(path, group[name])
    except FAULTS as error:
        return Found(path, None, _dead_end(group, name, plain(error)))


def text(name: str | bytes) -> str:
    """Return a name as text, with escapes for bytes that are not UTF-8."""
    # h5py leaves names that are not UTF-8 as bytes.
    return name if isinstance(name, str) else name.decode("utf-8", "backslashreplace")


def _dead_end(group: h5py.Group, name: str, why: str) -> str:
    """Say why a link leads nowhere, as a phrase that follows its path."""
    try:
        number = link_class(group, name)
        link = group.get(name, getlink=True) if number in _KNOWN_LINKS else None
    except FAULTS:
        return f"cannot be opened: {why}"
    if link is None:
        return f"is a link of class {number}, which another program defines and h5py cannot follow"
    if isinstance(link, h5py.ExternalLink):
        there = Path(group.file.filename).parent / link.filename
        missing = "which does not exist" if not there.exists() else f"which cannot be opened: {why}"
        return f"is a link to {link.path} of file {link.filename}, {missing}"
    if isinstance(link, h5py.SoftLink):
        return f"is a link to {link.path}, which does not exist"
    return f"cannot be opened: {why}"


class _Identities:
    """What tells objects apart: the file on disk, and the address in it.

    The library's own number of a file is another one each time that external links open it again.
    """

    def __init__(self) -> None:
        self._files: dict[int, Any] = {}

    def of(self, thing: h5py.HLObject) -> tuple[Any, int]:
        info = h5py.h5o.get_info(thing.id)
        number = int(info.fileno)
        if number not in self._files:
            try:
                status = Path(thing.file.filename).stat()
                self._files[number] = (status.st_dev, status.st_ino)
            except OSError:  # it is in memory, or was renamed since
                self._files[number] = number
        return self._files[number], int(info.addr)
