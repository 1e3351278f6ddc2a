"""What readers that share a cache tell each other, so that none holds the room that another needs.

    CACHE/readers/HEX.claim    what a loop over shards holds at once, as long as it goes on
    CACHE/readers/HEX.wait     somebody waits for room, and how far in the epoch

A loop begins only if the claims of all together have room. It also fetches shards ahead, beyond its claim: these it
gives back while anybody waits. Of several that wait, the one that is least far in its epoch goes first, and the others
give back what they hold, so that two ranks never wait for each other.

A file here is locked by the process that wrote it. What a killed process has left is not locked, and is removed. Where
the file system has no locks, there are no such files.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import msgspec

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


class Claim(msgspec.Struct, frozen=True):
    """What a loop over shards holds at once.

    Attributes:
        url: of the dataset, for messages.
        bytes: of the shards.
        group: the same for ranks of a job, whose claim is for all of them. Empty for a loop of its own.
        rank: within the group.
    """

    url: str
    bytes: int
    group: str = ""
    rank: int = 0


class Wait(msgspec.Struct, frozen=True, order=True):
    """Somebody waits for room.

    Attributes:
        epoch, position: how far it is; -1 for what is no loop, and goes first.
        token: random.
    """

    epoch: int = -1
    position: int = -1
    token: str = msgspec.field(default_factory=lambda: secrets.token_hex(8))


Content = TypeVar("Content", Claim, Wait)


class Sign:
    """A file that says something as long as this object is there, and not closed."""

    def __init__(self, folder: Path, content: Claim | Wait) -> None:
        self.content = content
        self._path = folder / f"{secrets.token_hex(8)}.{_ending(type(content))}"
        hidden = self._path.with_name(f".{self._path.name}")
        self.close: Callable[[], object] = lambda: None
        if fcntl is None:
            return
        with contextlib.suppress(OSError):  # no locks, no room, no right: then nothing is said
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            self.close = weakref.finalize(self, _take_down, self._path, descriptor, os.getpid())
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(descriptor, msgspec.json.encode(content))
            hidden.rename(self._path)  # only now: it is never seen without its lock
            return
        self.close()
        with contextlib.suppress(OSError):
            hidden.unlink(missing_ok=True)


def _take_down(path: Path, descriptor: int, process: int) -> None:
    if os.getpid() == process:  # a process that was forked meanwhile has the descriptor, too
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
    os.close(descriptor)


def signs(folder: Path, kind: type[Content]) -> list[Content]:
    """Return what other processes and this one say at the moment."""
    contents = []
    if fcntl is not None:
        for path in folder.glob(f"[!.]*.{_ending(kind)}"):
            with contextlib.suppress(OSError, msgspec.DecodeError):
                descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    path.unlink(missing_ok=True)  # of a process that was killed
                except BlockingIOError:
                    contents.append(msgspec.json.decode(os.read(descriptor, 2**16), type=kind))
                finally:
                    os.close(descriptor)
    return contents


def bytes_claimed(claims: Iterable[Claim]) -> int:
    """Return the bytes of all claims together: ranks of one group count once, if each is there once."""
    by_group: dict[object, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for number, claim in enumerate(claims):
        by_group[claim.group or number][claim.rank] += claim.bytes
    return sum(max(ranks.values()) for ranks in by_group.values())


def _ending(kind: type[Claim] | type[Wait]) -> str:
    return "claim" if kind is Claim else "wait"
