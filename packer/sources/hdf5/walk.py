"""Finds every dataset of a file or group: nested, linked, in other files, each once."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import h5py

from packer.errors import SourceError
from packer.sources.hdf5.file import plain

#: More links than any dataset in use has; hostile files can name billions in a few bytes.
MAX_LINKS = 200_000
_FAULTS = (OSError, RuntimeError, ValueError, TypeError, LookupError, SystemError)


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
    seen = {_identity(root): "/"}
    groups: deque[tuple[str, h5py.Group]] = deque([("", root)])
    links: deque[tuple[str, h5py.Group, str | bytes]] = deque()
    count = 0
    while groups or links:
        if groups:
            prefix, group = groups.popleft()
            hard, soft = _links(group)
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
                first = seen.setdefault(_identity(found.thing), found.path)
                if first != found.path:
                    found = Found(found.path, None, same=first)
                elif isinstance(found.thing, h5py.Group):
                    deeper.append((found.path, found.thing))
            yield found
        groups.extendleft(reversed(deeper))


def _links(group: h5py.Group) -> tuple[list[str | bytes], list[str | bytes]]:
    """Names of a group's hard links, and of its other ones."""
    hard: list[str | bytes] = []
    soft: list[str | bytes] = []
    try:
        for name in group:
            is_hard = isinstance(name, bytes) or group.get(name, getlink=True, getclass=True) is h5py.HardLink
            (hard if is_hard else soft).append(name)
            if len(hard) + len(soft) > MAX_LINKS:
                break
    except _FAULTS as error:
        raise SourceError(f"group {group.name} cannot be listed: {plain(error)}", group.file.filename) from error
    return hard, soft


def _follow(group: h5py.Group, name: str | bytes, path: str) -> Found:
    if isinstance(name, bytes):
        return Found(path, None, "has a name that is not UTF-8")
    try:
        return Found(path, group[name])
    except _FAULTS as error:
        return Found(path, None, _dead_end(group, name, plain(error)))


def text(name: str | bytes) -> str:
    """Return a name as text, with escapes for bytes that are not UTF-8."""
    # h5py leaves names that are not UTF-8 as bytes.
    return name if isinstance(name, str) else name.decode("utf-8", "backslashreplace")


def _dead_end(group: h5py.Group, name: str, why: str) -> str:
    try:
        link = group.get(name, getlink=True)
    except _FAULTS:
        return f"cannot be opened: {why}"
    if isinstance(link, h5py.ExternalLink):
        there = Path(group.file.filename).parent / link.filename
        missing = "which does not exist" if not there.exists() else f"which cannot be opened: {why}"
        return f"is a link to {link.path} of file {link.filename}, {missing}"
    if isinstance(link, h5py.SoftLink):
        return f"is a link to {link.path}, which does not exist"
    return f"cannot be opened: {why}"


def _identity(thing: h5py.HLObject) -> tuple[int, int]:
    info = h5py.h5o.get_info(thing.id)
    return int(info.fileno), int(info.addr)
