"""How long, and with how much memory, one sample may be read."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

from packer.errors import SourceError, UsageError

if sys.platform.startswith("linux"):
    import resource

GIB = 2**30


def usual_memory() -> int:
    """Return the usual limit of memory: an eighth of the machine's, 1 GiB at least."""
    if not hasattr(os, "sysconf"):
        return GIB
    return max(GIB, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 8)


@dataclass(frozen=True)
class Limits:
    """What reading one block (a sample, or samples of 8 MiB), or the headers of one HDF5 file, may take.

    Generous, since they are there for what would never end: None is no limit.

    Attributes:
        seconds: how long.
        nbytes: memory beyond what the process holds already.
    """

    seconds: float | None = 600.0
    nbytes: int | None = field(default_factory=usual_memory)

    def __post_init__(self) -> None:
        for name, value in (("--read-timeout", self.seconds), ("--read-memory", self.nbytes)):
            if value is not None and value <= 0:
                raise UsageError(f"{name} {value}; more than 0 is expected")

    def overtime(self) -> SourceError:
        """The error of a reading that took too long."""
        return SourceError(
            f"reading it takes more than {self.seconds:g} s; raise --read-timeout if the file is merely slow"
        )

    def overrun(self) -> SourceError:
        """The error of a reading that took too much memory."""
        much = f"more than {self.nbytes:,} bytes of memory" if self.nbytes else "more memory than there is"
        return SourceError(f"reading it takes {much}; raise --read-memory if the file is merely large")


@contextlib.contextmanager
def memory_within(nbytes: int | None) -> Iterator[None]:
    """Lets the process take no more than `nbytes` further bytes of memory within the block; more is a MemoryError.

    RLIMIT_DATA counts the memory of the process alone, and what it refuses was never taken. RLIMIT_AS would count
    files that are mapped too (the shard's map is as large as the shard); watching /proc from outside comes late: 6 GB
    are taken within two seconds. Linux alone keeps this limit; elsewhere there is none.
    """
    if nbytes is None or not sys.platform.startswith("linux"):
        yield
        return
    # Pages of data and stack; the kernel compares the first alone, so the limit is no lower than asked for.
    held = int(_statm().split()[5]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    ceiling = held + nbytes if hard == resource.RLIM_INFINITY else min(held + nbytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (ceiling, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _statm() -> bytes:
    """What the kernel says of this process's memory, in pages. `memory_within` takes 14 us so, 23 with Path."""
    descriptor = os.open("/proc/self/statm", os.O_RDONLY)
    try:
        return os.read(descriptor, 256)
    finally:
        os.close(descriptor)
